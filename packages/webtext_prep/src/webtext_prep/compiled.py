"""`compiled`: the one way in which functions of this package are compiled to machine code, by numba.

A compiled function is kept on disk (beside its source, or where that can't be written in the user's cache folder), so
that only the first process ever waits for the compiler; where neither can be written, each process compiles it again.
It runs without the interpreter's lock, and with integers that wrap, as hash functions need them. Importing numba takes
most of a second: modules with compiled functions are imported where they are used, not where a command is parsed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Decorator: `function` in machine code. It may use numbers, arrays and other compiled functions only."""
    try:
        return cast(Function, numba.njit(nogil=True, cache=True, error_model="numpy")(function))
    except RuntimeError:  # no folder to keep it in
        return cast(Function, numba.njit(nogil=True, error_model="numpy")(function))
