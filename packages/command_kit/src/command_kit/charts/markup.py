"""HTML and SVG as nested calls. Arguments are escaped, unless they are markup already: hostile text stays text.

    tag("p", "1 < 2", tag("b", "!"), class_="note")   ->   <p class="note">1 &lt; 2<b>!</b></p>

Characters that a reader can't see, or that turn around the text next to them, are shown by their names.

Style sheets of pages and pictures, and how a page's policy allows its own sheet and nothing else.
"""

from __future__ import annotations

import base64
import hashlib
import html
import importlib.resources
import re
from collections.abc import Iterable
from typing import Any

_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff0-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e0fff\uffff\ufffe]"
)
"""Control characters, bidirectional controls, invisible characters, lone surrogates; but no joiners, which belong to
many scripts and to emoji."""
_VOID = frozenset({"meta", "br", "hr", "col"})


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()

    def __html__(self) -> str:
        """Itself, for templates, which ask each value so."""
        return self


def visible(text: str) -> str:
    """`text` with each character that can't be seen as its code point.

    >>> visible("abc" + chr(0x202E) + "def")
    'abc⟨U+202E⟩def'
    """
    text = text.replace("\r\n", "\n")
    return _HIDDEN.sub(lambda found: f"⟨U+{ord(found[0]):04X}⟩", text)


def escape(value: object) -> Markup:
    """`value` as HTML: unchanged if it is markup, else escaped."""
    return value if isinstance(value, Markup) else Markup(html.escape(visible(str(value)), quote=True))


def join(parts: Iterable[object]) -> Markup:
    """Parts one after another, each escaped unless it is markup; None is left out."""
    return Markup("".join(escape(part) for part in parts if part is not None))


def tag(name: str, /, *children: object, **attributes: Any) -> Markup:
    """An element. `class_` is the attribute `class`, `stroke_width` is `stroke-width`; None and False are left out."""
    given = []
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        given.append(f" {key}" if value is True else f' {key}="{escape(_short(value))}"')
    begin = f"<{name}{''.join(given)}>"
    return Markup(begin if name in _VOID else f"{begin}{join(children)}</{name}>")


def _short(value: Any) -> Any:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else value


def style_sheet(*names: str, package: str = "command_kit.charts") -> str:
    """Style sheets of `package`, concatenated; this one has `colours` and `page`."""
    folder = importlib.resources.files(package) / "styles"
    return "".join((folder / f"{name}.css").read_text(encoding="utf-8") for name in names)


def digest_of(inline: str) -> str:
    """The name of an inline style sheet or script in a content security policy."""
    return f"sha256-{base64.b64encode(hashlib.sha256(inline.encode('utf-8')).digest()).decode('ascii')}"
