"""Charts of runs as one HTML page: with values where the pointer is, final figures, and the settings that differ.

The page loads nothing. Its one script, which shows the values, is allowed by its digest; without it the page is whole.
"""

from __future__ import annotations

import importlib.resources
import json
import statistics
from collections.abc import Sequence
from typing import Any

from command_kit import duration
from command_kit.charts import plain_table
from command_kit.charts.curves import COLUMNS, Curve, at_width, chart_of_any_width, legend_line
from command_kit.charts.markup import Markup, digest_of, style_sheet, tag
from command_kit.charts.numbers import count, short
from gpt2_train.metrics.plots import Panel, legend_of, smoothing_note
from gpt2_train.metrics.records import RecordedRun

MAIN_HEIGHT, SMALL_HEIGHT = 320, 190
DRAWN = (
    f"Of a curve with more points than can be seen the first, lowest, highest and last of each of {COLUMNS} columns "
    "are drawn."
)
NOT_COMPARED = frozenset({"output"})
"""Settings that differ between any two runs."""


def html(panels: Sequence[Panel], runs: Sequence[RecordedRun], title: str) -> str:
    """The page as one HTML text."""
    files = importlib.resources.files("gpt2_train.metrics.plots")
    style = Markup(style_sheet("colours", "page", "curves") + (files / "page.css").read_text(encoding="utf-8"))
    script = Markup((files / "values.js").read_text(encoding="utf-8"))
    allowed = f"default-src 'none'; style-src '{digest_of(style)}'; script-src '{digest_of(script)}'"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag(
            "meta",
            http_equiv="Content-Security-Policy",
            content=f"{allowed}; base-uri 'none'; form-action 'none'",
        ),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", title),
        tag("style", style),
    )
    names, note = legend_of(panels), smoothing_note(panels)
    main = [_chart(panel, MAIN_HEIGHT) for panel in panels if panel.is_main]
    small = [_chart(panel, SMALL_HEIGHT) for panel in panels if not panel.is_main]
    charts = tag("section", *main, tag("div", *small, class_="pair") if small else None)
    body = tag(
        "body",
        tag(
            "header",
            tag("h1", title),
            _legend(names) if names else None,
            tag("p", note, class_="note") if note else None,
        ),
        tag("main", charts, _final_figures(runs), _settings(runs)),
        tag("footer", tag("p", f"Written by gpt2 plot. Everything shown is in this file. {DRAWN}")),
        tag("script", script),
    )
    return "<!doctype html>\n" + tag("html", head, body, lang="en") + "\n"


def _legend(names: Sequence[tuple[str, int]]) -> Markup:
    keys = (
        tag("li", tag("svg", legend_line(look), width=26, height=12, aria_hidden="true"), name) for name, look in names
    )
    return tag("ul", *keys, class_="legend lines")


def _chart(panel: Panel, height: int) -> Markup:
    data = {
        "across": _scale(panel.axes.across),
        "curves": [{"name": curve.name, "points": _rounded(curve)} for curve in panel.curves],
    }
    chart = chart_of_any_width(panel.curves, panel.axes, title=f"{panel.title}, {panel.note}", height=height)
    # Text of a script element is not markup: nothing in it may end the element.
    values = Markup(json.dumps(data, ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c"))
    return tag(
        "div",
        tag("h3", panel.title),
        tag("p", panel.note, class_="note"),
        chart,
        tag("script", values, type="application/json"),
        class_="panel",
    )


def _scale(scale: Any) -> list[float]:
    return [float(f"{scale.low:.7g}"), float(f"{scale.high:.7g}")]


def _rounded(curve: Curve) -> list[list[float]]:
    return [[float(f"{x:.7g}"), float(f"{y:.5g}")] for x, y in at_width(curve.points)]


def _final_figures(runs: Sequence[RecordedRun]) -> Markup:
    head = ("run", "steps", "tokens", "trained for", "training loss", "validation loss", "lowest", "tokens/s")
    return tag(
        "section",
        tag("h2", "Final figures"),
        tag("p", "As logged last; of the validation loss also the lowest, of the speed the median.", class_="note"),
        plain_table(head, [(tag("b", run.name), *final_figures(run)) for run in runs]),
        _task_figures(runs),
    )  # fmt: skip


def final_figures(run: RecordedRun) -> list[str]:
    """The last figures of a run, as a table shows it; empty where something was not recorded."""
    last = run.last
    valid = run.values.get("valid_loss", [])
    lowest = min(valid, key=lambda point: point[1], default=None)
    speeds = [value for _, value in run.values.get("tokens_per_second", [])]
    return [
        count(last.step),
        short(last.tokens),
        duration(last.seconds),
        *(f"{points[-1][1]:.4f}" if points else "" for points in (run.values.get("loss", []), valid)),
        f"{lowest[1]:.4f} at step {count(lowest[0].step)}" if lowest else "",
        short(statistics.median(speeds)) if speeds else "",
    ]


def _task_figures(runs: Sequence[RecordedRun]) -> Markup | None:
    names = list(dict.fromkeys(name for run in runs for name in run.values if "/" in name))
    if not names:
        return None
    rows = [(name, *(f"{run.values[name][-1][1]:.4g}" if name in run.values else "" for run in runs)) for name in names]
    return plain_table(("task", *(run.name for run in runs)), rows)


def _settings(runs: Sequence[RecordedRun]) -> Markup | None:
    """The settings that differ between runs; of a single run all of them, to be opened."""
    known = [run for run in runs if run.settings]
    if not known:
        return None
    if len(runs) == 1:
        rows = [(name, _shown(value)) for name, value in known[0].settings.items()]
        listed = tag("details", tag("summary", "All settings"), plain_table(("setting", "value"), rows))
        return tag("section", tag("h2", "Settings"), listed)
    different = differing_settings(known)
    if not different:
        return tag("section", tag("h2", "Settings"), tag("p", "These runs have the same settings."))
    table = plain_table(
        ("setting", *(run.name for run in known)), [(name, *map(_shown, values)) for name, values in different]
    )
    return tag("section", tag("h2", "Settings that differ"), table)


def differing_settings(runs: Sequence[RecordedRun]) -> list[tuple[str, list[Any]]]:
    """Each setting that is not the same in all `runs`, with its value in each, None where it is not set."""
    names = dict.fromkeys(name for run in runs for name in run.settings if name not in NOT_COMPARED)
    found = [(name, [run.settings.get(name) for run in runs]) for name in names]
    return [(name, values) for name, values in found if any(value != values[0] for value in values)]


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value))
    return "" if value is None else {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
