"""`webtext inspect`: what a shard folder, a shard, a URL list or a pair of token files holds, with a decoded sample;
what a classifier has learned; and what changed since another output of the same pages.

Documents of two outputs are matched by URL. Each output is read twice: once for a hash and the length of each text, 20
bytes for a document in memory, and once for the texts of the samples.
"""

from __future__ import annotations

import difflib
import itertools
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import xxhash

import indexed_tokens
from command_kit import Progress, hide_credentials, setting
from command_kit.charts.numbers import figure
from command_kit.colours import printable
from indexed_tokens.checksums import record_path
from webtext_audit.receipts import sample_dropped
from webtext_prep import storage
from webtext_prep.commands import Command
from webtext_prep.documents.document import Document
from webtext_prep.documents.folders import inputs, stage_record, url_lists
from webtext_prep.documents.folders.shards import is_document_shard, read_documents
from webtext_prep.errors import InputError
from webtext_prep.running.summary import Findings
from webtext_prep.storage.locations import Location
from webtext_prep.text.classifiers import FILE, LinearModel, classifier_file
from webtext_prep.urls.urls import parts_of

SAMPLE_CHARACTERS = 300
SAMPLE_TOKENS = 80


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
    for prefix in (indexed_tokens.prefix_of(path), Path(f"{path}{stage_record.TOKENS_SUFFIX}")):
        if (
            Path(path).suffix in (".bin", ".idx")
            or indexed_tokens.idx_path(prefix).is_file()
            or indexed_tokens.bin_path(prefix).is_file()
        ):
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
    shards = inputs.find_inputs(
        [path],
        accepts=lambda file: is_document_shard(file) or inputs.is_url_list(file),
        kinds="document shards or URL lists",
    ).files
    record = stage_record.read_record(folder) if folder.is_dir() else None
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
        if changes := stage_record.trace(folder).changes():
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
    for row in url_lists.read_urls(file):
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
    step = stage_record.trace(path)
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
    indexed_tokens.IndexedTokens(prefix)
    size = indexed_tokens.bin_path(prefix).stat().st_size + indexed_tokens.idx_path(prefix).stat().st_size
    with Progress("verify", "bytes", size) as progress:
        return indexed_tokens.check_token_files(prefix, whole=True, count=progress.advance)


def inspect_tokens(prefix: Path, samples: int) -> dict[str, Any]:
    """Counts, lengths and decoded beginnings of a `.bin/.idx` pair. Raises IndexedTokensError."""
    tokens = indexed_tokens.IndexedTokens(prefix)
    # Megatron-LM's own files have no tokenizer next to them, and are GPT-2's as a rule.
    known = indexed_tokens.corpus_tokenizer(prefix)
    tokenizer = known or indexed_tokens.Tokenizer.gpt2()
    largest = max((int(sequence.max()) for sequence in itertools.islice(tokens, 1000) if len(sequence)), default=0)
    found: dict[str, Any] = {
        "path": str(tokens.prefix),
        "bytes": indexed_tokens.bin_path(tokens.prefix).stat().st_size,
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
        vocabulary = (
            f"the vocabulary of {indexed_tokens.tokenizer_path(prefix).name}" if known else "GPT-2's vocabulary"
        )
        raise indexed_tokens.IndexedTokensError(
            f"{tokens.prefix} holds token {largest}, which {vocabulary} of {tokenizer.vocabulary_size} lacks: "
            "it was made with another tokenizer."
        )
    found["samples"] = [
        {"text": tokenizer.decode(tokens.slice(row, 0, min(SAMPLE_TOKENS, int(tokens.lengths[row]))))}
        for row in range(min(samples, len(tokens)))
    ]
    return found


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


# What changed since another output


CHANGES = {"less than half": 0.5, "half to 90%": 0.9, "90% to 110%": 1.1, "110% to twice": 2.0}
"""Upper bounds of what a text's length is of what it was, each by its name."""
MORE = "more than twice"
SHOWN_LINES = 12
"""Changed lines that are shown of a sample."""
SHOWN_CHARACTERS = 160
"""Characters that are shown of a changed line."""
SEED = int.from_bytes(b"compare")
"""The key of `keyed_hash`: no other use of a hash chooses by the same one."""


def _texts(path: str) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64], npt.NDArray[np.uint32]]:
    """Of the document shards at a path the hashes of URLs, ascending, and those of the first text of each, and lengths.

    Raises InputError.
    """
    urls, texts, lengths = array("Q"), array("Q"), array("I")
    for document in _documents(path):
        urls.append(keyed_hash(document.id))
        texts.append(keyed_hash(document.text))
        lengths.append(len(document.text))
    found, first = np.unique(np.array(urls, np.uint64), return_index=True)
    return found, np.array(texts, np.uint64)[first], np.array(lengths, np.uint32)[first]


def _documents(path: str) -> Iterator[Document]:
    for shard in inputs.find_inputs([path], accepts=is_document_shard, kinds="document shards").files:
        yield from read_documents(shard)


def keyed_hash(text: str) -> int:
    """A text's hash: it tells texts apart, and of URLs chooses the samples."""
    return xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogatepass"), SEED)


def compare(new: str, old: str, samples: int) -> dict[str, Any]:
    """Counts and samples of how the documents of `new` differ from those of `old`. Raises InputError.

    The samples are those of the changed documents whose URLs have the lowest hashes.
    """
    (urls, texts, lengths), (old_urls, old_texts, old_lengths) = _texts(new), _texts(old)
    shared, here, there = np.intersect1d(urls, old_urls, assume_unique=True, return_indices=True)
    has_changed = texts[here] != old_texts[there]
    was, now = (of[has_changed].astype(np.float64) for of in (old_lengths[there], lengths[here]))
    places = np.digitize(now / np.maximum(was, 1), list(CHANGES.values()))
    counts = np.bincount(places, minlength=len(CHANGES) + 1).tolist()
    return {
        "documents": len(urls),
        "not_in_old": len(urls) - len(shared),
        "only_in_old": len(old_urls) - len(shared),
        "same_text": len(shared) - int(has_changed.sum()),
        "changed": int(has_changed.sum()),
        "of_the_changed": dict(zip([*CHANGES, MORE], counts, strict=True)),
        "characters": {"old": int(old_lengths.sum()), "new": int(lengths.sum())},
        "samples": _samples(new, old, frozenset(shared[has_changed][:samples].tolist())),
    }


def _samples(new: str, old: str, chosen: frozenset[int]) -> list[dict[str, Any]]:
    """The documents with these hashes of URLs, and what lines of theirs came and went."""
    texts: list[dict[int, Document]] = [{}, {}]
    for found, path in zip(texts, (old, new), strict=True):
        for document in _documents(path) if chosen else ():
            key = keyed_hash(document.id)
            if key in chosen:
                found.setdefault(key, document)
                if len(found) == len(chosen):
                    break
    before, after = texts
    return [
        {
            "url": after[key].url,
            "characters": f"{len(before[key].text):,} -> {len(after[key].text):,}",
            "text": "\n".join(_changed_lines(before[key].text, after[key].text)),
        }
        for key in sorted(chosen)
    ]


def _changed_lines(before: str, after: str) -> Iterator[str]:
    """The lines that went, behind `-`, and that came, behind `+`."""
    old, new = before.split("\n"), after.split("\n")
    lines = [
        line
        for what, begin, end, new_begin, new_end in difflib.SequenceMatcher(
            None, old, new, autojunk=False
        ).get_opcodes()
        if what != "equal"
        for line in (*(f"- {gone}" for gone in old[begin:end]), *(f"+ {come}" for come in new[new_begin:new_end]))
    ]
    for line in lines[:SHOWN_LINES]:
        yield line[:SHOWN_CHARACTERS]
    if len(lines) > SHOWN_LINES:
        yield f"... and {len(lines) - SHOWN_LINES:,} more lines"
