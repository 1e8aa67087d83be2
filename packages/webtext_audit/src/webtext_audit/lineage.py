"""A finished output is made again after what it was made from has changed.

The steps that led to an output are made again after what they read has changed, each by its own stage and settings. The
result is what a run over the changed input would have made, since it is such a run: a stage does again only the tasks
whose input changed, and a file that comes out with the same bytes is left as it is. As the records change on the way,
by which steps find each other, the work is planned first, and kept as a file until all is done.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from command_kit import CommandError
from command_kit.settings import make_settings
from indexed_tokens import held_out_prefix
from webtext_prep import storage
from webtext_prep.documents.folders import stage_record
from webtext_prep.documents.folders.shards import DEFAULT_FORMAT
from webtext_prep.errors import InputError
from webtext_prep.running import processes
from webtext_prep.running.job import Job
from webtext_prep.running.settings import RunSettings
from webtext_prep.running.stage import Stage
from webtext_prep.storage import location


def stage_of(step: stage_record.Step, known: Mapping[str, type[Stage]]) -> Stage:
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
        raise InputError(f"`webtext {step.stage}` can't do again what it did for {step.name}: {error}") from error
    changed = [name for name, value in identity.items() if step.record["settings"].get(name) != value]
    if changed:
        raise InputError(f"{step.name} was made with another {', '.join(changed)} than what is here now.")
    if others := processes.changed(step.record.get("libraries", {}), processes.versions_of(stage.libraries)):
        raise InputError(f"{step.name} was made with {others}: install that version, or make it again.")
    return stage


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
        stage = stage_of(stage_record.Step(Path(self.place), self.place, self.record, ""), known)
        return stage.without_retries()

    def job(self, known: Mapping[str, type[Stage]], workers: int) -> Job:
        """The run that makes it again. Raises InputError if what it reads is gone."""
        stage, settings = self.stage(known), self.record["settings"]
        chosen = settings.get("format", DEFAULT_FORMAT)
        output = self.place.removesuffix(stage_record.TOKENS_SUFFIX) if stage.writes.made == "tokens" else self.place

        def reading(given: Sequence[str]) -> Job:
            return Job(stage, RunSettings(tuple(given), output, workers, format=chosen))

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


def plan_of(end: stage_record.Step, known: Mapping[str, type[Stage]]) -> list[Planned]:
    """The steps that led to an output and itself, none before one that it was made from.

    Raises InputError for a step that can't be made again, before anything is changed.
    """
    plan: dict[str, Planned] = {}

    def add(step: stage_record.Step) -> None:
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


def _as_it_is_now(step: stage_record.Step, number: int) -> stage_record.Step:
    """An input of a step; or what lies there now, where the same stage has made it again with the same settings."""
    source, folders = step.inputs[number], step.run.get("folders", [])
    if (
        source.place is None
        and len(folders) == len(step.inputs)
        and storage.is_file(Path(folders[number]) / stage_record.RECORD)
    ):
        found = stage_record.trace(folders[number])
        if all(found.record.get(key) == source.record.get(key) for key in ("stage", "version", "settings")):
            return found
    return source


def _planned(step: stage_record.Step, inputs: Sequence[stage_record.Step]) -> Planned:
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
    record = stage_record.record_place(was, is_prefix=step.is_tokens)
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
        [str(stage_record.relocated(location(folder), step.run, place)) for folder in step.run.get("folders", [])],
        [str(file) for file in step.files],
        step.plain_files,
    )


def _output_of(step: stage_record.Step) -> Path:
    """What `--output` said: for token files the prefix that is given, without what every pair of them ends with."""
    place = Path(str(step.place))
    return place.with_name(place.name.removesuffix(stage_record.TOKENS_SUFFIX)) if step.is_tokens else place


def _refuse_learned(step: stage_record.Step, settings: Mapping[str, Any]) -> None:
    """Raise InputError where a tokenizer, or a classifier, of the step was learned from documents."""
    for key, maker, what in (
        ("tokenizer", "train-tokenizer", "tokenizer"),
        ("vocabulary", "train-tokenizer", "tokenizer"),
        ("model", "train-filter", "filter"),
    ):
        given = settings.get(key)
        for folder in (Path(given), Path(given).parent) if given and given != "gpt2" else ():
            record = stage_record.read_record(folder)
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
