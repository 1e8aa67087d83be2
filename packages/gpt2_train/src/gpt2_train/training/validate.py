"""Validation loss during training, the same samples every time, shared among the data-parallel processes."""

from __future__ import annotations

import math

import numpy as np
import torch

from gpt2_train.data.batches import check_vocabulary
from gpt2_train.data.blending import Blend
from gpt2_train.data.micro_batches import MicroBatches
from gpt2_train.distributed.device import autocast, widest_float
from gpt2_train.distributed.mesh import World
from gpt2_train.distributed.parallelize import free_gathered_parameters
from gpt2_train.model.gpt2 import GPT2
from gpt2_train.model.loss import token_losses


@torch.no_grad()
def validation_loss(
    model: GPT2,
    world: World,
    blend: Blend,
    *,
    samples: int,
    batches: MicroBatches,
    precision: str,
    compiled: bool = False,
) -> tuple[float, int]:
    """(mean loss in nats, predictions that count) over the first `samples` samples of a split, at most one pass.

    `compiled` is whether training compiles its loss.

    All processes call this together and make the same calls of the model, each of one micro-batch: where a process
    has fewer left it repeats some, which count for nothing, so that no shape is compiled for the last batch.
    """
    micro_batch, vocabulary = batches.size, model.config.vocabulary_size
    count = min(samples, blend.epoch_samples)
    places = blend.prepare(0, count)
    share = math.ceil(count / world.dp_size / micro_batch) * micro_batch
    own = places[world.dp_rank * share : (world.dp_rank + 1) * share]
    model.eval()
    total, tokens = torch.zeros((), dtype=widest_float(world.device), device=world.device), 0
    for begin in range(0, share, micro_batch):
        rows = own[begin : begin + micro_batch]
        # One that has no samples left takes the first.
        read = blend.read(rows or places[:1])
        check_vocabulary(read, vocabulary, "the validation data")
        padded = np.concatenate([read, np.repeat(read[:1], micro_batch - len(read), axis=0)])
        batch = batches.on_device(batches.on_host(padded)[0])
        with autocast(world.device, precision):
            logits = model(batch.inputs, batch.context)
        losses = token_losses(logits, batch.targets, world.tp_group, vocabulary=vocabulary, compiled=compiled)
        losses = batches.counted(losses, batch)[: len(rows)]
        total += losses.to(total.dtype).sum()
        tokens += batches.count(read) if rows else 0
    free_gathered_parameters(model)
    model.train()
    loss, tokens_everywhere = world.sum_over_processes([float(total), float(tokens)])
    return loss / max(1.0, tokens_everywhere), round(tokens_everywhere / world.tp_size)
