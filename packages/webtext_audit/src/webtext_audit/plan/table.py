"""A plan as a table for a terminal."""

from __future__ import annotations

import textwrap

from command_kit.charts.numbers import short
from command_kit.colours import BOLD, DIM, PLAIN, Paint
from command_kit.progress import spoken_duration
from command_kit.tables import aligned
from webtext_audit.plan.plan_file import Plan
from webtext_prep.running.preflight import readable

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
