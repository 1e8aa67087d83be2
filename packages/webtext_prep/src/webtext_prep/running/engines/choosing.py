"""The engine that a command line or a pipeline asks for, with the settings that this engine alone has.

An engine's settings are flags and TOML keys of every stage (`--ray-address`), shown by `--help` in a group of their
own. One that belongs to another engine than the chosen one is refused: it would do nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from command_kit import CommandError, add_flags
from command_kit.plugins import find_plugins
from command_kit.settings import flag_name, make_settings
from webtext_prep.errors import InputError
from webtext_prep.running import engines
from webtext_prep.running.engines.base import Engine


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


def with_options_joined(words: Sequence[str]) -> list[str]:
    """A command line on which `--slurm-options --mem=8G` is one word, joined by `=`.

    The value of a setting of an engine whose metavar is OPTIONS begins with dashes, and argparse would take it for the
    next flag.
    """
    fields = (field for engine in find_engines().values() for field in dataclasses.fields(engine.settings_class))
    flags = {flag_name(field.name) for field in fields if field.metadata["metavar"] == "OPTIONS"}
    joined: list[str] = []
    for word in words:
        if joined and joined[-1] in flags:
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


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
        values: what is said about settings of engines.
        where: names the source of the values in messages.
        flags: those of the values that came from the command line.

    Raises InputError for an engine that is not known, or lacks a package, and for a setting of another one; UsageError
    for a wrong value.
    """
    known, values = find_engines(), values or {}
    if name not in known:
        raise InputError(f"--engine {name} is not known: choose one of {', '.join(known)}.")
    own = settings_of(known[name])
    for owner, engine in known.items():
        if others := [field for field in settings_of(engine) if field in values and field not in own]:
            shown = flag_name(others[0]) if others[0] in flags else f"{where}: {others[0]}"
            raise InputError(
                f"{shown} is a setting of --engine {owner}, and the engine is {name}: choose that engine, or leave the "
                "setting out."
            )
    return known[name](workers, make_settings(known[name].settings_class, values, where, flags=flags))
