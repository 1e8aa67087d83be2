"""The TDM Reservation Protocol: W3C Community Group Final Report of 10 May 2024.

`tdm-reservation` is 1 where rights are reserved and 0 where not; anything else is unset. It stands in
`/.well-known/tdmrep.json`, a list of rules of which the first that matches holds, in a header, and in a tag of the
page; each supersedes the one before, and where it is unset what was said before stays ("Processing priority"). Of a
header or tag that comes twice the stricter counts. `tdm-policy` is kept in the words.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any

from command_kit import parse_json
from webtext_prep.opt_outs.robots_txt import MAX_BYTES
from webtext_prep.opt_outs.wishes import TDM_RESERVATION, HostWishes, Rule, Wish, pattern_of, shortened

PATH = "/.well-known/tdmrep.json"
NAME, POLICY = "tdm-reservation", "tdm-policy"
_SAYS = {"1": False, "0": True}


def read(body: bytes, source: str) -> HostWishes:
    """The rules of a tdmrep.json; none where a host answers with a page instead."""
    if body.lstrip()[:1] == b"<":
        return HostWishes()
    entries: Any = None
    with contextlib.suppress(ValueError, RecursionError):
        entries = parse_json(body.removeprefix(b"\xef\xbb\xbf")) if len(body) < MAX_BYTES else None
    if not isinstance(entries, list):
        return HostWishes(unreadable=[TDM_RESERVATION])
    return HostWishes.of(TDM_RESERVATION, source, filter(None, map(_rule, entries)))


def _rule(entry: Any) -> Rule | None:
    location, value = (entry.get("location"), entry.get(NAME)) if isinstance(entry, dict) else (None, None)
    is_allowed = None if isinstance(value, bool) else _SAYS.get(str(value))
    if is_allowed is None or not isinstance(location, str) or not location or len(location) > MAX_BYTES >> 7:
        return None
    return Rule(pattern_of(location), is_allowed, _words(str(value), entry.get(POLICY)))


def _words(value: str, policy: Any) -> str:
    return shortened(f"{NAME}: {value}" + (f"; {POLICY}: {policy}" if isinstance(policy, str) and policy else ""))


def read_values(values: Iterable[str], policies: Sequence[str], url: str) -> Wish | None:
    """What a page says in its headers, or in its tags; the policies are what it says of `tdm-policy` there."""
    found = [value for value in map(str.strip, values) if value in _SAYS]
    if not found:
        return None
    value = max(found)
    return Wish(TDM_RESERVATION, _SAYS[value], _words(value, policies[0].strip() if policies else None), url)
