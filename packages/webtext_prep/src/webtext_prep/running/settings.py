"""Settings of a run, from a command line or a file: the settings of every stage, engines, and chains of stages.

An engine's own settings are flags and TOML keys of every stage (`--ray-address`), shown by `--help` in a group of their
own. One that belongs to another engine than the chosen one is refused: it would do nothing. In a chain each stage reads
what the one before it wrote.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from command_kit import CommandError, UsageError, add_flags, setting
from command_kit.errors import meant
from command_kit.plugins import find_plugins
from command_kit.settings import Removed, flag_name, make_settings, removed_settings
from webtext_prep.documents.folders.shards import known_formats
from webtext_prep.documents.folders.stage_record import TOKENS_SUFFIX
from webtext_prep.errors import InputError
from webtext_prep.running import engines
from webtext_prep.running.engines.base import Engine
from webtext_prep.running.stage import Stage
from webtext_prep.storage import location


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


Settings = TypeVar("Settings")


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


@dataclass(frozen=True)
class Link:
    """One stage of a chain.

    Attributes:
        stage: the stage with its settings.
        run: the settings that every stage has, with its input and output.
        is_beside: whether it writes there without being told.
        reads: the number of the link before it whose output it reads, -1 for the input of the chain.
        tokenizer: the one that an earlier link makes and this one uses; empty for none.
    """

    stage: Stage
    run: RunSettings
    is_beside: bool = False
    reads: int = -1
    tokenizer: str = ""

    @property
    def name(self) -> str:
        """The name of the stage, which is that of its command."""
        return self.stage.name

    @property
    def made(self) -> str:
        """The output, as the stages after it name it."""
        return self.run.output + (TOKENS_SUFFIX if self.stage.writes.made == "tokens" else "")


def checked(settings_class: type[Settings], values: Mapping[str, Any], where: str, **more: Any) -> Settings:
    """The settings that `values` give. Raises UsageError, which names the table `where`."""
    try:
        return make_settings(settings_class, values, where, **more)
    except UsageError as error:
        raise UsageError(str(error) if where in str(error) else f"{where}: {error}") from None


def setting_names(kind: type[Stage]) -> list[str]:
    """The names of a stage's own settings, of the common ones, and of the engines'."""
    return [*(field.name for owner in (kind, RunSettings) for field in dataclasses.fields(owner)), *engine_settings()]


def read_table(
    kind: type[Stage], table: Mapping[str, Any], where: str, make: Callable[..., Any] = checked
) -> tuple[Stage, RunSettings, dict[str, Any]]:
    """A stage's table: its settings, the common ones, and an engine's.

    `make` is given a class of settings, their values, and what messages call the table. Raises UsageError.
    """
    own = {*(field.name for field in dataclasses.fields(kind)), *removed_settings(kind)}
    of_engines = engine_settings()
    others = sorted({*own, *of_engines})
    run = make(RunSettings, {key: table[key] for key in table if key not in others}, where, neighbours=others)
    stage = make(kind, {key: table[key] for key in table if key in own}, where)
    return stage, run, {key: table[key] for key in table if key in of_engines}


class Chain:
    """The stages so far, and what the next one reads.

    Args:
        documents: what the first stage reads.
        corpus: the prefix of token files, until a stage writes some.

    Attributes:
        links: the stages.
        documents: what the next stage of documents reads.
        corpus: the prefix of the token files.
        has_tokens: whether a stage wrote them.
        tokenizer: the folder of a trained tokenizer; empty for none.
    """

    def __init__(self, documents: Sequence[str], corpus: str) -> None:
        self.links: list[Link] = []
        self.documents, self.corpus = tuple(documents), corpus
        self.has_tokens, self.tokenizer = False, ""

    @property
    def tokens(self) -> str:
        """The token files, as what reads them names them."""
        return self.corpus + TOKENS_SUFFIX

    def add(self, stage: Stage, run: RunSettings, output: str) -> Link:
        """Wire one more stage; paths that `run` names are left alone.

        Args:
            stage: its settings.
            run: the settings that every stage has.
            output: where it writes if `run` does not say so.

        Raises UsageError if there is nothing to read.
        """
        reads_tokens = self.has_tokens and stage.reads.accepts(location(f"{self.tokens}.idx"))
        inputs = run.input or ((self.tokens,) if reads_tokens else self.documents)
        if not inputs:
            raise UsageError(f"the first stage, {stage.name}, has no input: give it with --input PATH.")
        beside = stage.writes.beside(inputs)
        run = dataclasses.replace(run, input=inputs, output=beside or run.output or output)
        tokenizer = self.tokenizer if _takes_tokenizer(stage) else ""
        if tokenizer:
            stage = dataclasses.replace(stage, tokenizer=tokenizer)  # type: ignore[call-arg]
        reads = {link.made: at for at, link in enumerate(self.links)}.get(inputs[0], -1)
        link = Link(stage, run, bool(beside), reads, tokenizer)
        self.links.append(link)
        if stage.writes.made == "tokens":
            self.corpus, self.has_tokens = run.output, True
        elif stage.writes.made == "tokenizer":
            self.tokenizer = run.output
        elif stage.writes.made == "documents":
            self.documents = (run.output,)
        return link


def _takes_tokenizer(stage: Stage) -> bool:
    """Whether it has a setting for one, and names none itself."""
    names = {field.name for field in dataclasses.fields(stage)}
    return "tokenizer" in names and getattr(stage, "tokenizer", None) is None and not getattr(stage, "vocabulary", "")
