"""`compiled`: the one way in which functions of this package are compiled to machine code, by numba.

Machine code is kept on disk, so that only the first process ever waits for the compiler: in `__pycache__` of the
package, where that can't be written in the user's cache folder, and where neither can, each process compiles it again.
One process of a machine compiles at a time, and says so once; the others wait, and load what it has made.
numba looks at the file of a function alone to see whether its code still holds; a function that another file's
functions are compiled into would run on as it was. So the folder's name holds the digest of all files with compiled
functions.

Compiled functions run without the interpreter's lock, and with integers that wrap, as hash functions need them.
Importing numba takes most of a second, loading machine code another two, and making that of dedup 12: modules with
compiled functions are imported where there is enough to do for that, never where a command is parsed.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import multiprocessing
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba.core.caching import FunctionCache
from numba.core.compiler_lock import global_compiler_lock

from command_kit.colours import DIM, Paint, is_terminal

Function = TypeVar("Function", bound=Callable[..., Any])

PACKAGE = Path(__file__).resolve().parents[1]
PREFIX = "machine-code-"


def compiled(function: Function) -> Function:
    """Decorator: `function` in machine code. It may use numbers, arrays and other compiled functions only."""
    folder = kept_in()
    njit: Any = numba.njit  # whose types leave out the last of these
    dispatcher = njit(nogil=True, error_model="numpy", no_cfunc_wrapper=True)(function)
    if folder is None:
        return cast(Function, dispatcher)
    settings: Any = numba.config
    before, settings.CACHE_DIR = settings.CACHE_DIR, str(folder)
    try:
        turn = _turn(folder)
        dispatcher._cache, compile_now = _SharedCache(function, turn), dispatcher.compile
    finally:
        settings.CACHE_DIR = before

    def compile_in_turn(signature: Any) -> Any:
        with turn:
            return compile_now(signature)

    dispatcher.compile = compile_in_turn
    return cast(Function, dispatcher)


class _Turn:
    """The turn to compile, which one process of a machine has at a time; a `with` block gives it back at its end.

    Args:
        folder: where machine code is kept. A file in it is locked, and says for which command was compiled last.
    """

    def __init__(self, folder: Path) -> None:
        self._place, self._depth = folder / "compiling", 0
        self._descriptor: int | None = None

    def __enter__(self) -> None:
        global_compiler_lock.acquire()  # of the threads
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth and self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        global_compiler_lock.release()

    def take(self) -> None:
        """Wait for the turn, until the end of the `with` block; do without where files can't be locked."""
        if self._descriptor is None:
            with contextlib.suppress(OSError):
                self._descriptor = os.open(self._place, os.O_RDWR | os.O_CREAT, 0o666)
                fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def announce(self) -> None:
        """Say that this takes a while, unless a process of the same command has said so."""
        parent = multiprocessing.parent_process()
        command = str(os.getpid() if parent is None else parent.pid).encode()
        with contextlib.suppress(OSError, TypeError):
            if os.pread(self._descriptor, 20, 0) == command:  # type: ignore[arg-type]
                return
            os.truncate(self._descriptor, 0)  # type: ignore[arg-type]
            os.pwrite(self._descriptor, command, 0)  # type: ignore[arg-type]
        line = Paint.of(sys.stderr)("compiling for this machine, the first time only, up to 15 s", DIM)
        print("\r\x1b[K" * is_terminal(sys.stderr) + line, file=sys.stderr, flush=True)


@functools.lru_cache(maxsize=1)
def _turn(folder: Path) -> _Turn:
    return _Turn(folder)


class _SharedCache(FunctionCache):
    """numba's cache of one function; who finds nothing there takes the turn to compile, and looks again."""

    def __init__(self, function: Callable[..., Any], turn: _Turn) -> None:
        super().__init__(function)
        self._shared_turn = turn

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        """See numba."""
        found = super().load_overload(signature, target_context)
        if found is None:
            self._shared_turn.take()
            found = super().load_overload(signature, target_context)
        if found is None:
            self._shared_turn.announce()
        return found


def digest_of(package: Path) -> str:
    """16 hexadecimal digits that identify all compiled functions of a package: the content of their files."""
    found = hashlib.sha256(numba.__version__.encode())
    for path in sorted(package.rglob("*.py")):
        content = path.read_bytes()
        if b"import compiled" in content:
            found.update(f"{path.relative_to(package)}\0{len(content)}\0".encode() + content)
    return found.hexdigest()[:16]


@functools.lru_cache(maxsize=1)
def kept_in() -> Path | None:
    """Where machine code is kept, or None if no folder can be written. What other versions left there is removed."""
    name = PREFIX + digest_of(PACKAGE)
    for parent in _parents():
        folder = parent / name
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
            for other in parent.glob(PREFIX + "*"):
                if other != folder:
                    shutil.rmtree(other, ignore_errors=True)
            return folder
    return None


def _parents() -> Iterator[Path]:
    settings: Any = numba.config
    if settings.CACHE_DIR:  # the user's choice
        yield Path(settings.CACHE_DIR)
    yield PACKAGE / "__pycache__"
    with contextlib.suppress(RuntimeError):  # no home
        yield Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / PACKAGE.name
