"""`webtext merge-tokens`: several pairs of token files to one, one after another.

As Megatron-LM joins its own: tokens are copied as they are, byte offsets and document numbers shifted. All parts of
both files are copied by all cores into a draft of the final size; memory is that of a few parts, for files of any size.
Machines can't write to one file together: so all of it is done on this machine, whatever the engine.
Pairs belong together only if their tokens have one type and one tokenizer, which is what lies next to them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from indexed_tokens import IndexedTokens, Tokenizer, bin_path, corpus_tokenizer, idx_path, prefix_of, tokenizer_path
from indexed_tokens.checksums import Checksum, check_checksum, check_token_files, joined, recorded_checksums
from indexed_tokens.reader import held_out_prefix
from indexed_tokens.writer import PairDraft, Written
from webtext_prep import storage
from webtext_prep.documents.folders.stage_record import TOKEN_SUFFIXES, TOKENS_SUFFIX
from webtext_prep.errors import InputError
from webtext_prep.running.job import Job
from webtext_prep.running.stage import Outcome, Reads, Stage
from webtext_prep.running.tasks import Context, Files, Tally, Task, digest
from webtext_prep.storage.locations import Location
from webtext_prep.tokens import token_stage
from webtext_prep.urls.urls import HELD_OUT

Shape = tuple[str, int, int, int]
"""Of a draft: the type of a token, sequences, documents, and bytes of tokens."""
COPY_BYTES = 8 << 20
"""Bytes that are copied at once."""


@dataclass(frozen=True)
class PairSource:
    """One of the pairs, and what lies before it in the output: `sequences`, `documents` and bytes (`offset`)."""

    prefix: Path
    sequences: int
    documents: int
    offset: int


def _is_of_pair(path: Location) -> bool:
    return path.name.endswith(TOKEN_SUFFIXES)


def files_of_pair(given: str) -> list[str]:
    """The three files of the pair whose prefix, or one of whose files, is given; a folder stands for itself."""
    prefix = token_stage.pair_named(given)
    if prefix is None:
        return [given]
    sidecar = tokenizer_path(prefix)
    return [str(bin_path(prefix)), str(idx_path(prefix)), *([str(sidecar)] if sidecar.is_file() else [])]


class _Pairs(Reads):
    def find(self, given: Iterable[str], output: Location | None = None) -> tuple[list[Location], list[str]]:
        """See `Reads.find`. Raises InputError where `output` names a pair that is read."""
        files, notes = super().find(given, output)
        own = [] if output is None else [output, output.with_name(f"{output.name}{TOKENS_SUFFIX}")]
        for pair in _prefixes(files):
            if storage.identity(pair) in map(storage.identity, own):
                raise InputError(f"--output {output} names {pair}, which is read: give another prefix.")
        return files, notes


@dataclass(frozen=True)
class MergeTokens(token_stage.TokenFileStage):
    """Join token files to PREFIX_text_document.bin and .idx, in the order in which they are given.

    Reads pairs of token files, each named by its prefix (A_text_document, or A), as `webtext tokenize` or Megatron-LM
    wrote them. They must store tokens of one type and have been made with one tokenizer. What was held out of
    them (A_held_out) is joined to PREFIX_held_out."""

    name: ClassVar[str] = "merge-tokens"
    order: ClassVar[int] = 85
    summary: ClassVar[str] = "several pairs of token files -> one"
    version: ClassVar[int] = 2
    is_on_this_machine: ClassVar[bool] = True
    reads = _Pairs(token_stage.PAIRS, _is_of_pair, named=files_of_pair)

    part_bytes: ClassVar[int] = 256 << 20
    """Bytes of tokens that one task copies,"""
    part_entries: ClassVar[int] = 4 << 20
    """or entries of the index."""

    def companions(self, given: Sequence[str], output: str) -> list[tuple[Stage, Sequence[str], str]]:
        """The pairs that were held out of some of these, joined."""
        pairs = [held_out_prefix(pair) for pair in map(token_stage.pair_named, given) if pair is not None]
        held_out = [str(pair) for pair in pairs if idx_path(pair).is_file()]
        return [(self, held_out, f"{output}_{HELD_OUT}")] if held_out else []

    def copy(self, task: Task, context: Context) -> Written:
        """Task: a range of the tokens, the sequences or the documents of one pair to its place; its checksums."""
        draft = _draft_in(storage.local_path(task.writes.binary), task.hints["draft"])
        source = PairSource(prefix_of(storage.local_path(task.reads.bin)), *task.hints["source"])
        written = _copy(draft, source, task.options["kind"], *task.options["range"])
        context.report(_bytes_of(written))
        return written

    def publish(self, task: Task, context: Context) -> None:
        """Task: the finished draft and the tokenizer, if there is one, to their final names."""
        draft = _draft_in(storage.local_path(task.reads.binary), task.hints["draft"])
        token_stage.publish(draft, corpus_tokenizer(_prefixes(task.reads["pairs"])[0]), task.writes.all())

    def run(self, job: Job) -> Outcome:
        """Check that all pairs are what was written and belong together, copy them, publish."""
        pairs = [IndexedTokens(prefix) for prefix in _prefixes(job.inputs)]
        for pair in pairs:
            check_token_files(pair.prefix)
        tokenizer = _common_tokenizer(pairs)
        sequences, documents = sum(map(len, pairs)), sum(pair.documents for pair in pairs)
        size = sum(bin_path(pair.prefix).stat().st_size for pair in pairs)
        final = token_stage.token_files(job.output)
        outputs = final if tokenizer else final[:2]
        shape = (pairs[0].dtype.str, sequences, documents, size)
        made_of = digest([self.version, *storage.stamps(job.inputs)])
        draft = token_stage.open_draft(storage.local_path(job.scratch), made_of, *shape)
        both = Files(binary=draft.binary, index=draft.index)
        ranges = [list(self._ranges(pair)) for pair in pairs]
        tasks = [
            Task(
                f"pair-{number:05}-{kind}-{at:05}",
                Files(bin=bin_path(pair.prefix), idx=idx_path(pair.prefix)),
                both,
                {"kind": kind, "range": [begin, end]},
                {"draft": list(shape), "source": [source.sequences, source.documents, source.offset]},
            )
            for number, (source, pair) in enumerate(zip(_sources(pairs), pairs, strict=True))
            for at, (kind, begin, end) in enumerate(ranges[number])
        ]
        written = job.map("copy", self.copy, tasks, unit="bytes", total=size + 12 * sequences + 8 * documents)
        parts = iter(written)
        _check_copied(pairs, [list(itertools.islice(parts, len(own))) for own in ranges])
        whole = Task("all", Files(**both, pairs=job.inputs), Files(final=outputs), hints={"draft": list(shape)})
        job.map("publish", self.publish, [whole])
        tokens = sum(pair.total_tokens for pair in pairs)
        facts: dict[str, Any] = {"files": len(pairs), "tokens": tokens, "bytes": size}
        if tokenizer:
            facts |= {"vocabulary_size": tokenizer.vocabulary_size, "tokenizer": tokenizer.fingerprint}
        tally = Tally(read=documents, kept=documents)
        facts |= {"data": job.output.name + TOKENS_SUFFIX, "checksums": draft.checksums(written)}
        return Outcome(tally, list(outputs), facts=facts)

    def _ranges(self, pair: IndexedTokens) -> Iterator[tuple[str, int, int]]:
        """The pieces of a pair to copy: the kind, the first of them, and one after the last."""
        kinds = (
            ("tokens", bin_path(pair.prefix).stat().st_size, self.part_bytes),
            ("sequences", len(pair), self.part_entries),
            ("documents", pair.documents, self.part_entries),
        )
        for kind, count, most in kinds:
            yield from ((kind, begin, min(begin + most, count)) for begin in range(0, count, most))


def _prefixes(files: Sequence[Location]) -> list[Path]:
    """The pairs that some files belong to."""
    pairs = (path for path in map(storage.local_path, files) if path.suffix in (".bin", ".idx"))
    return list(dict.fromkeys(map(prefix_of, pairs)))


def _sources(pairs: Sequence[IndexedTokens]) -> Iterator[PairSource]:
    sequences = documents = size = 0
    for pair in pairs:
        yield PairSource(pair.prefix, sequences, documents, size)
        sequences, documents = sequences + len(pair), documents + pair.documents
        size += bin_path(pair.prefix).stat().st_size


def _draft_in(binary: Path, shape: Sequence[Any]) -> PairDraft:
    return PairDraft(binary, binary.with_suffix(".idx"), *shape)


def _copy(draft: PairDraft, source: PairSource, kind: str, begin: int, end: int) -> Written:
    """Copy a range of one pair to its place in the draft; returns its checksums."""
    if kind == "tokens":
        parts = []
        with bin_path(source.prefix).open("rb") as file:
            file.seek(begin)
            for at in range(begin, end, COPY_BYTES):
                piece = file.read(min(COPY_BYTES, end - at))
                parts.append(Checksum(*draft.write_tokens(source.offset + at, piece)["tokens"]))
        return {"tokens": joined(parts)}
    tokens = IndexedTokens(source.prefix)
    if kind == "sequences":
        offsets = tokens.offsets[begin:end] + source.offset
        return draft.write_index(source.sequences + begin, tokens.lengths[begin:end], offsets)
    # All but the last one, which is the first of the pair that follows.
    return draft.write_documents(source.documents + begin, tokens.document_index[begin:end] + source.sequences)


def _bytes_of(written: Written) -> int:
    return sum(size for size, _ in written.values())


def _check_copied(pairs: Sequence[IndexedTokens], written: Sequence[Sequence[Written]]) -> None:
    """Raise IndexedTokensError if the tokens that were copied of a pair are not what its record says was written."""
    for pair, parts in zip(pairs, written, strict=True):
        if recorded := recorded_checksums(pair.prefix):
            copied = joined(Checksum(*part["tokens"]) for part in parts if "tokens" in part)
            check_checksum(bin_path(pair.prefix), copied, recorded["bin"])


def _common_tokenizer(pairs: Sequence[IndexedTokens]) -> Tokenizer | None:
    """The tokenizer of all pairs, or None if none has one. Raises InputError if pairs do not belong together."""
    first = pairs[0]
    tokenizer = corpus_tokenizer(first.prefix)
    for pair in pairs:
        if pair.dtype != first.dtype:
            raise InputError(
                f"{pair.prefix} stores tokens as {pair.dtype} and {first.prefix} as {first.dtype}: only files of one "
                "type can be joined."
            )
        if pair.has_modes:
            raise InputError(f"{idx_path(pair.prefix)} is of a multimodal dataset: only text can be joined.")
        its = corpus_tokenizer(pair.prefix)
        if (its is None) != (tokenizer is None):
            without, with_one = (pair, first) if its is None else (first, pair)
            raise InputError(
                f"{without.prefix} has no tokenizer next to it, and {with_one.prefix} has: if both were made with it, "
                f"copy {tokenizer_path(with_one.prefix)} to {tokenizer_path(without.prefix)}."
            )
        if its is not None and tokenizer is not None and its.fingerprint != tokenizer.fingerprint:
            raise InputError(
                f"{pair.prefix} and {first.prefix} were made with different tokenizers: tokenize the documents of one "
                "of them again."
            )
    return tokenizer
