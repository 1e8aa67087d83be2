"""`webtext filter`: keep the documents for which a function of your own says so.

    def keep(document):                      # my_filters.py
        if len(document.text) > 100_000:
            return "very_long"               # the reason to drop it
        return "cookie" not in document.metadata.get("title", "").lower()

    webtext filter --function my_filters.py:keep --input work/clean --output work/mine

The digest of the function's source file is part of what the output depends on: after an edit it is made again.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from command_kit import setting
from webtext_prep.documents.document import Document
from webtext_prep.errors import InputError
from webtext_prep.running.stage import FilterStage

DROPPED = "filtered"
"""The reason of a document for which the function says False."""


@dataclass(frozen=True)
class Filter(FilterStage):
    """Keep the documents for which a Python function returns True.

    The function is called with each document (its attributes: url, text, metadata). It returns True to keep it, False
    to drop it, or a text to drop it for that reason. It must depend on the document alone. Reads and writes document
    shards. Drops: filtered, or the reasons that the function gives."""

    name: ClassVar[str] = "filter"
    order: ClassVar[int] = 55
    summary: ClassVar[str] = "documents -> documents that a function of your own keeps"

    function: str = setting("", "the function, as FILE.py:NAME or MODULE:NAME", metavar="FILE.py:NAME")

    def __post_init__(self) -> None:
        if not self.function:
            raise InputError("webtext filter needs --function FILE.py:NAME: say which function decides.")
        _ = self._loaded  # one that can't be loaded is reported before anything is done

    @functools.cached_property
    def _loaded(self) -> tuple[Callable[[Document], Any], Path]:
        return load_function(self.function)

    def identity(self) -> dict[str, Any]:
        """The digest of the function's source file."""
        return {"function_sha256": hashlib.sha256(self._loaded[1].read_bytes()).hexdigest()}

    def judge(self, document: Document) -> str | None:
        """What the function says. Raises InputError naming file and line where it fails or says nothing."""
        function, source = self._loaded
        try:
            verdict = function(document)
        except (Exception, SystemExit) as error:
            raise InputError(_where(error, source, f"document {document.url}")) from error
        if verdict is True:
            return None
        if verdict is False:
            return DROPPED
        if isinstance(verdict, str) and verdict:
            return verdict
        line = function.__code__.co_firstlineno if hasattr(function, "__code__") else 1
        raise InputError(
            f"{source}, line {line}: {self.function.rpartition(':')[2]} returned {verdict!r} for document "
            f"{document.url}: return True to keep a document, False or a reason to drop it."
        )


def load_function(name: str) -> tuple[Callable[[Document], Any], Path]:
    """The function that `FILE.py:NAME` or `MODULE:NAME` names, and the file of its source.

    Raises InputError where there is none, or its file fails when it is imported.
    """
    place, colon, attribute = name.rpartition(":")
    if not colon or not place or not attribute.isidentifier():
        raise InputError(f"--function {name} is not a function's name: give FILE.py:NAME or MODULE:NAME.")
    module = _module_of_file(Path(place)) if place.endswith(".py") else _module(place)
    function = getattr(module, attribute, None)
    source = Path(module.__file__ or "")
    if not callable(function):
        raise InputError(f"{source} has no function {attribute}: check --function {name}.")
    return function, source


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
        raise InputError(_where(error, path, "import")) from error
    return module


def _module(name: str) -> ModuleType:
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        raise InputError(f"no module {name} ({error}): install it, or give --function FILE.py:NAME.") from error
    except (Exception, SystemExit) as error:
        raise InputError(_where(error, Path(name), "import")) from error
    if not module.__file__:
        raise InputError(f"module {name} has no source file: give --function FILE.py:NAME.")
    return module


def _where(error: Exception | SystemExit, source: Path, doing: str) -> str:
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
