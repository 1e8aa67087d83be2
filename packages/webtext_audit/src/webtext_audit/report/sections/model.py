"""A training run: losses, learning rate, speed, scores of evaluation tasks, and texts of the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from command_kit import charts
from command_kit.charts import Line
from command_kit.charts.markup import Markup, join, tag
from command_kit.charts.numbers import count, short
from webtext_audit.report.training import Point, TrainingRun

MOST_SAMPLES = 12
TABLE_ROWS = 30
SAMPLED_STEPS = 8
"""Steps at which a prompt's text is shown, if it was written at more."""

Value = TypeVar("Value")


def training(run: TrainingRun) -> Markup:
    """Losses, learning rate, scores, and texts."""
    rates = [
        _curve("Learning rate", "c4", run.rate, lambda value: f"{value:.2g}"),
        _curve("Tokens per second", "c1", run.speed, short),
    ]
    return join(
        [
            _losses(run),
            tag("div", *filter(None, rates), class_="pair") if any(rates) else None,
            _numbers(run),
            tag("p", _held_out(run.evaluation)) if isinstance(run.evaluation.get("loss"), int | float) else None,
            *(_scores(name, by_step) for name, by_step in run.measured.items()),
            tag("h3", "What the model wrote during training") if run.written else None,
            *_written(run),
            tag("h3", "What the model writes") if run.samples else None,
            *(_sample(sample) for sample in run.samples[:MOST_SAMPLES]),
        ]
    )


def _losses(run: TrainingRun) -> Markup | None:
    lines = [
        Line("training loss", "c1", charts.thinned(run.loss)),
        Line("validation loss", "c2", charts.thinned(run.valid_loss)),
    ]
    lines = [line for line in lines if line.points]
    if not lines:
        return None
    chart = charts.lines_chart(lines, title="Loss in nats per token by step", show=lambda value: f"{value:.3g}")
    return join([charts.legend((line.kind, line.name) for line in lines), chart])


def _curve(title: str, kind: str, points: list[Point], show: Any) -> Markup | None:
    if not points:
        return None
    line = Line(title, kind, charts.thinned(points))
    chart = charts.lines_chart([line], title=f"{title} by step", height=150, from_zero=True, show=show)
    return tag("div", tag("h3", title), chart)


def _numbers(run: TrainingRun) -> Markup:
    """Some of the logged steps, all evaluations among them."""
    loss, valid, rate = dict(run.loss), dict(run.valid_loss), dict(run.rate)
    steps = sorted({*loss, *valid})
    chosen = sorted({*steps[:: max(1, len(steps) // TABLE_ROWS)], *steps[-1:], *valid})
    rows = [
        (count(step), *(f"{values[step]:.4g}" if step in values else "" for values in (loss, valid, rate)))
        for step in chosen
    ]
    return charts.table(("step", "training loss", "validation loss", "learning rate"), rows)


def _scores(name: str, by_step: Mapping[int, Mapping[str, float]]) -> Markup:
    """The figures of an evaluation task by step, the first of them as a curve."""
    names = list(dict.fromkeys(figure for figures in by_step.values() for figure in figures))
    points = [(float(step), figures[names[0]]) for step, figures in sorted(by_step.items()) if names[0] in figures]
    rows = [
        (count(step), *(f"{figures[figure]:.4g}" if figure in figures else "" for figure in names))
        for step, figures in _thinned(by_step, TABLE_ROWS)
    ]
    chart = None
    if len(points) > 1:
        title = names[0].replace("_", " ")
        line = Line(title, "c1", charts.thinned(points))
        chart = charts.lines_chart([line], title=f"{title} by step", height=150, show=lambda value: f"{value:.3g}")
    head = ("step", *(figure.replace("_", " ") for figure in names))
    return join([tag("h3", name), chart, charts.plain_table(head, rows)])


def _written(run: TrainingRun) -> Iterator[Markup]:
    """The texts of each prompt over the steps."""
    for (prompt, _), texts in list(run.written.items())[:MOST_SAMPLES]:
        shown = [
            join([tag("p", f"step {count(step)}", class_="where"), _sample({"prompt": prompt, "text": text})])
            for step, text in _thinned(texts, SAMPLED_STEPS)
        ]
        yield join(shown)
    left = len(run.written) - MOST_SAMPLES
    if left > 0:
        yield tag("p", f"{left} more prompts are in metrics.jsonl.", class_="note")


def _thinned(by_step: Mapping[int, Value], most: int) -> list[tuple[int, Value]]:
    """At most `most` of the steps in their order, evenly spaced, the first and the last among them."""
    steps = sorted(by_step)
    places = range(len(steps)) if len(steps) <= most else [at * (len(steps) - 1) // (most - 1) for at in range(most)]
    return [(steps[place], by_step[steps[place]]) for place in places]


def _sample(sample: dict[str, str]) -> Markup:
    prompt = tag("span", sample["prompt"], class_="prompt")
    return tag("div", tag("div", prompt, sample["text"], class_="text", tabindex=0), class_="sample")


def _held_out(found: dict[str, Any]) -> str:
    text = f"Held-out loss {found['loss']:.3f} nats per token"
    if isinstance(found.get("perplexity"), int | float):
        text += f" (perplexity {found['perplexity']:,.1f})"
    if isinstance(found.get("unigram_loss"), int | float):
        text += f"; a unigram model of the same text has {found['unigram_loss']:.3f}"
    return f"{text}."
