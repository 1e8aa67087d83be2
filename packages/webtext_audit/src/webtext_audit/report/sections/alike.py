"""How similar duplicates are to what stays, and the largest groups of them."""

from __future__ import annotations

from command_kit import charts
from command_kit.charts.markup import Markup, join, tag
from command_kit.charts.numbers import count
from webtext_audit.report.figures import DuplicateFigures
from webtext_audit.report.sections.layout import bars, cell
from webtext_prep.documents.folders.stage_record import Step

MOST_GROUPS = 10


def duplicates(step: Step, found: DuplicateFigures) -> Markup | None:
    """How similar duplicates are, and the largest groups."""
    if not found.similarities:
        return None
    dropped = step.record.get("dropped", {}).get("duplicate", 0)
    exact, groups = found.similarities.get(100, 0), len(found.groups.names)
    return join(
        [
            tag("h3", "Similarity of what was dropped to what stays"),
            _similarities(found),
            tag("p", f"{count(exact)} of {count(found.rows)} have exactly the same shingles.", class_="note"),
            tag("h3", "The largest groups"),
            _groups(found),
            tag("p", f"{count(groups)} {'group' if groups == 1 else 'groups'} in all.", class_="note"),
            tag("p", f"Of a sample of {count(found.rows)} of {count(dropped)} duplicates.", class_="note")
            if found.rows < dropped
            else None,
        ]
    )


def _similarities(found: DuplicateFigures) -> Markup:
    """A column for each per cent; what is exactly the same has one of its own, at the end."""
    first = min(*found.similarities, 99)
    columns = [(per / 100, (per + 1) / 100, float(found.similarities.get(per, 0))) for per in range(first, 101)]
    chart = charts.histogram(
        columns,
        title="Duplicates by their similarity to the document that stays",
        kind="dropped",
        log=False,
        show=lambda value: f"{min(value, 1.0):.2f}",
    )
    rows = [(f"{low:.2f}", count(number)) for low, _, number in columns if number]
    return join([chart, charts.table(("similarity", "documents"), rows)])


def _groups(found: DuplicateFigures) -> Markup:
    top = found.groups.top(MOST_GROUPS)
    rows = []
    for name, (number,) in top:
        match = found.matches.get(name)
        quoted = tag("div", f"“{match}”", class_="where") if match else None
        rows.append([join([name, quoted]), cell(count(number), "", number, top[0][1][0], "dropped")])
    return bars(["what stays, and a passage that both have", "duplicates"], rows, "bars wordy")
