"""`webtext train-filter`: a linear classifier that tells documents like some from others, in one file.

    webtext train-filter --good work/voted --against work/crawl --output work/quality
    webtext train-filter --input work/clean --good-when 'score >= 10' --output work/quality

The classifier follows from the texts and their sides, not from shards, order or workers: a sample is taken by
the hash of each text, learned from in the order of these hashes, and one text in ten, by its hash, is held out to
measure with. A text that is on both sides counts as good. Three phases:

    choose  each shard: hash and size of each text, by the side that it is on
    sample  each shard: the texts that are in the sample of all, to a file for each side
    learn   the classifier, in one task on one core: 20,000 documents of 3 kB take some seconds

A kill costs the shards at work, and in the last phase all that it has done.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from command_kit import setting
from webtext_prep import storage
from webtext_prep.documents.batches import batches
from webtext_prep.documents.conditions import Condition
from webtext_prep.documents.document import Document
from webtext_prep.documents.folders.partitions import load_array, save_array
from webtext_prep.documents.folders.sampling import Sample
from webtext_prep.documents.folders.shards import read_documents, write_documents
from webtext_prep.errors import InputError, WebtextError
from webtext_prep.running.estimates import Needs
from webtext_prep.running.job import Job
from webtext_prep.running.stage import DOCUMENT_SHARDS, Outcome, Reads, Stage, Writes, receipts_writer
from webtext_prep.running.tasks import Context, Files, Tally, Task
from webtext_prep.storage.locations import Location
from webtext_prep.text.classifiers import (
    FEWEST_BITS,
    FILE,
    MOST_BITS,
    MOST_ORDERS,
    LinearModel,
    Speakers,
    auc,
    buckets_of,
    precision_at,
)
from webtext_prep.tokens.runs import Entries, first_by_key

SIDES = ("against", "good")
HELD_OUT_EVERY = 10
"""One text in this many is held out."""
SHARES = (0.1, 0.2, 0.3, 0.5)
"""Of the held-out documents: shares of which the result says how many are good."""
SPEAKERS = 20
"""N-grams for, and n-grams against, that are shown."""


def text_key(document: Document) -> int:
    """What decides whether a document is in the sample, and held out: a hash of its text."""
    return xxhash.xxh3_64_intdigest(document.text.encode("utf-8", "surrogatepass"))


def is_held_out(key: Any) -> Any:
    """Whether a text is kept from learning, where there are enough; for one key, or an array of them."""
    return key % HELD_OUT_EVERY == 0


@dataclass(frozen=True)
class TrainFilter(Stage):
    """Learn what good documents are like: a linear classifier on hashed n-grams of words, in DIR/model.filter.

    Good documents are in --good, or satisfy --good-when, or both where both are given; it learns to tell them from the
    documents of --against or --input, or without these from the other documents of --good.
    `webtext filter --model DIR` uses it. Reads document shards. Not used: held_out (one text in ten, to measure with),
    in_both (the copy of a good text), empty; and only counted, not_sampled, not_good (--good-when does not hold)."""

    name: ClassVar[str] = "train-filter"
    order: ClassVar[int] = 54
    version: ClassVar[int] = 4
    summary: ClassVar[str] = "good documents, and others -> a classifier, for filter --model"
    writes: ClassVar[Writes] = Writes("filter", tables=(FILE,))

    good: tuple[str, ...] = setting((), "good documents", metavar="DIR", identity=False)
    against: tuple[str, ...] = setting((), "other documents, as with --input", metavar="DIR", identity=False)
    good_when: str = setting(
        "",
        "which documents are good, by their metadata: KEY, one of >= <= == != > <, and a value, such as 'score >= 10'",
        metavar="CONDITION",
    )
    ngrams: int = setting(2, "n-grams of 1 to N words count", ge=1, le=MOST_ORDERS)
    bits: int = setting(
        20, "2 to the power of N weights of 4 bytes, which n-grams share by their hashes", ge=FEWEST_BITS, le=MOST_BITS
    )
    epochs: int = setting(5, "how often the sample is gone through", ge=1, le=100)
    rate: float = setting(0.2, "the first step's length, which falls to 0", gt=0, le=10)
    sample_bytes: int = setting(
        100_000_000, "bytes of text of either side to learn from; the documents are chosen by a hash", ge=1
    )

    def __post_init__(self) -> None:
        _ = self._condition

    @functools.cached_property
    def _condition(self) -> Condition | None:
        return Condition.parse(self.good_when, "--good-when") if self.good_when else None

    @property
    def reads(self) -> Reads:
        """The good documents before --input, the others after it."""
        return dataclasses.replace(DOCUMENT_SHARDS, before=self.good, after=self.against)

    def identity(self) -> dict[str, Any]:
        """How many of the files hold good documents."""
        return {"good_files": len(self._good_files)} if self.good else {}

    @functools.cached_property
    def _good_files(self) -> list[Location]:
        return self.reads.find(self.good)[0] if self.good else []

    def needs(self, sample: Sample, workers: int) -> Needs:
        """What `--sample-bytes` of either side need."""
        return super().needs(sample.part(2 * self.sample_bytes / max(1, sample.text)), workers)

    def _side(self, document: Document, of: str) -> int | None:
        """0 or 1, as in `SIDES`, or None for a document of neither; `of` is what its file is."""
        if of in SIDES:
            return SIDES.index(of)
        assert self._condition is not None
        holds = self._condition.holds(document)
        return int(holds) if of == "both" else 1 if holds else None

    def choose(self, task: Task, context: Context) -> list[int]:
        """Task: keys and sizes of the texts of a shard, to a file for each side.

        Returns how many documents have the key of `good_when`, and how many a value of its kind.
        """
        rows: tuple[list[tuple[int, int]], ...] = ([], [])
        has_key = compared = 0
        for document in context.counted(read_documents(task.reads.shard)):
            if self._condition is not None:
                known = self._condition.known(document)
                has_key += known is not None
                compared += self._condition.compares(known)
            side = self._side(document, task.options["of"]) if document.text else None
            if side is not None:
                rows[side].append((text_key(document), len(document.text.encode("utf-8", "replace"))))
        for kind, found in zip(SIDES, rows, strict=True):
            save_array(task.writes[kind][0], np.array(found, np.uint64).reshape(-1, 2))
        return [has_key, compared]

    def _check_key(self, counts: Sequence[Sequence[int]]) -> None:
        """Raise WebtextError where no document can meet the condition, from what `choose` returned."""
        if self._condition is None:
            return
        has_key, compared = (sum(of_shard[at] for of_shard in counts) for at in (0, 1))
        key = self._condition.key
        if not has_key:
            raise WebtextError(f"train-filter: no document has the key {key}: check --good-when.")
        if not compared:
            raise WebtextError(
                f"train-filter: no document has a {self._condition.kind} under the key {key}: check --good-when, where "
                "quotes make a text of a number."
            )

    def sample(self, task: Task, context: Context) -> dict[str, Any]:
        """Task: the documents of a shard that are in the sample, to a file for each side. Returns counts."""
        last, hold_out, good = (
            task.options["last"],
            task.options["hold_out"],
            set(load_array(task.unkeyed.good).tolist()),
        )
        tally = Tally()
        against_file, good_file = (write_documents(task.writes[side][0], durable=False) for side in SIDES)
        with receipts_writer(task, tally), against_file as against_writer, good_file as good_writer:
            for document in tally.counted(context.counted(read_documents(task.reads.shard))):
                if not document.text:
                    tally.drop(document, "empty")
                    continue
                side, key = self._side(document, task.options["of"]), text_key(document)
                if side is None:
                    tally.dropped["not_good"] += 1
                elif key > last[side]:
                    tally.dropped["not_sampled"] += 1
                elif not side and key in good:
                    tally.drop(document, "in_both")
                else:
                    (good_writer if side else against_writer).write(Document(document.url, document.text))
                    if hold_out and is_held_out(key):
                        tally.drop(document, "held_out")
                    else:
                        tally.kept += 1
        return tally.as_dict()

    def learn(self, task: Task, context: Context) -> dict[str, Any]:
        """Task: learn from all samples, measure, and write the classifier. Returns its figures."""
        from webtext_prep.text import classifier_kernels

        sides = [task.reads[side] for side in SIDES]
        texts = _Encoded.of(sides, self.ngrams, self.bits, context.report)
        learned = ~is_held_out(texts.keys) if task.options["hold_out"] else np.ones(len(texts.keys), np.bool_)
        targets = texts.is_good[learned].astype(np.float64)
        counts = np.array([len(targets) - targets.sum(), targets.sum()])
        # Both sides weigh the same: a step of the larger one is as much shorter as it has more texts.
        shares = (counts.min() / counts)[targets.astype(np.int64)]
        places = texts.starts[learned], texts.ends[learned]
        weights = classifier_kernels.learn(texts.buckets, *places, targets, shares, self.epochs, self.rate, self.bits)
        measured = texts.measured(weights, ~learned)
        facts: dict[str, Any] = {"good": int(counts[1]), "against": int(counts[0]), **measured}
        model = LinearModel(self.ngrams, self.bits, weights)
        speakers = Speakers(model, SPEAKERS)
        for documents in batches(itertools.chain.from_iterable(map(read_documents, task.reads.all()))):
            speakers.add([document.text for document in documents])
        names = dict(zip(("speaks_for", "speaks_against"), speakers.found(), strict=True))
        own = {name: getattr(self, name) for name in ("epochs", "rate", "good_when")}
        digest = xxhash.xxh3_128_hexdigest(texts.keys.tobytes() + texts.is_good.tobytes())
        header = {**facts, **own, "texts": digest, **names}
        with storage.create(task.writes.filter) as file:
            file.write(LinearModel(self.ngrams, self.bits, weights, header).encode())
        return {**facts, **{side: [name for name, _ in found] for side, found in names.items()}}

    def run(self, job: Job) -> Outcome:
        """Choose, copy the chosen, learn."""
        total = job.documents
        names = [f"part-{number:05}" for number in range(len(job.inputs))]
        kinds = self._kinds(job.inputs)
        choosing = [
            Task(
                name,
                Files(shard=path),
                Files(**{side: job.scratch / f"{name}.{side}.npy" for side in SIDES}),
                {"of": kind},
            )
            for name, path, kind in zip(names, job.inputs, kinds, strict=True)
        ]
        self._check_key(job.map("choose", self.choose, choosing, total=total))
        limits = Sampled.of(self.sample_bytes, [task.writes.all() for task in choosing])
        good = job.scratch / "good.npy"
        save_array(good, limits.good)
        options = {"last": limits.last, "hold_out": limits.hold_out}
        options["good"] = xxhash.xxh3_64_hexdigest(limits.good.tobytes())
        sampling = []
        for number, (name, path, kind) in enumerate(zip(names, job.inputs, kinds, strict=True)):
            places = {side: job.scratch / side / f"{name}.jsonl.zst" for side in SIDES}
            copies = Files(**places, dropped=job.receipts_path(number))
            sampling.append(Task(name, Files(shard=path), copies, {"of": kind, **options}, unkeyed=Files(good=good)))
        tally = Tally.total(job.map("sample", self.sample, sampling, total=total))
        if not tally.kept:
            return Outcome(tally, [])
        samples = Files(**{side: [path for task in sampling for path in task.writes[side]] for side in SIDES})
        learning = Task("all", samples, Files(filter=job.output / FILE), {"hold_out": limits.hold_out})
        (facts,) = job.map("learn", self.learn, [learning], total=tally.kept + tally.dropped["held_out"])
        if "auc" not in facts:
            tally.problem("too few documents to hold some out: how well it tells them apart was not measured.")
        receipts = [task.writes.dropped for task in sampling]
        return Outcome(tally, [*learning.writes.all(), *receipts], facts=facts)

    def _kinds(self, files: Sequence[Location]) -> list[str]:
        """What each file holds: one of `SIDES`, `both` as the condition says, or `condition`: good ones, if it holds.

        Raises InputError where there is nothing to tell apart.
        """
        good = {str(path) for path in self._good_files}
        if not good and self._condition is None:
            raise InputError("webtext train-filter needs --good DIR or --good-when CONDITION: say which are good.")
        twice = good & {str(path) for path in (self.reads.find(self.against)[0] if self.against else [])}
        if twice:
            raise InputError(f"{min(twice)} is both in --good and in --against: give other folders.")
        others = [str(path) not in good for path in files]
        if not any(others) and self._condition is None:
            raise InputError("webtext train-filter needs --against DIR: say what to tell the good ones from.")
        if self._condition is None:
            return ["against" if is_other else "good" for is_other in others]
        if not good:
            return ["both"] * len(files)
        return ["against" if is_other else "condition" if any(others) else "both" for is_other in others]


class Sampled(NamedTuple):
    """Which texts are learned from.

    Attributes:
        last: for each of `SIDES` the largest key of a text in its sample.
        hold_out: whether some of both sides are held out.
        good: the keys of good texts that others in their sample may repeat, shape (texts,).
    """

    last: list[int]
    hold_out: bool
    good: npt.NDArray[np.uint64]

    @classmethod
    def of(cls, size: int, files: Iterable[Sequence[Location]]) -> Sampled:
        """Limits of samples of `size` bytes each, from what `choose` wrote. Memory: entries of two samples, and the
        keys of all good texts.

        Raises WebtextError where one side has no text.
        """
        chosen: list[Entries] = [np.empty((0, 2), np.uint64) for _ in SIDES]
        good = [np.zeros(0, np.uint64)]
        for of_shard in files:
            entries = [load_array(place) for place in of_shard]
            good.append(entries[1][:, 0])
            chosen = [first_by_key(np.vstack(pair), size) for pair in zip(chosen, entries, strict=True)]
        last = [int(entries[-1, 0]) if len(entries) else 0 for entries in chosen]
        all_good = np.unique(np.concatenate(good))
        chosen[0] = chosen[0][~np.isin(chosen[0][:, 0], all_good)]
        missing = next((name for name, entries in (("other", chosen[0]), ("good", chosen[1])) if not len(entries)), "")
        if missing:
            raise WebtextError(
                f"train-filter: no {missing} documents to learn from: check --good, --against and --good-when."
            )
        held_out = [is_held_out(entries[:, 0]) for entries in chosen]
        hold_out = all(bool(of.any()) and not bool(of.all()) for of in held_out)
        return cls(last, hold_out, all_good[all_good <= np.uint64(last[0])])


class _Encoded(NamedTuple):
    """Texts as the buckets of their n-grams, in the order of their keys.

    Attributes:
        buckets: of all texts.
        starts, ends: where the buckets of each text lie, shape (texts,).
        keys: of each text.
        is_good: whether it is a good one.
    """

    buckets: npt.NDArray[np.uint32]
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    keys: npt.NDArray[np.uint64]
    is_good: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, files: Iterable[Iterable[Location]], orders: int, bits: int, report: Callable[[int], None]) -> _Encoded:
        """The texts in the files of both `SIDES`; `report` gets their number so far."""
        found, lengths, keys, sides = [], [], list[int](), list[bool]()
        for is_good, of_side in enumerate(files):
            for batch in batches(itertools.chain.from_iterable(map(read_documents, of_side))):
                buckets, ends = buckets_of([document.text for document in batch], orders, bits)
                found.append(buckets)
                lengths.append(np.diff(ends, prepend=0))
                keys += map(text_key, batch)
                sides += [bool(is_good)] * len(batch)
                report(len(keys))
        ends = np.cumsum(np.concatenate(lengths))
        order = np.argsort(np.array(keys, np.uint64), kind="stable")
        starts = (ends - np.concatenate(lengths))[order]
        return cls(np.concatenate(found), starts, ends[order], np.array(keys, np.uint64)[order], np.array(sides)[order])

    def measured(self, weights: npt.NDArray[np.float32], chosen: npt.NDArray[np.bool_]) -> dict[str, Any]:
        """How well the weights tell some of the texts apart; nothing where there are none."""
        from webtext_prep.text.classifier_kernels import score

        if not chosen.any():
            return {}
        places = zip(self.starts[chosen].tolist(), self.ends[chosen].tolist(), strict=True)
        scores = np.array([score(self.buckets, start, end, weights) for start, end in places])
        is_good = self.is_good[chosen]
        precision = precision_at(SHARES, scores, is_good)
        shown = {f"precision_at_{share:.0%}": round(found, 4) for share, found in zip(SHARES, precision, strict=True)}
        held_out = {"held_out_good": int(is_good.sum()), "held_out_against": int((~is_good).sum())}
        return {**held_out, "auc": round(auc(scores, is_good), 4), **shown}
