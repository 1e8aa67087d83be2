"""`Content-Signal: ai-train=no` in robots.txt: Cloudflare's Content Signals Policy of 24 September 2025.

A signal stands in a group of robots.txt, and may have a path in front: then it is for the pages that begin so. One in
front of all groups is taken for one for all crawlers. `ai-train` says yes or no; without it nothing is said.
"""

from __future__ import annotations

from collections.abc import Iterable

from webtext_prep.opt_outs.robots_txt import settings_in
from webtext_prep.opt_outs.wishes import CONTENT_SIGNAL, Rule, Rules, limited, pattern_of, shortened

_SAYS = {"yes": True, "no": False}


def read(lines: Iterable[str], source: str) -> list[Rules]:
    """The rules in the lines of a robots.txt that hold for our crawler."""
    found = []
    for key, value in settings_in(lines):
        if key not in ("content-signal", "content-signals"):
            continue
        path, signals = path_and_value(value)
        for signal in signals.split(","):
            name, _, says = signal.partition("=")
            if name.strip().lower() == "ai-train" and (is_allowed := _SAYS.get(says.strip().lower())) is not None:
                found.append(Rule(pattern_of(path), is_allowed, shortened(f"Content-Signal: {value}")))
    return [Rules(CONTENT_SIGNAL, source, rules)] if (rules := limited(found)) else []


def path_and_value(value: str) -> tuple[str, str]:
    """The path in front of a value, or nothing, and the value (draft-ietf-aipref-attach-05, section 3.2)."""
    if not value.startswith("/"):
        return "", value
    path, *rest = value.split(maxsplit=1)
    return path, rest[0] if rest else ""
