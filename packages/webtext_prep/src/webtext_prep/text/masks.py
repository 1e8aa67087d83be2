"""Placeholders for what should not be published: e-mail addresses, and public IP addresses.

Placeholders are addresses that are reserved for documentation: the domain example.com (RFC 2606), 192.0.2.1 (RFC 5737)
and 2001:db8::1 (RFC 3849). They look like what they stand for, belong to nobody, and are left alone when they are met
again, as are all others that are reserved, and private addresses.

A text is searched closely only where it has an `@`, two numbers in a row between dots, or colons as in an address.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from itertools import pairwise

EMAIL, IPV4, IPV6 = "user@example.com", "192.0.2.1", "2001:db8::1"
"""What stands in the place of addresses."""

_LABEL = r"[^\W_](?:[\w-]{0,61}[^\W_])?"
_EMAIL = re.compile(rf"@((?:{_LABEL}\.)+[^\W\d_]{{2,24}})(?![\w@]|\.[^\W_]|:[\w~/])")
"""What follows the local part: a domain, which no path of a repository follows, as in git@example.org:me/it."""
_LOCAL = re.compile(r"[\w%+'.-]+\Z")
"""A local part, of the characters that are in use, and what may stand before one."""
_LOCAL_CHARACTERS = 64
"""Of a local part (RFC 5321, section 4.5.3.1.1)."""
_FILES = frozenset(("png", "jpg", "jpeg", "gif", "svg", "webp", "css", "js"))
"""What `icon@2x.png` ends with."""
_RESERVED = re.compile(r"(?:^|\.)(?:example\.(?:com|org|net)|example|test|invalid|localhost)\Z")
_IPV4 = re.compile(r"(?<![\w.])(?:[0-9]{1,3}\.){3}[0-9]{1,3}(?![\w-]|\.\w)")
_NUMBERED = re.compile(
    r"(?:\b(?:versions?|ver|release|firmware|build|sections?|sec|chapter|clause|article|figure|table|rule|no)\.?|§)\s?\Z",
    re.IGNORECASE,
)
"""What numbers of four parts stand after that are no addresses."""
_NUMBERED_CHARACTERS = 12
_IPV6 = re.compile(r"(?<![\w:.])[23][0-9A-Fa-f]{3}:[0-9A-Fa-f:]{1,34}(?![\w:]|\.\d)")
"""All that is routed begins so: 2000::/3 (RFC 4291, section 2.4; IANA's registry of global unicast addresses)."""
_ZEROS = re.compile(r"::(?<=[0-9A-Fa-f]::)")
"""Zeros that are left out."""
_INNER_PARTS = 6
"""Of an address of version 6 that leaves no zeros out: the parts between two colons."""


def mask_emails(text: str) -> tuple[str, int]:
    """(text, number): with each e-mail address replaced."""
    if "@" not in text:
        return text, 0
    parts, end, number = [], 0, 0
    for found in _EMAIL.finditer(text):
        domain = found[1].lower()
        before = text[max(end, found.start() - _LOCAL_CHARACTERS) : found.start()]
        local = _LOCAL.search(before)
        name = local[0].lstrip("%+'.-") if local is not None else ""
        if not name or _RESERVED.search(domain) or domain.rpartition(".")[2] in _FILES:
            continue
        parts += [text[end : found.start() - len(name)], EMAIL]
        end = found.end()
        number += 1
    return "".join([*parts, text[end:]]), number


def mask_addresses(text: str) -> tuple[str, int]:
    """(text, number): with each public IP address replaced, of version 4 and 6."""
    number = 0

    def placeholder(found: re.Match[str]) -> str:
        nonlocal number
        try:
            address = ipaddress.ip_address(found[0])
        except ValueError:
            return found[0]
        before = text[max(0, found.start() - _NUMBERED_CHARACTERS) : found.start()]
        if not address.is_global or _NUMBERED.search(before):
            return found[0]
        number += 1
        return IPV4 if address.version == 4 else IPV6

    if any(one and other for one, other in pairwise(map(str.isdigit, text.split(".")))):
        text = _IPV4.sub(placeholder, text)
    if ":" in text and (_ZEROS.search(text) or sum(len(part) <= 4 for part in text.split(":")) >= _INNER_PARTS):
        text = _IPV6.sub(placeholder, text)
    return text, number


MASKS: dict[str, Callable[[str], tuple[str, int]]] = {"email": mask_emails, "ip": mask_addresses}
"""What `--mask` chooses from."""
