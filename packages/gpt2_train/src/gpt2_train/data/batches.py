"""Batches: each process's rows of the global batch, read one step ahead in a thread, and made into micro-batches.

Training and validation take the same micro-batches. They are made in two steps, so that a GPU is never waited for:
`on_host`, in the thread that reads ahead, finds documents, counts, and puts all of it into pinned memory; `on_device`
starts copies that only later kernels wait for.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import time

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.data.streams import Blend
from gpt2_train.model.attention import PACKED, Context, DocumentAttention, Documents, find_documents


class BatchReader:
    """Reads a process's share of each global batch, one step ahead of the training loop, in a thread.

    The global batch of step s (the first is 1) is samples (s - 1) · `global_batch` and on; process `rank` of `size`
    takes its contiguous share of the rows, so that the batch is the same at any number of processes.

    Args:
        blend: the samples.
        global_batch: samples in a step, over all processes.
        rank, size: this process's number among the processes that share each batch.
        vocabulary_size: ids that may occur.
        batches: makes micro-batches of the rows, still in the thread.
    """

    def __init__(
        self,
        blend: Blend,
        *,
        global_batch: int,
        rank: int,
        size: int,
        vocabulary_size: int,
        batches: MicroBatches,
    ) -> None:
        self.batches = batches
        self.blend, self.global_batch, self.vocabulary_size = blend, global_batch, vocabulary_size
        self.rows = slice(rank * (global_batch // size), (rank + 1) * (global_batch // size))
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="batch-reader")
        self._step = 0
        self._batch: concurrent.futures.Future[list[MicroBatch]] | None = None

    def request(self, step: int) -> None:
        """Begin to read the batch of `step`; all processes call this together."""
        self._step = step
        places = self.blend.prepare((step - 1) * self.global_batch, self.global_batch)
        self._batch = self._thread.submit(self._read, places[self.rows])

    def take(self, step: int, *, read_ahead: bool = False) -> tuple[list[MicroBatch], float]:
        """This process's micro-batches of `step`, on the host, and the seconds until they were there.

        With `read_ahead` begin to read the next step's.

        The error that stopped the thread is raised here, Gpt2UsageError for token ids that the vocabulary lacks.
        """
        begin = time.monotonic()
        if self._step != step or self._batch is None:
            self.request(step)
        assert self._batch is not None
        batches, waited = self._batch.result(), time.monotonic() - begin
        if read_ahead:
            self.request(step + 1)
        return batches, waited

    def _read(self, places: list[tuple[int, int]]) -> list[MicroBatch]:
        samples = self.blend.read(places)
        check_vocabulary(samples, self.vocabulary_size, "the training data")
        return self.batches.on_host(samples)

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


@dataclasses.dataclass(frozen=True)
class MicroBatch:
    """Sequences that a process takes at once.

    Attributes:
        rows: int64 (B, T + 1), inputs and, one further on, the tokens to predict.
        documents: where documents lie in the inputs; None for packed ones.
        counted: predictions that count, of B · T.
    """

    rows: Tensor
    documents: Documents | None
    counted: int

    @property
    def context(self) -> Context:
        """The context of the inputs."""
        return self.documents if self.documents is not None else PACKED

    @property
    def inputs(self) -> Tensor:
        """(B, T)."""
        return self.rows[:, :-1]

    @property
    def targets(self) -> Tensor:
        """(B, T)."""
        return self.rows[:, 1:]


@dataclasses.dataclass(frozen=True)
class MicroBatches:
    """The maker of micro-batches from rows.

    Attributes:
        size: sequences in each.
        device: where they are computed with.
        documents: how attention stays inside documents; None where it does not.
        end_of_text: the id that begins a document; None if there is none, and nothing asks for it.
        mask_end_of_text: whether predictions after it count for nothing.
    """

    size: int
    device: torch.device
    documents: DocumentAttention | None = None
    end_of_text: int | None = None
    mask_end_of_text: bool = False

    def on_host(self, rows: npt.NDArray[np.int64]) -> list[MicroBatch]:
        """Micro-batches of `rows` (any number, T + 1), in memory from which a GPU copies by itself."""
        return [self._one(rows[at : at + self.size]) for at in range(0, len(rows), self.size)]

    def _one(self, rows: npt.NDArray[np.int64]) -> MicroBatch:
        documents = None
        if self.documents is not None:
            assert self.end_of_text is not None
            documents = find_documents(rows[:, :-1], self.end_of_text, self.documents)
        batch = MicroBatch(torch.from_numpy(rows), documents, self.count(rows))
        if self.device.type != "cuda":
            return batch
        pinned = documents.pinned() if documents is not None else None
        return dataclasses.replace(batch, rows=batch.rows.pin_memory(), documents=pinned)

    def count(self, rows: npt.NDArray[np.int64]) -> int:
        """The predictions in `rows` (any number, T + 1) that count."""
        inputs = rows[:, :-1]
        return inputs.size - (int((inputs == self.end_of_text).sum()) if self.mask_end_of_text else 0)

    def on_device(self, batch: MicroBatch) -> MicroBatch:
        """`batch` where it is computed with; copies from pinned memory are not waited for."""
        rows = batch.rows.to(self.device, non_blocking=True)
        documents = batch.documents.to(self.device) if batch.documents is not None else None
        if documents is not None and self.documents == "mask":
            documents = documents.with_mask()
        return dataclasses.replace(batch, rows=rows, documents=documents)

    def counted(self, losses: Tensor, batch: MicroBatch) -> Tensor:
        """`losses` (B, T) with 0 where a prediction counts for nothing.

        These are the predictions made at an end of text, of what follows it: Megatron-LM's --eod-mask-loss
        leaves them out, too. The prediction of the end of text itself counts.
        """
        return losses * (batch.inputs != self.end_of_text) if self.mask_end_of_text else losses
