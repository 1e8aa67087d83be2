"""The model of a run: built without memory, shared out, and only then given memory and values.

No process ever holds the whole model: on its device it has its own share from the beginning, and on the host one matrix
at a time. Values are drawn (or read) whole, in the same order by every process, which keeps its part of each: the same
seed gives the same weights in every layout, and nothing is sent.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from gpt2_train.local_shares import fill
from gpt2_train.model import GPT2
from gpt2_train.parallel import parallelize
from gpt2_train.prepare import Prepared
from gpt2_train.seeding import mixed_seed


def build_model(run: Prepared) -> GPT2:
    """The model on its device, parallelised; with its initial weights if the run is new, else without values."""
    with torch.device("meta"):
        model = GPT2(run.config)
    parallelize(
        model,
        run.world,
        activation_checkpointing=run.settings.activation_checkpointing,
        compilation=run.plan.compilation,
        reshard=run.settings.reshard,
        sequence_parallel=run.settings.sequence_parallel,
    )
    model.materialise(run.world.device)
    if run.resumed is None:
        fill(model, first_values(run, model))
    return model.train()


def first_values(run: Prepared, model: GPT2) -> Iterator[tuple[str, Tensor]]:
    """What the parameters of a new run begin with, by name: those of --init-from, or random ones."""
    if run.first_weights is not None:
        return run.first_weights.padded()
    return model.initial_weights(torch.Generator().manual_seed(mixed_seed(run.settings.seed)))
