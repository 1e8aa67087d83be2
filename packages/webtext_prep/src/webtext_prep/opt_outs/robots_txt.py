"""The groups of a robots.txt (RFC 9309) and the rules in them: one reading for what our crawler may fetch, and for what
others may not have for training. Linear in the length of the text.

Where the RFC leaves room, Google's parser (github.com/google/robotstxt) is the reference: only `Allow` and `Disallow`
end the list of names of a group, since lines of other kinds must not interfere with it (section 2.2.4); a key may go on
(`Disallowed:`), and its common misspellings count; the colon may be missing where two words are left.

Pauses and usage have groups of their own: by their texts a line of theirs is for the names above it, up to the line of
theirs before (draft-ietf-aipref-attach-05, section 3.4; contentsignals.org), wherever the rules of those names stand.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from webtext_prep.opt_outs.preferences import Rule, pattern_of, shortened

MAX_BYTES = 500 << 10
"""RFC 9309, section 2.5: at least 500 kibibytes are read; the rest is left."""
MAX_LINE = 4096
"""Characters: a longer line is passed over, since URLs are shorter than that."""
_LINE_END = re.compile(r"\r\n?|\n")
"""RFC 9309, section 2.2: no other sign ends a line, as U+2028 does for Python."""
_AGENT = re.compile(r"user[- ]?agent[\w-]*(?:\s*:\s*(.*)|\s+(\S+))", re.IGNORECASE)
_RULE = re.compile(r"(allow|diss?all?[oa]w|diasllow)[\w-]*(?:\s*:\s*(.*)|\s+(\S+))", re.IGNORECASE)
_USAGE = re.compile(r"(?:crawl[- ]delay|content-signals?|content-usage|license)\s*[:\s].*", re.IGNORECASE)
_DELAY = re.compile(r"crawl[- ]delay\s*[:\s]\s*([0-9.]+)", re.IGNORECASE)
_SETTING = re.compile(r"([\w-]+)\s*:\s*(.*)")
_TOKEN = re.compile(r"[\w-]+")


class Group(NamedTuple):
    """A group: the names of the crawlers that it is for, in lower case, and its lines without comments.

    Lines in front of the first group are one without names.
    """

    agents: list[str]
    lines: list[str]


def agent_of(user_agent: str) -> str:
    """The name by which files of a host know a crawler that introduces itself so."""
    return user_agent.split("/")[0].split(" ")[0] or "*"


def text_of(body: bytes) -> str:
    """The text of a file of a host."""
    return body[:MAX_BYTES].decode("utf-8-sig", "replace").replace("\0", "")


def groups_in(text: str, *, of_usage: bool = False) -> list[Group]:
    """The groups, in their order: those for rules, or `of_usage` those for pauses and usage."""
    groups, names_agents = [Group([], [])], False
    for line in _LINE_END.split(text):
        line = line.partition("#")[0].strip()
        if not line or len(line) > MAX_LINE:
            continue
        if found := _AGENT.fullmatch(line):
            if not names_agents:
                groups.append(Group([], []))
                names_agents = True
            groups[-1].agents.extend(_names(found[1] or found[2] or ""))
        else:
            names_agents = names_agents and not (_RULE.fullmatch(line) or (of_usage and _USAGE.fullmatch(line)))
            groups[-1].lines.append(line)
    return groups


def _names(value: str) -> list[str]:
    """The name in a value as it stands there, as some have spaces, and its first word.

    Wildcards, versions and the like are not part of a name, though some write them.
    """
    if value.split()[:1] == ["*"]:
        return ["*"]
    name = value.lower().split("/")[0].replace("*", "").strip()
    token = _TOKEN.match(name)
    return list(filter(None, dict.fromkeys([name, "" if token is None else token[0]])))


def lines_for(groups: Iterable[Group], agent: str) -> list[str]:
    """The lines that hold for `agent`: of all groups that name it, in any case, or else of those for `*`.

    A part of its name is another name (RFC 9309, section 2.2.1).
    """
    found: dict[str, list[str]] = {}
    for group in groups:
        for name in {agent.lower(), "*"}.intersection(group.agents):
            found.setdefault(name, []).extend(group.lines)
    return found.get(agent.lower(), found.get("*", []))


def rules_in(lines: Iterable[str], *, is_file_type: bool = False) -> Iterator[Rule]:
    """What `Allow` and `Disallow` say; see `pattern_of` for `is_file_type`."""
    for found in filter(None, map(_RULE.fullmatch, lines)):
        key, value = "Allow" if found[1].lower() == "allow" else "Disallow", found[2] or found[3] or ""
        if value or key == "Disallow":
            # An empty Disallow forbids nothing.
            is_allowed, pattern = key == "Allow" or not value, pattern_of(value, is_file_type=is_file_type)
            yield Rule(pattern, is_allowed, shortened(f"{key}: {value}"))


def crawl_delay_in(lines: Iterable[str]) -> float | None:
    """The longest pause between requests, in seconds, that lines ask for; None if none does."""
    found = (value[1] for value in filter(None, map(_DELAY.fullmatch, lines)))
    return max((float(value) for value in found if value.count(".") < 2 and value != "."), default=None)


def settings_in(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Of lines of the form `key: value` both, the key in lower case."""
    for found in filter(None, map(_SETTING.fullmatch, lines)):
        yield found[1].lower(), found[2]
