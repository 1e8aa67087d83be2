"""A function of the user's own, `FILE.py:NAME` or `MODULE:NAME`: loaded, its sources, and where it failed.

The source is the file that is named, the files that define the function and its decorators, and the modules that these
import from the folder or package of their own (`sources_of`).
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from webtext_prep.documents.document import Document
from webtext_prep.errors import InputError

FILTERED = "filtered"
"""The reason of a document for which the function says False."""


class UserFunction:
    """The function that `--function` names: whether it keeps a document.

    Args:
        name: FILE.py:NAME or MODULE:NAME.

    Raises InputError where there is no such function, or its file fails when it is imported.
    """

    def __init__(self, name: str) -> None:
        place, colon, self._name = name.rpartition(":")
        if not colon or not place or not self._name.isidentifier():
            raise InputError(f"--function {name} is not a function's name: give FILE.py:NAME or MODULE:NAME.")
        self._module = _module_of_file(Path(place)) if place.endswith(".py") else _module(place)
        function = getattr(self._module, self._name, None)
        if not callable(function):
            raise InputError(f"{self._module.__file__} has no function {self._name}: check --function {name}.")
        self._function: Callable[[Document], Any] = function

    @property
    def sha256(self) -> str:
        """The digest of the source; where that is several files, of their digests."""
        digests = [hashlib.sha256(path.read_bytes()) for path in sources_of(self._function, self._module)]
        if len(digests) == 1:
            return digests[0].hexdigest()
        return hashlib.sha256(b"".join(found.digest() for found in digests)).hexdigest()

    def reason_to_drop(self, document: Document) -> str | None:
        """The reason to drop a document, or None to keep it. Raises InputError naming file and line where the function
        fails or says nothing."""
        try:
            verdict = self._function(document)
        except (Exception, SystemExit) as error:
            raise InputError(_sentence_on(error, self._defined[1], f"document {document.url}")) from error
        if verdict is True:
            return None
        if verdict is False:
            return FILTERED
        if isinstance(verdict, str) and verdict:
            return verdict
        defined, source = self._defined
        line = getattr(getattr(defined, "__code__", None), "co_firstlineno", 1)
        raise InputError(
            f"{source}, line {line}: {self._name} returned {verdict!r} for document "
            f"{document.url}: return True to keep a document, False or a reason to drop it."
        )

    @property
    def _defined(self) -> tuple[Any, Path]:
        """The function without what decorates it, and the file in which it is defined."""
        defined = inspect.unwrap(self._function)
        return defined, _defined_in(defined) or Path(self._module.__file__ or "")


def sources_of(function: Callable[[Document], Any], module: ModuleType) -> list[Path]:
    """The files that decide what a function says: where it is named, where it and what decorates it are defined, and
    the modules that these import, directly or through others, from the same folder or package.

    They are read, not run: a module that is imported while the function runs counts, too. Of an installed package the
    others next to it are other packages.
    """
    own = [function]
    while (inner := getattr(own[-1], "__wrapped__", None)) is not None and inner not in own:
        own.append(inner)
    found: dict[Path, None] = {}
    for path in (Path(module.__file__ or ""), *filter(None, map(_defined_in, own))):
        root = _root_of(path.resolve())
        todo = [path.resolve()]
        while todo:
            source = todo.pop()
            if source not in found:
                found[source] = None
                todo += sorted(_imported_by(source, root), reverse=True)
    return list(found)


def _defined_in(function: Any) -> Path | None:
    """The file in which a function, or the class of an object that is called, is defined; None for built-in ones."""
    for entry in (function, type(function)):
        try:
            path = inspect.getsourcefile(entry)
        except TypeError:
            continue
        return Path(path) if path else None
    return None


def _root_of(path: Path) -> Path:
    """The folder that holds a file's package, or else the file."""
    folder = path.parent
    while (folder / "__init__.py").is_file():
        folder = folder.parent
    return folder


def _imported_by(path: Path, root: Path) -> Iterator[Path]:
    """The modules below a folder that a file imports; of the folder of installed packages only its own."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):  # a module that is not Python
        return
    own = path.relative_to(root).with_suffix("").parts
    package = own[:-1]  # of a package itself, too: its file is called __init__
    for node in ast.walk(tree):
        names: list[tuple[str, ...]] = []
        if isinstance(node, ast.Import):
            names = [tuple(alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else ()
            base = (*above, *(node.module.split(".") if node.module else ()))
            names = [(*base, alias.name) for alias in node.names]
        for name in names:
            if root.name in ("site-packages", "dist-packages") and name[:1] != own[:1]:
                continue
            for length in range(1, len(name) + 1):
                place = root.joinpath(*name[:length])
                yield from filter(Path.is_file, (place.with_name(f"{place.name}.py"), place / "__init__.py"))


def _module_of_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise InputError(f"no file {path}: give --function FILE.py:NAME with the path of a Python file.")
    # A name of its own for each path: two files of one name are two modules.
    name = f"webtext_filter_{hashlib.sha256(bytes(path.resolve())).hexdigest()[:16]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} can't be imported: give a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise InputError(_sentence_on(error, path, "import")) from error
    return module


def _module(name: str) -> ModuleType:
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        raise InputError(f"no module {name} ({error}): install it, or give --function FILE.py:NAME.") from error
    except (Exception, SystemExit) as error:
        raise InputError(_sentence_on(error, Path(name), "import")) from error
    if not module.__file__:
        raise InputError(f"module {name} has no source file: give --function FILE.py:NAME.")
    return module


def _sentence_on(error: Exception | SystemExit, source: Path, doing: str) -> str:
    """One sentence for an exception of the user's code: the innermost line of that file, and what was raised."""
    if isinstance(error, SyntaxError):
        place = f"{error.filename or source}, line {error.lineno}"
    else:
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if Path(frame.filename).resolve() == source.resolve()] or frames
        place = f"{own[-1].filename}, line {own[-1].lineno}" if own else str(source)
    try:
        message = str(error).split("\n")[0]
    except Exception:  # its own code fails, too
        message = "no message"
    return f"{place}: {type(error).__name__}: {message} ({doing}): fix the function, then run the same command again."
