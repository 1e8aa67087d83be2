"""One batch through a model: the loss of each token that is asked for, and whether it is the most likely one.

This is the only contact of a `Scorer` with a model. Batch and result are plain tensors on the CPU, small next to the
logits, so that both can be sent between processes; where the processes of a group each hold a part of the vocabulary,
they exchange a few numbers for each token, and never the logits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gpt2_train.config.errors import Gpt2Error
from gpt2_train.distributed.device import autocast
from gpt2_train.inference.model import InferenceModel
from gpt2_train.model.attention import PACKED, Context, attention_kind, find_documents
from gpt2_train.model.gpt2 import GPT2
from gpt2_train.model.loss import gathered, token_losses

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


@dataclasses.dataclass(frozen=True)
class Batch:
    """Rows of tokens that are scored together.

    Attributes:
        rows: token ids (B, T + 1), int64; each is predicted from the tokens before it in its row.
        last: how many tokens at the end of each row are asked for, at most T.
        with_greedy: whether to find out which of them are the most likely ones.
        fill: how many of the tokens asked for only fill up shorter rows.
        separated_by: the id with which documents begin, where attention stays inside them; else None.
    """

    rows: Tensor
    last: int
    with_greedy: bool = False
    fill: int = 0
    separated_by: int | None = None

    @property
    def tokens(self) -> int:
        """Predictions of real tokens that are asked for."""
        return len(self.rows) * self.last - self.fill


@dataclasses.dataclass(frozen=True)
class BatchScores:
    """The scores of the last tokens of each row of a batch.

    Attributes:
        losses: in nats, float64 (B, last).
        is_greedy: whether each is the most likely token at its place, bool (B, last); None if that was not asked for.
    """

    losses: Tensor
    is_greedy: Tensor | None


@torch.inference_mode()
def score_batch(model: GPT2, batch: Batch, precision: str, group: ProcessGroup | None = None) -> BatchScores:
    """The scores of a batch by a model in evaluation mode; on the CPU, for any device of the model.

    Args:
        model: its logits are of the whole vocabulary, or of this process's part of it.
        batch: the same in all processes of `group`.
        precision: of matrix products, as `autocast` knows it.
        group: the processes that divide the vocabulary among them; None for a model that has all of it.
    """
    vocabulary, device = model.config.vocabulary_size, model.position_embedding.weight.device
    rows = batch.rows.to(device)
    targets = rows[:, -batch.last :]
    context: Context = PACKED
    if batch.separated_by is not None:
        kind = attention_kind(device, precision)
        documents = find_documents(batch.rows[:, :-1].numpy(), batch.separated_by, kind).to(device)
        context = documents.with_mask() if kind == "mask" else documents
    with autocast(device, precision):
        logits = model(rows[:, :-1], context)[:, -batch.last :]
    losses = token_losses(logits, targets, group, vocabulary=vocabulary).cpu().double()
    is_greedy = (most_likely(logits, vocabulary, group) == targets).cpu() if batch.with_greedy else None
    return BatchScores(losses, is_greedy)


def most_likely(logits: Tensor, vocabulary: int, group: ProcessGroup | None = None) -> Tensor:
    """The most likely ids, int64 (...), for logits (..., V), or each process's part of V in the order of `group`.

    Ids from `vocabulary` on pad the embedding: they are never written, so they are not the most likely either.
    """
    first = logits.size(-1) * group.rank() if group is not None else 0
    known = logits[..., : max(0, vocabulary - first)]
    if group is None:
        return known.argmax(dim=-1)
    if known.size(-1):
        highest, places = known.float().max(dim=-1)
    else:
        highest = torch.full(logits.shape[:-1], -torch.inf, device=logits.device)
        places = torch.zeros_like(highest, dtype=torch.int64)
    # Ids are below 2^53, so float64 holds them exactly.
    own = torch.stack([highest.double(), (places + first).double()])
    found = torch.stack(gathered(own, group))  # (processes, 2, ...)
    winner = found[:, 0].argmax(dim=0, keepdim=True)
    return found[:, 1].gather(0, winner).squeeze(0).long()


def score_batches(source: InferenceModel, batches: Sequence[Batch]) -> list[BatchScores]:
    """The scores of at most `dp_size` batches, in order, one by each model that scores at the same time.

    Where several processes share the model, all of them make the same calls. Raises Gpt2Error, on all processes, if a
    loss is not finite. Any other error is this process's alone, and ends it: others wait in the middle of a batch, and
    would for ever if it went on.
    """
    model = source.read_model()
    source.before_batches()
    own = None
    if source.dp_rank < len(batches):
        own = score_batch(model, batches[source.dp_rank], source.precision, source.group)
    found = _exchanged(source, batches, own) if source.dp_size > 1 else [own]
    scores = [one for one in found if one is not None]
    if not all(bool(one.losses.isfinite().all()) for one in scores):
        from gpt2_train.distributed.collectives import SHARED

        error = Gpt2Error(
            "the model's loss is not finite: its training diverged, or --precision fp16 is too narrow for it; "
            "give an earlier checkpoint, or --precision fp32."
        )
        error.add_note(SHARED)
        raise error
    return scores


def _exchanged(source: InferenceModel, batches: Sequence[Batch], own: BatchScores | None) -> Iterator[BatchScores]:
    """The scores of all batches, each from the first process that has scored it."""
    import torch.distributed as dist

    processes = 1 if source.group is None else source.group.size()
    for number, batch in enumerate(batches):
        values = torch.zeros(2, len(batch.rows), batch.last, dtype=torch.float64)
        if number == source.dp_rank and own is not None:
            values[0] = own.losses
            if own.is_greedy is not None:
                values[1] = own.is_greedy
        dist.broadcast(values, src=number * processes)
        yield BatchScores(values[0], values[1].bool() if batch.with_greedy else None)
