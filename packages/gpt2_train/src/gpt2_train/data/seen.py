"""`gpt2 seen`: in which steps of a run documents were read, and which of its checkpoints have seen them.

The order of the data follows from the run's settings alone, so that nothing is recorded while it trains: the sample
index that the run used (kept in its `cache/`, built again if it is gone) is searched the other way round. A step has
seen a document if one of its tokens was an input or a label. Needs no torch; seconds for millions of documents.
`webtext why --run` and `webtext takedown --run` ask it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from command_kit import add_flags, setting, settings_from
from command_kit.settings import make_settings
from gpt2_train.checkpoint.info import list_checkpoints, read_info
from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.config.files import (
    CACHE_FOLDER,
    CHECKPOINTS_FOLDER,
    CONFIG_FILE,
    METRICS_FILE,
    read_records,
    run_settings,
)
from gpt2_train.config.settings import TrainSettings
from gpt2_train.data.corpus import Corpus, open_corpora
from gpt2_train.data.index import IndexCache
from gpt2_train.data.order import run_order
from gpt2_train.data.streams import Blend, blend_split

SHOWN_STEPS = 20

EXAMPLE = """\
example:
  gpt2 seen --run runs/quickstart/model --documents 12 15
"""


@dataclasses.dataclass(frozen=True)
class SeenSettings:
    """The settings of `gpt2 seen`."""

    run: str = setting("", "folder of a `gpt2 train`", metavar="DIR")
    documents: tuple[int, ...] = setting((), "numbers of documents in the token files, from 0 on", metavar="N")
    documents_file: str = setting("", "a file with such numbers, one a line, instead", metavar="FILE")
    data: str = setting(
        "", "the token files that hold the documents: where several were blended, or where they lie now",
        metavar="PREFIX",
    )  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `gpt2 seen` to its parser."""
    add_flags(parser, SeenSettings)
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object on stdout")


def run(arguments: argparse.Namespace) -> int:
    """Carry out `gpt2 seen`; returns the exit code."""
    result = seen(settings_from(SeenSettings, arguments, command="seen"))
    print(json.dumps(result) if arguments.json else described(result))
    return 0


def seen(settings: SeenSettings) -> dict[str, Any]:
    """The object of `--json`: `steps` of the run so far, `checkpoints`, and for each document `split` and `steps`.

    Raises Gpt2UsageError for a folder without a run, data that it was not trained on, or a document that is not there.
    """
    folder, train = Path(settings.run), _run_settings(settings.run)
    documents = _documents(settings)
    entries, wanted = _entries(train, settings.data)
    corpora, weights = open_corpora(entries, train.split_weights())
    corpus = corpora[wanted]
    checkpoints = list_checkpoints(folder / CHECKPOINTS_FOLDER)
    known = read_info(checkpoints[-1]).data if checkpoints else []
    for each, recorded in zip(corpora, known, strict=False):
        if any(recorded.get(name, value) != value for name, value in each.identity().items()):
            raise Gpt2UsageError(
                f"{each.prefix} is not what the run was trained on: give the token files that it began with "
                f"({settings.data or corpus.prefix})."
            )
    log = folder / METRICS_FILE
    logged = [row["step"] for row in read_records(log)] if log.is_file() else []
    steps = max([0, *logged, *map(_step_of, checkpoints)])
    blend = blend_split(
        corpora, weights, "train", sequence_length=train.sequence_length, seed=train.seed,
        cache=IndexCache(folder / CACHE_FOLDER), say=lambda line: None, order=run_order(train),
    )  # fmt: skip
    result: dict[str, Any] = {"run": str(folder), "data": corpus.prefix, "steps": steps, "documents": []}
    first_steps: list[int] = []
    for document in documents:
        if not 0 <= document < corpus.tokens.documents:
            raise Gpt2UsageError(f"{corpus.prefix} has {corpus.tokens.documents:,} documents, and none {document}.")
        begin, end = (int(corpus.tokens.document_index[at]) for at in (document, document + 1))
        split = next((name for name, (low, high) in corpus.ranges.items() if low <= begin < high), "")
        found = _steps_of(blend, corpus, np.arange(begin, end), steps * train.global_batch_size, train)
        result["documents"].append({"document": document, "split": split, "steps": found})
        first_steps += found[:1]
    result["checkpoints"] = [
        {"checkpoint": path.name, "step": step, "has_seen": sum(first <= step for first in first_steps)}
        for path, step in zip(checkpoints, map(_step_of, checkpoints), strict=True)
    ]
    return result


def _steps_of(
    blend: Blend | None, corpus: Corpus, sequences: npt.NDArray[np.int64], samples: int, train: TrainSettings
) -> list[int]:
    streams = blend.streams if blend is not None and samples else []
    for number, stream in enumerate(streams):
        if blend is not None and stream.corpus is corpus:
            found = blend.samples_with(number, sequences, samples)
            return [int(step) for step in np.unique(found // train.global_batch_size + 1)]
    return []


def _run_settings(run: str) -> TrainSettings:
    path = Path(run) / CONFIG_FILE
    if not run or not path.is_file():
        raise Gpt2UsageError(
            f"--run {run or 'is missing'}: give the folder of a `gpt2 train`, with {CONFIG_FILE} in it."
        )
    return make_settings(TrainSettings, run_settings(path.parent), str(path))


def _documents(settings: SeenSettings) -> list[int]:
    numbers = list(settings.documents)
    if settings.documents_file:
        try:
            numbers += [int(word) for word in Path(settings.documents_file).read_text(encoding="utf-8").split()]
        except (OSError, ValueError) as error:
            raise Gpt2UsageError(f"--documents-file {settings.documents_file} can't be read ({error}).") from error
    if not numbers:
        raise Gpt2UsageError("no --documents: give numbers of documents, as `webtext why` says them.")
    return sorted(set(numbers))


def _entries(train: TrainSettings, data: str) -> tuple[list[tuple[float | None, str]], int]:
    """The run's token files, with `data` at its present place, and which of them `data` is."""
    entries = train.corpora()
    if not data:
        if len(entries) > 1:
            names = ", ".join(prefix for _, prefix in entries)
            raise Gpt2UsageError(f"the run blends several token files ({names}): say with --data which are meant.")
        return entries, 0
    own = [number for number, (_, prefix) in enumerate(entries) if Path(prefix).resolve() == Path(data).resolve()]
    # Moved, or named from another folder.
    own = own or [number for number, (_, prefix) in enumerate(entries) if Path(prefix).name == Path(data).name]
    if len(own) != 1:
        names = ", ".join(prefix for _, prefix in entries)
        raise Gpt2UsageError(f"the run was not trained on {data}, but on {names}: give one of these.")
    entries[own[0]] = (entries[own[0]][0], data)
    return entries, own[0]


def _step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step-"))


def described(result: dict[str, Any]) -> str:
    """The result as a person reads it."""
    lines = [f"{result['run']}: {result['steps']:,} steps on {result['data']}"]
    for entry in result["documents"]:
        steps = entry["steps"]
        shown = ", ".join(f"{step:,}" for step in steps[:SHOWN_STEPS]) + (", ..." if len(steps) > SHOWN_STEPS else "")
        where = f"split {entry['split']}" if entry["split"] else "no split"
        told = f"seen in {len(steps):,} steps: {shown}" if steps else "not seen"
        lines.append(f"  document {entry['document']:,} ({where}): {told}")
    for entry in result["checkpoints"]:
        lines.append(
            f"  {entry['checkpoint']}: has seen {entry['has_seen']:,} of {len(result['documents']):,} documents"
        )
    return "\n".join(lines)
