"""What hosts say, as a file: a JSON object a line, of one host or of one of its files; `webtext opt-outs` makes it.

Lines about other files of a host add up; of lines about one file the newest holds. They are kept packed, and decoded
when a page of the host comes: there may be millions.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable

import msgspec

from webtext_prep.documents.formats.lines import numbered_lines, read_utf8
from webtext_prep.errors import InputError
from webtext_prep.opt_outs.preferences import HostPreferences, Rules
from webtext_prep.storage.locations import Location
from webtext_prep.urls.urls import url_key


class Host(msgspec.Struct, omit_defaults=True):
    """What a host said at a time.

    Attributes:
        host: its origin, as `origin_of` has it.
        file: the path of the one file that this is of, or nothing for all of them.
        outcome: `ok`, or why it could not be asked.
        asked_at: when.
        rules: its preferences,
        unreadable: and the signals that could not be read.
    """

    host: str
    file: str = ""
    outcome: str = "ok"
    asked_at: str = ""
    rules: list[Rules] = []
    unreadable: list[str] = []


encode_host = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Host).decode


def origin_of(url: str) -> str:
    """The origin of a URL, by which what its host says is found.

    >>> origin_of("HTTPS://Example.org:443/a?b")
    'https://example.org'
    """
    return "/".join(url_key(url).split("/", 3)[:3])


def read_hosts(place: Location) -> Iterable[Host]:
    """The lines of a file. Raises InputError for one that is none."""
    for number, line in numbered_lines(place, read_utf8(place)):
        if line.strip():
            try:
                yield _decode(line)
            except (msgspec.MsgspecError, RecursionError) as error:
                raise InputError(
                    f"{place}, line {number}, is not what a host says ({error}): make the file by `webtext opt-outs`."
                ) from None


class Hosts:
    """Finds what the host of a page says. Raises InputError as `read_hosts` does."""

    def __init__(self, places: Iterable[Location]) -> None:
        self._lines: dict[str, dict[str, bytes]] = {}
        for host in sorted(itertools.chain.from_iterable(map(read_hosts, places)), key=lambda host: host.asked_at):
            self._lines.setdefault(host.host, {})[host.file] = encode_host(host)
        self._of = functools.lru_cache(maxsize=1024)(self._decoded)

    def of(self, url: str) -> HostPreferences:
        """What the host of a page says."""
        return self._of(origin_of(url)) if self._lines else HostPreferences()

    def _decoded(self, origin: str) -> HostPreferences:
        hosts = map(_decode, self._lines.get(origin, {}).values())
        return sum((HostPreferences(host.rules, host.unreadable) for host in hosts), HostPreferences())
