"""The stages that are to be planned: the tables of a pipeline's file, each stage reading what the one before it wrote.

Only what matters for a sample is wired here: stages, not training or reports. Where tasks run, and how many at once,
is no part of it: the sample runs on this machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from command_kit import UsageError
from webtext_prep.documents.folders.shards import check_format
from webtext_prep.errors import InputError
from webtext_prep.running.settings import Chain, Link, RunSettings, read_table
from webtext_prep.running.stage import Stage

OF_A_LIST = ("blacklist", "download", "merge", "clean", "dedup", "tokenize")
"""What is planned without a file: the stages from a list of URLs to token files, with their defaults."""


def stages_of(
    tables: Mapping[str, Any], known: Mapping[str, type[Stage]], where: str
) -> list[tuple[Stage, RunSettings]]:
    """The stages among the tables, in their order, with their settings. Raises InputError naming table and key."""
    found: list[tuple[Stage, RunSettings]] = []
    for name, table in tables.items():
        if name not in known:
            continue  # of another program, or a command that only looks
        try:
            stage, run, _ = read_table(known[name], table, f"{where} [{name}]")
            check_format(run.format or stage.default_format)
        except UsageError as error:
            raise InputError(str(error)) from None
        if found and run.input:
            raise InputError(
                f"{where} [{name}] names an input of its own, and a plan follows one input from stage to stage: leave "
                "it out."
            )
        found.append((stage, run))
    if not found:
        raise InputError(f"{where} has no table of a stage, such as [clean]: give the file of a pipeline.")
    return found


def linked(stages: Sequence[tuple[Stage, RunSettings]], sample: Sequence[str], folder: Path) -> list[Link]:
    """The stages one behind the other: the first reads `sample`, each writes into `folder`."""
    chain = Chain(sample, "")
    for number, (stage, run) in enumerate(stages, 1):
        name = "corpus" if stage.output_is_prefix else stage.name
        here = RunSettings(keep_dropped=run.keep_dropped, format=run.format or stage.default_format)
        chain.add(stage, here, str(folder / f"{number}-{name}"))
    return chain.links
