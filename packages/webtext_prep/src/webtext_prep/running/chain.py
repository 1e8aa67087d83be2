"""A chain of stages as the tables of a settings file describe it: each reads what the one before it wrote."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from command_kit import UsageError
from command_kit.settings import make_settings
from webtext_prep.documents.folders.stage_record import TOKENS_SUFFIX
from webtext_prep.running.engines.choosing import engine_settings
from webtext_prep.running.settings import RunSettings
from webtext_prep.running.stage import Stage
from webtext_prep.storage import location

Settings = TypeVar("Settings")


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
        """The command."""
        return self.stage.name

    @property
    def made(self) -> str:
        """What it writes, as the stages after it name it."""
        return self.run.output + (TOKENS_SUFFIX if self.stage.output_is_prefix else "")


def checked(settings_class: type[Settings], values: Mapping[str, Any], where: str, **more: Any) -> Settings:
    """The settings that `values` give. Raises UsageError, which names the table `where`."""
    try:
        return make_settings(settings_class, values, where, **more)
    except UsageError as error:
        raise UsageError(str(error) if where in str(error) else f"{where}: {error}") from None


def read_table(kind: type[Stage], table: Mapping[str, Any], where: str) -> tuple[Stage, RunSettings, dict[str, Any]]:
    """A stage's table: its settings, those that every stage has, and those of an engine. Raises UsageError."""
    own = {field.name for field in dataclasses.fields(kind)}
    of_runs, of_engines = RunSettings.__dataclass_fields__.keys() - own, engine_settings().keys() - own
    run = checked(RunSettings, {key: value for key, value in table.items() if key in of_runs}, where)
    others = of_runs | of_engines
    rest = {key: value for key, value in table.items() if key not in others}
    stage = checked(kind, rest, where, neighbours=others)
    return stage, run, {key: value for key, value in table.items() if key in of_engines}


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
        reads_tokens = self.has_tokens and stage.accepts(location(f"{self.tokens}.idx"))
        inputs = run.input or ((self.tokens,) if reads_tokens else self.documents)
        if not inputs:
            raise UsageError(f"the first stage, {stage.name}, has no input: give it with --input PATH.")
        beside = stage.output_beside(inputs)
        run = dataclasses.replace(run, input=inputs, output=beside or run.output or output)
        tokenizer = self.tokenizer if _takes_tokenizer(stage) else ""
        if tokenizer:
            stage = dataclasses.replace(stage, tokenizer=tokenizer)  # type: ignore[call-arg]
        reads = {link.made: at for at, link in enumerate(self.links)}.get(inputs[0], -1)
        link = Link(stage, run, bool(beside), reads, tokenizer)
        self.links.append(link)
        if stage.output_is_prefix:
            self.corpus, self.has_tokens = run.output, True
        elif stage.output_is_tokenizer:
            self.tokenizer = run.output
        elif stage.is_passed_on:
            self.documents = (run.output,)
        return link


def _takes_tokenizer(stage: Stage) -> bool:
    """Whether it has a setting for one, and names none itself."""
    names = {field.name for field in dataclasses.fields(stage)}
    return "tokenizer" in names and getattr(stage, "tokenizer", None) is None and not getattr(stage, "vocabulary", "")
