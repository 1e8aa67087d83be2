"""A model that remembers what it has read: rows of a static cache of keys and values, each with a length of its own.

`CachedModel.feed` is the only contact with the model while texts are written. It takes any number of new tokens for
any rows, and concatenates them into a single sequence: matrices and norms don't care to which row a token
belongs, so nothing is padded, a prompt and rows that write share one reading of the weights, and only attention looks
at rows one by one. A new token costs one position of work and the reading of its row's cache.

On a GPU, tokens of writing rows are fed by CUDA graphs (`StaticSteps`); `arrange_weights` gives the matrices the form
in which they are read fastest: nearly all of the time that a token takes goes into that.

The cache takes 2 · layers · rows · length · hidden elements, in the type that the matrices compute in.
"""

from __future__ import annotations

import itertools
import platform
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gpt2_train import torch_private
from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.distributed.device import autocast, is_emulated
from gpt2_train.model.attention import CacheUpdate, StaticUpdate, spans_of
from gpt2_train.model.gpt2 import DTYPES, GPT2
from gpt2_train.model.loss import gathered

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class CachedModel:
    """A model and the keys and values of the tokens that each of `rows` sequences has fed to it.

    Args:
        model: in evaluation mode; its weights are used as they are.
        rows: sequences that are remembered at once.
        length: positions of each; without it the model's.
        precision: `fp32`, `bf16` or `fp16`: in what matrices multiply (by autocast), and the type of the cache.
        group: the processes that divide the model, for logits of the whole vocabulary; None for a whole model.
        static: feed single tokens by `StaticSteps`, which are CUDA graphs on a GPU; only there without it, and not
            where the matrices are shared by processes.

    Attributes:
        lengths: positions that each row has filled.

    Processes that share a model each have one, and make the same calls.
    Raises Gpt2UsageError if `length` is more than the model's positions.
    """

    def __init__(
        self,
        model: GPT2,
        rows: int,
        length: int | None = None,
        *,
        precision: str = "fp32",
        group: ProcessGroup | None = None,
        static: bool | None = None,
    ) -> None:
        config = model.config
        self.model, self.rows, self.precision, self.group = model, rows, precision, group
        self.length = config.sequence_length if length is None else length
        if self.length > config.sequence_length:
            raise Gpt2UsageError(
                f"{self.length} positions asked of a model that has {config.sequence_length}: shorten prompt or output."
            )
        self.lengths = [0] * rows
        self.device = model.final_norm.weight.device
        heads = config.heads // (1 if group is None else group.size())
        # One place more than a row may fill: for rows that a static step covers and nobody feeds.
        shape = (config.layers, rows, heads, self.length + 1, config.head_dim)
        with torch.inference_mode():
            self.keys = torch.zeros(shape, dtype=DTYPES[precision], device=self.device)
            self.values = torch.zeros_like(self.keys)
        self._static: StaticSteps | None = None
        if static or (static is None and self.device.type == "cuda" and heads == config.heads):
            self._static = StaticSteps(model, self.keys, self.values, precision)

    def feed(self, rows: Sequence[int], tokens: Sequence[Sequence[int]]) -> Tensor:
        """Logits of what follows the new `tokens` of each of `rows`: (len(rows), vocabulary), float32.

        Each row gets at least one token, and has room for all of its own.
        """
        with torch.inference_mode():
            way = self._feed_any if self._static is None else self._feed_apart
            logits = way(rows, tokens)
            for row, new in zip(rows, tokens, strict=True):
                self.lengths[row] += len(new)
        if self.group is not None:
            logits = torch.cat(gathered(logits.float(), self.group), dim=-1)
        return logits[:, : self.model.config.vocabulary_size].float()

    def prepare(self) -> None:
        """Capture all graphs that `feed` may need for single tokens, so that none has to wait for one later."""
        if self._static is not None:
            with torch.inference_mode():
                self._static.prepare()

    def from_first_rank(self, tokens: Tensor) -> Tensor:
        """`tokens`, int64, as the first of the processes that divide the model has chosen them."""
        if self.group is not None:
            import torch.distributed as dist  # A single process has no group and needs none of this.

            dist.broadcast(tokens, group=self.group, group_src=0)
        return tokens

    def clear(self, row: int) -> None:
        """Empty a row."""
        self.lengths[row] = 0

    def copy(self, row: int, to: int) -> None:
        """Copy the past of `row` to the row `to`."""
        length = self.lengths[row]
        with torch.inference_mode():
            self.keys[:, to, :, :length] = self.keys[:, row, :, :length]
            self.values[:, to, :, :length] = self.values[:, row, :, :length]
        self.lengths[to] = length

    def _feed_any(self, rows: Sequence[int], tokens: Sequence[Sequence[int]]) -> Tensor:
        """Logits (len(rows), padded vocabulary), by one pass over all tokens."""
        starts = [self.lengths[row] for row in rows]
        positions = [start + at for start, new in zip(starts, tokens, strict=True) for at in range(len(new))]
        lasts = [end - 1 for end in itertools.accumulate(map(len, tokens))]
        ids = [token for new in tokens for token in new]
        spans = spans_of(rows, starts, [len(new) for new in tokens])
        with autocast(self.device, self.precision):
            update = CacheUpdate(
                self.keys, self.values, spans, on_device(positions, self.device)[None], on_device(lasts, self.device)
            )
            logits: Tensor = self.model(on_device(ids, self.device)[None], update)[0]
        return logits

    def _feed_apart(self, rows: Sequence[int], tokens: Sequence[Sequence[int]]) -> Tensor:
        """Logits (len(rows), padded vocabulary), by a static step for single tokens, then a pass over the others."""
        assert self._static is not None
        single = [place for place, new in enumerate(tokens) if len(new) == 1]
        others = [place for place, new in enumerate(tokens) if len(new) != 1]
        parts = []
        if single:
            ids = [tokens[place][0] for place in single]
            parts.append(self._static.feed([rows[place] for place in single], ids, self.lengths))
        if others:
            parts.append(self._feed_any([rows[place] for place in others], [tokens[place] for place in others]))
        if len(parts) == 1:
            return parts[0]
        order = single + others
        inverse = sorted(range(len(order)), key=order.__getitem__)
        return torch.cat(parts).index_select(0, on_device(inverse, self.device))


def on_device(numbers: list[int], device: torch.device) -> Tensor:
    """`numbers` as int64, without waiting for what the device does."""
    return torch.tensor(numbers, dtype=torch.int64).to(device, non_blocking=True)


SHORTEST = 128
"""Positions below which fewer make no difference to a GPU."""


class StaticSteps:
    """Steps of one token a row whose tensors stay where they are, so that a GPU replays them as one CUDA graph.

    A GPT-2 of 12 layers launches some 300 kernels for a token, which takes longer than they run. A graph launches them
    together, but its shapes and addresses are fixed: a step covers the first rows of the cache, their number and the
    length of what they see rounded up to powers of two, under a mask. One graph is captured for each pair that occurs,
    in a second or less, or all of them by `prepare`; they share their memory. Rows that are not fed write their keys
    and values after their own end, where the next token overwrites them. Without a GPU a step runs the same code kernel
    by kernel, so that tests can compare it with the other way.

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
        """Logits (len(rows), padded vocabulary) after one new token for each of `rows`.

        `lengths` has all rows of the cache, the new tokens not included.
        """
        seen = max(lengths[row] for row in rows) + 1
        covered, length = self._rounded(max(rows) + 1, seen)
        update, run = self._step(covered, length)
        numbers = torch.zeros(3, covered, dtype=torch.int64)
        numbers[2] = torch.tensor(lengths[:covered])
        numbers[0, rows] = torch.tensor(tokens)
        numbers[1, rows] = numbers[2, rows]
        update.fill(numbers)
        logits = run()
        if list(rows) == list(range(len(rows))):
            return logits[: len(rows)]
        return logits.index_select(0, on_device(list(rows), logits.device))

    def prepare(self) -> None:
        """Make the steps of all sizes that there are."""
        _, rows, _, places, _ = self._keys.shape
        for size in {self._rounded(row, seen) for row in range(1, rows + 1) for seen in range(1, places)}:
            self._step(*size)

    def _rounded(self, rows: int, seen: int) -> tuple[int, int]:
        """The size of the step that covers so many rows, which see so many positions."""
        return (
            min(_power_of_two(rows), self._keys.size(1)),
            min(_power_of_two(max(seen, SHORTEST)), self._keys.size(3)),
        )

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
            # Other threads may ask CUDA for memory meanwhile, as the one that reads batches ahead does.
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
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


class PackedLinear(nn.Module):
    """A linear layer whose matrix lies in oneDNN's order, for any number of rows at a time.

    Args:
        linear: the layer; its type is the type of the computation.
        rows: for how many rows at a time the order is chosen.
    """

    def __init__(self, linear: nn.Linear, rows: int) -> None:
        super().__init__()
        self._product = torch_private.packed_linear(linear.weight.detach(), linear.bias, rows)
        self._type = linear.weight.dtype

    def forward(self, x: Tensor) -> Tensor:
        """(..., inputs) -> (..., outputs)."""
        return self._product(x.to(self._type))


def can_pack(device: torch.device, precision: str) -> bool:
    """Whether this build of torch has oneDNN's order of weights for products in `precision`: on x86 it does."""
    is_x86 = device.type == "cpu" and platform.machine().lower() in ("x86_64", "amd64")
    return (
        torch_private.packs_weights()
        and is_x86
        and precision in ("fp32", "bf16")
        and not is_emulated(device, precision)
    )


@torch.no_grad()
def arrange_weights(model: GPT2, precision: str, rows: int) -> GPT2:
    """Convert the matrices of `model` to the type of `precision`, and on CPU the order that is best for `rows` texts.

    In half precision they are half as large. On x86 the products of a few rows with a matrix are up to twice as fast if
    the matrix lies in memory in the blocks that oneDNN works through (the order that torch's compiler gives frozen
    weights); for a single row in fp32 a matrix with more rows than columns is read faster column by column. The
    embedding is then no longer the output matrix but a second copy, a third more memory for the smallest GPT-2 and a
    twentieth for the largest. The model can't be trained or saved any more.

    Norms and positions stay in float32. Changes the model, or this process's part of it, in place and returns it; what
    is arranged already stays so. On CUDA, products in fp32 may use TF32 from here on.
    """
    if model.final_norm.weight.is_cuda:
        torch.set_float32_matmul_precision("high")
    for module in model.modules():
        has_own = next(module.parameters(recurse=False), None) is not None
        if has_own and not isinstance(module, nn.LayerNorm) and module is not model.position_embedding:
            module.to(DTYPES[precision])
    if isinstance(model.output, nn.Linear):
        model.tie()
    if not can_pack(model.final_norm.weight.device, precision):
        return model
    for parent in model.modules():
        for name, child in parent.named_children():
            if type(child) is nn.Linear:  # and none that also sums over processes
                setattr(parent, name, _arranged(child, rows))
    return model


def _arranged(linear: nn.Linear, rows: int) -> nn.Module:
    weight = linear.weight
    if rows > 1 or weight.dtype != torch.float32:
        return PackedLinear(linear, rows)
    if weight.size(0) >= weight.size(1):
        linear.weight = nn.Parameter(weight.t().contiguous().t(), requires_grad=False)
    return linear
