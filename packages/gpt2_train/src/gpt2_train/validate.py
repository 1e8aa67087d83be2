"""Validation loss during training, the same samples every time, shared among the data-parallel processes."""

from __future__ import annotations

import math

import numpy as np
import torch

from gpt2_train.data import Blend, check_vocabulary
from gpt2_train.device import autocast, widest_float
from gpt2_train.loss import token_losses
from gpt2_train.model import GPT2
from gpt2_train.parallel import World, free_gathered_parameters


@torch.no_grad()
def validation_loss(
    model: GPT2, world: World, blend: Blend, *, samples: int, micro_batch: int, precision: str
) -> tuple[float, int]:
    """(mean loss in nats per token, tokens) over the first `samples` samples of a split, or one pass if that is less.

    All processes call this together and make the same calls of the model, each of `micro_batch` sequences: where a
    process has fewer left it repeats some, which count for nothing, so that no shape is compiled for the last batch.
    """
    count = min(samples, blend.epoch_samples)
    places = blend.prepare(0, count)
    share = math.ceil(count / world.dp_size / micro_batch) * micro_batch
    own = places[world.dp_rank * share : (world.dp_rank + 1) * share]
    model.eval()
    total, tokens = 0.0, 0
    for begin in range(0, share, micro_batch):
        rows = own[begin : begin + micro_batch]
        # One that has no samples left takes the first.
        read = blend.read(rows or places[:1])
        check_vocabulary(read, model.config.vocabulary_size, "the validation data")
        padded = np.concatenate([read, np.repeat(read[:1], micro_batch - len(read), axis=0)])
        batch = torch.from_numpy(padded).to(world.device)
        with autocast(world.device, precision):
            logits = model(batch[:, :-1])
        losses = token_losses(logits, batch[:, 1:], world.tp_group, vocabulary=model.config.vocabulary_size)
        losses = losses[: len(rows)]
        total += float(losses.to(widest_float(world.device)).sum())
        tokens += losses.numel()
    free_gathered_parameters(model)
    model.train()
    total, tokens_everywhere = world.sum_over_processes([total, float(tokens)])
    return total / tokens_everywhere, round(tokens_everywhere / world.tp_size)
