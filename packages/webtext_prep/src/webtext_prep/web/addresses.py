"""Which addresses a download may connect to: those of the public internet.

A list of URLs from strangers, or a redirect, may name this machine, its network, or the metadata service of a cloud
(169.254.169.254 hands out credentials). So a name is resolved once, each of its addresses is checked, and the checked
addresses are the very ones connected to: a name that answers differently the second time gains nothing. Hosts that
are written as addresses never reach a resolver and are checked by themselves, in every notation that sockets know.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
import socket
from typing import TYPE_CHECKING

from aiohttp.abc import AbstractResolver
from aiohttp.resolver import ThreadedResolver

if TYPE_CHECKING:
    from aiohttp.abc import ResolveResult

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_NOT_PUBLIC = [
    ipaddress.ip_network(network)
    for network in (
        "100.64.0.0/10",  # between a provider and its customers; one cloud's metadata service is 100.100.100.200
        "168.63.129.16/32",  # a public address on which another cloud answers its own machines
        "192.0.0.0/24",  # protocol assignments; a third cloud's metadata service is 192.0.0.192
        "192.88.99.0/24",  # retired relays between IPv4 and IPv6
        "64:ff9b:1::/48",  # translation inside a network
        "100::/64",  # discarded
        "2001::/23",  # protocol assignments, Teredo among them
        "fec0::/10",  # the retired site-local range
    )
]
"""What the standard library's `is_global` lets pass, in one version or another, and no web site lives on."""

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_SIX_TO_FOUR = ipaddress.ip_network("2002::/16")
_NUMERIC = re.compile(r"(?:0x[0-9a-f]*|[0-9]+)(?:\.(?:0x[0-9a-f]*|[0-9]+))*\.?", re.IGNORECASE)


class BlockedAddressError(Exception):
    """A host that is, or resolves to nothing but, addresses outside the public internet."""


class OddAddressError(ValueError):
    """A host in numbers that is no valid address, or a public one in a notation that no site uses."""


def _inner(address: Address) -> Address:
    """The IPv4 address that an IPv6 address only wraps, or the address itself."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _NAT64 or int(address) >> 32 == 0:
            return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if address in _SIX_TO_FOUR:
            return ipaddress.IPv4Address(int(address) >> 80 & 0xFFFFFFFF)
    return address


def is_public(address: str) -> bool:
    """Whether an address (a literal, without brackets) belongs to the public internet.

    >>> is_public("93.184.215.14"), is_public("10.0.0.1"), is_public("::ffff:127.0.0.1")
    (True, False, False)
    """
    if "%" in address:  # with a zone: meaningful on one link only
        return False
    inner = _inner(ipaddress.ip_address(address))
    if not inner.is_global or inner.is_multicast or inner.is_reserved or inner.is_unspecified:
        return False
    return not any(inner in network for network in _NOT_PUBLIC if network.version == inner.version)


def literal_address(host: str) -> str | None:
    """The address that a host in a URL is, or None where it is a name.

    Knows the notations of `inet_aton`, which sockets accept: `127.1`, `0x7f.1`, `017700000001`, `2130706433`.
    Raises OddAddressError for numbers that are no address.
    """
    host = host.strip("[]")
    with contextlib.suppress(ValueError):
        return str(ipaddress.ip_address(host))
    if ":" in host or _NUMERIC.fullmatch(host):
        try:
            return socket.inet_ntoa(socket.inet_aton(host.rstrip(".")))
        except OSError:
            raise OddAddressError(host) from None
    return None


def check_host(host: str, *, allow_private: bool) -> None:
    """Check the host of a URL before it is connected to. A name passes: `CheckedResolver` sees to it.

    Raises BlockedAddressError if it is an address outside the public internet, OddAddressError if it is none at all.
    """
    address = literal_address(host)
    if address is not None and not allow_private and not is_public(address):
        raise BlockedAddressError(host)


class CheckedResolver(AbstractResolver):
    """Resolves names to public addresses only; the connector connects to what this gives back, and nothing else.

    Raises BlockedAddressError where a name has addresses, but no public one; OSError where it has none.
    """

    def __init__(self) -> None:
        self._resolver = ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """See aiohttp's `AbstractResolver`."""
        found = await self._resolver.resolve(host, port, family)
        public = [entry for entry in found if is_public(entry["host"])]
        if found and not public:
            raise BlockedAddressError(host)
        return public

    async def close(self) -> None:
        """Nothing to release."""
        await self._resolver.close()
