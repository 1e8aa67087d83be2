"""Connections of a download: to which addresses it may connect, the public internet's, and how many it may have.


A list that somebody else made, or a redirect, may name this machine, its network, or the metadata service of a cloud
(169.254.169.254 hands out credentials). So a name is resolved once, each of its addresses is checked, and the checked
addresses are the very ones connected to: a name that answers differently the second time gains nothing. Hosts that
are written as addresses never reach a resolver and are checked by themselves, in every notation that sockets know.

Names are looked up by c-ares inside the event loop: the system's own look-up holds a thread for each name until it
gives up, so that a few dozen dead names would keep all others waiting. It reads the same resolv.conf and hosts files.

The limit on open files is 1,024 in many containers, and can't be raised there. aiohttp 3.14.5 counts connections in use
alone: its pool keeps each one that waits for another request for 15 seconds, however many they are, and a crawl meets a
thousand hosts in that time. So those that have waited longest are closed. Its pool has no public way to do so; the
attributes used here are those of 3.13 and 3.14.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import ipaddress
import re
import resource
import socket
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote

import aiodns
import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.client_proto import ResponseHandler
from aiohttp.client_reqrep import ConnectionKey
from aiohttp.resolver import AsyncResolver

from command_kit import available_cores
from webtext_prep.running.processes import allow_open_files

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
PrivateAddresses = Literal["none", "loopback", "all"]
"""Which addresses outside the public internet may be connected to: none, this very machine's, or all."""

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
_NO_SUCH_NAME = ((aiodns.error.ARES_ENOTFOUND,), (aiodns.error.ARES_ENODATA,))
_NUMERIC = re.compile(r"(?:0x[0-9a-f]*|[0-9]+)(?:\.(?:0x[0-9a-f]*|[0-9]+))*\.?", re.IGNORECASE)

OTHER_FILES = 48
"""Files that a crawl has open beside its connections: its database, the resolver's sockets, pipes of processes that
start; and so many for each process that extracts:"""
FILES_OF_A_WORKER = 4
SOCKETS_OF_A_CONNECTION = 2
"""While it is made: aiohttp tries another address of the host before the first has failed (RFC 8305)."""
MOST_IDLE = 1000
"""Connections that wait, at most: each takes some 50 kB, and all hosts of a crawl that are between two requests have
room among them."""
NO_FILE_LEFT = frozenset({errno.EMFILE, errno.ENFILE})


class BlockedAddressError(Exception):
    """A host that is, or resolves to nothing but, addresses outside the public internet."""


class NoSuchNameError(OSError):
    """A name that has no address, as its name server says."""


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


@functools.lru_cache(maxsize=1 << 12)
def is_allowed(address: str, private: PrivateAddresses) -> bool:
    """Whether an address (a literal, without brackets) may be connected to.

    >>> is_allowed("127.0.0.1", "loopback"), is_allowed("169.254.169.254", "loopback"), is_allowed("10.0.0.1", "all")
    (True, False, True)
    """
    if private == "all" or is_public(address):
        return True
    if private != "loopback" or "%" in address:
        return False
    parsed = ipaddress.ip_address(address)
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return (mapped or parsed).is_loopback


def decoded_host(host: str) -> str:
    """The host of a URL with `%31` and the like decoded, as browsers do before they look at it."""
    return host if ":" in host else unquote(host)


@functools.lru_cache(maxsize=1 << 12)
def literal_address(host: str) -> str | None:
    """The address that a host in a URL is, or None where it is a name.

    Knows the notations of `inet_aton`, which sockets accept: `127.1`, `0x7f.1`, `017700000001`, `2130706433`.
    Raises ValueError for numbers that are not an address.
    """
    host = host.strip("[]")
    with contextlib.suppress(ValueError):
        return str(ipaddress.ip_address(host))
    if ":" in host or _NUMERIC.fullmatch(host):
        try:
            return socket.inet_ntoa(socket.inet_aton(host.rstrip(".")))
        except OSError:
            raise ValueError(f"{host} is not a valid address") from None
    return None


def check_host(host: str, *, private: PrivateAddresses) -> None:
    """Check the host of a URL before it is connected to. A name passes: `CheckedResolver` sees to it.

    Raises BlockedAddressError if it is an address that may not be connected to, ValueError if it is not a valid
    one at all.
    """
    address = literal_address(decoded_host(host))
    if address is not None and not is_allowed(address, private):
        raise BlockedAddressError(host)


class CheckedResolver(AbstractResolver):
    """Resolves names to allowed addresses only; the connector connects to what this gives back, and nothing else.

    Args:
        private: which addresses outside the public internet are allowed.
        seconds: for one name, all name servers and attempts together.

    Raises BlockedAddressError where a name has addresses, but none that is allowed; NoSuchNameError where it has none;
    OSError where no name server says so in time.
    """

    def __init__(self, private: PrivateAddresses, *, seconds: float) -> None:
        self._private, self._seconds = private, seconds
        self._resolver = AsyncResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """See aiohttp's `AbstractResolver`."""
        try:
            async with asyncio.timeout(self._seconds):
                found = await self._resolver.resolve(host, port, family)
        except TimeoutError:
            raise OSError(f"no name server answered within {self._seconds:g} seconds") from None
        except OSError as error:
            reason = error.__cause__
            if isinstance(reason, aiodns.error.DNSError) and reason.args[:1] in _NO_SUCH_NAME:
                raise NoSuchNameError(f"no address of {host}") from error
            raise
        allowed = [entry for entry in found if is_allowed(entry["host"], self._private)]
        if found and not allowed:
            raise BlockedAddressError(host)
        return allowed

    async def close(self) -> None:
        """Close the connections to name servers."""
        await self._resolver.close()


def connections_at_once(wanted: int) -> int:
    """As many of the `wanted` connections as the limit on open files leaves room for; it is raised as far as may be."""
    allow_open_files()
    return max(1, min(wanted, _sockets() // (SOCKETS_OF_A_CONNECTION + 1)))


def _sockets() -> int:
    """How many more files this process may open for connections."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return 1 << 20
    return soft - len(list(Path("/dev/fd").iterdir())) - OTHER_FILES - FILES_OF_A_WORKER * available_cores()


class Connector(aiohttp.TCPConnector):
    """aiohttp's connections, of which a bounded number waits for another request. It takes what that one takes."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._most_idle = max(1, min(MOST_IDLE, _sockets() - SOCKETS_OF_A_CONNECTION * self.limit))
        self._idle = 0  # at most so many, as some were taken again

    def close_idle(self, keep: int = 0) -> None:
        """Close connections that wait for another request, those that have waited longest first, but for `keep`."""
        self._idle = sum(map(len, self._conns.values()))
        while self._idle > keep:
            key = next(iter(self._conns))
            waiting = self._conns[key]
            waiting.popleft()[0].close()
            self._idle -= 1
            if not waiting:
                del self._conns[key]

    def _release(self, key: ConnectionKey, protocol: ResponseHandler, *, should_close: bool = False) -> None:
        super()._release(key, protocol, should_close=should_close)
        self._idle += 1
        if self._idle > self._most_idle:  # not each time, since counting them takes as long as they are many
            self.close_idle(self._most_idle * 3 // 4)
