"""A model card: what a model is, what it learned from and how, and how to load it, from what its run recorded.

Only recorded facts are stated. The funnel of the training data comes from the record that `webtext tokenize` leaves
next to token files, as far as these are still where the run's `config.toml` names them.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from command_kit import UsageError, parse_json, write_text
from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.config.files import CONFIG_FILE, METRICS_FILE, read_records, run_settings
from gpt2_train.config.settings import DataSettings
from gpt2_train.conversion.weights import ModelWeights
from indexed_tokens.checksums import record_path

_SHOWN_SETTINGS = (
    "steps", "epochs", "tokens", "minutes", "global_batch_size", "lr", "min_lr", "schedule", "warmup", "weight_decay",
    "clip", "dropout", "precision", "seed", "device", "tensor_parallel", "data_parallel",
)  # fmt: skip

MOST_SAMPLES, MOST_CHARACTERS = 3, 1000
_UNSEEN = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Control characters, and characters that turn the direction of text."""


def write_card(weights: ModelWeights, path: Path, source: Path) -> None:
    """Write the card of `weights` to `path`; `source` is where the model was read from, as the user named it."""
    write_text(path, "\n".join(_lines(weights, source)) + "\n")


def _lines(weights: ModelWeights, source: Path) -> Iterator[str]:
    run = _run_folder(source)
    config = weights.config
    yield from (
        "---",
        "library_name: transformers",
        "pipeline_tag: text-generation",
        "tags: [gpt2]",
        "license: unknown",
        "---",
    )
    yield from ("", f"# {_plain(run.name if run else source.name)}", "")
    yield f"A GPT-2 with {config.parameters:,} parameters."
    yield ""
    yield from _table(
        ("", "value"),
        [
            ("layers", config.layers),
            ("width", config.hidden),
            ("attention heads", config.heads),
            ("positions", config.sequence_length),
            ("vocabulary", config.vocabulary_size),
            ("optimizer steps", weights.step or "not recorded"),
        ],
    )
    yield from ("", "## How to load it", "")
    yield from (
        "```python",
        "from transformers import AutoModelForCausalLM, AutoTokenizer",
        "",
        'model = AutoModelForCausalLM.from_pretrained("PATH")',
        'tokenizer = AutoTokenizer.from_pretrained("PATH")',
        "```",
        "",
        'Or `gpt2 generate --checkpoint PATH --prompt "..."`. `PATH` is the folder of this file.',
    )
    settings = _settings(run)
    rows = _metrics(run, weights.step)
    yield from _training(weights, rows, settings)
    yield from _samples(rows)
    yield from _data(weights, settings)
    yield from (
        "",
        "## Limits",
        "",
        "The model repeats its training text, its mistakes and prejudices included. It has not been aligned "
        "or tested for any use. The licences of its training texts are not known.",
    )


def _run_folder(source: Path) -> Path | None:
    """The folder of the run that `source` belongs to: itself or one above, with a `config.toml`."""
    return next((place for place in (source, *source.parents[:2]) if (place / CONFIG_FILE).is_file()), None)


def _settings(run: Path | None) -> dict[str, Any]:
    try:
        return run_settings(run) if run else {}
    except UsageError:
        return {}


def _training(weights: ModelWeights, rows: list[dict[str, Any]], settings: dict[str, Any]) -> Iterator[str]:
    known = settings or weights.settings
    if known:
        yield from ("", "## Training", "")
        yield from _table(("setting", "value"), [(name, known[name]) for name in _SHOWN_SETTINGS if name in known])
    last = next((row for row in reversed(rows) if "loss" in row), None)
    valid = next((row for row in reversed(rows) if "valid_loss" in row), None)
    if last or valid:
        yield ""
        losses = [("training tokens seen", f"{last['tokens']:,}")] if last else []
        losses += [("training loss (nats per token)", f"{last['loss']:.3f}")] if last else []
        losses += [("held-out loss (nats per token)", f"{valid['valid_loss']:.3f}")] if valid else []
        yield from _table(("at the end", "value"), losses)


def _samples(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Some of the texts that the model wrote last while it was trained."""
    samples = [row for row in rows if row.get("kind") == "sample" and isinstance(row.get("text"), str)]
    if not samples:
        return
    yield from ("", "## What it wrote during training", "")
    step = samples[-1].get("step")
    for number, row in enumerate([row for row in samples if row.get("step") == step][:MOST_SAMPLES], 1):
        text = f"{row.get('prompt', '')}{row['text']}"[:MOST_CHARACTERS]
        yield f"Sample {number}, after {step:,} steps, its prompt first:"
        # Indented, any text is code.
        yield from ("", *(f"    {_UNSEEN.sub(' ', line)}" for line in text.splitlines() or [""]), "")


def _metrics(run: Path | None, step: int) -> list[dict[str, Any]]:
    """The rows of a run's metrics up to `step`."""
    try:
        return [row for row in read_records(run / METRICS_FILE) if row["step"] <= step] if run else []
    except OSError:
        return []


def _data(weights: ModelWeights, settings: dict[str, Any]) -> Iterator[str]:
    prefixes: list[str] = []
    with contextlib.suppress(Gpt2UsageError, TypeError):
        prefixes = [prefix for _, prefix in DataSettings(tuple(settings.get("data", ()))).corpora()]
    records = [record for prefix in prefixes if (record := _record(prefix)) is not None]
    if not records and not weights.data:
        return
    yield from ("", "## Training data", "")
    if not records:
        tokens = sum(entry.get("bin_bytes", 0) for entry in weights.data)
        yield f"{len(weights.data)} token files of {tokens:,} bytes; what they hold is not on record."
    for record in records:
        # A record with values of other types than `webtext` writes is none of its.
        with contextlib.suppress(AttributeError, KeyError, TypeError, ValueError):
            yield from list(_stages(record))


def _stages(record: dict[str, Any]) -> Iterator[str]:
    """The funnel that a record tells of."""
    facts = record.get("facts", {})
    yield f"{record.get('out', 0):,} documents, {facts.get('tokens', 0):,} tokens, by these stages:"
    yield ""
    rows = []
    for step in _steps(record):
        dropped = ", ".join(f"{reason} {count:,}" for reason, count in sorted(step.get("dropped", {}).items()))
        if step.get("added"):
            dropped = f"{dropped or 'none'}; further pieces of what was cut: {step['added']:,}"
        rows.append((str(step.get("stage")), f"{step.get('in', 0):,}", f"{step.get('out', 0):,}", dropped))
    yield from _table(("stage", "in", "out", "dropped"), rows)
    yield ""


def _record(prefix: str) -> dict[str, Any] | None:
    """The record next to token files. None if there is none, or it is none of ours."""
    try:
        found = parse_json(record_path(prefix).read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and "stage" in found else None


def _steps(record: dict[str, Any]) -> list[dict[str, Any]]:
    """The records that lead to one, the first stage first, each once."""
    found: dict[str, dict[str, Any]] = {}

    def visit(step: dict[str, Any]) -> None:
        for before in step.get("inputs", []):
            if isinstance(before, dict) and "stage" in before:
                visit(before)
        found.setdefault(str(step.get("sha256", id(step))), step)

    visit(record)
    return list(found.values())


def _table(head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(_plain(f'{cell:,}' if isinstance(cell, int) else str(cell)) for cell in row)} |"


def _plain(text: str) -> str:
    """Text that can't act as Markdown or HTML in a table."""
    return re.sub(r"[\x00-\x1f\x7f]", " ", text).replace("|", "\\|").replace("<", "&lt;")
