"""`webtext tokenize`: documents to the token files that training maps into memory.

Two phases: each shard is encoded by itself (all cores); then all documents are written in one seeded shuffle over the
whole corpus. Tokens are streamed from memory-mapped files, so that memory grows with the number of documents (some 30
bytes each) and not with their length. The tokenizer is written beside the token files, so that whatever reads them
knows what they mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from command_kit import setting
from indexed_tokens import (
    IndexedTokens,
    IndexedTokensWriter,
    Tokenizer,
    bin_path,
    idx_path,
    save_corpus_tokenizer,
    smallest_dtype,
    tokenizer_path,
)
from indexed_tokens.tokenizer_files import files_of
from webtext_prep.documents import storage
from webtext_prep.documents.sampling import Sample
from webtext_prep.documents.shards import read_documents
from webtext_prep.documents.storage import is_local
from webtext_prep.documents.stores.base import Location
from webtext_prep.errors import InputError
from webtext_prep.running.space import Needs
from webtext_prep.running.stage import PROCESS_BYTES, REPORT_EVERY, Outcome, Run, Stage
from webtext_prep.running.tally import Tally
from webtext_prep.running.task import Context, Task

SUFFIX = "_text_document"
"""What Megatron-LM's users expect between a prefix and `.bin`."""


INDEX_BYTES = 20
"""Of each document in the index: length, position, document."""
ORDER_BYTES = 30
"""Memory of each document while all are put in order."""
TOKENIZER_BYTES = 80 << 20
"""Memory of the tokenizer in a process."""
SUFFIXES = (".bin", ".idx", ".tokenizer.json")


def token_files(output: Location) -> tuple[Location, ...]:
    """The `.bin`, the `.idx` and the tokenizer of an output prefix."""
    return tuple(output.with_name(f"{output.name}{SUFFIX}{suffix}") for suffix in SUFFIXES)


@dataclass(frozen=True)
class Tokenize(Stage):
    """Encode documents with GPT-2's tokenizer into PREFIX_text_document.bin and .idx, in one seeded shuffle.

    Reads document shards. <|endoftext|> follows each document; inside a document it is plain text. The tokenizer is
    written beside the token files, as PREFIX_text_document.tokenizer.json.
    Drops: empty."""

    name: ClassVar[str] = "tokenize"
    order: ClassVar[int] = 80
    summary: ClassVar[str] = "documents -> shuffled token files, PREFIX_text_document.bin and .idx"
    version: ClassVar[int] = 2
    output_is_prefix: ClassVar[bool] = True

    seed: int = setting(1234, "of the shuffle", ge=0)
    shuffle: bool = setting(True, "write documents in random order")
    append_eod: bool = setting(True, "end each document with <|endoftext|>")
    tokenizer: str | None = setting(
        None,
        "another byte-level BPE: a tokenizer.json, a vocab.json with merges.txt beside it, or the folder of either",
        metavar="DIR|FILE",
    )
    vocabulary: str = setting("", "vocab.json of another tokenizer (older way to say --tokenizer)", metavar="FILE")
    merges: str = setting("", "merges.txt of that tokenizer", metavar="FILE")

    def __post_init__(self) -> None:
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

    def state_folder(self, output: Location) -> Location:
        """A hidden folder beside the files."""
        return output.with_name(f".{output.name}{SUFFIX}.state")

    def record_path(self, output: Location) -> Location:
        """`PREFIX_text_document.json`."""
        return output.with_name(f"{output.name}{SUFFIX}.json")

    def outputs_in(self, output: Location) -> list[Location]:
        """The pair of token files and their tokenizer."""
        return [path for path in token_files(output) if storage.is_file(path)]

    def needs(self, sample: Sample, workers: int) -> Needs:
        """All tokens twice, by shard and shuffled, as many of them a byte as the sample has."""
        tokenizer = self.open_tokenizer()
        excerpt = sample.excerpt.decode("utf-8", "ignore")
        share = len(tokenizer.encode(excerpt)) / len(sample.excerpt) if sample.excerpt else 1.0
        tokens = int(share * sample.text) + sample.documents
        size = tokens * np.dtype(smallest_dtype(tokenizer.vocabulary_size)).itemsize + sample.documents * INDEX_BYTES
        memory = workers * (PROCESS_BYTES + TOKENIZER_BYTES) + sample.documents * ORDER_BYTES
        return Needs(size, size, memory, sample.documents)

    def encode_shard(self, task: Task, context: Context) -> dict[str, Any]:
        """Task: one shard to a pair of token files in its own order."""
        tokenizer, tally = self.open_tokenizer(), Tally()
        end = [tokenizer.end_of_text] if self.append_eod else []
        path, dtype = storage.local_path(task.outputs[0]), smallest_dtype(tokenizer.vocabulary_size)
        with IndexedTokensWriter(path, dtype, durable=False) as writer:
            for document in tally.counted(read_documents(task.inputs[0])):
                ids = tokenizer.encode(document.text)
                if ids:
                    writer.add(ids + end)
                    tally.kept += 1
                else:
                    tally.drop(document, "empty")
                if tally.read % REPORT_EVERY == 0:
                    context.report(tally.read)
        context.report(tally.read)
        return tally.as_dict()

    def assemble(self, task: Task, context: Context) -> int:
        """Task: the pairs of all shards to the final one, and the tokenizer. Returns the number of tokens."""
        parts = [IndexedTokens(storage.local_path(path)) for path in task.inputs[::2]]
        counts = [len(part) for part in parts]
        shard = np.repeat(np.arange(len(parts), dtype=np.int32), counts)
        row = np.concatenate([np.arange(count, dtype=np.int64) for count in counts])
        order = np.random.default_rng(self.seed).permutation(len(shard)) if self.shuffle else np.arange(len(shard))
        final = task.outputs[0]
        # Token files are written by seeking, which only files of this machine allow.
        draft = storage.local_path(final) if is_local(final) else context.scratch / final.name
        with IndexedTokensWriter(draft, parts[0].dtype) as writer:
            for number, at in enumerate(order, 1):
                writer.add(parts[shard[at]].slice(int(row[at])))
                if number % REPORT_EVERY == 0:
                    context.report(number)
            # Before the index appears, so that none is ever found without its tokenizer.
            save_corpus_tokenizer(writer.prefix, self.open_tokenizer())
        if draft != final:
            storage.remove(task.outputs[1])
            made = (bin_path(writer.prefix), idx_path(writer.prefix), tokenizer_path(writer.prefix))
            for at in (2, 0, 1):
                storage.publish(made[at], task.outputs[at])
        return writer.total_tokens

    def run(self, job: Run) -> Outcome:
        """Encode, then write in shuffled order."""
        tasks = [
            Task(
                f"part-{number:05}",
                (path,),
                (bin_path(job.scratch / f"part-{number:05}"), idx_path(job.scratch / f"part-{number:05}")),
            )
            for number, path in enumerate(job.inputs)
        ]
        results = job.map("encode", self.encode_shard, tasks, total=job.expected_documents())
        tally = Tally()
        for result in results:
            tally.add(Tally.from_dict(result))
        outputs = token_files(job.output)
        if not tally.kept:
            return Outcome(tally, [])
        whole = Task("all", tuple(path for task in tasks for path in task.outputs), outputs)
        (tokens,) = job.map("write", self.assemble, [whole], total=tally.kept)
        tokenizer = self.open_tokenizer()
        facts = {
            "tokens": tokens,
            "bytes": storage.size(outputs[0]),
            "vocabulary_size": tokenizer.vocabulary_size,
            "tokenizer": tokenizer.fingerprint,
            "data": job.output.name + SUFFIX,
        }
        return Outcome(tally, list(outputs), facts=facts)
