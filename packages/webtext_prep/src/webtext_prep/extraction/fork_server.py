"""A process that imports an extractor once and forks workers from then on: a new one in milliseconds.

Importing takes from 0.3 to 1 second of processor time, which each worker would pay for itself, and again whenever a
page has killed one; forked workers also share the memory of what was imported. The server runs one thread and nothing
but these lines, so that forking it is safe. It is asked through a socket, by which it also gets the workers' ends of
their pipes, and tells there how each worker ended. It ends with that socket, and its workers with it.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import gc
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from typing import IO, NoReturn

import msgspec

from webtext_prep.errors import WebtextError

MAIN = "from webtext_prep.extraction.fork_server import serve; serve()"
"""What the interpreter of a server runs."""
START_SECONDS = 120
"""A server that has not imported its extractor by then never will."""
STARTED = 1 << 16
"""In the place of an exit code: the worker has been forked."""

_EVENT = struct.Struct("<iii")
"""What a server tells: a worker's number, its process id (or a negative error number), its exit code or `STARTED`."""
_READY = b"+"
_LENGTH = struct.Struct("<I")


class _Start(msgspec.Struct):
    """What a server is started with."""

    extractor: str
    parent: int


# In the server


def serve() -> None:
    """A server's life; its standard input is the socket."""
    # What a library prints must not get anywhere.
    control = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    from webtext_prep.extraction.extractors import warm_up
    from webtext_prep.extraction.workers import end_with_parent

    settings = msgspec.msgpack.decode(_receive(control)[0], type=_Start)
    end_with_parent(settings.parent)
    warm_up(settings.extractor)
    os.dup2(nothing, 2)  # until here, what it printed said why it could not start
    # What has been imported is left alone by the garbage collectors of all workers, and its memory stays shared.
    gc.collect()
    gc.freeze()
    wake, wake_end = os.pipe()
    os.set_blocking(wake_end, False)
    signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    control.sendall(_READY)
    numbers: dict[int, int] = {}
    with contextlib.suppress(OSError, EOFError):
        while True:
            ready, _, _ = select.select([control.fileno(), wake], [], [])
            if wake in ready:
                os.read(wake, 4096)
                for event in _ended(numbers):
                    control.sendall(event)
            if control.fileno() in ready:
                control.sendall(_fork(control, numbers))


def _receive(control: socket.socket) -> tuple[bytes, list[int]]:
    """One message with the descriptors that came with it. Raises EOFError at the end."""
    data, files, _, _ = socket.recv_fds(control, 1 << 16, 2)
    while len(data) < _LENGTH.size or len(data) < _LENGTH.size + _LENGTH.unpack_from(data)[0]:
        more = control.recv(1 << 16)
        if not more:
            raise EOFError
        data += more
    return data[_LENGTH.size :], files


def _ended(numbers: dict[int, int]) -> Iterator[bytes]:
    """The events of workers that have ended."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            yield _EVENT.pack(numbers.pop(pid), pid, os.waitstatus_to_exitcode(status))


def _fork(control: socket.socket, numbers: dict[int, int]) -> bytes:
    """Fork the worker that is asked for; the event that says so."""
    data, files = _receive(control)
    number, parent = _LENGTH.unpack_from(data)[0], os.getpid()
    try:
        pid = os.fork()
    except OSError as error:
        return _EVENT.pack(number, -(error.errno or 1), STARTED)
    for file in files if pid else [control.detach()]:
        os.close(file)
    if not pid:
        _become_worker(files, data[_LENGTH.size :], parent)
    numbers[pid] = number
    return _EVENT.pack(number, pid, STARTED)


def _become_worker(files: list[int], limits: bytes, parent: int) -> NoReturn:
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)

        from webtext_prep.extraction.workers import Limits, work

        work(files[0], files[1], msgspec.msgpack.decode(limits, type=Limits), parent)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


# In the process that asks


class ForkServer:
    """A running server, as the process that started it sees it."""

    def __init__(self, extractor: str, process: subprocess.Popen[bytes], control: socket.socket) -> None:
        self.extractor, self._process, self.control = extractor, process, control
        self._data = b""

    @classmethod
    async def start(cls, extractor: str, folder: str) -> ForkServer:
        """Start one and wait until it has imported `extractor`.

        Raises WebtextError, with what it printed, if it cannot.
        """
        # A hash seed of its own would make two runs differ: the extractors go through sets of strings. And a library
        # with threads must not be forked.
        environment = {**os.environ, "PYTHONHASHSEED": "0", "TMPDIR": folder, "OPENBLAS_NUM_THREADS": "1"}
        ours, theirs = socket.socketpair()
        with tempfile.TemporaryFile(dir=folder) as errors, theirs:
            command = [sys.executable, "-P", "-c", MAIN]
            process = subprocess.Popen(
                command, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, stderr=errors, env=environment
            )
            server = cls(extractor, process, ours)
            theirs.close()
            try:
                ours.setblocking(False)
                async with asyncio.timeout(START_SECONDS):
                    await server._greet()
            except (OSError, EOFError) as error:
                code = server.close(is_ending=isinstance(error, EOFError))
                reason = _last_line(errors) or f"exit code {code}"
                raise WebtextError(f"the extractor {extractor} did not start: {reason}") from None
            except BaseException:
                server.close()
                raise
        return server

    async def _greet(self) -> None:
        loop = asyncio.get_running_loop()
        data = msgspec.msgpack.encode(_Start(self.extractor, os.getpid()))
        await loop.sock_sendall(self.control, _LENGTH.pack(len(data)) + data)
        if await loop.sock_recv(self.control, 1) != _READY:
            raise EOFError

    def is_alive(self) -> bool:
        """Whether it can be asked for workers."""
        return self._process.poll() is None

    def fork(self, number: int, limits: bytes, pages: int, results: int) -> None:
        """Ask for a worker. Its `STARTED` must have come before the next one is asked for. Raises OSError.

        Args:
            number: by which its events name it.
            limits: its `Limits`, in MessagePack.
            pages: the descriptor that it reads from; this process may close it afterwards.
            results: the descriptor that it writes to.
        """
        data = _LENGTH.pack(number) + limits
        socket.send_fds(self.control, [_LENGTH.pack(len(data)) + data], [pages, results])

    def events(self) -> Iterator[tuple[int, int, int]]:
        """What has happened: a worker's number, its process id (a negative error number if it could not be forked),
        and `STARTED` or the exit code with which it ended, negative for a signal.

        Raises EOFError if the server is gone.
        """
        try:
            data = self.control.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError as error:
            raise EOFError from error
        if not data:
            raise EOFError
        self._data += data
        whole = len(self._data) // _EVENT.size * _EVENT.size
        data, self._data = self._data[:whole], self._data[whole:]
        yield from _EVENT.iter_unpack(data)

    def close(self, *, is_ending: bool = False) -> int:
        """End it and its workers; gives back its exit code. With `is_ending` it is given some time to end by itself."""
        self.control.close()
        if is_ending:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self._process.wait(5)
        self._process.kill()
        return self._process.wait()


def _last_line(file: IO[bytes]) -> str:
    """The last line that says something, "" if there is none."""
    file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
    lines = [line.strip() for line in file.read().decode("utf-8", "replace").splitlines()]
    return next((line for line in reversed(lines) if line), "")


_spare: list[ForkServer] = []
"""The server that nobody uses at the moment, for the next shard of the same run."""


async def borrow(extractor: str, folder: str) -> ForkServer:
    """A server for this extractor, by itself: the one that was given back last, or a new one. Raises as `start`."""
    while _spare:
        server = _spare.pop()
        if server.extractor == extractor and server.is_alive():
            return server
        server.close()
    return await ForkServer.start(extractor, folder)


def give_back(server: ForkServer) -> None:
    """Keep a server that has no workers left for the next one who wants it."""
    if _spare:
        server.close()
    else:
        _spare.append(server)


@atexit.register
def _close_spare() -> None:
    while _spare:
        _spare.pop().close()
