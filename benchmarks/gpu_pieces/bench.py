"""What the pieces share: sizes, timing, clearing up, and rows that say why they failed."""

from __future__ import annotations

import contextlib
import gc
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch

from gpt2_train.config.settings import ModelConfig
from gpt2_train.metrics.log import peak_flops
from gpt2_train.training.memory import GIB
from training_steps import Case, Step

Mode = Literal["blocks"] | None
"""What is compiled: each block, or nothing."""

RECIPE = 512
"""Sequences of 1,024 tokens in a step, as GPT-2's and GPT-3's recipes have it: half a million tokens."""

ROUNDS = 3
"""Of which the median counts."""

TINY = ModelConfig(2, 64, 4, 64, 500, dropout=0.0)
"""What stands for every size in the smallest form."""


class Bench:
    """What is measured, and on what.

    Args:
        smoke: a tiny model, few steps and batches; without a GPU it is so, too.
        recipe: a step is one of 512 sequences, as recipes have it, and not one micro-batch.
    """

    def __init__(self, *, smoke: bool, recipe: bool = False) -> None:
        self.on_gpu = torch.cuda.is_available()
        self.device: Literal["cuda", "cpu"] = "cuda" if self.on_gpu else "cpu"
        self.precision = "bf16" if self.on_gpu else "fp32"
        self.smoke = smoke or not self.on_gpu
        self.peak = peak_flops(torch.device(self.device), self.precision)
        self.warmup, self.turns = (1, 1) if recipe else (2, 1) if self.smoke else (4, 8)
        self.sequences = (4 if self.smoke else RECIPE) if recipe else None
        """Of a step; None for one micro-batch."""
        self.warmup_seconds = 0.0
        """What the first steps took, with compiling; of the last measurement."""

    @property
    def steps(self) -> int:
        """Calls of a step that `seconds` makes."""
        return self.warmup + ROUNDS * self.turns

    def case(self, name: str, batch: int) -> Case:
        """A size and a batch in this machine's precision."""
        config = TINY if self.smoke else ModelConfig.preset(name, dropout=0.0)
        return Case(name, config, 2 if self.smoke else batch, self.precision)

    def wait(self) -> None:
        """Wait for the GPU to finish what it was given."""
        if self.on_gpu:
            torch.cuda.synchronize()

    def seconds(self, step: Step) -> float:
        """What `step` takes, after the turns that compile and allocate: the median of three rounds.

        In a round nothing waits for the GPU but its end, as in a run: what the host does meanwhile costs nothing.
        """
        started = time.perf_counter()
        for _ in range(self.warmup):
            step()
        self.wait()
        self.warmup_seconds = time.perf_counter() - started
        found = []
        for _ in range(ROUNDS):
            started = time.perf_counter()
            for _ in range(self.turns):
                step()
            self.wait()
            found.append((time.perf_counter() - started) / self.turns)
        return statistics.median(found)

    def row(self, case: Case, seconds: float) -> dict[str, Any]:
        """What is known of a way to train: speed, share of the peak FLOPs, memory."""
        tokens = (self.sequences or case.batch) * case.config.sequence_length / seconds
        return {
            "micro_batch": case.batch,
            "sequences": self.sequences or case.batch,
            "ms_per_step": round(1000 * seconds, 2),
            "warmup_seconds": round(self.warmup_seconds, 1),
            "tokens_per_second": round(tokens),
            "mfu": round(tokens * case.config.flops_per_token / self.peak, 4) if self.peak else None,
            "peak_memory_GiB": self.peak_memory(),
        }

    def peak_memory(self) -> float | None:
        """The most that torch has held on the GPU, in GiB."""
        return round(torch.cuda.max_memory_allocated() / GIB, 3) if self.on_gpu else None


@contextlib.contextmanager
def cleared() -> Iterator[None]:
    """Give back what was allocated before and after, so that each way to train has the whole GPU."""
    torch.compiler.reset()
    for _ in range(2):
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
    try:
        yield
    finally:
        gc.collect()


def attempt(measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `measure` returns; if it fails, why: one way that does not work must not end the others."""
    try:
        with cleared():
            return measure()
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {error}"[:300]}
