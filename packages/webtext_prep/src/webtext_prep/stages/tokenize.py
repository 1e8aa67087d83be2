"""`webtext tokenize`: documents to the token files that training maps into memory.

Two phases: each shard is encoded by itself (all cores); then all documents are written in one seeded shuffle over the
whole corpus. Tokens are streamed from memory-mapped files, so that memory grows with the number of documents (some 30
bytes each) and not with their length.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from command_kit import setting
from indexed_tokens import IndexedTokens, IndexedTokensWriter, Tokenizer, bin_path, idx_path, smallest_dtype
from webtext_prep.documents.document import read_documents
from webtext_prep.errors import InputError
from webtext_prep.running.engines import Report
from webtext_prep.running.stage import REPORT_EVERY, Outcome, Stage, Task
from webtext_prep.running.tally import Tally

if TYPE_CHECKING:
    from webtext_prep.running.job import Job

SUFFIX = "_text_document"
"""What Megatron-LM's users expect between a prefix and `.bin`."""


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

    def state_folder(self, output: Path) -> Path:
        """A hidden folder beside the files."""
        return output.with_name(f".{output.name}{SUFFIX}.state")

    def record_path(self, output: Path) -> Path:
        """`PREFIX_text_document.json`."""
        return output.with_name(f"{output.name}{SUFFIX}.json")

    def outputs_in(self, output: Path) -> list[Path]:
        """The pair of token files."""
        prefix = output.with_name(output.name + SUFFIX)
        return [path for path in (bin_path(prefix), idx_path(prefix)) if path.exists()]

    def encode_shard(self, task: Task, report: Report) -> dict[str, Any]:
        """Task: one shard to a pair of token files in its own order."""
        tokenizer, tally = self.tokenizer(), Tally()
        end = [tokenizer.end_of_text] if self.append_eod else []
        with IndexedTokensWriter(task.outputs[0], smallest_dtype(tokenizer.vocabulary_size)) as writer:
            for document in tally.counted(read_documents(task.inputs[0])):
                ids = tokenizer.encode(document.text)
                if ids:
                    writer.add(ids + end)
                    tally.kept += 1
                else:
                    tally.drop(document, "empty")
                if tally.read % REPORT_EVERY == 0:
                    report(REPORT_EVERY)
        report(tally.read % REPORT_EVERY)
        return tally.as_dict()

    def assemble(self, task: Task, report: Report) -> int:
        """Task: the pairs of all shards to the final one. Returns the number of tokens."""
        parts = [IndexedTokens(path) for path in task.inputs[::2]]
        counts = [len(part) for part in parts]
        shard = np.repeat(np.arange(len(parts), dtype=np.int32), counts)
        row = np.concatenate([np.arange(count, dtype=np.int64) for count in counts])
        order = np.random.default_rng(self.seed).permutation(len(shard)) if self.shuffle else np.arange(len(shard))
        with IndexedTokensWriter(task.outputs[0], parts[0].dtype) as writer:
            for number, at in enumerate(order, 1):
                writer.add(parts[shard[at]].slice(int(row[at])))
                if number % REPORT_EVERY == 0:
                    report(REPORT_EVERY)
        return writer.total_tokens

    def run(self, job: Job) -> Outcome:
        """Encode, then write in shuffled order."""
        tasks = [
            Task(
                f"part-{number:05}",
                (path,),
                (bin_path(job.scratch / f"part-{number:05}"), idx_path(job.scratch / f"part-{number:05}")),
            )
            for number, path in enumerate(job.inputs)
        ]
        results = job.map("encode", "encode_shard", tasks, total=job.expected_documents())
        tally = Tally()
        for result in results:
            tally.add(Tally.from_dict(result))
        prefix = job.output.with_name(job.output.name + SUFFIX)
        outputs = [bin_path(prefix), idx_path(prefix)]
        if not tally.kept:
            return Outcome(tally, [])
        whole = Task("all", tuple(path for task in tasks for path in task.outputs), tuple(outputs))
        (tokens,) = job.map("write", "assemble", [whole], total=tally.kept)
        tokenizer = self.tokenizer()
        extra = {
            "tokens": tokens,
            "bytes": outputs[0].stat().st_size,
            "vocabulary_size": tokenizer.vocabulary_size,
            "tokenizer": tokenizer.fingerprint,
            "data": str(prefix.name),
        }
        return Outcome(tally, outputs, extra=extra)
