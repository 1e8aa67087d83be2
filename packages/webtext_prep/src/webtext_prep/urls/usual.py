"""Usual URLs, many at once: regular expressions for a whole block of lines, a tenth of the cost of asking for each.

Usual is a URL in ASCII with a host in lower case, without port, user, percent-escape, and whatever `urls.parts_of`
would look at twice. A line of another kind, or one that is no URL, has no host here and is left to the caller.
"""

from __future__ import annotations

import re

_HOST = r"(?![a-z0-9._-]{254})[a-z0-9_-]++(?>(?:\.[a-z0-9_-]++)*)"
_LETTERS = r"!$&-.0-;=A-\[\]_a-z~"
"""What may stand in a usual URL besides `/`, `?` and `#`, as a class of a regular expression."""

_LINES = re.compile(rf"(https?://({_HOST})(?>(?:[/?#][{_LETTERS}/?#]*+)?)(?=\n)|[^\n]++)".encode())
_URLS = re.compile(
    rf"((https?://({_HOST})(?>(/[{_LETTERS}/]*+)?)(?>(?:\?[{_LETTERS}/?]++)?))(?>(?:#[{_LETTERS}/?#]*+)?)(?=\n)|[^\n]++)"
)


def hosts_of_lines(block: bytes) -> list[tuple[bytes, bytes]]:
    """Each line of a block that is not empty, with its host, which is empty unless it is a usual URL.

    Args:
        block: lines, each with its newline.
    """
    return _LINES.findall(block)


def urls_of_lines(block: str) -> list[tuple[str, str, str, str]]:
    """Each line of a block that is not empty, with its URL without fragment, host and path, as `parts_of` has them.

    All three are empty unless it is a usual URL, and the path of an address without one.
    """
    return _URLS.findall(block)
