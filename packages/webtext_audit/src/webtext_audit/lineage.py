"""A finished output and what it was made from: what lies next to its shards, and how it is made again.

What lies next to the shards of a step, row by row, are outcomes, dropped documents, duplicates; each reader yields
nothing where a step has no such file, or is gone. What a step dropped for a reason is also found where
`--keep-dropped` was not given: what the stages wrote next to their shards is used first; else the stage, with the
settings of its record, is asked again about one document after another until there are enough. A rare reason may take
as long as the stage did.

The steps that led to an output are made again after what they read has changed, each by its own stage and settings. The
result is what a run over the changed input would have made, since it is such a run: a stage does again only the tasks
whose input changed, and a file that comes out with the same bytes is left as it is. As the records change on the way,
by which steps find each other, the work is planned first, and kept as a file until all is done.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from command_kit import CommandError, Progress
from command_kit.settings import make_settings
from indexed_tokens import held_out_prefix
from webtext_prep import storage
from webtext_prep.documents.document import Document
from webtext_prep.documents.folders.shards import DEFAULT_FORMAT, DROPPED, DUPLICATES, read_documents, shards_in
from webtext_prep.documents.folders.stage_record import (
    RECORD,
    TOKENS_SUFFIX,
    Step,
    read_record,
    record_place,
    relocated,
    trace,
)
from webtext_prep.documents.formats.lines import read_lines
from webtext_prep.errors import InputError
from webtext_prep.extraction.outcomes import OUTCOMES
from webtext_prep.running import processes
from webtext_prep.running.job import Job
from webtext_prep.running.replays import Recalls, Replays
from webtext_prep.running.settings import RunSettings
from webtext_prep.running.stage import Stage
from webtext_prep.storage import location
from webtext_prep.storage.locations import Location

Row = dict[str, Any]


def outcomes_of(step: Step) -> Iterator[Row]:
    """`download`: a row for each URL, in the order of the lists. Raises InputError for a damaged file."""
    return itertools.chain.from_iterable(map(_rows, _shards_below(step, OUTCOMES)))


def dropped_of(step: Step) -> Iterator[Document]:
    """With `--keep-dropped`: the dropped documents, with `reason` in their metadata. Raises InputError."""
    return itertools.chain.from_iterable(map(read_documents, _shards_below(step, DROPPED)))


def has_dropped(step: Step) -> bool:
    """Whether its dropped documents were written."""
    return bool(_shards_below(step, DROPPED))


def duplicates_of(step: Step) -> Iterator[Row]:
    """`dedup`: `url`, `duplicate_of`, `similarity`, `domain`, `duplicate_of_domain`, `match`. Raises InputError."""
    if step.place is not None and not step.is_tokens and storage.is_file(step.place / DUPLICATES):
        yield from _rows(step.place / DUPLICATES)


def _shards_below(step: Step, folder: str) -> list[Location]:
    return [] if step.place is None or step.is_tokens else shards_in(step.place / folder)


def _rows(place: Location) -> Iterator[Row]:
    return map(msgspec.json.decode, read_lines(place))


def stage_of(step: Step, known: Mapping[str, type[Stage]]) -> Stage:
    """The stage with the settings of a step; settings that don't affect the output have their defaults.

    Raises InputError where it can no longer be made: an unknown stage, another version of it, a file of rules that is
    gone or that has changed since, another version of a library.
    """
    found = known.get(step.stage)
    if found is None:
        raise InputError(f"{step.name} was made by `webtext {step.stage}`, which is not installed here.")
    if step.record.get("version", 1) != found.version:
        raise InputError(
            f"{step.name} was made by version {step.record.get('version', 1)} of `webtext {step.stage}`, and here is "
            f"version {found.version}: make it again."
        )
    names = {entry.name for entry in dataclasses.fields(found)}
    settings = {name: value for name, value in step.record["settings"].items() if name in names}
    try:
        stage = make_settings(found, settings, f"the record of {step.name}")
        identity = stage.identity()
    except (CommandError, OSError) as error:
        raise InputError(f"`webtext {step.stage}` can't judge as it did for {step.name}: {error}") from error
    changed = [name for name, value in identity.items() if step.record["settings"].get(name) != value]
    if changed:
        raise InputError(f"{step.name} was made with another {', '.join(changed)} than what is here now.")
    if others := processes.changed(step.record.get("libraries", {}), processes.versions_of(stage.libraries)):
        raise InputError(f"{step.name} was made with {others}: install that version, or make it again.")
    return stage.with_facts(step.record.get("facts", {})) if isinstance(stage, Recalls) else stage


_T = TypeVar("_T")


def sample_dropped(step: Step, reason: str, count: int, known: Mapping[str, type[Stage]]) -> list[Document]:
    """The first `count` documents, in the order of the input, that a step dropped for a reason.

    Each has `reason` in its metadata, and where the stage tells them the values that decided.

    Raises InputError for a reason that the step did not have, an input that is gone, and a stage that decides about
    several documents together and leaves no table of them.
    """
    reasons = {name: dropped for name, dropped in step.record["dropped"].items() if dropped}
    if reason not in reasons:
        told = ", ".join(f"{name} {dropped:,}" for name, dropped in reasons.items()) or "nothing was dropped"
        raise InputError(f"{step.name} dropped nothing as {reason!r}: choose among its reasons ({told}).")
    wanted = min(count, reasons[reason])
    return list(itertools.islice(_found(step, reason, known), wanted))


def _found(step: Step, reason: str, known: Mapping[str, type[Stage]]) -> Iterator[Document]:
    outcomes = (row for row in outcomes_of(step) if row.get("outcome") == reason)
    first = next(outcomes, None)
    if first is not None:
        rows = itertools.chain([first], outcomes)
        return (_with({k: v for k, v in row.items() if k != "url"}, Document(row["url"]), reason) for row in rows)
    if has_dropped(step):
        return (document for document in dropped_of(step) if document.metadata.get("reason") == reason)
    if step.stage == "dedup":
        return _duplicates(step)
    return _judged(step, reason, stage_of(step, known))


def _judged(step: Step, reason: str, stage: Stage) -> Iterator[Document]:
    """What the stage says again of each document of its input."""
    if not (isinstance(stage, Replays) and stage.is_judged_again(reason)):
        found = f"{step.name} did not keep what it dropped as {reason}, and other documents decided that"
        if stage.writes.made in ("tokens", "tokenizer", "filter"):
            raise InputError(f"{found}: it can't be shown.")
        raise InputError(f"{found}: run the same command again with --keep-dropped.")
    for document in _with_progress(step, stage.judged_again(step.input_files())):
        if document is not None and document.metadata["reason"] == reason:
            yield _with(stage.judge_again(document, with_values=True).values, document, reason)


def _duplicates(step: Step) -> Iterator[Document]:
    """The documents of the table of duplicates, in its order, which is that of the input."""
    rows = duplicates_of(step)
    row = next(rows, None)
    for document in _with_progress(step, itertools.chain.from_iterable(map(read_documents, step.input_files()))):
        if row is None:
            return
        if row["url"] in (document.id, document.url):  # tables of earlier versions have the URL
            yield _with({name: value for name, value in row.items() if name != "url"}, document, "duplicate")
            row = next(rows, None)


def _with_progress(step: Step, documents: Iterable[_T]) -> Iterator[_T]:
    with Progress(f"inspect: {step.stage} again", "documents", step.record["in"]) as progress:
        yield from progress.counted(documents)


def _with(values: Mapping[str, object], document: Document, reason: str) -> Document:
    return Document(document.url, document.text, {**document.metadata, "reason": reason, **values})


# Made again


UNSUPPORTED = {
    "merge-tokens": "join the token files again by hand, once its inputs have been made again",
    "index-tokens": "do it for the token files, and index them again",
    "train-tokenizer": "train the tokenizer again by hand",
    "train-filter": "train the filter again by hand",
    "export": "do it for the folder that it was made from, and export that again by hand",
}
"""Stages that are not made again, with what to do instead."""


@dataclass(frozen=True)
class Planned:
    """A step that is to be made again.

    Attributes:
        place: its folder, or the prefix of its token files.
        record: its record, as it was.
        inputs: the folders of the steps that it reads, in order; none if it reads files that no stage wrote.
        folders: where the files lie,
        files: and which they were, the first thousand of them.
        plain_files: how many there were in all.
    """

    place: str
    record: dict[str, Any]
    inputs: list[str]
    folders: list[str]
    files: list[str]
    plain_files: int

    @property
    def is_source(self) -> bool:
        """Whether it reads files that no stage wrote."""
        return not self.inputs

    def stage(self, known: Mapping[str, type[Stage]]) -> Stage:
        """Its stage, which works on nothing but what has changed. Raises InputError as `stage_of`."""
        stage = stage_of(Step(Path(self.place), self.place, self.record, ""), known)
        return stage.without_retries()

    def job(self, known: Mapping[str, type[Stage]], workers: int) -> Job:
        """The run that makes it again. Raises InputError if what it reads is gone."""
        stage, settings = self.stage(known), self.record["settings"]
        chosen = {"keep_dropped": settings.get("keep_dropped", False), "format": settings.get("format", DEFAULT_FORMAT)}
        output = self.place.removesuffix(TOKENS_SUFFIX) if stage.writes.made == "tokens" else self.place

        def reading(given: Sequence[str]) -> Job:
            return Job(stage, RunSettings(tuple(given), output, workers, **chosen))

        if not self.is_source:
            return reading(self.inputs)
        # What it had when folders were given to it; else the files alone.
        present = [Path(name) for name in self.files if Path(name).is_file()]
        is_all_known = self.plain_files <= len(self.files)
        if self.folders:
            job = reading(self.folders)
            files = [path.resolve() if isinstance(path, Path) else path for path in job.inputs]
            is_same = files == present if is_all_known else set(map(str, files)) >= set(map(str, present))
            if is_same and len(files) <= self.plain_files and set(job.notes) <= set(self.record.get("problems", [])):
                return job
        if not is_all_known:
            raise InputError(
                f"only {len(self.files):,} of {self.plain_files:,} files that {self.place} was made from are known: "
                f"run `webtext {stage.name}` again by hand, and every stage after it."
            )
        return reading([str(path) for path in present])


def plan_of(end: Step, known: Mapping[str, type[Stage]]) -> list[Planned]:
    """The steps that led to an output and itself, none before one that it was made from.

    Raises InputError for a step that can't be made again, before anything is changed.
    """
    plan: dict[str, Planned] = {}

    def add(step: Step) -> None:
        inputs = [_as_it_is_now(step, number) for number in range(len(step.inputs))]
        for source in inputs:
            add(source)
        planned = _planned(step, inputs)
        plan.setdefault(planned.place, planned)

    add(end)
    for planned in plan.values():
        planned.stage(known)
    return list(plan.values())


def write_plan(path: Path, plan: Sequence[Planned], **more: Any) -> None:
    """Keep a plan, with everything else that is known, until all is done."""
    storage.write_json(path, {**more, "steps": [dataclasses.asdict(planned) for planned in plan]})


def read_plan(path: Path) -> tuple[list[Planned], dict[str, Any]]:
    """A plan that was not carried out to its end, and what else was kept."""
    found = json.loads(path.read_bytes())
    return msgspec.convert(found.pop("steps"), list[Planned]), found


def _as_it_is_now(step: Step, number: int) -> Step:
    """An input of a step; or what lies there now, where the same stage has made it again with the same settings."""
    source, folders = step.inputs[number], step.run.get("folders", [])
    if source.place is None and len(folders) == len(step.inputs) and storage.is_file(Path(folders[number]) / RECORD):
        found = trace(folders[number])
        if all(found.record.get(key) == source.record.get(key) for key in ("stage", "version", "settings")):
            return found
    return source


def _planned(step: Step, inputs: Sequence[Step]) -> Planned:
    """What to do for one step. Raises InputError if that can't be done."""
    settings, hint = step.record.get("settings", {}), UNSUPPORTED.get(step.stage)
    if step.state is None:
        raise InputError(f"{step.name} is gone, was made again since, or is not on this machine: run its stages again.")
    if hint is not None:
        raise InputError(f"{step.name} was made by `webtext {step.stage}`, which is not done again here: {hint}.")
    if not step.run:
        raise InputError(f"how {step.name} was made is not known: its state is not next to it; run its stages again.")
    place = Path(str(step.place))
    was = Path(step.run.get("output", ""))
    record = record_place(was, is_prefix=step.is_tokens)
    if was.name and was.resolve() != _output_of(step).resolve() and storage.is_file(record):
        raise InputError(f"{step.name} is a copy of {was}, and reads what that one reads: give that one.")
    if settings.get("against"):
        raise InputError(f"{step.name} was compared with another corpus (--against): run its stages again by hand.")
    _refuse_learned(step, settings)
    if step.plain_files and inputs:
        raise InputError(f"{step.name} was made from other stages' output and from other files: run its stages again.")
    read = sum(source.record["out"] for source in step.inputs)  # as they were when it read them
    reads_all = not settings.get("max_urls") and step.stage != "rescue"  # which reads what a download has dropped
    if inputs and reads_all and read != step.record["in"]:
        given = ", ".join(source.name for source in inputs)
        raise InputError(
            f"{step.name} does not read all documents of {given}, or other files of it: run its stages again."
        )
    return Planned(
        str(place),
        {key: value for key, value in step.record.items() if key not in ("inputs", "shards", "facts")},
        [str(source.place) for source in inputs],
        [str(relocated(location(folder), step.run, place)) for folder in step.run.get("folders", [])],
        [str(file) for file in step.files],
        step.plain_files,
    )


def _output_of(step: Step) -> Path:
    """What `--output` said: for token files the prefix that is given, without what every pair of them ends with."""
    place = Path(str(step.place))
    return place.with_name(place.name.removesuffix(TOKENS_SUFFIX)) if step.is_tokens else place


def _refuse_learned(step: Step, settings: Mapping[str, Any]) -> None:
    """Raise InputError where a tokenizer, or a classifier, of the step was learned from documents."""
    for key, maker, what in (
        ("tokenizer", "train-tokenizer", "tokenizer"),
        ("vocabulary", "train-tokenizer", "tokenizer"),
        ("model", "train-filter", "filter"),
    ):
        given = settings.get(key)
        for folder in (Path(given), Path(given).parent) if given and given != "gpt2" else ():
            record = read_record(folder)
            if record is not None and record["stage"] == maker:
                raise InputError(
                    f"the {what} of {step.name} was trained on documents ({folder}): take the pages out of what it was "
                    f"trained on, and train it and run `webtext {step.stage}` again by hand."
                )


def stamps_of(place: Path) -> dict[str, Any]:
    """What changes when a file of an output does: its shards, dropped documents and side tables, or token files; the
    same of what was held out of it."""
    below: list[Path] = []
    for one in (place, held_out_prefix(place)):
        is_folder = one.is_dir()
        found = one.rglob("*") if is_folder else one.parent.glob(f"{one.name}.*")
        top = one if is_folder else one.parent
        below += [path for path in found if path.is_file() and not path.relative_to(top).parts[0].startswith(".")]
    return {str(path): storage.stamp(path) for path in sorted(below)}
