"""Lines of robots.txt that say what pages may be used for: `Content-Signal` and `Content-Usage` have one form.

A path may stand in front of what is said; then it is for the pages that begin so, as with `Disallow`, and ends at the
first space (draft-ietf-aipref-attach-05, section 3.2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from webtext_prep.opt_outs.robots_txt import settings_in
from webtext_prep.opt_outs.wishes import HostWishes, Rule, pattern_of, shortened


def read_usage(
    lines: Iterable[str], name: str, says: Callable[[str], bool | None], signal: str, source: str
) -> HostWishes:
    """The rules in lines of a name; `says` tells what a value says of training, and raises ValueError for no value."""
    found, unreadable = [], set[str]()
    for key, value in settings_in(lines):
        if key == name.lower():
            path, _, said = value.replace("\t", " ").partition(" ") if value.startswith("/") else ("", "", value)
            try:
                is_allowed = says(said)
            except ValueError:
                unreadable.add(signal)
                continue
            if is_allowed is not None:
                found.append(Rule(pattern_of(path), is_allowed, shortened(f"{name}: {value}")))
    return HostWishes.of(signal, source, found, unreadable)
