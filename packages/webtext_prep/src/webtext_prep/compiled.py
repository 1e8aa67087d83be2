"""`compiled`: the one way in which functions of this package are compiled to machine code, by numba.

Machine code is kept on disk, so that only the first process ever waits for the compiler: in `__pycache__` of the
package, where that can't be written in the user's cache folder, and where neither can, each process compiles it again.
numba looks at the file of a function alone to see whether its code still holds; a function that another file's
functions are compiled into would run on as it was. So the folder's name holds the digest of all files with compiled
functions.

Compiled functions run without the interpreter's lock, and with integers that wrap, as hash functions need them.
Importing numba takes most of a second: modules with compiled functions are imported where they are used, not where a
command is parsed.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])

PACKAGE = Path(__file__).resolve().parent
PREFIX = "machine-code-"


def compiled(function: Function) -> Function:
    """Decorator: `function` in machine code. It may use numbers, arrays and other compiled functions only."""
    folder = kept_in()
    if folder is None:
        return cast(Function, numba.njit(nogil=True, error_model="numpy")(function))
    settings: Any = numba.config
    before, settings.CACHE_DIR = settings.CACHE_DIR, str(folder)
    try:
        return cast(Function, numba.njit(nogil=True, cache=True, error_model="numpy")(function))
    finally:
        settings.CACHE_DIR = before


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
