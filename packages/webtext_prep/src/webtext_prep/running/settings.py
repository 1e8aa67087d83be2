"""Settings of a run, from a command line or a file: the settings of every stage, and engines.

An engine's own settings are flags and TOML keys of every stage (`--ray-address`), shown by `--help` in a group of their
own. One that belongs to another engine than the chosen one is refused: it would do nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from command_kit import CommandError, add_flags, setting
from command_kit.errors import meant
from command_kit.plugins import find_plugins
from command_kit.settings import Removed, checked, flag_name, make_settings
from webtext_prep.documents.folders.shards import known_formats
from webtext_prep.errors import InputError
from webtext_prep.running import engines
from webtext_prep.running.engines.base import Engine
from webtext_prep.running.stage import Stage


def find_engines() -> dict[str, type[Engine]]:
    """Every engine, in `running/engines/` or of the entry-point group `webtext.engines`.

    Raises CommandError for a setting whose name does not begin with its engine's: two engines could have the same.
    """
    found = {engine.name: engine for engine in find_plugins(engines, Engine, group="webtext.engines")}
    for name, engine in found.items():
        prefix = name.replace("-", "_") + "_"
        if wrong := [field for field in settings_of(engine) if not field.startswith(prefix)]:
            raise CommandError(
                f"the setting {wrong[0]} of engine {name} should be called {prefix}{wrong[0]}: rename it."
            )
    return found


def settings_of(engine: type[Engine]) -> tuple[str, ...]:
    """The names of an engine's own settings."""
    return tuple(field.name for field in dataclasses.fields(engine.settings_class))


def engine_settings() -> dict[str, str]:
    """Every setting that belongs to one engine -> the name of that engine."""
    return {field: name for name, engine in find_engines().items() for field in settings_of(engine)}


def add_engine_flags(parser: argparse.ArgumentParser, known: Mapping[str, type[Engine]]) -> None:
    """The flags of all engines, a group for each."""
    for name, engine in known.items():
        add_flags(parser, engine.settings_class, group=f"with --engine {name}")


def make_engine(
    name: str,
    workers: int,
    values: Mapping[str, Any] | None = None,
    *,
    where: str = "the command line",
    flags: Collection[str] = (),
) -> Engine:
    """The engine called `name`.

    Args:
        name: a value of `--engine`.
        workers: how many tasks run at once; 0 for as many as there are cores.
        values: the given settings of engines.
        where: names the source of the values in messages.
        flags: the values that came from the command line.

    Raises InputError for an engine that is not known, or lacks a package, and for a setting of another one; UsageError
    for a wrong value.
    """
    known, values = find_engines(), values or {}
    if name not in known:
        raise InputError(f"--engine {name} is not known: {meant(name, known)}choose one of {', '.join(known)}.")
    own = settings_of(known[name])
    for owner, engine in known.items():
        if others := [field for field in settings_of(engine) if field in values and field not in own]:
            shown = flag_name(others[0]) if others[0] in flags else f"{where}: {others[0]}"
            raise InputError(
                f"{shown} is a setting of --engine {owner}, and the engine is {name}: choose that engine, or leave the "
                "setting out."
            )
    return known[name](workers, make_settings(known[name].settings_class, values, where, flags=flags))


_ON_SLURM = Removed(
    "give --engine ray --ray-address auto in a job that starts a Ray by `ray symmetric-run` (docs/clusters.md#slurm)"
)


@dataclass(frozen=True)
class RunSettings:
    """Settings that every stage has besides its own."""

    input: tuple[str, ...] = setting((), "what to read: files, folders, globs", metavar="PATH", group="run")
    output: str = setting("", "what to write", metavar="PATH", group="run")
    workers: int = setting(0, "tasks at once; 0 means all cores, of a cluster as many as it has", group="run")
    format: str = setting(
        "", "how to write shards (default: jsonl.zst; export: parquet)", group="run", choices=known_formats
    )
    engine: str = setting("local", "where tasks run", group="run", choices=find_engines)
    state: str = setting("", "folder of this machine for what resuming needs, if the output is a URL", group="run")
    shared_scratch: str = setting(
        "",
        "a folder in storage, such as s3://bucket/scratch, for files between phases, where the machines of --engine do "
        "not all see the state folder",
        metavar="URL",
        group="run",
    )
    space_check: bool = setting(
        True, "stop before a run that needs more disk or memory than this machine has free", group="run"
    )
    REMOVED: ClassVar[Mapping[str, Removed]] = {
        "keep_dropped": Removed(
            "leave it out; what is dropped, and why, is always written to OUTPUT/dropped, and its text is in the input",
            unused=False,
        ),
        "engine slurm": _ON_SLURM,
        "slurm_options": _ON_SLURM,
        "slurm_tasks_per_job": _ON_SLURM,
    }


def setting_names(kind: type[Stage]) -> list[str]:
    """The names of a stage's own settings, of the common ones, and of the engines'."""
    return [*(field.name for owner in (kind, RunSettings) for field in dataclasses.fields(owner)), *engine_settings()]


def read_table(
    kind: type[Stage], table: Mapping[str, Any], where: str, make: Callable[..., list[Any]] = checked
) -> tuple[Stage, RunSettings, dict[str, Any]]:
    """A stage's table: its settings, the common ones, and an engine's, as they are given.

    `make` is `make_several`, or does the same. Raises UsageError.
    """
    of_engines = engine_settings()
    own = {key: value for key, value in table.items() if key not in of_engines}
    run, stage = make([RunSettings, kind], own, where, neighbours=of_engines)
    return stage, run, {key: value for key, value in table.items() if key in of_engines}
