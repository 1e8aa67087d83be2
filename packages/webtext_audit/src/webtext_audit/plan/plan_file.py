"""`plan.json`: what a pipeline was expected to take and to leave, as a file, and as a table for people."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from command_kit import parse_json, write_json
from command_kit.charts.numbers import short
from command_kit.colours import BOLD, DIM, PLAIN, Paint, aligned
from command_kit.progress import spoken_duration
from webtext_prep.errors import InputError
from webtext_prep.running.preflight import readable

NAME = "plan.json"
VERSION = 1


@dataclass(frozen=True)
class Expected:
    """The expectation for one stage over the whole input.

    Attributes:
        stage: its name.
        unit: what it counts.
        read: how many come in,
        kept: how many are left, in proportion to the sample, and
        kept_low, kept_high: between how many that may be: a sample leaves that open, and duplicates do.
        seconds, seconds_high: between how many seconds it takes, with `Plan.workers` tasks at once.
        cpu: seconds of processor time.
        memory: bytes, with all tasks at once, at most.
        output: bytes of what it writes,
        scratch: and of its files between phases, at their most.
        bound: what its time follows from: "processor", or the "host" with the most pages.
        tokens: in the token files, 0 for a stage that makes none.
        more_duplicates: how many fewer may be left since duplicates grow with the corpus.
    """

    stage: str
    unit: str
    read: int
    kept: int
    kept_low: int
    kept_high: int
    seconds: float
    seconds_high: float
    cpu: float
    memory: int
    output: int
    scratch: int
    bound: str = "processor"
    tokens: int = 0
    more_duplicates: float = 0.0


@dataclass(frozen=True)
class Plan:
    """A whole plan.

    Attributes:
        input: what was given.
        config: the pipeline's file, "" without one.
        workers: tasks at once.
        machine: its processors, in words.
        sampled, total: rows of the sample and of the input, or files, by `unit`.
        scale: how many times as much the input is.
        seconds: how long the sample took.
        stages: one after the other.
        notes: on what the numbers rest, in sentences.
    """

    input: tuple[str, ...]
    config: str
    workers: int
    machine: str
    unit: str
    sampled: int
    total: int
    scale: float
    seconds: float
    stages: tuple[Expected, ...]
    notes: tuple[str, ...]

    @property
    def disk(self) -> int:
        """Bytes that are needed: all outputs, and the most that one stage has between its phases."""
        return sum(stage.output for stage in self.stages) + max(stage.scratch for stage in self.stages)

    @property
    def memory(self) -> int:
        """Bytes of the stage that needs the most."""
        return max(stage.memory for stage in self.stages)

    def as_values(self) -> dict[str, Any]:
        """What `plan.json` holds."""
        totals = {
            "seconds": sum(stage.seconds for stage in self.stages),
            "seconds_high": sum(stage.seconds_high for stage in self.stages),
            "memory": self.memory,
            "disk": self.disk,
        }
        return {"version": VERSION, **asdict(self), "all": totals}

    def write(self, folder: Path) -> Path:
        """Write `plan.json` into a folder; returns its path."""
        write_json(folder / NAME, self.as_values())
        return folder / NAME


def read_plan(given: str | Path) -> Plan:
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
        return msgspec.convert(values, Plan)
    except msgspec.ValidationError as error:
        raise InputError(f"the plan {path} is damaged ({error}): run `webtext plan` again.") from error


def find_plan(places: Sequence[Path]) -> Path | None:
    """A plan that lies next to finished outputs: in the folder that holds them, or in `plan` there."""
    for place in dict.fromkeys(place.parent for place in places):
        for candidate in (place / "plan" / NAME, place / NAME):
            if candidate.is_file():
                return candidate
    return None


NOTE_COLUMNS = 110


def shown(plan: Plan, paint: Paint = PLAIN) -> str:
    """The plan as people read it: a line a stage, all of them, and on what the numbers rest."""
    what = f"{plan.sampled:,} of {plan.total:,} {plan.unit}"
    head = f"{what} took {spoken_duration(plan.seconds)}; all of them, on {plan.machine}:"
    rows = [["stage", "left", "", "", "in 95 of 100 cases", "time", "memory", "output", "between phases"]]
    for stage in plan.stages:
        rows.append(
            [
                stage.stage,
                about(stage.kept),
                stage.unit,
                f"{stage.kept / stage.read:.1%}" if stage.read else "",
                between(about(stage.kept_low), about(stage.kept_high)) if stage.kept_low < stage.kept_high else "",
                between(spoken_duration(stage.seconds), spoken_duration(stage.seconds_high)),
                readable(stage.memory),
                readable(stage.output),
                readable(stage.scratch) if stage.scratch else "",
            ]
        )
    low, high = sum(stage.seconds for stage in plan.stages), sum(stage.seconds_high for stage in plan.stages)
    together = between(spoken_duration(low), spoken_duration(high))
    output, scratch = sum(stage.output for stage in plan.stages), max(stage.scratch for stage in plan.stages)
    rows.append(["all", "", "", "", "", together, readable(plan.memory), readable(output), readable(scratch)])
    names, *table, total = aligned(rows, "<><>>>>>>")
    lines = [paint(head, BOLD), ""]
    lines += [f"  {line}" for line in (paint(names, DIM), *table, paint(total, BOLD))]
    tokens = next((stage.tokens for stage in plan.stages if stage.tokens), 0)
    notes = [*([f"{about(tokens)} tokens in the token files"] if tokens else []), *plan.notes]
    if notes:
        lines.append("")
        for note in notes:
            lines += textwrap.wrap(f"{note}.", NOTE_COLUMNS, initial_indent="  ", subsequent_indent="    ")
    return "\n".join(lines)


def about(count: int) -> str:
    """A count with the three digits that an estimate has: 12345 -> `12,300`, 23412001 -> `23.4M`."""
    return short(count) if count >= 100_000 else f"{round(count, -max(0, len(str(count)) - 3)):,}"


def between(low: str, high: str) -> str:
    """Two ends, or one where they are the same."""
    return high if low == high else f"{low} to {high}"
