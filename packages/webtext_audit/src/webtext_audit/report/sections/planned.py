"""What `webtext plan` expected of each stage, beside what happened."""

from __future__ import annotations

from pathlib import Path

from command_kit import hide_credentials
from command_kit.charts.markup import Markup, join, tag
from command_kit.charts.numbers import brief
from command_kit.progress import spoken_duration
from webtext_audit.plan.plan_file import Expected, Plan
from webtext_audit.plan.table import about, between
from webtext_audit.report.sections.layout import bars, cell
from webtext_prep.documents.folders.stage_record import Step
from webtext_prep.running.preflight import readable

HEAD = ("stage", "left, as planned", "left", "time, as planned", "time", "output, as planned", "output")


def comparison(plan: Plan, steps: list[Step]) -> Markup | None:
    """A row for each planned stage that has run, with the shares of what was planned; None if none has."""
    pairs = [(stage, step) for stage in plan.stages if (step := _only(steps, stage.stage)) is not None]
    if not pairs:
        return None
    given = ", ".join(map(hide_credentials, plan.input))
    note = (
        f"Planned for {given}, from {plan.sampled:,} of {plan.total:,} {plan.unit}, with {plan.workers} tasks at once; "
        "in brackets what such a sample leaves open."
    )
    first = next(((stage, step) for stage, step in pairs if stage is plan.stages[0]), None)
    more = None
    if first is not None and first[1].record.get("in", 0) != first[0].read:
        read = first[1].record.get("in", 0)
        more = tag("p", f"The plan was of {first[0].read:,} {first[0].unit}, and {read:,} came in.", class_="note")
    most = max(step.record.get("out", 0) for _, step in pairs)
    longest = max(float(step.run.get("seconds", 0)) for _, step in pairs)
    largest = max((_bytes(step) or 0 for _, step in pairs), default=0)
    rows = [_row(stage, step, most, longest, largest) for stage, step in pairs]
    return join([tag("p", note, class_="note"), more, bars(HEAD, rows)])


def _only(steps: list[Step], stage: str) -> Step | None:
    """The step of a stage, if there is one and no other."""
    found = [step for step in steps if step.stage == stage]
    return found[0] if len(found) == 1 else None


def _row(stage: Expected, step: Step, most: int, longest: float, largest: int) -> list[object]:
    kept, seconds, size = step.record.get("out", 0), step.run.get("seconds"), _bytes(step)
    at_once = f"{step.run['workers']} at once" if step.run.get("workers") else ""
    return [
        stage.stage,
        f"{about(stage.kept)} ({between(about(stage.kept_low), about(stage.kept_high))})",
        cell(brief(kept), _of_plan(kept, stage.kept), kept, most),
        between(spoken_duration(stage.seconds), spoken_duration(stage.seconds_high)),
        cell(spoken_duration(seconds), at_once, seconds, longest) if isinstance(seconds, int | float) else "",
        readable(stage.output),
        cell(readable(size), _of_plan(size, stage.output), size, largest) if size is not None else "",
    ]


def _of_plan(found: float, planned: float) -> str:
    return f"{found / planned:.0%} of the plan" if planned else ""


def _bytes(step: Step) -> int | None:
    """Bytes of what a step wrote, where that is a folder of this machine, or token files."""
    place = step.place
    if not isinstance(place, Path):
        return None
    if step.is_tokens:
        files = [path for path in place.parent.glob(f"{place.name}.*") if path.is_file() and path.suffix != ".json"]
    else:
        inside = [path for path in place.rglob("*") if path.is_file()]
        files = [path for path in inside if not any(part.startswith(".") for part in path.relative_to(place).parts)]
    return sum(path.stat().st_size for path in files)
