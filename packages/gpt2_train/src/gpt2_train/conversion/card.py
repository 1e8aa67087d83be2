"""A model card: what a model is, by which settings it was trained, and how to load it."""

from __future__ import annotations

import json
from pathlib import Path

from command_kit import write_text
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


def write_card(weights: ModelWeights, path: Path) -> None:
    """Write the card of `weights` to `path`."""
    figures = weights.config.as_table() | {"steps": weights.step or "not recorded"}
    # Indented, any text is code; JSON keeps it in one line.
    shape, settings = (
        "\n".join(f"    {name} = {json.dumps(value)}" for name, value in table.items())
        for table in (figures, weights.settings)
    )
    card = CARD.format(parameters=weights.config.parameters, figures=shape, settings=settings or "Not recorded.")
    write_text(path, card)
