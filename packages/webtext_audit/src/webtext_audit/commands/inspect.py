"""`webtext inspect`: what a shard folder, a shard, a URL list or a pair of token files holds, with a decoded sample;
and what a classifier has learned."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from command_kit import Progress, hide_credentials, setting
from command_kit.charts.numbers import figure
from indexed_tokens import (
    IndexedTokens,
    IndexedTokensError,
    Tokenizer,
    bin_path,
    check_token_files,
    corpus_tokenizer,
    idx_path,
    prefix_of,
    tokenizer_path,
)
from indexed_tokens.checksums import record_path
from webtext_audit.comparison import compare
from webtext_audit.receipts import sample_dropped
from webtext_prep import storage
from webtext_prep.commands import Command
from webtext_prep.documents.document import Document
from webtext_prep.documents.folders.inputs import find_inputs, is_url_list
from webtext_prep.documents.folders.shards import is_document_shard, read_documents
from webtext_prep.documents.folders.stage_record import TOKENS_SUFFIX, read_record, trace
from webtext_prep.documents.folders.url_lists import read_urls
from webtext_prep.errors import InputError
from webtext_prep.running.summary import Findings
from webtext_prep.storage.locations import Location
from webtext_prep.text.classifiers import FILE, LinearModel, classifier_file
from webtext_prep.urls.urls import parts_of

SAMPLE_CHARACTERS = 300
SAMPLE_TOKENS = 80
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class Inspect(Command):
    """Show what a shard folder, a shard, a .bin/.idx pair or a classifier holds, with a decoded sample."""

    name: ClassVar[str] = "inspect"
    order: ClassVar[int] = 10
    summary: ClassVar[str] = "any of the above -> what it holds: counts, sizes, a sample"

    path: str = setting(
        "", "a folder or file that a stage wrote, or a token file's prefix", metavar="PATH", positional=True
    )
    samples: int = setting(2, "documents to show", ge=0)
    verify: bool = setting(False, "refuse token files whose checksums are not on record; others are always compared")
    dropped: str = setting(
        "",
        "show what the stage dropped for that reason, and the values that decided",
        metavar="REASON",
    )
    compare: str = setting(
        "",
        "show what changed since another output of the same pages, as by an older extractor: which documents, how much "
        "shorter or longer they are, and lines that came and went",
        metavar="OLD",
    )

    def find(self) -> Findings:
        """What lies at `path`. Raises InputError if there is nothing to show."""
        if not self.path:
            raise InputError("webtext inspect needs a PATH: say what to look at.")
        if self.compare:
            if self.dropped:
                raise InputError(
                    "--compare is for what two outputs hold, --dropped for what one lacks: give one of them."
                )
            compared = compare(self.path, self.compare, self.samples)
            compared = {"path": hide_credentials(self.path), "old": hide_credentials(self.compare), **compared}
            return Findings(_shown(compared), compared)
        if self.dropped:
            found = inspect_dropped(self.path, self.dropped, self.samples)
            return Findings(_shown(found), found)
        if is_filter(self.path):
            found = inspect_filter(self.path)
            return Findings(_shown(found), found)
        prefix = _token_prefix(self.path)
        if prefix is None and self.verify:
            raise InputError(f"--verify is for token files, and {self.path} names none: give their prefix.")
        if prefix is None:
            found = inspect_documents(self.path, self.samples)
            return Findings(_shown(found), found)
        is_recorded = verify_tokens(prefix)
        if self.verify and not is_recorded:
            raise InputError(
                f"{record_path(prefix)} has no checksums of {prefix}: `webtext tokenize` and `merge-tokens` record "
                "them; leave out --verify for token files of other programs."
            )
        found = inspect_tokens(prefix, self.samples)
        found = {"path": found.pop("path"), "verified": is_recorded, **found}
        return Findings(_shown(found), found)


def _token_prefix(path: str) -> Path | None:
    for prefix in (prefix_of(path), Path(f"{path}{TOKENS_SUFFIX}")):
        if Path(path).suffix in (".bin", ".idx") or idx_path(prefix).is_file() or bin_path(prefix).is_file():
            return prefix
    return None


def is_filter(path: str) -> bool:
    """Whether a path is that of a classifier, or of what `webtext train-filter` wrote."""
    return Path(path).suffix == Path(FILE).suffix or (Path(path) / FILE).is_file()


def inspect_filter(path: str) -> dict[str, Any]:
    """What a classifier has learned from, how well, and what speaks for a document. Raises InputError."""
    file = classifier_file(path)
    model = LinearModel.decode(storage.read_bytes(file), file)
    facts = {name: value for name, value in model.facts.items() if value != ""}
    for name in ("speaks_for", "speaks_against"):
        facts[name] = dict(facts.get(name, ()))
    return {
        "path": hide_credentials(str(file)),
        "bytes": storage.size(file),
        "ngrams": model.orders,
        "weights": len(model.weights),
        "weights_not_0": int(np.count_nonzero(model.weights)),
        **facts,
        "samples": [],
    }


def inspect_documents(path: str, samples: int) -> dict[str, Any]:
    """Counts, sizes and the first documents of a folder of shards or one shard. Raises InputError."""
    folder = Path(path)
    shards = find_inputs(
        [path], accepts=lambda file: is_document_shard(file) or is_url_list(file), kinds="document shards or URL lists"
    ).files
    record = read_record(folder) if folder.is_dir() else None
    documents = characters = 0
    shown: list[Document] = []
    for document in itertools.chain.from_iterable(
        read_documents(shard) if is_document_shard(shard) else _urls_in(shard) for shard in shards
    ):
        documents += 1
        characters += len(document.text)
        if len(shown) < samples:
            shown.append(document)
    found: dict[str, Any] = {"path": hide_credentials(path)}
    if record is not None:
        found |= {key: record[key] for key in ("stage", "settings", "in", "added", "out", "dropped") if key in record}
        if changes := trace(folder).changes():
            found["changes"] = changes
    found |= {
        "shards": len(shards),
        "bytes": sum(storage.sizes(shards)),
        "documents": documents,
        "characters": characters,
        "samples": list(map(_sample, shown)),
    }
    return found


def _urls_in(file: Location) -> Iterator[Document]:
    """The rows of a URL list. Raises InputError where no row is a URL: any text has lines."""
    first, is_list = "", False
    for row in read_urls(file):
        first, is_list = first or row.url, is_list or bool(parts_of(row.url)[0])
        yield row
    if first and not is_list:
        raise InputError(
            f"{file} holds no URL (it begins with {printable(first[:60])!r}): `webtext merge` makes documents of texts."
        )


def _sample(document: Document) -> dict[str, Any]:
    return {"url": document.url, **document.metadata, "text": document.text[:SAMPLE_CHARACTERS]}


def inspect_dropped(path: str, reason: str, samples: int) -> dict[str, Any]:
    """The first documents that the stage which made a folder dropped for a reason. Raises as `sample_dropped` does."""
    step = trace(path)
    documents = sample_dropped(step, reason, samples)
    return {
        "path": hide_credentials(path),
        "stage": step.stage,
        "in": step.record["in"],
        "dropped": {reason: step.record["dropped"][reason]},
        **({"changes": changes} if (changes := step.changes()) else {}),
        "samples": list(map(_sample, documents)),
    }


def verify_tokens(prefix: Path) -> bool:
    """Compare a `.bin/.idx` pair with the checksums in its record, reading it whole; False if there are none.

    Raises IndexedTokensError naming the file that is not what was written.
    """
    IndexedTokens(prefix)
    size = bin_path(prefix).stat().st_size + idx_path(prefix).stat().st_size
    with Progress("verify", "bytes", size) as progress:
        return check_token_files(prefix, whole=True, count=progress.advance)


def inspect_tokens(prefix: Path, samples: int) -> dict[str, Any]:
    """Counts, lengths and decoded beginnings of a `.bin/.idx` pair. Raises IndexedTokensError."""
    tokens = IndexedTokens(prefix)
    # Megatron-LM's own files have no tokenizer next to them, and are GPT-2's as a rule.
    known = corpus_tokenizer(prefix)
    tokenizer = known or Tokenizer.gpt2()
    largest = max((int(sequence.max()) for sequence in itertools.islice(tokens, 1000) if len(sequence)), default=0)
    found: dict[str, Any] = {
        "path": str(tokens.prefix),
        "bytes": bin_path(tokens.prefix).stat().st_size,
        "token_type": tokens.dtype.name,
        "documents": tokens.documents,
        "sequences": len(tokens),
        "tokens": tokens.total_tokens,
        "tokenizer": known.fingerprint if known else "not recorded, taken for GPT-2's",
    }
    if len(tokens):
        found["tokens_per_sequence"] = {
            "least": int(tokens.lengths.min()),
            "median": float(np.median(tokens.lengths)),
            "most": int(tokens.lengths.max()),
        }
    if largest >= tokenizer.vocabulary_size:
        vocabulary = f"the vocabulary of {tokenizer_path(prefix).name}" if known else "GPT-2's vocabulary"
        raise IndexedTokensError(
            f"{tokens.prefix} holds token {largest}, which {vocabulary} of {tokenizer.vocabulary_size} lacks: "
            "it was made with another tokenizer."
        )
    found["samples"] = [
        {"text": tokenizer.decode(tokens.slice(row, 0, min(SAMPLE_TOKENS, int(tokens.lengths[row]))))}
        for row in range(min(samples, len(tokens)))
    ]
    return found


def printable(text: str) -> str:
    """A text without control characters: documents come from anywhere, and must not steer the terminal."""
    return _CONTROL.sub("\ufffd", text)


def _shown(found: dict[str, Any]) -> str:
    lines = []
    for name, value in found.items():
        if name == "samples":
            continue
        if isinstance(value, dict):
            value = ", ".join(f"{key} {figure(entry)}" for key, entry in value.items())
        lines.append(f"{name.replace('_', ' '):<20}{figure(value)}")
    for sample in found["samples"]:
        lines.append("")
        lines += [f"  {name}: {value}" for name, value in sample.items() if name != "text"]
        lines += [f"  | {line}" for line in sample["text"].splitlines()]
    return printable("\n".join(lines))
