"""A model in training as an inference model: for samples and evaluation tasks between two steps.

The parameters of a training run are sharded (FSDP2, DTensors), and its blocks compiled or recomputed. None of that is
used here: `inference_view` builds the modules again without memory and gives them the very tensors that are trained, so
that inference runs as it does on a checkpoint, in evaluation mode and with shapes of its own, and the training's
modules, graphs and random numbers are not touched. It costs what training holds anyway during a step: all parameters
of this process's tensor-parallel part, gathered.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from gpt2_train.distributed.collectives import on_all_ranks
from gpt2_train.distributed.dtensors import local
from gpt2_train.distributed.mesh import World
from gpt2_train.distributed.parallelize import free_gathered_parameters
from gpt2_train.distributed.tensor_parallel import Part
from gpt2_train.inference.runner import Batch, BatchScores, ModelRunner, score_batch
from gpt2_train.inference.worker import divide
from gpt2_train.model.gpt2 import GPT2


@contextlib.contextmanager
def inference_view(model: GPT2, world: World) -> Iterator[GPT2]:
    """A plain model, in evaluation mode, with the weights of `model`, which must not be changed meanwhile.

    All processes of the data-parallel groups enter and leave together; in between each computes for itself. With tensor
    parallelism it is this process's part of the model, as `inference.worker.divide` makes it.
    """
    group = world.tp_group
    divided = functools.partial(divide, part=Part.of(group)) if group is not None else None
    plain = GPT2.empty(model.config, "meta", change=divided)
    try:
        with torch.no_grad():
            for module in model.modules():
                if isinstance(module, FSDPModule):
                    module.unshard()
        for name, parameter in model.named_parameters():
            place, _, leaf = name.rpartition(".")
            setattr(plain.get_submodule(place), leaf, nn.Parameter(local(parameter), requires_grad=False))
        plain.tie()
        yield plain.eval()
    finally:
        free_gathered_parameters(model)


class TrainingRunner(ModelRunner):
    """Computes with the model of a training run; all its processes make the same calls.

    Args:
        view: what `inference_view` gives.
        world: this process among all.
    """

    def __init__(self, view: GPT2, world: World) -> None:
        super().__init__(view, world.tp_group)
        self.world = world
        self.batches_at_once = world.dp_size

    def score(self, batches: Sequence[Batch], precision: str) -> list[BatchScores]:
        """The scores of `batches`, of which each data-parallel rank computes one. Raises Gpt2Error on all processes."""

        def own() -> BatchScores | None:
            if self.world.dp_rank >= len(batches):
                return None
            scores = score_batch(self.model, batches[self.world.dp_rank], precision, self.group)
            return scores if self.world.tp_rank == 0 else None

        return [scores for scores in on_all_ranks(own) if scores is not None]
