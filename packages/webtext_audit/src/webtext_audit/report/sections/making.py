"""How each step was run: settings, version, seconds, machine."""

from __future__ import annotations

import datetime
from typing import Any

from command_kit import duration, hide_credentials
from command_kit.charts.markup import Markup, join, tag
from command_kit.charts.numbers import short
from webtext_audit.report.collect import Gathered
from webtext_audit.report.sections.layout import bars, cell
from webtext_prep.documents.folders.stage_record import Step


def runs(found: Gathered) -> Markup:
    """Each step: settings, version, seconds, machine."""
    timed = [step for step in found.steps if isinstance(step.run.get("seconds"), int | float)]
    most = max((step.run["seconds"] for step in timed), default=0)
    times = [
        [step.stage, cell(duration(step.run["seconds"]), _rate(step), step.run["seconds"], most)] for step in timed
    ]
    parts: list[Markup | None] = [bars(["stage", "time"], times) if times else None]
    for step in found.steps:
        parts.append(tag("details", tag("summary", f"{step.stage}: settings and machine"), _described(step)))
    if found.run is not None:
        table = _pairs({"folder": str(found.run.folder), **found.run.settings})
        parts.append(tag("details", tag("summary", "train: settings"), table))
    return join(parts)


def _rate(step: Step) -> str:
    seconds = step.run["seconds"]
    return f"{short(step.record.get('in', 0) / seconds)} a second" if seconds else ""


def _described(step: Step) -> Markup:
    run = step.run
    about = {
        "folder": step.name if step.place is not None else f"{step.name} (gone)",
        "finished": _moment(run.get("finished_at")),
        "machine": ", ".join(str(run[key]) for key in ("host", "system") if run.get(key)),
        "Python": run.get("python"),
        "webtext": run.get("version"),
        "ran on": f"{run['engine']}, {run['workers']} at once" if run.get("engine") else None,
        "version of the stage": step.record.get("version"),
        "record (SHA-256)": step.sha256,
    }
    numbers = {
        name.replace("_", " "): value
        for name, value in {**step.record.get("facts", {}), **step.record.get("notes", {})}.items()
        if isinstance(value, int | float | str)
    }
    problems = step.record.get("problems") or []
    return join(
        [
            _pairs(about),
            tag("h3", "Settings"),
            _pairs(step.record.get("settings", {})),
            join([tag("h3", "Measured"), _pairs(numbers)]) if numbers else None,
            join([tag("h3", "Notes"), tag("ul", *(tag("li", problem) for problem in problems))]) if problems else None,
        ]
    )


def _moment(text: Any) -> str | None:
    try:
        moment = datetime.datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def _pairs(values: dict[str, Any]) -> Markup:
    entries: list[Markup] = []
    for name, value in values.items():
        if value is None or value == "":
            continue
        entries += [tag("dt", name), tag("dd", _value(value))]
    return tag("dl", *entries, class_="settings")


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(_value(entry) for entry in value) or "(none)"
    if isinstance(value, int):
        return f"{value:,}"
    return hide_credentials(str(value))
