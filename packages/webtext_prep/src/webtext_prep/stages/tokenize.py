"""`webtext tokenize`: documents to the token files that training maps into memory.

Two phases: each shard is encoded by itself (all cores); then all documents are written in one seeded shuffle over the
whole corpus. Tokens are streamed from memory-mapped files, so that memory grows with the number of documents (some 30
bytes each) and not with their length.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from command_kit import setting
from indexed_tokens import IndexedTokens, IndexedTokensWriter, Tokenizer, bin_path, idx_path, smallest_dtype
from webtext_prep.documents import storage
from webtext_prep.documents.shards import read_documents
from webtext_prep.documents.storage import is_local
from webtext_prep.documents.stores.base import Location
from webtext_prep.errors import InputError
from webtext_prep.running.stage import REPORT_EVERY, Outcome, Run, Stage
from webtext_prep.running.tally import Tally
from webtext_prep.running.task import Context, Task

SUFFIX = "_text_document"
"""What Megatron-LM's users expect between a prefix and `.bin`."""


def token_files(output: Location) -> tuple[Location, Location]:
    """The `.bin` and the `.idx` of an output prefix."""
    return output.with_name(f"{output.name}{SUFFIX}.bin"), output.with_name(f"{output.name}{SUFFIX}.idx")


@dataclass(frozen=True)
class Tokenize(Stage):
    """Encode documents with GPT-2's tokenizer into PREFIX_text_document.bin and .idx, in one seeded shuffle.

    Reads document shards. <|endoftext|> follows each document; inside a document it is plain text.
    Drops: empty."""

    name: ClassVar[str] = "tokenize"
    order: ClassVar[int] = 80
    summary: ClassVar[str] = "documents -> shuffled token files, PREFIX_text_document.bin and .idx"
    output_is_prefix: ClassVar[bool] = True

    seed: int = setting(1234, "of the shuffle")
    shuffle: bool = setting(True, "write documents in random order")
    append_eod: bool = setting(True, "end each document with <|endoftext|>")
    vocabulary: str = setting("", "vocab.json of another tokenizer in GPT-2's format", metavar="FILE")
    merges: str = setting("", "merges.txt of that tokenizer", metavar="FILE")

    def __post_init__(self) -> None:
        if bool(self.vocabulary) != bool(self.merges):
            raise InputError("--vocabulary and --merges belong together: give both or neither.")
        if self.seed < 0:
            raise InputError(f"--seed must not be negative, but is {self.seed}.")

    def tokenizer(self) -> Tokenizer:
        """GPT-2's tokenizer, or the one that the settings name."""
        return Tokenizer.from_files(self.vocabulary, self.merges) if self.vocabulary else Tokenizer.gpt2()

    def setting_files(self) -> list[Path]:
        """The vocabulary, where it is not GPT-2's own."""
        return [Path(name) for name in (self.vocabulary, self.merges) if name]

    def state_folder(self, output: Location) -> Location:
        """A hidden folder beside the files."""
        return output.with_name(f".{output.name}{SUFFIX}.state")

    def record_path(self, output: Location) -> Location:
        """`PREFIX_text_document.json`."""
        return output.with_name(f"{output.name}{SUFFIX}.json")

    def outputs_in(self, output: Location) -> list[Location]:
        """The pair of token files."""
        return [path for path in token_files(output) if storage.is_file(path)]

    def encode_shard(self, task: Task, context: Context) -> dict[str, Any]:
        """Task: one shard to a pair of token files in its own order."""
        tokenizer, tally = self.tokenizer(), Tally()
        end = [tokenizer.end_of_text] if self.append_eod else []
        with IndexedTokensWriter(
            storage.local_path(task.outputs[0]), smallest_dtype(tokenizer.vocabulary_size)
        ) as writer:
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
        """Task: the pairs of all shards to the final one. Returns the number of tokens."""
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
        if draft != final:
            storage.remove(task.outputs[1])
            for made, output in zip((bin_path(writer.prefix), idx_path(writer.prefix)), task.outputs, strict=True):
                storage.publish(made, output)
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
        tokenizer = self.tokenizer()
        facts = {
            "tokens": tokens,
            "bytes": storage.size(outputs[0]),
            "vocabulary_size": tokenizer.vocabulary_size,
            "tokenizer": tokenizer.fingerprint,
            "data": job.output.name + SUFFIX,
        }
        return Outcome(tally, list(outputs), facts=facts)
