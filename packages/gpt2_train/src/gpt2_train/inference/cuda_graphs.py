"""Steps of one token a row whose tensors stay where they are, so that a GPU replays them as one CUDA graph.

A GPT-2 of 12 layers launches some 300 kernels for a token, which takes longer than they run. A graph launches them at
once, but its shapes and addresses are fixed: a step covers the first rows of the cache, their number and the length of
what they see rounded up to powers of two, under a mask. One graph is captured for each pair that occurs, in a second or
less; all share their memory. Rows that are not fed write their keys and values behind their own end, where the next
token overwrites them.

Without a GPU a step runs the same code kernel by kernel, so that tests can compare it with the other way.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gpt2_train.distributed.device import autocast
from gpt2_train.inference.sampling import on_device
from gpt2_train.model.attention import StaticUpdate
from gpt2_train.model.gpt2 import GPT2

SHORTEST = 128
"""Positions below which fewer make no difference to a GPU."""


class StaticSteps:
    """The steps over one cache, each made when it is first needed.

    Args:
        model: in evaluation mode; its weights stay where they are.
        keys, values: the cache, (layers, rows, heads, places, d), with one place more than a row may fill.
        precision: as for `CachedModel`.
    """

    def __init__(self, model: GPT2, keys: Tensor, values: Tensor, precision: str) -> None:
        self._model, self._keys, self._values, self._precision = model, keys, values, precision
        self._made: dict[tuple[int, int], tuple[StaticUpdate, Callable[[], Tensor]]] = {}
        self._pool: Any = None

    def feed(self, rows: Sequence[int], tokens: Sequence[int], lengths: Sequence[int]) -> Tensor:
        """Logits (len(rows), padded vocabulary) behind one new token for each of `rows`.

        `lengths` are those of all rows of the cache, the new tokens not included.
        """
        covered = min(_power_of_two(max(rows) + 1), self._keys.size(1))
        seen = max(lengths[row] for row in rows) + 1
        update, run = self._step(covered, min(_power_of_two(max(seen, SHORTEST)), self._keys.size(3)))
        numbers = torch.zeros(3, covered, dtype=torch.int64)
        numbers[2] = torch.tensor(lengths[:covered])
        numbers[0, rows] = torch.tensor(tokens)
        numbers[1, rows] = numbers[2, rows]
        update.fill(numbers)
        logits = run()
        if list(rows) == list(range(len(rows))):
            return logits[: len(rows)]
        return logits.index_select(0, on_device(list(rows), logits.device))

    def _step(self, rows: int, length: int) -> tuple[StaticUpdate, Callable[[], Tensor]]:
        if (rows, length) not in self._made:
            update = StaticUpdate(self._keys, self._values, rows, length)

            def run() -> Tensor:
                with autocast(self._keys.device, self._precision):
                    update.begin()
                    logits: Tensor = self._model(update.ids, update)[0]
                    return logits

            self._made[rows, length] = update, self._captured(run)
        return self._made[rows, length]

    def _captured(self, run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """`run` as a graph on a GPU; itself elsewhere, or if that fails.

        Its inputs are zeros still: the warm-up writes at the first place of each row, which is put back.
        """
        if not (self._keys.is_cuda and torch.cuda.is_available()):
            return run
        first = self._keys[:, :, :, 0].clone(), self._values[:, :, :, 0].clone()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                run()
        torch.cuda.current_stream().wait_stream(stream)
        self._keys[:, :, :, 0], self._values[:, :, :, 0] = first
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self._pool):
                logits = run()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            warnings.warn(f"no CUDA graph ({error}): each token takes longer.", stacklevel=2)
            return run
        self._pool = self._pool or graph.pool()

        def replay() -> Tensor:
            graph.replay()
            return logits.clone()

        return replay


def _power_of_two(least: int) -> int:
    """The smallest power of two that is at least `least`."""
    return 1 << (least - 1).bit_length()
