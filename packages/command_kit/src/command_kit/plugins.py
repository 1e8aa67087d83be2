"""Finding what a package offers by looking into its folder: add a file, and its command, format or engine is there.

Every concrete class of a given base that is defined in one of the package's modules counts, and whatever other
installed distributions announce under an entry-point group. Nothing is listed by hand.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import inspect
import pkgutil
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoints
from types import ModuleType
from typing import Any, TypeVar

from command_kit.errors import CommandError

Base = TypeVar("Base")


def find_plugins(
    package: ModuleType, base: type[Base], *, group: str | None = None, only: str | None = None
) -> list[type[Base]]:
    """The concrete subclasses of `base` in the modules of `package`, in the order of modules and definitions.

    Args:
        package: the package whose folder holds one module for each plugin.
        base: what counts.
        group: also take what installed distributions announce under this entry-point group, after the package's own.
        only: the name of one module, or entry point, with `-` for `_`: nothing else is imported.

    Raises CommandError naming the module or entry point that can't be imported.
    """
    found: list[type[Base]] = []
    for entry in sorted(pkgutil.iter_modules(package.__path__), key=lambda entry: entry.name):
        if only not in (None, entry.name.replace("_", "-")):
            continue
        name = f"{package.__name__}.{entry.name}"
        module = _imported(name, lambda name=name: importlib.import_module(name))
        found += [value for value in vars(module).values() if _counts(value, base) and value.__module__ == name]
    for name, value in announced(group, only) if group else ():
        if not _counts(value, base):
            raise CommandError(f"entry point {name} of {group} is not a {base.__name__}: fix or uninstall it.")
        found.append(value)
    return list(dict.fromkeys(found))


def announced(group: str, only: str | None = None) -> list[tuple[str, Any]]:
    """Name and value of what installed distributions announce under an entry-point group, imported, by name.

    With `only` those of that name.

    Raises CommandError naming the entry point that can't be imported.
    """
    points = _entry_points(importlib.metadata.entry_points, tuple(sys.path)).select(group=group)
    return [
        (point.name, _imported(f"entry point {point.name} of {group} ({point.value})", point.load))
        for point in sorted(points, key=lambda point: point.name)
        if only in (None, point.name)
    ]


@functools.lru_cache(maxsize=1)
def _entry_points(read: Callable[[], EntryPoints], path: tuple[str, ...]) -> EntryPoints:
    """The entry points that all installed distributions announce, read once: a command asks for half a dozen groups."""
    return read()


def _counts(value: Any, base: type) -> bool:
    return isinstance(value, type) and issubclass(value, base) and not inspect.isabstract(value)


def _imported(name: str, load: Any) -> Any:
    try:
        return load()
    except CommandError:
        raise
    except Exception as error:
        raise CommandError(f"can't import {name} ({type(error).__name__}: {error}): fix or remove it.") from error
