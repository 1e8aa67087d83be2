"""Batches: each process's rows of the global batch, read one step ahead of training in a thread."""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.data.blending import Blend


class TakenBatch(NamedTuple):
    """What a process gets of the batch of a step.

    Attributes:
        rows: what `finish` made of its rows.
        epochs_ended: (stream, epochs finished) of the epochs that end in the batch.
        waited: seconds until it was there.
    """

    rows: Any
    epochs_ended: list[tuple[int, int]]
    waited: float


class BatchReader:
    """Reads a process's share of each global batch, one step ahead of the training loop, in a thread.

    The global batch of step s (the first is 1) is samples (s - 1) · `global_batch` and on; process `rank` of `size`
    takes its contiguous share of the rows, so that the batch is the same at any number of processes.

    Args:
        blend: the samples.
        global_batch: samples in a step, over all processes.
        rank, size: this process's number among those that share each batch.
        vocabulary_size: ids that may occur.
        finish: what to make of the rows, int64 (rows, sequence_length + 1), still in the thread; the rows without it.
    """

    def __init__(
        self,
        blend: Blend,
        *,
        global_batch: int,
        rank: int,
        size: int,
        vocabulary_size: int,
        finish: Callable[[npt.NDArray[np.int64]], Any] | None = None,
    ) -> None:
        self.finish = finish
        self.blend, self.global_batch, self.vocabulary_size = blend, global_batch, vocabulary_size
        self.rows = slice(rank * (global_batch // size), (rank + 1) * (global_batch // size))
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="batch-reader")
        self._step = 0
        self._batch: concurrent.futures.Future[Any] | None = None
        self._places: list[tuple[int, int]] = []

    def request(self, step: int) -> None:
        """Begin to read the batch of `step`; all processes call this together."""
        self._step = step
        self._places = self.blend.prepare((step - 1) * self.global_batch, self.global_batch)
        self._batch = self._thread.submit(self._read, self._places[self.rows])

    def take(self, step: int, *, read_ahead: bool = False) -> TakenBatch:
        """The batch of `step`; with `read_ahead` begin to read the next one.

        Whatever stopped the thread is raised here, Gpt2UsageError for token ids that the vocabulary lacks.
        """
        begin = time.monotonic()
        if self._step != step or self._batch is None:
            self.request(step)
        assert self._batch is not None
        rows, epochs_ended = self._batch.result(), self.blend.epochs_ended(self._places)
        taken = TakenBatch(rows, epochs_ended, time.monotonic() - begin)
        if read_ahead:
            self.request(step + 1)
        return taken

    def _read(self, places: list[tuple[int, int]]) -> Any:
        samples = self.blend.read(places)
        check_vocabulary(samples, self.vocabulary_size, "the training data")
        return samples if self.finish is None else self.finish(samples)

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(cancel_futures=True)


def check_vocabulary(samples: npt.NDArray[np.int64], vocabulary_size: int, where: str) -> None:
    """Raise Gpt2UsageError if `samples` hold a token id that the vocabulary does not."""
    low, high = int(samples.min()), int(samples.max())
    if low < 0 or high >= vocabulary_size:
        raise Gpt2UsageError(
            f"{where} holds the token id {high if high >= vocabulary_size else low}, but the vocabulary has "
            f"{vocabulary_size:,} ids: the data was made with a tokenizer whose vocabulary doesn't match; "
            "give --tokenizer or --vocabulary-size, or tokenize again."
        )
