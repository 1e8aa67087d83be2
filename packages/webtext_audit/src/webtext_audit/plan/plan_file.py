"""`plan.json`: what a pipeline was expected to take and to leave, as a file, and as a table for people."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from command_kit import parse_json
from command_kit.charts.numbers import short
from command_kit.colours import BOLD, DIM, PLAIN, Paint, aligned
from command_kit.progress import spoken_duration
from webtext_prep.errors import InputError
from webtext_prep.running.preflight import readable

NAME = "plan.json"
VERSION = 2


@dataclass(frozen=True)
class Expected:
    """The expectation for one stage over the whole input.

    Attributes:
        stage: its name.
        unit: what it counts.
        read: how many come in,
        kept: how many are left, in proportion to the sample.
        seconds: how long it takes, with `CorpusPlan.workers` tasks at once.
        memory: bytes, with all tasks at once, at most.
        output: bytes of what it writes,
        scratch: and of its files between phases, at their most.
        tokens: in the token files, 0 for a stage that makes none.
    """

    stage: str
    unit: str
    read: int
    kept: int
    seconds: float
    memory: int
    output: int
    scratch: int
    tokens: int = 0


@dataclass(frozen=True)
class CorpusPlan:
    """A whole plan.

    Attributes:
        input: what was given.
        config: the pipeline's file, "" without one.
        workers: tasks at once.
        unit: what the next two count: rows of the input, or files.
        sampled, total: of the sample, and of the input.
        scale: how many times as much the input is.
        seconds: how long the sample took.
        stages: one after the other.
        notes: on what the numbers rest, in sentences.
    """

    input: tuple[str, ...]
    config: str
    workers: int
    unit: str
    sampled: int
    total: int
    scale: float
    seconds: float
    stages: tuple[Expected, ...]
    notes: tuple[str, ...]


def read_plan(given: str | Path) -> CorpusPlan:
    """A plan by its file, or the folder that holds it. Raises InputError if there is none, or a damaged one."""
    path = Path(given)
    path = path / NAME if path.is_dir() else path
    try:
        values = parse_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(
            f"can't read the plan {path} ({error}): give the folder or the plan.json that `webtext plan` wrote."
        ) from error
    if not isinstance(values, dict) or values.pop("version", None) != VERSION:
        raise InputError(f"{path} is no plan of this version of webtext: run `webtext plan` again.")
    try:
        return msgspec.convert(values, CorpusPlan)
    except msgspec.ValidationError as error:
        raise InputError(f"the plan {path} is damaged ({error}): run `webtext plan` again.") from error


def find_plan(places: Sequence[Path]) -> Path | None:
    """A plan that lies next to finished outputs: in the folder that holds them, or in `plan` there."""
    folders = dict.fromkeys(place.parent for place in places)
    candidates = (candidate for folder in folders for candidate in (folder / "plan" / NAME, folder / NAME))
    return next(filter(Path.is_file, candidates), None)


def shown(plan: CorpusPlan, paint: Paint = PLAIN) -> str:
    """The plan as people read it: a line a stage, all of them, and on what the numbers rest."""
    what = f"{plan.sampled:,} of {plan.total:,} {plan.unit} took {spoken_duration(plan.seconds)}"
    head = f"{what}; all of them, on {plan.workers} cores like this machine's:"
    rows = [["stage", "left", "", "", "time", "memory", "output", "between phases"]]
    for stage in plan.stages:
        share = f"{stage.kept / stage.read:.1%}" if stage.read else ""
        sizes = [readable(size) if size else "" for size in (stage.memory, stage.output, stage.scratch)]
        rows.append([stage.stage, about(stage.kept), stage.unit, share, spoken_duration(stage.seconds), *sizes])
    memory, scratch = (max(getattr(stage, name) for stage in plan.stages) for name in ("memory", "scratch"))
    sizes = [readable(size) for size in (memory, sum(stage.output for stage in plan.stages), scratch)]
    rows.append(["all", "", "", "", spoken_duration(sum(stage.seconds for stage in plan.stages)), *sizes])
    names, *table, total = aligned(rows, "<><>>>>>")
    lines = [paint(head, BOLD), "", *(f"  {line}" for line in (paint(names, DIM), *table, paint(total, BOLD))), ""]
    for note in plan.notes:
        lines += textwrap.wrap(f"{note}.", 110, initial_indent="  ", subsequent_indent="    ")
    return "\n".join(lines)


def about(count: int) -> str:
    """A count with the three digits that an estimate has: 12345 -> `12,300`, 23412001 -> `23.4M`."""
    return short(count) if count >= 100_000 else f"{round(count, -max(0, len(str(count)) - 3)):,}"
