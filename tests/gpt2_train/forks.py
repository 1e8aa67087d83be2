"""Python programs in processes of their own, without the seconds in which each imports torch.

They are forks of a server that has imported it and done nothing else. So are the processes that `gpt2` starts in them,
and the steps of a pipeline.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import itertools
import json
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import threading
import traceback
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import connection, forkserver, resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

from tests.webtext_prep.support.processes import descendants

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 300
"""Seconds until what has not ended is killed, and its processes say where they are."""

SETTINGS = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT)}
"""Of each process, which exchanges with others through the loopback address."""

_context = multiprocessing.get_context("forkserver")


def new_server() -> forkserver.ForkServer:
    """A server whose forks have imported torch; it gets the environment in which it is first used.

    That of multiprocessing itself is webtext_prep's, which starts it with SIGINT blocked.
    """
    server = forkserver.ForkServer()
    server.set_forkserver_preload(["tests.gpt2_train.preloaded"])
    return server


server = new_server()


class Started:
    """A running program, with what of `subprocess.Popen` the tests use.

    Args:
        words: a command line that begins with this Python; then `-m`, `-c` or a script.
        server: what it is a fork of.
    """

    def __init__(self, words: Sequence[object], server: forkserver.ForkServer = server) -> None:
        self.words = [*map(str, words)]
        pipes = [multiprocessing.Pipe(duplex=False) for _ in range(2)]
        self.stdout, self.stderr = (os.fdopen(os.dup(reading.fileno())) for reading, _ in pipes)
        with mock.patch.dict(os.environ, SETTINGS):
            server.ensure_running()
            state = (self.words, [writing for _, writing in pipes], dict(os.environ), Path.cwd())
            self._process = _context.Process(target=_begin, args=state)
            with mock.patch.object(forkserver, "connect_to_new_process", server.connect_to_new_process):
                self._process.start()
        for pipe in itertools.chain(*pipes):
            pipe.close()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()

    def give_up(self) -> None:
        """Kill it and its descendants, which first write where each of their threads is."""
        family = [self.pid, *descendants(self.pid)]
        for number in (signal.SIGXCPU, signal.SIGKILL):
            for pid in family:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            connection.wait([self._process.sentinel], 1)  # whoever joins it is to read its exit code, and nobody else

    def communicate(self) -> tuple[str, str]:
        """What it still writes to its standard output and error until it ends."""
        late = threading.Timer(PATIENCE, self.give_up)
        late.start()
        with self.stdout, self.stderr, ThreadPoolExecutor() as readers:
            output, errors = readers.map(lambda pipe: pipe.read(), (self.stdout, self.stderr))
        self._process.join()
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


def _begin(words: list[str], pipes: list[Connection], environment: dict[str, str], folder: Path) -> NoReturn:
    for number, pipe in enumerate(pipes, 1):
        os.dup2(pipe.fileno(), number)
        pipe.close()
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
    """Run the program of a command line in this process, which has no server and no parent yet, and end it."""
    faulthandler.register(signal.SIGXCPU)
    resource_tracker._resource_tracker.__init__()  # type: ignore[misc]
    forkserver._forkserver.__init__()  # type: ignore[misc]
    multiprocessing.process._parent_process = None  # type: ignore[attr-defined]
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
