"""`webtext filter`: keep the documents for which a function of your own says so, or that a classifier scores highly.

    def keep(document):                      # my_filters.py
        if len(document.text) > 100_000:
            return "very_long"               # the reason to drop it
        return "cookie" not in document.metadata.get("title", "").lower()

    webtext filter --function my_filters.py:keep --input work/clean --output work/mine
    webtext filter --model work/quality --keep-share 0.3 --input work/clean --output work/mine

The digest of the function's source, or of the classifier's file, is part of what the output depends on: after an edit
it is made again.

Scores are millionths, which the metadata hold, too. With `--keep-share` there are two phases: first all documents are
scored, then the documents above the cut, of equal scores the larger hashes, are written. `--pareto` draws each
document's random number from its hash. So the same documents are kept with any shards, order or workers.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from command_kit import setting
from command_kit.settings import flag_name
from webtext_prep import storage
from webtext_prep.documents.document import Document, batches
from webtext_prep.documents.folders.partitions import load_array, save_array
from webtext_prep.documents.folders.shards import read_documents
from webtext_prep.documents.functions import UserFunction
from webtext_prep.errors import InputError
from webtext_prep.running.job import Job
from webtext_prep.running.stage import FilterStage, Outcome, shards_outcome, write_shard
from webtext_prep.running.tasks import Context, Files, Tally, Task
from webtext_prep.text.classifiers import Classifier, check_fasttext, classifier_file, is_fasttext, read_classifier
from webtext_prep.tokens.runs import document_key

LOW_SCORE = "low_score"
"""The reason of a document that the classifier does not let pass."""
SCORE = "quality_score"
"""The key of metadata that holds the score, from 0 to 1."""
UNITS = 1_000_000
"""Of a score."""
COLUMNS = 50
"""Of the histogram of scores that the record holds."""
CUTS = ("keep_share", "threshold", "pareto")
"""The settings that say how scores decide: one of them."""

TIES, PARETO = "filter: equal scores", "filter: pareto"
"""What a document's random numbers are for."""

Cut = tuple[int, int]
"""The lowest score, in units, that passes, and with this score the lowest key."""


@dataclass(frozen=True)
class Filter(FilterStage):
    """Keep the documents for which a Python function returns True, or that a classifier scores highly.

    The function is called with each document (its attributes: url, text, metadata). It returns True to keep it, False
    to drop it, or a text to drop it for that reason. It must depend on the document alone. A classifier is what
    `webtext train-filter` wrote, or a .bin or .ftz file of fastText's; scores go to the metadata, as quality_score.
    Reads and writes document shards. Drops: filtered, or the reasons that the function gives; low_score."""

    name: ClassVar[str] = "filter"
    order: ClassVar[int] = 55
    version: ClassVar[int] = 3
    summary: ClassVar[str] = "documents -> documents that a function of your own, or a classifier, keeps"

    function: str = setting("", "the function, as FILE.py:NAME or MODULE:NAME", metavar="FILE.py:NAME")
    model: str | None = setting(None, "a classifier: what train-filter or fastText wrote", metavar="FILTER")
    keep_share: float | None = setting(None, "keep this share of the documents, with the highest scores", gt=0, le=1)
    threshold: float | None = setting(None, "keep the documents with this score or a higher one", ge=0, le=1)
    pareto: float | None = setting(
        None, "keep a document if a Pareto random number of this shape is above 1 - score, as GPT-3's corpus (9)", gt=0
    )
    label: str | None = setting(None, "of fastText's labels that of good documents (default: hq, good, ..., 1)")

    def __post_init__(self) -> None:
        if bool(self.function) == bool(self.model):
            raise InputError(
                "webtext filter needs --function FILE.py:NAME or --model FILTER: say which function, or which "
                "classifier, decides."
            )
        if self.function:
            for name in (*CUTS, "label"):
                if getattr(self, name) is not None:
                    raise InputError(f"{flag_name(name)} is for --model: leave it out with --function.")
        elif sum(getattr(self, name) is not None for name in CUTS) != 1:
            raise InputError("--model needs one of --keep-share, --threshold and --pareto: say how scores decide.")
        _ = self._user_function if self.function else self._model_file  # what can't be read is reported at once

    @functools.cached_property
    def _user_function(self) -> UserFunction:
        return UserFunction(self.function)

    @functools.cached_property
    def _model_file(self) -> Path:
        return classifier_file(str(self.model))

    @property
    def _model(self) -> Classifier:
        return _classifier(self._model_file, tuple(storage.stamp(self._model_file)), self.label or "")

    @property
    def preload(self) -> tuple[str, ...]:
        """The modules of machine code that compute scores; none with a function of the user's own."""
        kernels = ("webtext_prep.text.fingerprint_kernels", "webtext_prep.text.classifier_kernels")
        return () if self.function else kernels

    @property
    def libraries(self) -> tuple[str, ...]:
        """The package that reads fastText's files."""
        if self.function or not is_fasttext(self._model_file):
            return ()
        return ("fasttext-predict" if sys.version_info < (3, 14) else "fasttext-predict-v2",)

    def identity(self) -> dict[str, Any]:
        """The digest of the function's source, or of the classifier."""
        if self.function:
            return {"function_sha256": self._user_function.sha256}
        with self._model_file.open("rb") as file:
            return {"model_sha256": hashlib.file_digest(file, "sha256").hexdigest()}

    def setting_files(self) -> list[Path]:
        """The file of the classifier (`--model`), whose content decides what is dropped."""
        return [] if self.function else [self._model_file]

    def scores_of(self, documents: Sequence[Document]) -> list[int]:
        """The scores of some documents, in units."""
        found = self._model.scores([document.text for document in documents])
        return np.rint(UNITS * found).astype(np.int64).tolist()

    def passes(self, document: Document, score: int, cut: Cut | None = None) -> bool:
        """Whether a document is kept, with this score in units; `cut` is that of `--keep-share`."""
        if self.threshold is not None:
            return score / UNITS >= self.threshold  # both the floats that are nearest to their decimals
        if self.pareto is None:
            assert cut is not None
            return (score, document_key(document, TIES)) >= cut
        # Brown et al. 2020, appendix A: numpy.random.pareto(alpha) > 1 - score, whose probability is this.
        return document_key(document, PARETO) < (2 - score / UNITS) ** -self.pareto * 2.0**64

    def judge(self, document: Document) -> str | None:
        """What the function says, or whether the score, which goes to the metadata, is too low."""
        if self.function:
            return self._user_function.reason_to_drop(document)
        (score,) = self.scores_of([document])
        document.metadata[SCORE] = score / UNITS
        return None if self.passes(document, score) else LOW_SCORE

    def score_shard(self, task: Task, context: Context) -> None:
        """Task: the scores of the documents of a shard, and their keys, to two files."""
        scores, keys = list[int](), list[int]()
        for some in batches(context.counted(read_documents(task.reads.shard))):
            scores += self.scores_of(some)
            keys += (document_key(document, TIES) for document in some)
        save_array(task.writes.scores, np.array(scores, np.int32))
        save_array(task.writes.tie_keys, np.array(keys, np.uint64))

    def process_shard(self, task: Task, context: Context) -> dict[str, Any]:
        """Task: one shard to one shard, by the scores in `task.reads.scores` if they are known."""
        if self.function:
            return super().process_shard(task, context)
        known = load_array(task.reads.scores).tolist() if "scores" in task.reads else None
        cut = tuple(task.options["cut"]) if "cut" in task.options else None
        counts = np.zeros((2, COLUMNS), np.int64)
        limits = {name: value for name in CUTS if (value := getattr(self, name)) is not None}
        if cut is not None:
            limits["lowest_score_kept"] = cut[0] / UNITS

        def kept(documents: Iterable[Document], tally: Tally) -> Iterator[Document]:
            for some in batches(documents):
                scores = self.scores_of(some) if known is None else known[tally.read - len(some) : tally.read]
                for document, score in zip(some, scores, strict=True):
                    document.metadata[SCORE] = score / UNITS
                    is_kept = self.passes(document, score, cut)
                    counts[int(is_kept), min(score * COLUMNS // UNITS, COLUMNS - 1)] += 1
                    if is_kept:
                        yield document
                    else:
                        tally.drop(document, LOW_SCORE, **{SCORE: score / UNITS}, **limits)

        result = write_shard(task, context, read_documents(task.reads.shard), kept)
        return {**result, "scores": counts.tolist()}

    def run(self, job: Job) -> Outcome:
        """All shards, each by itself; where the cut depends on all documents, once they are scored."""
        if self.function:
            return super().run(job)
        if is_fasttext(self._model_file):
            check_fasttext(self._model_file)
        tasks = job.shard_tasks(job.shard_files)
        facts: dict[str, Any] = {"classifier": self._model.about()}
        if self.keep_share is not None:
            files = self._scored(job)
            score, key = cut_at(self.keep_share, files)
            options = {"cut": [score, key]}
            tasks = [
                dataclasses.replace(task, reads=Files(**task.reads, scores=its.scores), options=options)
                for task, its in zip(tasks, files, strict=True)
            ]
            facts |= {"lowest_score_kept": score / UNITS, **options}
        results = job.map("shards", self.process_shard, tasks, total=job.documents)
        outcome = shards_outcome(tasks, results)
        outcome.facts = {**facts, "scores": np.sum([result["scores"] for result in results], axis=0).tolist()}
        return outcome

    def _scored(self, job: Job) -> list[Files]:
        """Phase `scores`: the scores and the keys of the documents of each shard."""
        kinds = {"scores": "scores", "tie_keys": "keys"}
        scoring = job.shard_tasks(
            lambda at: Files(**{kind: job.scratch / f"part-{at:05}.{end}.npy" for kind, end in kinds.items()})
        )
        job.map("scores", self.score_shard, scoring, total=job.documents)
        return [task.writes for task in scoring]


@functools.lru_cache(maxsize=1)
def _classifier(path: Path, stamp: tuple[Any, ...], label: str) -> Classifier:
    """The classifier, read once in each process."""
    return read_classifier(path, label)


def cut_at(share: float, files: Sequence[Files]) -> Cut:
    """The cut above which a share of all documents lies, from what `score_shard` wrote.

    Memory: the scores of one shard, and the keys of documents with the score at the cut. Documents of the same URL and
    text are kept or dropped together.
    """
    counts = np.zeros(UNITS + 1, np.int64)
    for its in files:
        counts += np.bincount(load_array(its.scores), minlength=UNITS + 1)
    wanted = max(1, round(share * int(counts.sum())))
    above = np.cumsum(counts[::-1])[::-1]  # how many have each score or a higher one
    score = int(np.flatnonzero(above >= wanted)[-1]) if above[0] else 0
    keys = [load_array(its.tie_keys)[load_array(its.scores) == score] for its in files]
    at_cut = np.sort(np.concatenate(keys))[::-1]
    left = wanted - int(above[score] - counts[score])
    return score, int(at_cut[left - 1]) if len(at_cut) else 0
