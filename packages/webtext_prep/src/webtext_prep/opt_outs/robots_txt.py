"""The groups of a robots.txt (RFC 9309, section 2.2), whatever lines they hold. Linear in the length of the text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

MAX_BYTES = 500 << 10
"""RFC 9309, section 2.5: at least 500 kibibytes are read; the rest is left."""
MAX_LINE = 4096
"""Characters: a longer line is passed over, since URLs are shorter than that."""
_AGENT = re.compile(r"user[- ]?agent\s*[:\s]\s*(.*)", re.IGNORECASE)
_SITE_WIDE = re.compile(r"(?:site-?maps?|host)\s*[:\s]", re.IGNORECASE)
_SETTING = re.compile(r"([\w-]+)\s*:\s*(.*)")


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


def groups_in(text: str) -> list[Group]:
    """The groups, in their order."""
    groups, names_agents = [Group([], [])], False
    for line in text.splitlines():
        line = line.partition("#")[0].strip()
        if not line or len(line) > MAX_LINE:
            continue
        if found := _AGENT.fullmatch(line):
            if not names_agents:
                groups.append(Group([], []))
                names_agents = True
            # Wildcards and versions are not part of a name, though some write them.
            name = "*" if found[1] == "*" else found[1].lower().split("/")[0].replace("*", "").strip()
            if name:
                groups[-1].agents.append(name)
        elif not _SITE_WIDE.match(line):
            names_agents = False
            groups[-1].lines.append(line)
    return groups


def lines_for(groups: Iterable[Group], agent: str) -> list[str]:
    """The lines that hold for `agent`: of all groups with the longest matching name.

    A name matches that is ours, or the first part of it, in any case; `*` matches where no other does (RFC 9309,
    section 2.2.1, and what sites that name `bot` expect).
    """
    agent, found = agent.lower(), dict[str, list[str]]()
    for group in groups:
        for name in {name for name in group.agents if name == "*" or agent.startswith(name)}:
            found.setdefault(name, []).extend(group.lines)
    return found[max(found, key=lambda name: 0 if name == "*" else len(name))] if found else []


def settings_in(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Of lines of the form `key: value` both, the key in lower case."""
    for found in filter(None, map(_SETTING.fullmatch, lines)):
        yield found[1].lower(), found[2]
