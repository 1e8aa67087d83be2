"""Where the processes of a job meet that no command of ours has started: the store at MASTER_ADDR and MASTER_PORT.

torch's own `env://` waits for the others inside its C++ for half an hour: no signal is heard there, and its error does
not say who is missing. So the first process opens the store without waiting, each one leaves its address in it, and all
wait in Python until every address is there. Under torchrun the store is that of its agents, who have met before.

The addresses also say over which network interface gloo is to talk: by itself it takes that of the host's name.
"""

from __future__ import annotations

import datetime
import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterable

import torch.distributed as dist

from command_kit.command import print_note
from gpt2_train.config.errors import Gpt2Error, Gpt2UsageError

PATIENCE = datetime.timedelta(minutes=30)
"""torch's own time for others to come."""
POLL_SECONDS = 0.1
QUIET_SECONDS = 5.0
"""Seconds before it is said for whom a process waits."""
AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
"""torchrun's variable for a store that its agents have opened."""


def meet(
    rank: int,
    size: int,
    timeout: datetime.timedelta | None = None,
    look: Callable[[], None] = lambda: None,
) -> dist.Store:
    """The store of a job of `size` processes, once all of them are there.

    `look` is called many times a second, and may raise to end the wait. Raises Gpt2Error if not all have come within
    `timeout` (30 minutes if None), Gpt2UsageError where the environment says no address.
    """
    waiting = _Waiting(rank, size, *_address(), timeout or PATIENCE, look)
    if os.environ.get(AGENT_STORE) == "True":
        store, _, _ = next(dist.rendezvous("env://", timeout=waiting.timeout))
    else:
        store = waiting.open_store()
    arrived = dist.PrefixStore("arrived", store)
    waiting.wait_for_all(arrived)
    addresses = [arrived.get(str(other)).decode() for other in range(size)]
    if (name := interface_of(own_address(addresses, rank))) is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
    return store


LOOPBACK = "127."


def address_towards(host: str, port: int) -> str:
    """This machine's IPv4 address on the way to `host`; empty where there is none. Nothing is sent."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            asking.connect((host, port))
            return str(asking.getsockname()[0])
    except OSError:
        return ""


def own_address(addresses: Iterable[str], rank: int) -> str:
    """The address at which others reach the process of number `rank`; `addresses` are those of all towards the first.

    The first process knows its own machine by a loopback address where the system names it so (Debian and Ubuntu write
    127.0.1.1 into /etc/hosts): it takes the one towards the first process that comes from elsewhere.
    """
    own = [*addresses][rank]
    elsewhere = next((other for other in addresses if not other.startswith(LOOPBACK)), "")
    return address_towards(elsewhere, 9) if own.startswith(LOOPBACK) and elsewhere else own


def interface_of(address: str) -> str | None:
    """The network interface that has an IPv4 `address`; None where that is not known.

    gloo by itself takes the address of the host's name: where that is a loopback address, others wait for it in vain.
    """
    if sys.platform != "linux" or not address:
        return None
    import fcntl

    for _, name in socket.if_nameindex():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            try:
                # SIOCGIFADDR, netdevice(7): a struct ifreq of 40 bytes, the address in bytes 20 to 24.
                answer = fcntl.ioctl(asking.fileno(), 0x8915, struct.pack("40s", name.encode()))
            except OSError:  # an interface without such an address
                continue
        found = socket.inet_ntoa(answer[20:24])
        if found == address or (found.startswith(LOOPBACK) and address.startswith(LOOPBACK)):
            return name
    return None


def _address() -> tuple[str, int]:
    port = os.environ["MASTER_PORT"]
    if not (port.isascii() and port.isdigit() and int(port) < 1 << 16):
        raise Gpt2UsageError(
            f"MASTER_PORT is {port!r} in the environment, which is no port: give a number below 65536."
        )
    return os.environ["MASTER_ADDR"], int(port)


class _Waiting:
    """What a process waits for, how long, and what it says meanwhile."""

    def __init__(
        self, rank: int, size: int, host: str, port: int, timeout: datetime.timedelta, look: Callable[[], None]
    ) -> None:
        self.rank, self.size, self.host, self.port = rank, size, host, port
        self.timeout, self.look = timeout, look
        self.begun = time.monotonic()
        self.said = ""

    def open_store(self) -> dist.Store:
        """The store itself in the first process, a connection to it in the others, once it answers."""
        if self.rank == 0:
            self._check_address()
        else:
            while not _answers(self.host, self.port):
                self.go_on("process 0, which does not answer yet")
        try:
            return dist.TCPStore(
                self.host, self.port, self.size, is_master=self.rank == 0, timeout=self.timeout, wait_for_workers=False
            )
        except RuntimeError as error:
            raise self._unusable(str(error).partition("\n")[0]) from None

    def _check_address(self) -> None:
        """Raise Gpt2Error if the first process can't listen here: torch's own error is a page of its C++."""
        try:
            socket.getaddrinfo(self.host, self.port)
            socket.create_server(("", self.port)).close()
        except OSError as error:
            raise self._unusable(error.strerror or str(error)) from None

    def _unusable(self, reason: str) -> Gpt2Error:
        return Gpt2Error(
            f"process {self.rank} can't meet the others at {self.host}:{self.port} ({reason}): give a MASTER_ADDR that "
            "is the address of the first process's machine, and a MASTER_PORT that is free there."
        )

    def wait_for_all(self, store: dist.Store) -> None:
        """Come, and wait until all others have."""
        store.set(str(self.rank), address_towards(self.host, self.port))
        while missing := [rank for rank in range(self.size) if not store.check([str(rank)])]:
            names = ", ".join(map(str, missing[:8])) + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")
            self.go_on(f"{len(missing)} of {self.size} processes ({names})")

    def go_on(self, whom: str) -> None:
        """Wait a moment more for `whom`. Raises Gpt2Error once it was too long, and what `look` raises."""
        self.look()
        waited = time.monotonic() - self.begun
        where = f"{self.host}:{self.port}"
        if waited > self.timeout.total_seconds():
            raise Gpt2Error(
                f"process {self.rank} of {self.size} waited {waited / 60:.3g} minutes at {where} in vain for {whom}: "
                f"start each with its RANK, WORLD_SIZE={self.size}, MASTER_ADDR={self.host} and "
                f"MASTER_PORT={self.port}, or look there for an error; unset these variables to run alone."
            )
        if waited > QUIET_SECONDS and whom != self.said:
            print_note(f"waiting for {whom} at {where}")
            self.said = whom
        time.sleep(POLL_SECONDS)


def _answers(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=1):
            return True
    except OSError:
        return False
