"""One of the processes that share a model for inference: rank 0 leads, the others repeat its calls.

Only the driver runs a command: it has the prompts or texts, chooses tokens, and prints. What concerns the model is a
call of `ModelWorker` with plain values, which it sends to all others before it does the same itself, so that all of
them meet in the sums that the divided model needs. Tensor-parallel neighbours divide the model, data-parallel groups
(for evaluation) have the whole of it and take one batch each. A call costs one broadcast of 4 KiB over gloo.

Rank 0 starts the others by `python -m gpt2_train.inference.worker`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import json
import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from gpt2_train.config.errors import Gpt2Error, Gpt2UsageError, explained_out_of_memory
from gpt2_train.config.settings import ModelConfig
from gpt2_train.conversion.formats import ReadOptions, open_weights
from gpt2_train.conversion.weights import ModelWeights
from gpt2_train.distributed.collectives import on_all_ranks
from gpt2_train.distributed.device import DeviceKind
from gpt2_train.distributed.processes import Place, close_group, work_as_child
from gpt2_train.distributed.tensor_parallel import (
    DividedEmbedding,
    DividedLayer,
    Part,
    RowLinear,
    take_parameters_before,
)
from gpt2_train.inference.kv_cache import CachedModel, arrange_weights
from gpt2_train.inference.runner import Batch, BatchScores, ModelRunner, score_batch
from gpt2_train.model.gpt2 import GPT2, Block, empty_embedding


def check_division(config: ModelConfig, size: int) -> None:
    """Raise Gpt2UsageError if a model's heads can't be divided among `size` processes."""
    if config.heads % size:
        divisors = [str(number) for number in range(1, config.heads + 1) if config.heads % number == 0]
        raise Gpt2UsageError(
            f"--tensor-parallel {size} does not divide the model's {config.heads} attention heads: choose one of "
            f"{', '.join(divisors)}."
        )


def divide(model: GPT2, part: Part) -> None:
    """Make `model`, built on the meta device, this process's part of it, in place.

    The layers are the same as in training (`distributed.tensor_parallel`), with plain tensors for parameters: without
    gradients and optimizers DTensors would only add their cost to every operation.

    All have equally many rows of the embedding, more padding than in training where that is needed; logits are for
    this process's rows.
    """
    config, width = model.config, model.config.hidden // part.size
    ids = math.ceil(config.padded_vocabulary / part.size)
    with torch.device("meta"):
        model.token_embedding = empty_embedding(ids * part.size, config.hidden)
    DividedEmbedding.divide(model.token_embedding, part)
    model.output = nn.Linear(config.hidden, ids, bias=False, device="meta")
    model.tie()
    for block in model.blocks:
        assert isinstance(block, Block)
        attention, feed_forward = block.attention, block.feed_forward
        # Nothing is sent before a matrix: without gradients its rows are a plain layer, which may be packed.
        attention.qkv = nn.Linear(config.hidden, 3 * width, device="meta")
        feed_forward.up = nn.Linear(config.hidden, 4 * width, device="meta")
        RowLinear.divide(attention.out, part)
        RowLinear.divide(feed_forward.down, part)
    take_parameters_before(model, [layer for layer in model.modules() if isinstance(layer, DividedLayer)])


def load_part(weights: ModelWeights, group: dist.ProcessGroup, device: torch.device | str) -> GPT2:
    """This process's part of a model, in evaluation mode, in float32, read slice by slice.

    Raises Gpt2UsageError if it is damaged.
    """
    part = Part.of(group)
    return weights.load(device, divide=functools.partial(divide, part=part), rank=part.rank, size=part.size)


PATIENCE = datetime.timedelta(days=365)
"""How long workers wait for a call: a conversation may rest for days. That a process has ended is seen at once."""

GRACE_SECONDS = 5.0
"""How long the end of another process may take to be noticed, and workers to end when they are asked to."""

STOP = "stop"
_FIRST_BYTES = 4096
"""Of a message, length included: a step of a few texts is sent in one piece."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """How processes share a model.

    Attributes:
        tensor_parallel: processes that divide one model.
        data_parallel: models, each with batches of its own.
        device: where each process computes.
        threads: CPU threads of each process; the cores divided among them without it.
    """

    tensor_parallel: int = 1
    data_parallel: int = 1
    device: DeviceKind = "auto"
    threads: int | None = None

    @property
    def size(self) -> int:
        """All processes."""
        return self.tensor_parallel * self.data_parallel

    def __str__(self) -> str:
        """The flags."""
        with_data = f" times --data-parallel {self.data_parallel}" if self.data_parallel > 1 else ""
        return f"--tensor-parallel {self.tensor_parallel}{with_data}"


class GroupRunner(ModelRunner):
    """Computes with one of several models, each with batches of its own; all their processes make the same calls.

    Args:
        model: this process's part of one.
        group: the processes that divide it; None for a whole one.
        share: its number among the models.
        shares: how many there are.
    """

    def __init__(self, model: GPT2, group: dist.ProcessGroup | None, share: int, shares: int) -> None:
        super().__init__(model, group)
        self.share, self.batches_at_once = share, shares

    def score(self, batches: Sequence[Batch], precision: str) -> list[BatchScores]:
        """As `ModelRunner.score`, one batch by each model.

        Raises Gpt2Error on all processes. Any other error is this process's alone, and ends it: processes that divide
        a model with it wait in the middle of a batch, and would for ever if it went on.
        """
        own: BatchScores | str | None = None
        if self.share < len(batches):
            try:
                own = score_batch(self.model, batches[self.share], precision, self.group)
            except Gpt2Error as error:
                own = str(error)  # all that divide the model find the same
        if self.batches_at_once > 1:
            is_first = self.group is None or self.group.rank() == 0
            found: list[BatchScores | str | None] = [None] * dist.get_world_size()
            dist.all_gather_object(found, own if is_first else None)
        else:
            found = [own]
        errors = [result for result in found if isinstance(result, str)]
        if errors:
            raise Gpt2Error(errors[0])
        return [result for result in found if isinstance(result, BatchScores)]


class ModelWorker:
    """This process's part of a shared model, after it has joined the process group; all processes make one.

    All processes call its methods together, with the same arguments.

    Attributes:
        runner: computes with the part, after `load`.
    """

    runner: GroupRunner

    def __init__(self, layout: Layout, device: torch.device) -> None:
        self.layout, self.device = layout, device
        size = layout.tensor_parallel
        self.dp_rank = dist.get_rank() // size
        # Every process takes part in making every group.
        groups = [
            dist.new_group(list(range(first, first + size)), timeout=PATIENCE)
            for first in (range(0, layout.size, size) if size > 1 else ())
        ]
        self.group: dist.ProcessGroup | None = groups[self.dp_rank] if groups else None
        self._caches: dict[int, CachedModel] = {}

    def load(self, path: str, tokenizer: str | None) -> None:
        """Read this process's part of the weights. Raises Gpt2UsageError, on all processes, if one can't."""

        def read() -> None:
            share = (dist.get_rank(), self.layout.size)
            weights = open_weights(path, ReadOptions(tokenizer=tokenizer, reader=share))
            group = self.group
            model = weights.load(self.device) if group is None else load_part(weights, group, self.device)
            self.runner = GroupRunner(model, group, self.dp_rank, self.layout.data_parallel)

        on_all_ranks(read)

    def make_cache(self, number: int, rows: int, length: int | None, precision: str) -> None:
        """Make the cache `number`; from then on the model is for writing. Raises as `CachedModel` does."""
        if self.device.type == "cuda":
            torch.set_float32_matmul_precision("high")  # as `for_writing` does on the driver
        arrange_weights(self.runner.model, precision, rows)
        self._caches[number] = self.runner.cached_model(rows, length, precision=precision)

    def drop_caches(self, numbers: Sequence[int]) -> None:
        """Free the memory of caches that are not needed any more."""
        for number in numbers:
            self._caches.pop(number, None)

    def use_cache(self, number: int, name: str, *arguments: Any) -> None:
        """Call the method `name` of the cache `number`."""
        getattr(self._caches[number], name)(*arguments)

    def score(self, batches: Sequence[dict[str, Any]], precision: str) -> list[BatchScores]:
        """As `ModelRunner.score`, of batches in plain values."""
        return self.runner.score([Batch.from_plain(batch) for batch in batches], precision)


def send_request(name: str, arguments: Sequence[Any]) -> None:
    """Tell all other processes to call the method `name`; arguments are plain values. By the driver."""
    data = json.dumps([name, arguments], separators=(",", ":")).encode()
    message = len(data).to_bytes(8, "little") + data
    first = np.zeros(_FIRST_BYTES, np.uint8)
    first[: len(message)] = np.frombuffer(message[:_FIRST_BYTES], np.uint8)
    dist.broadcast(torch.from_numpy(first), 0)
    if rest := message[_FIRST_BYTES:]:
        dist.broadcast(torch.from_numpy(np.frombuffer(rest, np.uint8).copy()), 0)


def receive_request() -> tuple[str, list[Any]]:
    """The next call of the driver. Raises RuntimeError if it has ended."""
    first = torch.empty(_FIRST_BYTES, dtype=torch.uint8)
    dist.broadcast(first, 0)
    message = first.numpy().tobytes()
    size = 8 + int.from_bytes(message[:8], "little")
    if size > _FIRST_BYTES:
        rest = torch.empty(size - _FIRST_BYTES, dtype=torch.uint8)
        dist.broadcast(rest, 0)
        message += rest.numpy().tobytes()
    name, arguments = json.loads(message[8:size])
    return str(name), arguments


def join(place: Place, layout: Layout, device: torch.device, store: dist.Store | None = None) -> ModelWorker:
    """This process's part of a model, once all have joined the group; by all processes together."""
    place.join(device, store, PATIENCE)
    return ModelWorker(layout, device)


def follow(place: Place, layout: Layout) -> None:
    """Join the driver and repeat its calls until it says stop.

    Raises what this process alone can't do, or the loss of the driver. A Gpt2Error is raised by all processes alike;
    the driver's user reads it.
    """
    device = place.take_device(layout.device, layout.threads)
    advice = f"lower --batch-size, or divide the model by more than --tensor-parallel {layout.tensor_parallel}"
    with explained_out_of_memory(advice):
        process = join(place, layout, device)
        while (call := receive_request())[0] != STOP:
            name, arguments = call
            with contextlib.suppress(Gpt2Error):
                getattr(process, name)(*arguments)
        close_group()


def is_lost_connection(error: BaseException) -> bool:
    """Whether an error says that another process of the group has gone."""
    if not isinstance(error, RuntimeError):
        return False
    return isinstance(error, dist.DistError) or "gloo" in str(error) or "NCCL" in str(error)


def _work(place: Place, config: dict[str, Any]) -> tuple[dict[str, Any], int]:
    try:
        follow(place, Layout(**config["layout"]))
    except BaseException as error:
        if is_lost_connection(error):
            # The driver ends this process, or has ended itself, which the thread that watches for it says.
            time.sleep(GRACE_SECONDS)
        raise
    return {}, 0


if __name__ == "__main__":
    work_as_child(_work, "gpt2: process {rank} of {size} ends, since the one that leads it has ended.")
