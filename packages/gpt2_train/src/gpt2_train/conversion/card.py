"""A model card: what a model is, how it was trained, and how to load it, as far as its run is on record."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from command_kit import UsageError, write_text
from gpt2_train.config.files import CONFIG_FILE, METRICS_FILE, is_number, read_records, run_settings
from gpt2_train.conversion.formats import ModelWeights

CARD = """\
---
library_name: transformers
pipeline_tag: text-generation
tags: [gpt2]
license: unknown
---

# A GPT-2 with {parameters:,} parameters

{figures}

## How to load it

    from transformers import AutoModelForCausalLM, AutoTokenizer
    model = AutoModelForCausalLM.from_pretrained("FOLDER_OF_THIS_FILE")
    tokenizer = AutoTokenizer.from_pretrained("FOLDER_OF_THIS_FILE")

## Training

{settings}

## Limits

The model repeats its training text, its mistakes and prejudices included. It has not been aligned or tested for any
use. The licences of its training texts are not known.
"""
LOGGED = {"tokens": "tokens seen", "loss": "training loss", "valid_loss": "held-out loss"}
"""Fields of `metrics.jsonl`, and what the card calls their last values; losses are in nats per token."""


def write_card(weights: ModelWeights, path: Path, source: Path) -> None:
    """Write the card of `weights` to `path`; `source` is where the model was read from."""
    run = next((place for place in (source, *source.parents[:2]) if (place / CONFIG_FILE).is_file()), None)
    settings, figures = weights.settings, weights.config.as_table() | {"steps": weights.step or "not recorded"}
    with contextlib.suppress(UsageError, OSError):
        settings = run_settings(run) if run is not None else settings
        for row in read_records(run / METRICS_FILE) if run is not None else ():
            if row["step"] <= weights.step:
                figures |= {shown: row[name] for name, shown in LOGGED.items() if is_number(row.get(name))}
    # Indented, any text is code; JSON keeps it in one line.
    texts = [
        "\n".join(f"    {name} = {json.dumps(value)}" for name, value in table.items()) for table in (figures, settings)
    ]
    card = CARD.format(parameters=weights.config.parameters, figures=texts[0], settings=texts[1] or "Not recorded.")
    write_text(path, card)
