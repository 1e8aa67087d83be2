"""`webtext index-tokens`: token files to an index in which `gpt2 trace` finds what a model wrote.

Documents are divided into parts, and the suffixes of each part are sorted by a task of its own, in time that grows with
its tokens alone. The parts stay as they are: what looks something up searches each. The documents' URLs are read from
the shards that were tokenized, if they are still there.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from command_kit import setting
from indexed_tokens import IndexedTokens, bin_path, idx_path, prefix_of
from indexed_tokens.suffix_index import (
    POSITION,
    SEAL,
    URL_ENDS,
    URLS,
    Part,
    Seal,
    checksum,
    divide,
    document_begins,
    index_folder,
    part_name,
)
from webtext_prep import storage
from webtext_prep.documents.folders.sampling import Sample
from webtext_prep.errors import InputError
from webtext_prep.running.preflight import Needs, readable
from webtext_prep.running.run import Run
from webtext_prep.running.stage import PROCESS_BYTES, Outcome, Stage
from webtext_prep.running.summary import Findings
from webtext_prep.running.tasks import Context, Tally, Task
from webtext_prep.storage.stores.base import Location
from webtext_prep.tokens import prefix_doubling
from webtext_prep.tokens.document_urls import read_shard, shard_tasks, tokenized, write_urls
from webtext_prep.tokens.token_stage import pair_named

SORT_BYTES = 21
"""Memory for each token that is being sorted, the result included."""
MACHINE_CODE_BYTES = 120 << 20
"""Memory of the compiler, and of what it has compiled, in a process."""
URL_SHARE = 0.1
"""Bytes of URLs for each token, about: 100 for a document of 1,000."""
TIMED_TOKENS = 2 << 20
"""A dry run sorts so many tokens, to say how long all take:"""
SLOWER = 1.5
"""a token of a whole part takes this much longer, since less of it lies in the caches of the processor."""


@dataclass(frozen=True)
class IndexTokens(Stage):
    """Index token files, so that `gpt2 trace` and `gpt2 generate --trace` find which documents hold a text.

    Reads one pair of token files, named by its prefix (A_text_document, or A). Writes the folder
    A_text_document.suffixes beside them: 4 bytes a token, and the documents' URLs. Those are read from the shards that
    were tokenized; where these are gone, documents are found by their numbers alone."""

    name: ClassVar[str] = "index-tokens"
    order: ClassVar[int] = 87
    summary: ClassVar[str] = "token files -> an index in which `gpt2 trace` finds what a model wrote"
    input_kinds: ClassVar[str] = "token files (the prefix of a .bin and .idx)"
    is_passed_on: ClassVar[bool] = False
    process_bytes: ClassVar[int] = PROCESS_BYTES + MACHINE_CODE_BYTES
    compiled: ClassVar[tuple[str, ...]] = ("webtext_prep.tokens.suffix_sorting",)

    part_tokens: int = setting(
        32_000_000, "tokens that are sorted together: each takes 21 bytes of memory a worker", ge=1, le=1_000_000_000
    )
    dry_run: bool = setting(
        False, "write nothing, but print the disk, memory and time that it takes: a sample is sorted", identity=False
    )

    @staticmethod
    def accepts(path: Location) -> bool:
        """The two files of a pair."""
        return path.name.endswith((".bin", ".idx"))

    @staticmethod
    def files_named(given: str) -> list[str]:
        """The files of the pair whose prefix, or one of whose files, is given."""
        prefix = pair_named(given)
        return [given] if prefix is None else [str(bin_path(prefix)), str(idx_path(prefix))]

    @staticmethod
    def output_beside(given: Sequence[str]) -> str:
        """The folder beside the token files. Raises InputError for none, or several."""
        if not given:
            raise InputError("webtext index-tokens needs --input PREFIX: say which token files to index.")
        prefixes = {pair_named(one) or prefix_of(one) for one in given}
        if len(prefixes) > 1:
            raise InputError("webtext index-tokens reads one pair of token files: index several one after another.")
        return str(index_folder(prefixes.pop()))

    @property
    def is_preview(self) -> bool:
        """Whether only to say what it takes."""
        return self.dry_run

    def outputs_in(self, output: Location) -> list[Location]:
        """The files of an index."""
        return [path for path in storage.files_in(output) if path.name in (SEAL, URLS, URL_ENDS) or _is_part(path)]

    def needs(self, sample: Sample, workers: int) -> Needs:
        """Four bytes a token and the URLs; memory for a part in each worker."""
        tokens = sample.size // 2
        at_work = min(workers * self.part_tokens, tokens)
        busy = min(workers, -(-tokens // self.part_tokens)) if tokens else 1
        memory = busy * self.process_bytes + SORT_BYTES * at_work
        return Needs(int((POSITION.itemsize + URL_SHARE) * tokens), int(URL_SHARE * tokens), memory)

    def preview_needs(self, sample: Sample, workers: int) -> Needs:
        """A sample is sorted here."""
        return Needs(0)

    def sort_part(self, task: Task, context: Context) -> int:
        """Task: the suffixes of one part in order. Returns the checksum of the file."""
        sort = prefix_doubling.document_suffixes
        if task.hints["compiled"]:
            from webtext_prep.tokens import suffix_sorting

            sort = suffix_sorting.document_suffixes
        tokens = IndexedTokens(storage.local_path(task.inputs[0]).with_suffix(""))
        documents, places = task.options["documents"], task.options["tokens"]
        ends = document_begins(tokens)[documents[0] : documents[1] + 1] - places[0]
        ends = ends[1:][np.diff(ends) > 0]
        order = sort(_tokens_between(tokens, *places), ends).astype(POSITION, copy=False)
        with storage.create(task.outputs[0]) as file:
            file.write(order.data)
        context.report(places[1] - places[0])
        return checksum(order)

    def read_urls(self, task: Task, context: Context) -> int:
        """Task: the URLs of one shard. Returns how many documents have tokens."""
        return read_shard(task, context)

    def write_urls(self, task: Task, context: Context) -> tuple[int, int]:
        """Task: all URLs in the order of the token files. Returns the checksums of the two files."""
        return write_urls(task)

    def run(self, job: Run) -> Outcome:
        """Sort each part, put the URLs in order, seal."""
        prefix = storage.local_path(job.inputs[0]).with_suffix("")
        tokens, folder = _opened(prefix), storage.local_path(job.output)
        storage.remove(folder / SEAL)  # whoever reads the index must not take a new part for one of the old files
        parts = divide(document_begins(tokens), self.part_tokens)
        hints = {"compiled": tokens.total_tokens > prefix_doubling.PLAIN_TOKENS}
        if hints["compiled"]:
            _refuse_too_many(parts)
        tasks = [
            Task(
                f"part-{number:05}",
                tuple(job.inputs),
                (folder / part_name(number),),
                {"documents": list(part.documents), "tokens": list(part.tokens)},
                hints,
            )
            for number, part in enumerate(parts)
        ]
        checksums = job.map("sort", self.sort_part, tasks, unit="tokens", total=tokens.total_tokens)
        parts = [dataclasses.replace(part, crc32=crc32) for part, crc32 in zip(parts, checksums, strict=True)]
        tally = Tally(read=tokens.documents, kept=tokens.documents)
        urls = self._urls(job, tokens, folder, tally)
        Seal(tokens.identity(), tuple(parts), urls).write(folder)
        outputs: list[Location] = [*(task.outputs[0] for task in tasks), folder / SEAL]
        outputs += [folder / URLS, folder / URL_ENDS] if urls else []
        facts = {
            "tokens": tokens.total_tokens,
            "parts": len(parts),
            "bytes": sum(storage.size(path) for path in outputs),
            "urls": tokens.documents if urls else 0,
        }
        return Outcome(tally, outputs, facts=facts)

    def _urls(self, job: Run, tokens: IndexedTokens, folder: Path, tally: Tally) -> tuple[int, int] | None:
        """Write the documents' URLs; None, and a sentence for the summary, where they can't be known."""
        try:
            sources = tokenized(tokens.prefix)
            missing = next((file for source in sources for file in source.shards if not storage.is_file(file)), None)
            if missing is not None:
                raise InputError(f"{missing} is gone.")
        except InputError as error:
            tally.problem(f"the index has no URLs, as the documents that were tokenized are not there: {error}")
            return None
        tasks = shard_tasks(sources, job.scratch)
        found = job.map("urls", self.read_urls, tasks, total=tokens.documents)
        if sum(found) != tokens.documents:
            tally.problem(
                f"the index has no URLs, as {sum(found):,} documents are there now, and {tokens.documents:,} were "
                "tokenized: run tokenize again, and then this."
            )
            return None
        inputs = tuple(path for task in tasks for path in task.outputs)
        shards = [[task.options["source"], task.options["shuffle"]] for task in tasks]
        task = Task("all", inputs, (folder / URLS, folder / URL_ENDS), {"shards": shards})
        one, other = job.map("order-urls", self.write_urls, [task])[0]
        return one, other

    def preview(self, job: Run) -> Findings:
        """Sort a sample, and say what all of it takes."""
        from webtext_prep.tokens.suffix_sorting import document_suffixes

        tokens = _opened(storage.local_path(job.inputs[0]).with_suffix(""))
        begins = document_begins(tokens)
        parts, total = divide(begins, self.part_tokens), int(begins[-1])
        sample = divide(begins, TIMED_TOKENS)[0]
        ends = begins[sample.documents[0] : sample.documents[1] + 1]
        ends = ends[1:][np.diff(ends) > 0]
        some = _tokens_between(tokens, *sample.tokens)
        document_suffixes(some[:1], np.ones(1, np.int64))  # compiles
        started = time.monotonic()
        document_suffixes(some, ends)
        each = SLOWER * (time.monotonic() - started) / max(1, sample.size)
        at_work = sorted((part.size for part in parts), reverse=True)[: job.workers]
        found = {
            "tokens": total,
            "documents": tokens.documents,
            "parts": len(parts),
            "disk_bytes": int((POSITION.itemsize + URL_SHARE) * total),
            "memory_bytes": len(at_work) * self.process_bytes + SORT_BYTES * sum(at_work),
            "seconds": round(each * total / max(1, len(at_work)), 1),
        }
        return Findings(_described(found), found)


def _opened(prefix: Path) -> IndexedTokens:
    tokens = IndexedTokens(prefix)
    if not tokens.documents:
        raise InputError(f"{prefix} holds no documents: there is nothing to index.")
    return tokens


def _refuse_too_many(parts: Sequence[Part]) -> None:
    """Raise InputError for a part that can't be sorted."""
    from webtext_prep.tokens.suffix_sorting import MOST_TOKENS

    longest = max((part.size + part.documents[1] - part.documents[0] for part in parts), default=0)
    if longest > MOST_TOKENS:
        raise InputError(
            f"{longest:,} tokens and documents are too many to be sorted together: lower --part-tokens, or cut "
            "documents that are longer."
        )


def _described(found: dict[str, Any]) -> str:
    hours, minutes = divmod(round(found["seconds"] / 60), 60)
    shown = f"{hours} h {minutes} min" if found["seconds"] >= 60 else f"{found['seconds']:.0f} s"
    return (
        f"{found['tokens']:,} tokens in {found['documents']:,} documents, {found['parts']:,} parts: about "
        f"{readable(found['disk_bytes'])} of disk, {readable(found['memory_bytes'])} of memory, and {shown} to sort; "
        "then the documents are read once for their URLs."
    )


def _tokens_between(tokens: IndexedTokens, begin: int, end: int) -> np.ndarray[Any, np.dtype[Any]]:
    """The tokens from number `begin` to `end` of the `.bin`, which lie back to back."""
    return np.fromfile(bin_path(tokens.prefix), tokens.dtype, end - begin, offset=begin * tokens.dtype.itemsize)


def _is_part(path: Location) -> bool:
    return path.name.startswith("part-") and path.name.endswith(".u32")
