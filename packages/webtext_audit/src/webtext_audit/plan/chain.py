"""The stages that are to be planned: the tables of a pipeline's file, each stage reading what the one before it wrote.

Only what matters for a sample is wired here: stages, not training or reports. Where tasks run, and how many at once,
is no part of it: the sample runs on this machine.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from command_kit import UsageError
from command_kit.settings import as_table, make_settings, to_toml
from webtext_prep.documents.folders.shards import check_format
from webtext_prep.documents.folders.stage_record import TOKENS_SUFFIX
from webtext_prep.errors import InputError
from webtext_prep.running.engines.choosing import engine_settings
from webtext_prep.running.stage import Stage
from webtext_prep.storage import location

OF_A_LIST = ("blacklist", "download", "merge", "clean", "dedup", "tokenize")
"""What is planned without a file: the stages from a list of URLs to token files, with their defaults."""
NOT_PLANNED = frozenset({"input", "output", "workers", "engine", "state", "shared_scratch", "space_check"})
"""Settings of every stage that say where and how it runs,"""
KEPT = ("keep_dropped", "format")
"""and those on which its output depends."""


@dataclass(frozen=True)
class Link:
    """One stage with its settings, as it is run on the sample.

    Attributes:
        stage: the stage.
        keep_dropped, format: see `running.job.Job`.
        inputs: what it reads; of the first one the sample.
        output: what it writes, as `--output` names it.
        is_beside: whether it writes there without being told.
        reads: the number of the link before it whose output it reads, -1 for the sample.
    """

    stage: Stage
    keep_dropped: bool
    format: str
    inputs: tuple[str, ...]
    output: str
    is_beside: bool
    reads: int

    @property
    def name(self) -> str:
        """The command."""
        return self.stage.name

    def arguments(self, settings_file: Path) -> list[str]:
        """The words behind `webtext`; `settings_file` is written for it."""
        words = [self.name, "--config", str(settings_file), "--input", *self.inputs, "--workers", "1", "--json"]
        words += [] if self.is_beside else ["--output", self.output]
        words += ["--keep-dropped"] if self.keep_dropped else []
        return words + (["--format", self.format] if self.format != self.stage.default_format else [])

    def settings_text(self) -> str:
        """Its settings as TOML."""
        return to_toml({self.name: as_table(self.stage)})


def first_input(tables: Mapping[str, Any], known: Mapping[str, type[Stage]]) -> tuple[str, ...]:
    """What the first stage's table says that it reads, if it does."""
    given = next((table.get("input", ()) for name, table in tables.items() if name in known), ())
    return (given,) if isinstance(given, str) else tuple(given)


def stages_of(tables: Mapping[str, Any], known: Mapping[str, type[Stage]], where: str) -> list[tuple[Stage, bool, str]]:
    """The stages among the tables, in their order, with their settings, and the values of `KEPT`.

    Raises UsageError naming the table and the key.
    """
    found: list[tuple[Stage, bool, str]] = []
    passed_over = NOT_PLANNED | engine_settings().keys()
    for name, table in tables.items():
        if name not in known:
            continue  # of another program, or a command that only looks
        if found and table.get("input"):
            raise InputError(
                f"{where} [{name}] names an input of its own, and a plan follows one input from stage to stage: leave "
                "it out."
            )
        own = {field.name for field in dataclasses.fields(known[name])}
        rest = {key: value for key, value in table.items() if key in own or key not in {*passed_over, *KEPT}}
        try:
            stage = make_settings(known[name], rest, where, neighbours=[*passed_over, *KEPT])
        except UsageError as error:
            raise InputError(f"{where} [{name}]: {str(error).removeprefix(f'{where}: ')}") from None
        given = {key: table[key] for key in KEPT if key in table and key not in own}
        shards = check_format(given.get("format") or stage.default_format)
        found.append((stage, bool(given.get("keep_dropped", False)), shards))
    if not found:
        raise InputError(f"{where} has no table of a stage, such as [clean]: give the file of a pipeline.")
    return found


def linked(stages: Sequence[tuple[Stage, bool, str]], sample: Sequence[str], folder: Path) -> list[Link]:
    """The stages one behind the other: the first reads `sample`, each writes into `folder`."""
    links: list[Link] = []
    documents, source = tuple(sample), -1
    tokens: tuple[str, int] | None = None
    tokenizer = ""
    for at, (stage, keep_dropped, shards) in enumerate(stages):
        inputs, reads = documents, source
        if tokens is not None and stage.accepts(location(f"{tokens[0]}.idx")):
            inputs, reads = (tokens[0],), tokens[1]
        if tokenizer and not (getattr(stage, "tokenizer", None) or getattr(stage, "vocabulary", None)):
            stage = _with_tokenizer(stage, tokenizer)
        beside = stage.output_beside(inputs)
        name = "corpus" if stage.output_is_prefix else stage.name
        output = beside or str(folder / f"{at + 1}-{name}")
        links.append(Link(stage, keep_dropped, shards, inputs, output, bool(beside), reads))
        if stage.output_is_prefix:
            tokens = (output + TOKENS_SUFFIX, at)
        elif stage.output_is_tokenizer:
            tokenizer = output
        elif stage.is_passed_on:
            documents, source = (output,), at
    return links


def _with_tokenizer(stage: Stage, tokenizer: str) -> Stage:
    if "tokenizer" not in {field.name for field in dataclasses.fields(stage)}:
        return stage
    return dataclasses.replace(stage, tokenizer=tokenizer)  # type: ignore[call-arg]
