"""Rows of token ids, as they are read, made into micro-batches: training and validation take the same.

Two steps, so that a GPU is never waited for: `on_host`, in the thread that reads ahead, finds documents, counts, and
puts all of it into pinned memory; `on_device` starts copies that only later kernels wait for.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gpt2_train.model.attention import PACKED, Context, DocumentAttention, Documents, find_documents


@dataclasses.dataclass(frozen=True)
class MicroBatch:
    """Sequences that a process takes at once.

    Attributes:
        rows: int64 (B, T + 1), inputs and, one further on, what is to be predicted.
        documents: where documents lie in the inputs; None for packed ones.
        counted: predictions that count, of B · T.
    """

    rows: Tensor
    documents: Documents | None
    counted: int

    @property
    def context(self) -> Context:
        """What the inputs see."""
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
    """How rows become micro-batches.

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

        These are the predictions made at an end of text, of what follows it: those that Megatron-LM's --eod-mask-loss
        leaves out. That of the end of text itself counts.
        """
        return losses * (batch.inputs != self.end_of_text) if self.mask_end_of_text else losses
