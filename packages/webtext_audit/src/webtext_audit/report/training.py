"""What a training run wrote: its settings, the losses of each logged step, texts of the model, and what tasks measured.

Read from the files that docs/formats.md describes; nothing of the training package is needed.
"""

from __future__ import annotations

import contextlib
import math
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from command_kit import parse_json
from webtext_prep.errors import InputError

CONFIG, METRICS = "config.toml", "metrics.jsonl"
PIPELINE = "pipeline.json"
"""Beside a run that a pipeline made: the summaries of its commands, `generate` and `evaluate` among them."""

Point = tuple[float, float]


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
        samples: texts of the finished model, each with `prompt` and `text`.
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
    samples: list[dict[str, str]] = field(default_factory=list)
    evaluation: dict[str, Any] = field(default_factory=dict)


def read_run(folder: Path, samples: str = "") -> TrainingRun:
    """The run in `folder`, with the texts in `samples`, or else those of the pipeline that made it.

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
            if _is_number(row.get(name)) and _is_number(row.get("step")):
                points.append((float(row["step"]), float(row[name])))
        if _is_number(row.get("tokens")):
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
    if not _is_number(row.get("step")):
        return
    step = int(row["step"])
    if row.get("kind") == "sample":
        number: Any = row.get("sample")
        key = str(row.get("prompt", "")), int(number) if _is_number(number) else 0
        found.written.setdefault(key, {})[step] = str(row.get("text", ""))
    result, settings = row.get("result"), row.get("settings")
    if row.get("kind") == "task" and isinstance(result, dict):
        given = settings.items() if isinstance(settings, dict) else ()
        name = ", ".join([str(row.get("task")), *(f"{key} {value}" for key, value in given)])
        numbers = {str(key): value for key, value in result.items() if _is_number(value)}
        # Whole numbers count the input; they are figures only where there is nothing else.
        fractions = {key: value for key, value in numbers.items() if isinstance(value, float)}
        if numbers:
            found.measured.setdefault(name, {})[step] = fractions or numbers


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _add_texts(found: TrainingRun, samples: str) -> None:
    summaries: dict[str, Any] = {}
    beside = found.folder.absolute().parent / PIPELINE
    with contextlib.suppress(OSError, ValueError):
        summaries = parse_json(beside.read_text(encoding="utf-8"))
    if not isinstance(summaries, dict):
        summaries = {}
    own = {
        name: summary
        for name, summary in summaries.items()
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
    found.samples = [
        {"prompt": str(entry.get("prompt", "")), "text": str(entry.get("text", ""))}
        for entry in texts
        if isinstance(entry, dict)
    ]
