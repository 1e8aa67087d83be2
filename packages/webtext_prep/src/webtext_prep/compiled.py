"""Functions in machine code, made by numba and kept by its cache: only the first process ever waits for the compiler.

The types of their arguments are given, so that each is compiled once, when its module is imported, and workers that
are forked from a process with the module have it. numba keeps the code by processor, in `__pycache__` next to the
module, in the user's cache folder where that can't be written, or where `NUMBA_CACHE_DIR` says; a process that can
write nowhere compiles for itself.

numba looks at the file of a function alone to see whether its code still holds. So a compiled function calls only
functions of its own file, and takes constants from there.

Compiled functions run without the interpreter's lock, and with integers that wrap, as hash functions need them.
Importing numba takes a quarter of a second, reading machine code half a second, and making that of `dedup` ten: modules
with compiled functions are imported where they are used, never where a command is parsed.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba import types
from numba.core import entrypoints, event
from numba.np import linalg

from command_kit.atomic import atomic_file
from command_kit.colours import DIM, Paint, is_terminal

Function = TypeVar("Function", bound=Callable[..., Any])

# numba asks for scipy's BLAS, which takes 0.2 s to load, when it loads its functions of arrays, and again for a product
# of matrices, of which there is none here.
_ensure_blas, linalg.ensure_blas = linalg.ensure_blas, lambda: None
importlib.import_module("numba.np.arraymath")
linalg.ensure_blas = _ensure_blas
# numba flushes nothing of what it renames: after a power cut the file may be empty, and each command failed at it.
_caching: Any = importlib.import_module("numba.core.caching")
_caching.IndexDataCacheFile._open_for_write = lambda cache, path: atomic_file(path)

_functions: Any = types.Function
_get_call_type = _functions.get_call_type
_known_types: dict[tuple[Any, ...], Any] = {}


def _call_type(function: Any, context: Any, args: Any, kws: Any) -> Any:
    """The signature of an operator for numbers and arrays. At each place where it stands numba tries all that it may
    mean, for sets and strings, too: a third of the time of compiling."""
    plain = tuple(map(types.unliteral, args))
    if kws or not all(isinstance(one, (types.Number, types.Boolean, types.Array)) for one in plain):
        return _get_call_type(function, context, args, kws)
    key = (function, context, plain)
    if key not in _known_types:
        _known_types[key] = _get_call_type(function, context, plain, kws)
    return _known_types[key]


_functions.get_call_type = _call_type

_njit: Any = functools.partial(numba.njit, nogil=True, error_model="numpy", no_cfunc_wrapper=True)
inner: Any = _njit(no_cpython_wrapper=True)
"""Decorator: a function for compiled ones of the same file, which Python can't call."""
BYTES = types.Array(types.uint8, 1, "C", readonly=True)
"""The type of an array of bytes that may be read-only."""


def compiled(*signatures: Any) -> Callable[[Function], Function]:
    """Decorator: a function in machine code for arguments of these types, numba's signatures.

    It may use numbers, arrays, named tuples of them (`tuple_of`), and functions of its file that are `compiled` or
    `inner`.
    """

    def made(function: Function) -> Function:
        own = Path(function.__code__.co_filename)
        with _turn(own), _without_extensions(), event.install_listener("numba:compile", _Announcer()):
            try:
                return cast(Function, _njit(list(signatures), cache=True)(function))
            except RuntimeError:  # no folder can be written
                return cast(Function, _njit(list(signatures))(function))

    return made


def tuple_of(kind: type, *members: Any) -> Any:
    """The type of a named tuple whose members have these types."""
    return types.BaseTuple.from_types(members, kind)


def kept_in() -> str | None:
    """The folder in which numba keeps the machine code of this module, or None if no folder can be written."""
    try:
        return cast(str, numba.njit(cache=True)(tuple_of).stats.cache_path)
    except RuntimeError:
        return None


@contextlib.contextmanager
def _turn(module: Path) -> Iterator[None]:
    """One process compiles a file at a time, the others wait, and read what it has made."""
    with module.open("rb") as file:
        with contextlib.suppress(OSError):  # some file systems can't
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _without_extensions() -> Iterator[None]:
    """What other packages add to numba is loaded by whoever else compiles: awkward's takes as long as all the rest."""
    before, entrypoints._already_initialized = entrypoints._already_initialized, True
    try:
        yield
    finally:
        entrypoints._already_initialized = before


class _Announcer(event.Listener):
    """Says that this takes a while, once a process, when the first function is compiled."""

    def on_start(self, event: event.Event) -> None:
        _announce()

    def on_end(self, event: event.Event) -> None:
        pass


@functools.lru_cache(maxsize=1)
def _announce() -> None:
    line = Paint.of(sys.stderr)("compiling for this machine, the first time only", DIM)
    print("\r\x1b[K" * is_terminal(sys.stderr) + line, file=sys.stderr, flush=True)
