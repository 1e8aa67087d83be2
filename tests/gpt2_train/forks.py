"""Python programs in processes of their own, without the seconds in which each imports torch.

They are forks of a server that has imported it and done nothing else. So are the processes that `gpt2` starts in them,
and the steps of a pipeline.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import importlib
import itertools
import json
import os
import pickle
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import types
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

from tests.webtext_prep.support.processes import descendants

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 800
"""Seconds until what has not ended is killed, and its processes say where they are."""

SETTINGS = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT)}
"""Of each process, which exchanges with others through the loopback address."""

_connections: dict[Path, socket.socket] = {}


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Nobody else looks for a server, or ends one."""
    with Path(tempfile.gettempdir(), f"forks-{os.getuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _server() -> socket.socket:
    """A connection to the server of this test run, whose forks have imported torch; it is started where there is none.

    All workers of a run share one, and one more for programs with another library preloaded. It ends with the last
    process that has a connection.
    """
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    name = f"forks-{run[:16]}-{zlib.crc32(os.environ.get('LD_PRELOAD', '').encode()):08x}"
    place = Path(tempfile.gettempdir(), name)
    if place not in _connections:
        connection = socket.socket(socket.AF_UNIX)
        with _alone():
            try:
                connection.connect(str(place))
            except OSError:
                place.unlink(missing_ok=True)
                with socket.socket(socket.AF_UNIX) as listener:
                    listener.bind(str(place))
                    listener.listen(64)
                    code = f"from tests.gpt2_train.forks import serve; serve({listener.fileno()})"
                    words = [sys.executable, "-c", code]
                    subprocess.Popen(words, pass_fds=[listener.fileno()], env=os.environ | SETTINGS)
                connection.connect(str(place))
        _connections[place] = connection
    return _connections[place]


def serve(listening: int) -> None:
    """Fork for each message of a client: it brings standard output, standard error and a channel."""
    importlib.import_module("tests.gpt2_train.preloaded")
    for number in (signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_IGN)
    listener = socket.socket(fileno=listening)
    clients: list[socket.socket] = []
    while True:
        for ready in select.select([listener, *clients], [], [])[0]:
            if ready is listener:
                clients.append(listener.accept()[0])
                continue
            message, pipes, *_ = socket.recv_fds(ready, 1, 3)
            if message and os.fork() == 0:
                for one in (listener, *clients):
                    one.close()
                _watch(*pipes)
            for pipe in pipes:
                os.close(pipe)
            if not message:
                clients.remove(ready)
                ready.close()
        if not clients:
            with _alone():
                if not select.select([listener], [], [], 0)[0]:
                    Path(listener.getsockname()).unlink(missing_ok=True)
                    return


def _watch(output: int, errors: int, number: int) -> NoReturn:
    """Run a program that the channel describes in a fork, and tell its process id and its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with socket.socket(fileno=number) as channel, channel.makefile("rwb", buffering=0) as told:
        words, environment, folder = pickle.load(told)
        pid = os.fork()
        if pid == 0:
            channel.close()
            _begin(words, [output, errors], environment, folder)
        os.close(output)
        os.close(errors)
        told.write(b"%d\n" % pid)
        told.write(b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    os._exit(0)


class Started:
    """A running program, with what of `subprocess.Popen` the tests use.

    Args:
        words: a command line that begins with this Python; then `-m`, `-c` or a script.
    """

    def __init__(self, words: Sequence[object]) -> None:
        self.words = [*map(str, words)]
        pipes = [os.pipe() for _ in range(2)]
        self._channel, other = socket.socketpair()
        with other:
            socket.send_fds(_server(), [b"."], [*(writing for _, writing in pipes), other.fileno()])
        self.stdout, self.stderr = (os.fdopen(reading) for reading, _ in pipes)
        for _, writing in pipes:
            os.close(writing)
        self._told = self._channel.makefile("rwb", buffering=0)
        self._channel.sendall(pickle.dumps((self.words, os.environ | SETTINGS, Path.cwd())))
        self.pid = int(self._told.readline())
        self._code: int | None = None

    def _wait(self, seconds: float | None) -> int | None:
        if self._code is None and select.select([self._channel], [], [], seconds)[0]:
            self._code = int(self._told.readline())
            self._told.close()
            self._channel.close()
        return self._code

    @property
    def returncode(self) -> int | None:
        return self._wait(0)

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)

    def give_up(self) -> None:
        """Kill it and its descendants, which first write where each of their threads is."""
        family = [self.pid, *descendants(self.pid)]
        for number in (signal.SIGXCPU, signal.SIGKILL):
            for pid in family:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            select.select([self._channel], [], [], 1)

    def communicate(self) -> tuple[str, str]:
        """What it still writes to its standard output and error until it ends."""
        late = threading.Timer(PATIENCE, self.give_up)
        late.start()
        with self.stdout, self.stderr, ThreadPoolExecutor() as readers:
            output, errors = readers.map(lambda pipe: pipe.read(), (self.stdout, self.stderr))
        self._wait(None)
        late.cancel()
        return output, errors


def run(words: Sequence[object]) -> subprocess.CompletedProcess[str]:
    """Run a program to its end."""
    return run_together([words])[0]


def run_together(commands: Iterable[Sequence[object]]) -> list[subprocess.CompletedProcess[str]]:
    """Run several at once, each to its end; 64 KiB of what they write have room until they are read in turn."""
    begun = [Started(words) for words in commands]
    said = [started.communicate() for started in begun]
    return [
        subprocess.CompletedProcess(started.words, started.returncode or 0, *texts)
        for started, texts in zip(begun, said, strict=True)
    ]


def program(work: Callable[..., Any], *arguments: Any) -> list[str]:
    """The command line of a process that calls `work`, a function of a module, and prints what it returns as JSON.

    `arguments` are what JSON can hold, paths as text.
    """
    return [sys.executable, "-m", __name__, work.__module__, work.__name__, json.dumps(arguments, default=str)]


def in_group(
    size: int, work: Callable[..., Any], *arguments: Any, fails: bool = False
) -> list[subprocess.CompletedProcess[str]]:
    """Run a `program` in each of `size` processes; several of them are a group over gloo.

    All of them have to end well, unless one `fails`.
    """
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    done = run_together([*program(work, *arguments), store.port, size, rank] for rank in range(size))
    assert fails or not any(process.returncode for process in done), "\n".join(one.stderr[-3000:] for one in done)
    return done


def in_job(size: int, folder: Path, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What a `program` prints in each process of a job of `gpt2` that meets in `folder`; all have to end well."""
    started = []
    for rank in range(size):
        numbers = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size}
        with mock.patch.dict(os.environ, {name: str(value) for name, value in numbers.items()}):
            os.environ["GPT2_JOB_FOLDER"] = str(folder)
            started.append(Started(program(work, *arguments)))
    done = [process.communicate() for process in started]
    assert not any(process.returncode for process in started), "\n".join(errors[-3000:] for _, errors in done)
    return [json.loads(output) for output, _ in done]


def _work(module: str, name: str, arguments: str, *numbers: str) -> None:
    import torch
    import torch.distributed as dist

    port, size, rank = map(int, numbers or (0, 1, 0))
    # Makes the thread pool anew, which a fork has lost: two threads that need it at once would both try, and abort.
    torch.set_num_threads(1)
    if size > 1:
        store = dist.TCPStore("127.0.0.1", port, is_master=False)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    found = getattr(importlib.import_module(module), name)(*json.loads(arguments))
    if found is not None:
        print(json.dumps(found))
    if size > 1:
        dist.barrier()
        dist.destroy_process_group()


def _begin(words: list[str], pipes: Sequence[int], environment: dict[str, str], folder: Path) -> NoReturn:
    for number, pipe in enumerate(pipes, 1):
        os.dup2(pipe, number)
        os.close(pipe)
    # Those that there were remember whether they could seek in what the server had.
    sys.stdout, sys.stderr = (open(number, "w", buffering=1, closefd=False) for number in (1, 2))  # noqa: SIM115
    os.chdir(folder)
    from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

    from webtext_run import runner

    runner.subprocess = forking  # type: ignore[assignment]
    subprocess_handler.Popen = _fork  # type: ignore[assignment,misc]
    _become(words, environment)


_plain = subprocess.Popen


def _fork(
    args: Sequence[str], *, pass_fds: Sequence[int] = (), env: Mapping[str, str] = os.environ, **options: Any
) -> subprocess.Popen[Any]:
    """`subprocess.Popen` of a Python program that is a fork of this process, which has no threads of torch."""

    def begin() -> NoReturn:
        # The pipe through which Popen waits for a program to begin is one of those that are closed.
        for low, high in itertools.pairwise([2, *sorted(pass_fds), os.sysconf("SC_OPEN_MAX")]):
            os.closerange(low + 1, high)
        _become([*args], dict(env))

    # What a thread has locked meanwhile, as that of torch's store has libc's resolver, stays locked in the fork.
    with contextlib.suppress(OSError):  # one has just ended
        names = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
        assert not any(name.startswith("pt_") for name in names), "a process that is forked has threads of torch"
    return _plain(args, preexec_fn=begin, pass_fds=pass_fds, **options)


def _run_fork(words: list[str], **options: Any) -> subprocess.CompletedProcess[Any]:
    with mock.patch.object(subprocess, "Popen", _fork):
        return subprocess.run(words, **options)


forking = types.SimpleNamespace(**vars(subprocess) | {"Popen": _fork, "run": _run_fork})
"""What stands for `subprocess` in a module of a fork, which starts Python programs alone."""


def _become(words: list[str], environment: dict[str, str]) -> NoReturn:
    """Run the program of a command line in this process, which has no server of its own yet, and end it."""
    faulthandler.register(signal.SIGXCPU)
    resource_tracker._resource_tracker.__init__()  # type: ignore[misc]
    forkserver._forkserver.__init__()  # type: ignore[misc]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(environment)
    status: Any = 1
    try:
        _run_program(*words[1:])
        status = 0
    except SystemExit as end:
        status = end.code or 0
        if isinstance(status, str):
            print(status, file=sys.stderr)
            status = 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _run_program(first: str, *rest: str) -> None:
    if first == "-m":
        name, *arguments = rest
        sys.argv = ["", *arguments]
        sys.modules.pop(name, None)  # runpy warns of a module that is there already.
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    elif first == "-c":
        code, *arguments = rest
        sys.argv = ["-c", *arguments]
        sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(code, "<string>", "exec"), vars(sys.modules["__main__"]))
    else:
        sys.argv = [first, *rest]
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    _work(*sys.argv[1:])
