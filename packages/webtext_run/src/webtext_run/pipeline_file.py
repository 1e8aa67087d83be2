"""A pipeline as it is given: one TOML file, a table for each command, and settings changed on the command line."""

from __future__ import annotations

import contextlib
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from command_kit import UsageError, setting
from command_kit.settings import flag_name
from gpt2_train.training.command import overridden_keys

HERE = Path(__file__).resolve().parents[4] / "pipelines"
"""The pipelines that come with the project."""
WHOLE = "pipeline"
"""The table that concerns the whole run."""
OF_ALL_STAGES = ("engine", "workers", "shared_scratch")
"""Settings of every stage that `[pipeline]` may hold for all of them, as it may those of the engines."""


@dataclass(frozen=True)
class Pipeline:
    """The table `[pipeline]`: what concerns the whole run. It may also hold where the tasks of all stages run."""

    description: str = setting("", "one line, shown when the run starts")
    folder: str = setting("", "where everything is written; runs/NAME without it")
    site: bool = setting(
        False, "serve the documentation of Python and its packages on loopback and take the URL list from there"
    )


def shipped() -> dict[str, str]:
    """The pipelines of this folder: name -> what each is about."""
    tables = {file.stem: tomllib.loads(file.read_text(encoding="utf-8")) for file in sorted(HERE.glob("*.toml"))}
    return {name: table.get(WHOLE, {}).get("description", "") for name, table in tables.items()}


def read_pipeline(name: str) -> tuple[Path, dict[str, Any]]:
    """The file that `name` means, a path or a pipeline of this folder, and its tables. Raises UsageError."""
    path = Path(name)
    if not name.endswith(".toml"):
        path = HERE / f"{name}.toml"
        with contextlib.suppress(ValueError):
            path = path.relative_to(Path.cwd())  # shorter in the command lines that are shown
    if not path.is_file():
        raise UsageError(f"no pipeline {name}: give the path of a TOML file, or one of {', '.join(shipped())}.")
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not valid TOML: {error}.") from error
    for key, table in tables.items():
        if not isinstance(table, dict):
            raise UsageError(f"{path}: {key} stands outside a table; every setting belongs to a [command].")
    return path, tables


def change_settings(tables: dict[str, Any], changes: Iterable[str], path: Path) -> dict[str, list[str]]:
    """Change `tables` as each of `changes`, such as `train.steps=60`, says; values are written as in TOML, or plain.

    Returns, for each table, the flags with which its command is told the same: flags win over its file.
    Raises UsageError for a change that names no table of the file, or has no value.
    """
    flags: dict[str, list[str]] = {}
    for change in changes:
        place, equals, text = change.partition("=")
        name, dot, key = place.rpartition(".")
        if not (equals and dot and name and key):
            raise UsageError(f"--set {change} is not TABLE.SETTING=VALUE, such as train.steps=60.")
        if name not in tables:
            raise UsageError(f"--set {change}: {path} has no table [{name}]; it has {', '.join(tables)}.")
        value = _value(text)
        table = tables[name]
        for replaced in overridden_keys([key]) if name == "train" else ():
            table.pop(replaced, None)  # one way to say the length of a run, or the model's size, stands for the others
        table[key] = value
        if name != WHOLE:
            flags.setdefault(name, []).extend(as_flags(key, value, f"--set {change}"))
    return flags


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def as_flags(key: str, value: Any, source: str) -> list[str]:
    """The flags that say what a setting of a file does. Raises UsageError, naming the source, for an empty list."""
    flag = flag_name(key)
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag[2:]}"]
    if isinstance(value, list | tuple) and not value:
        raise UsageError(f"{source}: no list can be emptied here; edit the file instead.")
    return [f"{flag}={entry}" for entry in (value if isinstance(value, list | tuple) else [value])]
