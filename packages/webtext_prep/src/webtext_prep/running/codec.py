"""Calls, tasks, results and errors as JSON, for engines whose tasks run on other machines.

Pickle would be shorter, and runs any code that a message or a file holds. Only data are read here, and names: of a
function at the top of a module, of a dataclass, whose fields follow, or of an exception. Nothing else is looked up, and
nothing that is found is called but the dataclass and the exception. A stage is its class and its settings.

JSON has no tuples and no paths. What it lacks is an object with a key `@`, its kind:

    {"@": "path", "value": "work/part-00000.jsonl.zst"}
    {"@": "method", "name": "process_shard",
     "value": {"@": "object", "class": "webtext_prep.stages.clean:Clean", "value": {"min_tokens": 128}}}
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

from webtext_prep.errors import WebtextError
from webtext_prep.running.tasks import Files
from webtext_prep.storage import location
from webtext_prep.storage.locations import Url

KIND = "@"


def encode(value: Any) -> Any:
    """A value as JSON-like values. Raises TypeError for what can't travel."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [encode(entry) for entry in value]
    if isinstance(value, tuple):
        return {KIND: "tuple", "value": [encode(entry) for entry in value]}
    if isinstance(value, Files):
        return {KIND: "files", "value": {name: encode(files) for name, files in value.items()}}
    if isinstance(value, dict):
        if KIND not in value and all(isinstance(key, str) for key in value):
            return {key: encode(entry) for key, entry in value.items()}
        return {KIND: "dict", "value": [[encode(key), encode(entry)] for key, entry in value.items()]}
    if isinstance(value, Path):
        return {KIND: "path", "value": str(value)}
    if isinstance(value, Url):
        return {KIND: "url", "value": str(value)}
    if isinstance(value, FunctionType):
        return {KIND: "function", "value": _name_of(value)}
    if isinstance(value, MethodType) and not isinstance(value.__self__, type):
        return {KIND: "method", "name": value.__name__, "value": encode(value.__self__)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: encode(getattr(value, field.name)) for field in dataclasses.fields(value) if field.init}
        return {KIND: "object", "class": _name_of(type(value)), "value": fields}
    raise TypeError(f"a {type(value).__name__} can't be sent to another machine")


def decode(value: Any) -> Any:
    """The inverse of `encode`. Raises ValueError for what it did not write."""
    if isinstance(value, list):
        return [decode(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    if KIND not in value:
        return {key: decode(entry) for key, entry in value.items()}
    try:
        return _DECODERS[value[KIND]](value)
    except (KeyError, TypeError) as error:
        raise ValueError(f"this is not what `encode` wrote: {error}") from error


def encode_error(error: BaseException) -> dict[str, Any]:
    """An exception, with its traceback as a note; one that can't travel becomes a WebtextError that names it."""
    notes = [
        *getattr(error, "__notes__", ()),
        f"where the task ran:\n{''.join(traceback.format_exception(error)).rstrip()}",
    ]
    try:
        reduced = error.__reduce__()  # as pickle asks: some have more to them than their arguments
        if not isinstance(reduced, tuple) or reduced[0] is not type(error):
            raise TypeError
        arguments = reduced[1]
        values = {"class": _name_of(type(error)), "arguments": encode(arguments)}
        str(decode_error({**values, "notes": []}))
    except Exception:
        return {"class": _name_of(WebtextError), "arguments": encode((_sentence(error),)), "notes": notes}
    return {**values, "notes": notes}


def decode_error(values: dict[str, Any]) -> Exception:
    """The inverse of `encode_error`. Raises ValueError for what it did not write."""
    kind = _find(values["class"])
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        raise ValueError(f"{values['class']} is not an exception")
    error: Exception = kind(*decode(values["arguments"]))
    for note in values["notes"]:
        error.add_note(note)
    return error


def _sentence(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return f"internal error: a task ended its process with exit code {error.code}."
    message = ""
    with contextlib.suppress(Exception):  # some fail even here
        message = f": {error}"
    return f"internal error: {type(error).__name__}{message} (run again with --debug for more)."


def _name_of(value: type | FunctionType) -> str:
    name = f"{value.__module__}:{value.__qualname__}"
    if value.__module__ == "__main__" or _find(name) is not value:
        raise TypeError(f"{name} can't be found by its name on another machine")
    return name


def _find(name: str) -> Any:
    module, _, path = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found


def _function(value: dict[str, Any]) -> Callable[..., Any]:
    found = _find(value["value"])
    if not isinstance(found, FunctionType):
        raise ValueError(f"{value['value']} is not a function")
    return found


def _method(value: dict[str, Any]) -> Callable[..., Any]:
    owner = decode(value["value"])
    if not dataclasses.is_dataclass(owner) or not inspect.isfunction(getattr(type(owner), value["name"], None)):
        raise ValueError(f"{value['name']} is not a method")
    method: Callable[..., Any] = getattr(owner, value["name"])
    return method


def _object(value: dict[str, Any]) -> Any:
    kind = _find(value["class"])
    if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
        raise ValueError(f"{value['class']} is not a dataclass")
    return kind(**{name: decode(entry) for name, entry in value["value"].items()})


_DECODERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "tuple": lambda value: tuple(decode(entry) for entry in value["value"]),
    "files": lambda value: Files(**{name: decode(files) for name, files in value["value"].items()}),
    "dict": lambda value: {decode(key): decode(entry) for key, entry in value["value"]},
    "path": lambda value: Path(value["value"]),
    "url": lambda value: location(value["value"]),
    "function": _function,
    "method": _method,
    "object": _object,
}
