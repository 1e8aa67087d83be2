"""Style sheets of pages and pictures, and how a page's policy allows its own sheet and nothing else."""

from __future__ import annotations

import base64
import hashlib
import importlib.resources


def style_sheet(*names: str, package: str = "command_kit.charts") -> str:
    """Style sheets of `package`, one behind the other; this one has `colours` and `page`."""
    folder = importlib.resources.files(package) / "styles"
    return "".join((folder / f"{name}.css").read_text(encoding="utf-8") for name in names)


def digest_of(inline: str) -> str:
    """How a content security policy names an inline style sheet or script."""
    return f"sha256-{base64.b64encode(hashlib.sha256(inline.encode('utf-8')).digest()).decode('ascii')}"
