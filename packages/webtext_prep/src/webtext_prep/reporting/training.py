"""What a training run wrote: its settings, the losses of each logged step, and texts of the model.

Read from the files that docs/formats.md describes; nothing of the training package is needed.
"""

from __future__ import annotations

import contextlib
import json
import math
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
        samples: texts, each with `prompt` and `text`.
        evaluation: what `gpt2 evaluate` measured last.
    """

    folder: Path
    settings: dict[str, Any] = field(default_factory=dict)
    loss: list[Point] = field(default_factory=list)
    valid_loss: list[Point] = field(default_factory=list)
    rate: list[Point] = field(default_factory=list)
    speed: list[Point] = field(default_factory=list)
    tokens: int = 0
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
                row = json.loads(line)
                if isinstance(row, dict):
                    yield row


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _add_texts(found: TrainingRun, samples: str) -> None:
    summaries: dict[str, Any] = {}
    beside = found.folder.absolute().parent / PIPELINE
    with contextlib.suppress(OSError, ValueError):
        summaries = json.loads(beside.read_text(encoding="utf-8"))
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
            generated = json.loads(Path(samples).read_text(encoding="utf-8"))
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
