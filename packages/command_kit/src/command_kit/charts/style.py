"""Style sheets of pages and pictures, and how a page's policy allows its own sheet and nothing else."""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
import re


def style_sheet(*names: str, package: str = "command_kit.charts") -> str:
    """Style sheets of `package`, one behind the other; this one has `colours` and `page`."""
    folder = importlib.resources.files(package) / "styles"
    return "".join((folder / f"{name}.css").read_text(encoding="utf-8") for name in names)


def digest_of(inline: str) -> str:
    """How a content security policy names an inline style sheet or script."""
    return f"sha256-{base64.b64encode(hashlib.sha256(inline.encode('utf-8')).digest()).decode('ascii')}"


def light_only(text: str) -> str:
    """`text` (a style sheet, or what holds one) with the colours of light pages written out, for programs that know
    neither variables nor dark pages."""
    text = re.sub(r"@media[^{]*\{\s*:root\s*\{[^}]*\}\s*\}", "", text)
    colours = dict(re.findall(r"(--[\w-]+):\s*([^;}]+)", text))
    return re.sub(r"var\((--[\w-]+)\)", lambda found: colours.get(found[1], found[0]), text)
