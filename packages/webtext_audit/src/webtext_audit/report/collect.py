"""Everything that a report shows, from the folders themselves: the steps, one pass over each table, a training run.

Missing folders are left out: a step whose folder was deleted still has its funnel and its settings, from the record of
the step after it.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from indexed_tokens import IndexedTokens, IndexedTokensError, tokenizer_path
from webtext_audit.commands.plan import CorpusPlan
from webtext_audit.receipts import cuts_in, drops_of, outcomes_in, receipts_in, with_texts
from webtext_audit.report import counters
from webtext_audit.report.scan import TOKEN_DOCUMENTS, count_documents, count_duplicates, count_outcomes, scan, shown
from webtext_audit.report.training import TrainingRun
from webtext_prep import storage
from webtext_prep.documents.document import Document
from webtext_prep.documents.folders.stage_record import Step, all_steps
from webtext_prep.storage.locations import Location

EXAMPLES = 3
"""Of each reason."""
MOST_DROPPED = 200_000
"""Receipts that are looked at for examples, at most."""
MOST_READ = 5_000
"""Documents of the input among which the texts of examples are looked for."""
MOST_REASONS = 60


@dataclass
class ReportedCorpus:
    """What one of the given folders holds.

    Attributes:
        end: the given folder, or token files.
        steps: the folders of documents that the figures are of: itself, or the sources of the token files.
        documents: how many there are.
        figures: of the documents that were read.
        token_lengths: of the documents in the token files.
        tokens: in the token files.
    """

    end: Step
    steps: list[Step]
    documents: int
    figures: counters.DocumentFigures
    token_lengths: counters.LogHistogram | None = None
    tokens: int | None = None

    @property
    def scale(self) -> float:
        """The number of documents that one that was read stands for."""
        return self.documents / self.figures.documents if self.figures.documents else 1.0

    @property
    def is_sample(self) -> bool:
        """Whether the figures are of a sample."""
        return self.figures.documents < self.documents


@dataclass
class Examples:
    """Some of what a step dropped for one reason."""

    step: Step
    reason: str
    count: int
    entries: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Gathered:
    """All that a report shows; `changes` are sentences on files that are not what the steps read or wrote."""

    ends: list[Step]
    steps: list[Step]
    corpora: list[ReportedCorpus]
    outcomes: list[tuple[Step, counters.OutcomeFigures, float]]
    duplicates: list[tuple[Step, counters.DuplicateFigures]]
    examples: list[Examples]
    run: TrainingRun | None = None
    plan: CorpusPlan | None = None
    changes: list[str] = field(default_factory=list)
    ablation: dict[str, Any] | None = None


def gather(
    ends: Sequence[Step], *, sample: int, workers: int, run: TrainingRun | None, plan: CorpusPlan | None = None
) -> Gathered:
    """Read what there is of the steps that led to `ends`; shows progress.

    Args:
        ends: the outputs to report on, of one `trace_all`: what they were made from in common is one step.
        sample: from a folder of more rows than this, about this many are read; 0 for all.
        workers: processes.
        run: a training run to show.
        plan: what was expected of the steps.
    """
    steps = all_steps(*ends)
    tables = [(step, files) for step in steps if (files := _duplicates_in(step))]
    duplicates = [(step, _duplicates(step, files, sample, workers)) for step, files in tables]
    outcomes = [found for step in steps if (found := _outcomes(step, sample, workers)) is not None]
    examples = [entry for step in steps for entry in _examples(step, {id(s): f for s, f, _ in outcomes}, duplicates)]
    corpora = [_corpus(end, sample, workers) for end in ends]
    changes = [sentence for step in steps for sentence in step.changes()]
    return Gathered(list(ends), steps, corpora, outcomes, duplicates, examples, run, plan, changes)


def document_steps(step: Step) -> list[Step]:
    """The folders whose documents `step` holds: itself, or for token files their sources."""
    if not step.is_tokens:
        return [step] if step.place is not None else []
    found = itertools.chain.from_iterable(map(document_steps, step.inputs))
    return list({id(step): step for step in found}.values())


def _share(rows: int, sample: int) -> float:
    return min(1.0, sample / rows) if sample and rows else 1.0


def _corpus(end: Step, sample: int, workers: int) -> ReportedCorpus:
    steps = document_steps(end)
    shards = [shard for step in steps for shard in step.shards() if storage.is_file(shard)]
    documents = sum(step.record["out"] for step in steps)
    share = _share(documents, sample)
    own = tokenizer_path(end.place) if end.is_tokens and isinstance(end.place, Path) else None
    tokenizer = str(own) if own is not None and own.is_file() else ""
    figures = scan(
        count_documents,
        counters.DocumentFigures(),
        shards,
        "documents",
        total=round(share * documents),
        workers=workers,
        share=share,
        token_share=min(1.0, TOKEN_DOCUMENTS / max(share * documents, 1)),
        tokenizer=tokenizer,
    )
    corpus = ReportedCorpus(end, steps, documents, figures)
    if end.is_tokens and isinstance(end.place, Path):
        with contextlib.suppress(IndexedTokensError, OSError):
            lengths = np.asarray(IndexedTokens(end.place).lengths)
            corpus.token_lengths, corpus.tokens = histogram_of(lengths), int(lengths.sum(dtype=np.int64))
    return corpus


def histogram_of(values: np.ndarray[Any, Any]) -> counters.LogHistogram:
    """The histogram of an array of whole numbers, as `LogHistogram.add` would make it."""
    found = counters.LogHistogram(total=float(values.sum(dtype=np.float64)), zeros=float((values < 1).sum()))
    some = values[values >= 1]
    places, counts = np.unique((np.log2(some) * counters.BINS_PER_DOUBLING).astype(np.int64), return_counts=True)
    found.bins = {int(place): float(count) for place, count in zip(places, counts, strict=True)}
    return found


def _duplicates_in(step: Step) -> list[Location]:
    """The files that say what `dedup` dropped, or what `dedup-passages` cut out."""
    return receipts_in(step) if step.stage == "dedup" else cuts_in(step) if step.stage == "dedup-passages" else []


def _outcomes(step: Step, sample: int, workers: int) -> tuple[Step, counters.OutcomeFigures, float] | None:
    shards = outcomes_in(step)
    if not shards:
        return None
    share = _share(step.record["in"], sample)
    of_urls = {"unit": "URLs", "total": round(share * step.record["in"]), "workers": workers, "share": share}
    found = scan(count_outcomes, counters.OutcomeFigures(), shards, "outcomes", **of_urls)
    counted = found.outcomes.totals()[0] if found.outcomes.names else 0.0
    return step, found, counted / step.record["in"] if share < 1 and counted else 1.0


def _duplicates(step: Step, files: list[Location], sample: int, workers: int) -> counters.DuplicateFigures:
    rows = step.record["dropped"].get("duplicate", 0) + step.record.get("notes", {}).get("passages", 0)
    none = counters.DuplicateFigures()
    return scan(count_duplicates, none, files, "duplicates", total=None, workers=workers, share=_share(rows, sample))


def _examples(
    step: Step,
    outcomes: dict[int, counters.OutcomeFigures],
    duplicates: Sequence[tuple[Step, counters.DuplicateFigures]],
) -> list[Examples]:
    """Some of what was dropped, for each reason."""
    reasons = sorted(step.record.get("dropped", {}).items(), key=lambda item: (-item[1], item[0]))[:MOST_REASONS]
    found = {reason: Examples(step, reason, count) for reason, count in reasons}
    if not found or step.place is None:
        return []
    for reason, urls in outcomes[id(step)].examples.items() if id(step) in outcomes else ():
        if reason in found:
            found[reason].entries = [{"url": url} for url in urls.ordered()]
    for _, figures in (entry for entry in duplicates if entry[0] is step and "duplicate" in found):
        found["duplicate"].entries = [_pair(row) for row in figures.examples.ordered()[:EXAMPLES]]
    # Rows of outcomes and of duplicates say more than the documents themselves.
    wanted = {reason: entry for reason, entry in found.items() if not entry.entries}
    receipts: dict[str, list[Document]] = {reason: [] for reason in wanted}
    for looked_at, receipt in enumerate(drops_of(step) if wanted else ()):
        some = receipts.get(str(receipt.metadata["reason"]))
        if some is not None and len(some) < EXAMPLES:
            some.append(receipt)
        if looked_at > MOST_DROPPED or all(len(receipts[r]) >= min(EXAMPLES, e.count) for r, e in wanted.items()):
            break
    most = -(-MOST_READ // max(1, len(step.record.get("shards", ()))))
    for document in with_texts(step, [receipt for some in receipts.values() for receipt in some], most):
        wanted[document.metadata["reason"]].entries.append(shown(document))
    return [entry for entry in found.values() if entry.entries]


def _pair(row: dict[str, Any]) -> dict[str, Any]:
    """A row of the table of duplicates as an example."""
    beside = {"beside": row.get("duplicate_of"), "similarity": row.get("similarity")}
    return {"url": row["url"], "text": row.get("match"), **beside}
