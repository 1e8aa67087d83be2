"""What a training run wrote: its settings, the losses of each logged step, texts of the model, and what tasks measured.

Read from the files that docs/formats.md describes; nothing of the training package is needed.
"""

from __future__ import annotations

import contextlib
import math
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from command_kit import parse_json, read_json
from command_kit.charts import drawing
from command_kit.charts.markup import Markup, join, tag
from command_kit.charts.numbers import Point, count, short
from webtext_audit.report.templates import filled
from webtext_prep.errors import InputError

CONFIG, METRICS = "config.toml", "metrics.jsonl"
PIPELINE = "pipeline.json"
"""Next to a run that a pipeline made: the summaries of its commands, `generate` and `evaluate` among them."""


@dataclass
class TrainingRun:
    """A training run.

    Attributes:
        folder: where it lies.
        settings: its `config.toml`.
        loss, valid_loss, rate, speed: (step, value).
        tokens: seen in all.
        written: during training, by prompt and number among the texts of that prompt: the text at each step.
        measured: during training, by task with its settings: the figures at each step.
        samples: texts of the finished model, as `gpt2 generate --json` prints them: `prompt`, `text`, `trace`.
        evaluation: what `gpt2 evaluate` measured last.
    """

    folder: Path
    settings: dict[str, Any] = field(default_factory=dict)
    loss: list[Point] = field(default_factory=list)
    valid_loss: list[Point] = field(default_factory=list)
    rate: list[Point] = field(default_factory=list)
    speed: list[Point] = field(default_factory=list)
    tokens: int = 0
    written: dict[tuple[str, int], dict[int, str]] = field(default_factory=dict)
    measured: dict[str, dict[int, dict[str, float]]] = field(default_factory=dict)
    samples: list[dict[str, Any]] = field(default_factory=list)
    evaluation: dict[str, Any] = field(default_factory=dict)


def read_run(folder: Path, samples: str = "") -> TrainingRun:
    """The run in `folder`, with the texts in `samples`, or else in the pipeline that made it.

    Raises InputError where there is no run, or its files can't be read.
    """
    if not (folder / METRICS).is_file():
        raise InputError(f"--run {folder} holds no {METRICS}: give the folder that `gpt2 train --output` wrote.")
    found = TrainingRun(folder)
    try:
        if (folder / CONFIG).is_file():
            config = tomllib.loads((folder / CONFIG).read_text(encoding="utf-8"))
            found.settings = dict(config.get("train", config))
    except (OSError, ValueError) as error:
        raise InputError(f"can't read {folder / CONFIG} ({error}): restore it, or leave out --run.") from error
    names = {"loss": found.loss, "valid_loss": found.valid_loss, "lr": found.rate, "tokens_per_second": found.speed}
    for row in _rows(folder / METRICS):
        _add_observation(found, row)
        for name, points in names.items():
            if is_number(row.get(name)) and is_number(row.get("step")):
                points.append((float(row["step"]), float(row[name])))
        if is_number(row.get("tokens")):
            found.tokens = max(found.tokens, int(row["tokens"]))
    _add_texts(found, samples)
    return found


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a log whose last line may be unfinished."""
    with path.open("rb") as file:
        for line in file:
            with contextlib.suppress(ValueError):
                row = parse_json(line)
                if isinstance(row, dict):
                    yield row


def _add_observation(found: TrainingRun, row: dict[str, Any]) -> None:
    """Add what a row says of a text that the model wrote, or of a task that measured it, if it is one of these."""
    if not is_number(row.get("step")):
        return
    step = int(row["step"])
    if row.get("kind") == "sample":
        number: Any = row.get("sample")
        key = str(row.get("prompt", "")), int(number) if is_number(number) else 0
        found.written.setdefault(key, {})[step] = str(row.get("text", ""))
    result, settings = row.get("result"), row.get("settings")
    if row.get("kind") == "task" and isinstance(result, dict):
        given = settings.items() if isinstance(settings, dict) else ()
        name = ", ".join([str(row.get("task")), *(f"{key} {value}" for key, value in given)])
        numbers = {str(key): value for key, value in result.items() if is_number(value)}
        # Whole numbers count the input; they are figures only where there is nothing else.
        fractions = {key: value for key, value in numbers.items() if isinstance(value, float)}
        if numbers:
            found.measured.setdefault(name, {})[step] = fractions or numbers


def is_number(value: Any) -> bool:
    """Whether a value of a file of others is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _add_texts(found: TrainingRun, samples: str) -> None:
    summaries = read_json(found.folder.absolute().parent / PIPELINE)
    own = {
        name: summary
        for name, summary in (summaries.items() if isinstance(summaries, dict) else ())
        if isinstance(summary, dict) and found.folder.name in Path(str(summary.get("checkpoint", ""))).parts
    }
    found.evaluation = own.get("evaluate", {})
    generated = own.get("generate", {})
    if samples:
        try:
            generated = parse_json(Path(samples).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(
                f"can't read --samples {samples} ({error}): give what `gpt2 generate --json` printed."
            ) from error
    texts = generated.get("samples", []) if isinstance(generated, dict) else []
    found.samples = [entry for entry in texts if isinstance(entry, dict)]


MOST_SAMPLES = 12
TABLE_ROWS = 30
SAMPLED_STEPS = 8
"""Steps at which a prompt's text is shown, if it was written at more."""

Value = TypeVar("Value")


def written(run: TrainingRun) -> list[Markup]:
    """Texts of the finished model, with the passages that stand in the corpus word for word marked."""
    return [_sample(sample) for sample in run.samples[:MOST_SAMPLES]]


def training(run: TrainingRun) -> Markup:
    """Bits per byte, losses, learning rate, scores, and texts."""
    curves = [("Learning rate", run.rate, "{:.2g}".format), ("Tokens per second", run.speed, short)]
    named = (("training loss", run.loss), ("validation loss", run.valid_loss))
    kinds = [(f"c{number}", name, points) for number, (name, points) in enumerate(named, 1) if points]
    losses = [(kind, points) for kind, _, points in kinds]
    return filled(
        "training",
        bits=_bits_per_byte(run.evaluation),
        legend=drawing.legend((kind, name) for kind, name, _ in kinds),
        losses=drawing.curves_chart(losses, title="Loss in nats per token by step", height=240, show="{:.3g}".format)
        if losses
        else None,
        rates=[(title, _curve(title, points, show)) for title, points, show in curves if points],
        numbers=_numbers(run),
        held_out=_held_out(run.evaluation) if is_number(run.evaluation.get("loss")) else None,
        tasks=[(name, *_scores(by_step)) for name, by_step in run.measured.items()],
        written=list(_written(run)),
        left=len(run.written) - MOST_SAMPLES,
    )


def _bits_per_byte(found: Mapping[str, Any]) -> Markup | None:
    """Of the model, of compressors, and of a unigram model on the same text; None where they were not measured."""
    rows = bits_per_byte(found)
    if len(rows) < 2:
        return None
    most = max(rows.values())
    cells = [
        [name, join([tag("span", tag("b", f"{bits:.2f}"), class_="number"), drawing.bar(bits, most, kind)])]
        for name, bits in sorted(rows.items(), key=lambda row: row[1])
        for kind in ["c1" if name == "this model" else "c5"]
    ]
    return drawing.bars(["", "fewer is better"], cells)


def bits_per_byte(found: Mapping[str, Any]) -> dict[str, float]:
    """What `gpt2 evaluate` and the pipeline measured, by name; empty where they did not."""
    if not is_number(found.get("bits_per_byte")):
        return {}
    compressed = found.get("compressed")
    rows = {"this model": found["bits_per_byte"], **(compressed if isinstance(compressed, dict) else {})}
    if all(is_number(found.get(name)) and found[name] for name in ("unigram_loss", "tokens", "bytes")):
        rows["unigram model"] = found["unigram_loss"] * found["tokens"] / math.log(2) / found["bytes"]
    return {str(name): float(bits) for name, bits in rows.items() if is_number(bits)}


def _curve(title: str, points: list[Point], show: Callable[[float], str], *, from_zero: bool = True) -> Markup:
    return drawing.curves_chart([("c1", points)], title=f"{title} by step", height=150, show=show, from_zero=from_zero)


def _numbers(run: TrainingRun) -> Markup:
    """Some of the logged steps, all evaluations among them."""
    loss, valid, rate = dict(run.loss), dict(run.valid_loss), dict(run.rate)
    steps = sorted({*loss, *valid})
    chosen = sorted({*steps[:: max(1, len(steps) // TABLE_ROWS)], *steps[-1:], *valid})
    rows = [
        (count(step), *(f"{values[step]:.4g}" if step in values else "" for values in (loss, valid, rate)))
        for step in chosen
    ]
    return drawing.table(("step", "training loss", "validation loss", "learning rate"), rows)


def _scores(by_step: Mapping[int, Mapping[str, float]]) -> tuple[Markup | None, Markup]:
    """The figures of an evaluation task by step: the first of them as a curve, and all as a table."""
    names = list(dict.fromkeys(figure for figures in by_step.values() for figure in figures))
    points = [(float(step), figures[names[0]]) for step, figures in sorted(by_step.items()) if names[0] in figures]
    rows = [
        (count(step), *(f"{figures[figure]:.4g}" if figure in figures else "" for figure in names))
        for step, figures in _thinned(by_step, TABLE_ROWS)
    ]
    title = names[0].replace("_", " ")
    chart = _curve(title, points, "{:.3g}".format, from_zero=False) if len(points) > 1 else None
    head = ("step", *(figure.replace("_", " ") for figure in names))
    return chart, drawing.plain_table(head, rows)


def _written(run: TrainingRun) -> Iterator[tuple[int, Markup]]:
    """The steps at which texts of each prompt were written, with the texts."""
    for (prompt, _), texts in list(run.written.items())[:MOST_SAMPLES]:
        for step, text in _thinned(texts, SAMPLED_STEPS):
            yield step, _sample({"prompt": prompt, "text": text})


def _thinned(by_step: Mapping[int, Value], most: int) -> list[tuple[int, Value]]:
    """At most `most` of the steps in their order, evenly spaced, the first and the last among them."""
    steps = sorted(by_step)
    places = range(len(steps)) if len(steps) <= most else [at * (len(steps) - 1) // (most - 1) for at in range(most)]
    return [(steps[place], by_step[steps[place]]) for place in places]


def _sample(sample: Mapping[str, Any]) -> Markup:
    prompt, text, trace = str(sample.get("prompt", "")), str(sample.get("text", "")), sample.get("trace")
    passages = _passages(trace if isinstance(trace, dict) else {}, len(text))
    ends = [0, *(end for _, end, _ in passages)]
    pieces = [(text[at:begin], text[begin:end]) for at, (begin, end, _) in zip(ends, passages, strict=False)]
    has_counts = isinstance(trace, dict) and all(
        is_number(trace.get(key)) for key in ("verbatim_tokens", "minimum_tokens")
    )
    sources = ", ".join(dict.fromkeys(source for *_, source in passages if source))
    noted = trace if has_counts else None
    return filled("sample", prompt=prompt, pieces=pieces, rest=text[ends[-1] :], trace=noted, sources=sources)


def _passages(trace: Mapping[str, Any], length: int) -> list[tuple[int, int, str]]:
    """Where passages of a text that stand in the corpus begin and end, in order, and a document that holds each."""
    found: list[tuple[int, int, str]] = []
    listed = trace.get("passages")
    for entry in listed if isinstance(listed, list) else ():
        if not (isinstance(entry, dict) and is_number(entry.get("begin")) and is_number(entry.get("end"))):
            continue
        begin, end = int(entry["begin"]), int(entry["end"])
        sources = entry.get("sources")
        first = sources[0] if isinstance(sources, list) and sources and isinstance(sources[0], dict) else {}
        if (found[-1][1] if found else 0) <= begin < end <= length:
            found.append((begin, end, str(first.get("url") or "")))
    return found


def _held_out(found: dict[str, Any]) -> str:
    text = f"Held-out loss {found['loss']:.3f} nats per token"
    if is_number(found.get("documents")) and is_number(found.get("tokens")):
        text += f" over all {count(found['tokens'])} tokens of the {count(found['documents'])} documents held out"
    if isinstance(found.get("perplexity"), int | float):
        text += f" (perplexity {found['perplexity']:,.1f})"
    if isinstance(found.get("unigram_loss"), int | float):
        text += f"; a unigram model of the same text has {found['unigram_loss']:.3f}"
    return f"{text}."
