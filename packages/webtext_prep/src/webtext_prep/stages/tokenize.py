"""`webtext tokenize`: documents to the token files that training maps into memory.

Two phases. Each shard is encoded by itself to runs of documents sorted by a key, a hash of the seed and the document
(`tokens/runs.py`). Then the range of keys is cut into parts of some 64 MiB of tokens; each part is gathered
from all runs, sorted, and written to its place in the final files, by all cores. So memory is that of a run or a part,
however many shards, documents and workers there are, and adding a document leaves the order of all others as it was.
Tasks on other machines can't write to one file: there one task writes all parts, one after another.

A shard may be of any size: an encoder that is killed goes on after its last run, which is some seconds old.

What `--hold-out` keeps out of training is written by a run of its own over the same input: its token files have a
record, a state and a lineage like any others.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy.typing as npt

from command_kit import setting
from command_kit.settings import Removed
from indexed_tokens import IndexedTokensError, Tokenizer, smallest_dtype
from indexed_tokens.checksums import checksum_of_file
from indexed_tokens.gigatoken_encoder import HARD_TEXTS, GigatokenEncoder
from indexed_tokens.tokenizer_files import files_of
from indexed_tokens.writer import Written
from webtext_prep import storage
from webtext_prep.documents.folders.shards import read_documents
from webtext_prep.documents.folders.stage_record import RECORD, TOKENS_SUFFIX, read_record
from webtext_prep.documents.formats.compression import join_zstd
from webtext_prep.errors import InputError
from webtext_prep.running.job import Job
from webtext_prep.running.stage import HoldsOut, Outcome, receipts_writer
from webtext_prep.running.tasks import Context, Files, Tally, Task, digest
from webtext_prep.storage.locations import Location
from webtext_prep.tokens import runs as token_runs
from webtext_prep.tokens.token_stage import Checksums, TokenFileStage, open_draft, publish, receipts_file, token_files

KINDS = ("tokens", "table")
"""The suffixes of an encoded shard's two files."""
CHECK_SHARDS, CHECK_DOCUMENTS = 8, 32
"""Before it starts, the encoder is compared with tiktoken on the first 32 documents of 8 shards,"""
CHECK_EVERY = 1000
"""and in each process on one document in this many."""


@functools.lru_cache(maxsize=1)
def corpus_encoder(tokenizer: Tokenizer) -> tuple[GigatokenEncoder, Iterator[int]]:
    """The encoder of this process, and the numbers of its texts from 1 on: making it takes some 0.3 s, which tasks
    share."""
    return GigatokenEncoder(tokenizer), itertools.count(1)


@dataclass(frozen=True)
class Tokenize(HoldsOut, TokenFileStage):
    """Encode documents with GPT-2's tokenizer into PREFIX_text_document.bin and .idx, in one seeded shuffle.

    Reads document shards. <|endoftext|> follows each document; inside a document it is plain text. The order follows
    from the seed and, for each document, its URL and text. The tokenizer is written next to the token files, as
    PREFIX_text_document.tokenizer.json. With --hold-out some pages go to PREFIX_held_out instead, on which `gpt2 train`
    validates.
    Drops: empty, held_out (with --only-held-out: not_held_out)."""

    name: ClassVar[str] = "tokenize"
    order: ClassVar[int] = 80
    summary: ClassVar[str] = "documents -> shuffled token files, PREFIX_text_document.bin and .idx"
    version: ClassVar[int] = 5
    libraries = ("tiktoken",)
    run_bytes: ClassVar[int] = 32 << 20
    """A run ends when it takes so much memory,"""
    part_bytes: ClassVar[int] = 64 << 20
    """Bytes of each part of the second phase, about."""

    seed: int = setting(1234, "of the shuffle", ge=0)
    shuffle: bool = setting(True, "write documents in random order")
    append_eod: bool = setting(True, "end each document with <|endoftext|>")
    tokenizer: str | None = setting(
        None,
        "another byte-level BPE: a tokenizer.json, a vocab.json with merges.txt next to it, or the folder of either",
        metavar="DIR|FILE",
    )
    vocabulary: str = setting("", "vocab.json of another tokenizer (older way to say --tokenizer)", metavar="FILE")
    merges: str = setting("", "merges.txt of that tokenizer", metavar="FILE")
    REMOVED: ClassVar[Mapping[str, Removed]] = {
        "engine_tokenizer": Removed("leave it out; gigatoken encodes, to tiktoken's tokens", unused="tiktoken")
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.vocabulary) != bool(self.merges):
            raise InputError("--vocabulary and --merges belong together: give both or neither.")
        if self.vocabulary and self.tokenizer:
            raise InputError("--tokenizer stands for --vocabulary and --merges: leave these out.")

    def open_tokenizer(self) -> Tokenizer:
        """GPT-2's tokenizer, or the one that the settings name. Raises IndexedTokensError."""
        if self.vocabulary:
            return Tokenizer.from_files(self.vocabulary, self.merges)
        return Tokenizer.from_path(self.tokenizer or "gpt2")

    def setting_files(self) -> list[Path]:
        """The tokenizer's files, where it is not GPT-2's own. Raises IndexedTokensError if they are not there."""
        if self.vocabulary:
            return [Path(self.vocabulary), Path(self.merges)]
        return [] if self.tokenizer in (None, "gpt2") else files_of(Path(str(self.tokenizer)))

    def _check_tokenizer(self) -> None:
        """Raise InputError if a file that `train-tokenizer` wrote is not what its record, next to it, says."""
        for folder in dict.fromkeys(file.parent for file in self.setting_files()):
            record = read_record(folder)
            facts = record.get("facts") if record is not None and record["stage"] == "train-tokenizer" else None
            recorded = facts.get("checksums") if isinstance(facts, dict) else None
            for name, written in recorded.items() if isinstance(recorded, dict) else ():
                if (folder / name).is_file() and checksum_of_file(folder / name)._asdict() != written:
                    raise InputError(
                        f"{folder / name} is not what `webtext train-tokenizer` wrote there: make the tokenizer again "
                        f"with --restart, or remove {folder / RECORD} if the change is meant."
                    )

    def encoder(self) -> Callable[[str], npt.NDArray[Any]]:
        """What turns a text into ids. One text in `CHECK_EVERY` is compared with tiktoken's.

        Raises InputError where they differ.
        """
        engine, count = corpus_encoder(self.open_tokenizer())

        def encode(text: str) -> npt.NDArray[Any]:
            if next(count) % CHECK_EVERY == 0:
                self._check(engine, [text])
            return engine.encode(text)

        return encode

    def _check(self, engine: GigatokenEncoder, texts: Iterable[str]) -> None:
        try:
            engine.check(texts)
        except IndexedTokensError as error:
            # Of that version every code point was compared.
            raise InputError(f"{error} Install the gigatoken that this version was tested with: 0.10.0.") from error

    def _check_engine(self, inputs: Sequence[Location]) -> None:
        """Compare with tiktoken before anything is written: hard texts and a sample of the documents."""
        engine, _ = corpus_encoder(self.open_tokenizer())
        some = inputs[:: max(1, len(inputs) // CHECK_SHARDS)][:CHECK_SHARDS]
        documents = (itertools.islice(read_documents(path), CHECK_DOCUMENTS) for path in some)
        texts = (document.text for document in itertools.chain.from_iterable(documents))
        self._check(engine, itertools.chain(HARD_TEXTS, texts))

    def encode_shard(self, task: Task, context: Context) -> dict[str, Any]:
        """Task: one shard to sorted runs, and receipts. Returns its tally, and the number of documents in each run."""
        tokens, table = storage.local_path(task.writes.tokens), storage.local_path(task.writes.table)
        tally = Tally()
        encode, tokenizer = self.encoder(), self.open_tokenizer()
        end = [tokenizer.end_of_text] if self.append_eod else []
        dtype = smallest_dtype(tokenizer.vocabulary_size)
        with receipts_writer(task, tally), token_runs.RunWriter(tokens, table, dtype, end) as writer:
            for document in tally.counted(context.counted(read_documents(task.reads.shard))):
                reason = token_runs.encoding_refused(document, self.hold_out, only_held_out=self.only_held_out)
                if reason:
                    tally.drop(document, reason)
                    continue
                key = token_runs.shuffle_key(document, self.seed) if self.shuffle else tally.read
                writer.add(key, encode(document.text))
                tally.kept += 1
                if writer.pending >= self.run_bytes:
                    writer.flush()
            writer.flush()
        return {**tally.as_dict(), "runs": writer.runs}

    def write_part(self, task: Task, context: Context) -> Written:
        """Task: one part of the plan to its place in the draft. Returns its checksums."""
        plan, number = token_runs.read_plan(storage.local_path(task.unkeyed.plan)), task.options["part"]
        lengths, tokens = plan.read_part(number)
        written = plan.write_part(number, lengths, tokens)
        context.report(len(lengths))
        return written

    def publish(self, task: Task, context: Context) -> None:
        """Task: the finished draft and the tokenizer to their final names."""
        publish(
            token_runs.read_plan(storage.local_path(task.unkeyed.plan)).draft, self.open_tokenizer(), task.writes.all()
        )

    def join(self, task: Task, context: Context) -> Checksums:
        """Task: the runs of all shards, part after part, to the final files. Returns the checksums of both."""
        files = (map(storage.local_path, task.reads[kind]) for kind in KINDS)
        shards = [token_runs.EncodedShard(*its) for its in zip(*files, task.options["runs"], strict=True)]
        plan, documents, written = self._plan(context.scratch, shards), 0, []
        for number in range(len(plan.parts)):
            lengths, tokens = plan.read_part(number)
            written.append(plan.write_part(number, lengths, tokens))
            documents += len(lengths)
            context.report(documents)
        publish(plan.draft, self.open_tokenizer(), task.writes.all())
        plan.draft.binary.unlink(missing_ok=True)
        plan.draft.index.unlink(missing_ok=True)
        return plan.draft.checksums(written)

    def run(self, job: Job) -> Outcome:
        """Encode, then write in shuffled order."""
        self._check_tokenizer()
        self._check_engine(job.inputs)
        tasks = job.shard_tasks(
            lambda at: Files(
                **{kind: job.scratch / f"part-{at:05}.{kind}" for kind in KINDS},
                # What is held out is few pages: of the others it has no receipts.
                dropped=None if self.only_held_out else job.scratch / f"part-{at:05}.dropped.jsonl.zst",
            )
        )
        results = job.map("encode", self.encode_shard, tasks, total=job.documents)
        tally = Tally.total(results)
        if not tally.kept:
            outcome = Outcome(tally, [])
            if self.only_held_out:
                outcome.advice = None  # a small share of few pages may be none
            return outcome
        tokenizer = self.open_tokenizer()
        outputs, runs = token_files(job.output), [result["runs"] for result in results]
        if job.is_here:
            paths = ([storage.local_path(task.writes[kind][0]) for kind in KINDS] for task in tasks)
            shards = [
                token_runs.EncodedShard(tokens, table, own) for (tokens, table), own in zip(paths, runs, strict=True)
            ]
            checksums = self._write_together(job, shards, outputs, tally.kept)
        else:
            encoded = Files(**{kind: [path for task in tasks for path in task.writes[kind]] for kind in KINDS})
            joining = Task("all", encoded, Files(final=outputs), {"runs": runs})
            (checksums,) = job.map("join", self.join, [joining], total=tally.kept)
        size = checksums["bin"]["bytes"]
        facts = {
            "tokens": size // smallest_dtype(tokenizer.vocabulary_size).itemsize,
            "bytes": size,
            "vocabulary_size": tokenizer.vocabulary_size,
            "tokenizer": tokenizer.fingerprint,
            "data": job.output.name + TOKENS_SUFFIX,
            "checksums": checksums,
        }
        if self.hold_out:
            facts["hold_out"] = self.hold_out
        receipts = [place for task in tasks for place in task.writes.get("dropped", ())]
        made = [join_zstd(receipts, receipts_file(job.output))] if receipts else []
        return Outcome(tally, [*outputs, *made], facts=facts)

    def _write_together(
        self, job: Job, shards: Sequence[token_runs.EncodedShard], outputs: Sequence[Location], documents: int
    ) -> Checksums:
        """Tasks on this machine, each of which writes its part of one draft. Returns the checksums of the files."""
        plan = self._plan(storage.local_path(job.scratch), shards)
        draft = plan.draft
        place = draft.binary.with_suffix(".plan.json")
        plan.write(place)
        both = Files(binary=draft.binary, index=draft.index)
        parts = [
            Task(f"part-{number:05}", Files(), both, {"part": number}, unkeyed=Files(plan=place))
            for number in range(len(plan.parts))
        ]
        written = job.map("write", self.write_part, parts, total=documents)
        job.map("publish", self.publish, [Task("all", both, Files(final=outputs), unkeyed=Files(plan=place))])
        return draft.checksums(written)

    def _plan(self, folder: Path, shards: Sequence[token_runs.EncodedShard]) -> token_runs.ShufflePlan:
        dtype = smallest_dtype(self.open_tokenizer().vocabulary_size)
        in_shuffle = token_runs.parts_by_key(shards, dtype.itemsize, self.part_bytes)
        parts = list(in_shuffle if self.shuffle else token_runs.parts_in_order(shards))
        documents = sum(sum(shard.runs) for shard in shards)
        size = sum(shard.count_tokens() for shard in shards) * dtype.itemsize
        stamps = [(storage.stamp(shard.tokens), storage.stamp(shard.table), shard.runs) for shard in shards]
        made_of = digest([self.version, stamps, list(map(astuple, parts))])
        return token_runs.ShufflePlan(
            list(shards), parts, open_draft(folder, made_of, dtype.str, documents, documents, size)
        )
