"""`webtext index-tokens`: token files to an index in which `webtext trace` finds what a model wrote.

Documents are divided into parts, and the suffixes of each part are sorted by a task of its own, in time that grows with
its tokens alone. The parts stay as they are: what looks something up searches each. The documents' URLs are read from
the shards that were tokenized, if they are still there.

Token files hold no URLs: they are Megatron-LM's. But the record next to them leads to the shards, and where a document
comes follows from its URL, its text and the seed of the shuffle. So the shards are read once more, each by a task, and
what they hold is put in order: some 100 bytes of disk and 60 of memory for each document.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from zlib import crc32

import numpy as np
import numpy.typing as npt

from command_kit import setting
from command_kit.progress import spoken_duration
from indexed_tokens import IndexedTokens, bin_path, check_token_files, idx_path, prefix_of, suffix_index
from indexed_tokens.suffix_index import SEAL, URL_ENDS, URLS, Part, Seal, divide, document_begins, index_folder
from webtext_prep import storage
from webtext_prep.documents.folders.partitions import load_array, save_array
from webtext_prep.documents.folders.sampling import Sample
from webtext_prep.documents.folders.shards import read_documents
from webtext_prep.documents.folders.stage_record import Step, trace
from webtext_prep.errors import InputError
from webtext_prep.running.estimates import Needs, costs_of, readable
from webtext_prep.running.job import Job
from webtext_prep.running.stage import Outcome, Reads, Stage, Writes
from webtext_prep.running.summary import Findings
from webtext_prep.running.tasks import Context, Files, Tally, Task
from webtext_prep.storage.locations import Location
from webtext_prep.tokens.runs import encoding_refused, held_out_settings, shuffle_key
from webtext_prep.tokens.token_stage import PAIRS, pair_named

KINDS = {"sort_keys": ".keys.npy", "urls": ".urls"}
"""Files about a shard: its documents' keys, u64 of shape (documents,), and their URLs, one on a line."""
_AT_ONCE = 100_000
SORT_BYTES = 15
"""Memory for each token that is being sorted, the result included."""


def _is_of_pair(path: Location) -> bool:
    return path.name.endswith((".bin", ".idx"))


def _files_of_pair(given: str) -> list[str]:
    """The files of the pair whose prefix, or one of whose files, is given."""
    prefix = pair_named(given)
    return [given] if prefix is None else [str(bin_path(prefix)), str(idx_path(prefix))]


def _index_of(given: Sequence[str]) -> str:
    """The folder next to the token files. Raises InputError for none, or several."""
    if not given:
        raise InputError("webtext index-tokens needs --input PREFIX: say which token files to index.")
    prefixes = {pair_named(one) or prefix_of(one) for one in given}
    if len(prefixes) > 1:
        raise InputError("webtext index-tokens reads one pair of token files: index several one after another.")
    return str(index_folder(prefixes.pop()))


def _files_of_index(output: Location) -> list[Location]:
    others = (SEAL, URLS, URL_ENDS)
    return [
        path
        for path in storage.files_in(output)
        if path.name in others or (path.name.startswith("part-") and path.suffix == ".u32")
    ]


@dataclass(frozen=True)
class IndexTokens(Stage):
    """Index token files, so that `webtext trace` and `gpt2 generate --trace` find which documents hold a text.

    Reads one pair of token files, named by its prefix (A_text_document, or A). Writes the folder
    A_text_document.suffixes next to them: 4 bytes a token, and the documents' URLs. The URLs are read from the shards
    that were tokenized; where these are gone, documents are found by their numbers alone."""

    name: ClassVar[str] = "index-tokens"
    order: ClassVar[int] = 87
    summary: ClassVar[str] = "token files -> an index in which `webtext trace` finds what a model wrote"
    reads = Reads(PAIRS, _is_of_pair, named=_files_of_pair)
    writes: ClassVar[Writes] = Writes("extras", folders=(), others=_files_of_index, beside=_index_of)
    preload: ClassVar[tuple[str, ...]] = ("webtext_prep.tokens.suffix_sorting",)

    part_tokens: int = setting(
        32_000_000, "tokens that are sorted together: each takes 15 bytes of memory a worker", ge=1, le=1_000_000_000
    )
    dry_run: bool = setting(False, "write nothing, but print the disk, memory and time that it takes", identity=False)

    @property
    def is_preview(self) -> bool:
        """Whether only to say what it takes."""
        return self.dry_run

    def needs(self, sample: Sample, workers: int) -> Needs:
        """As the table says, but that memory follows from the tokens that are sorted together, of two bytes each."""
        if self.is_preview:
            return Needs(0)
        found, together = super().needs(sample, workers), min(self.part_tokens * workers, sample.text // 2)
        memory = workers * costs_of(self.name, self).least + SORT_BYTES * together
        return dataclasses.replace(found, memory=memory)

    def sort_part(self, task: Task, context: Context) -> int:
        """Task: the suffixes of one part in order. Returns the checksum of the file."""
        from webtext_prep.tokens.suffix_sorting import document_suffixes

        tokens = IndexedTokens(prefix_of(storage.local_path(task.reads["pair"][0])))
        documents, places = task.options["documents"], task.options["tokens"]
        part = _part_of(tokens, document_begins(tokens), documents, places)
        order = document_suffixes(*part).astype(suffix_index.POSITION, copy=False)
        with storage.create(task.writes.part) as file:
            file.write(order.data)
        context.report(places[1] - places[0])
        return suffix_index.checksum(order)

    def run(self, job: Job) -> Outcome:
        """Sort each part, put the URLs in order, seal."""
        prefix = storage.local_path(job.inputs[0]).with_suffix("")
        tokens, folder = _opened(prefix), storage.local_path(job.output)
        check_token_files(prefix, whole=True)
        storage.remove(folder / SEAL)  # whoever reads the index must not take a new part for one of the old files
        parts = divide(document_begins(tokens), self.part_tokens)
        _refuse_too_many(parts)
        tasks = [
            Task(
                f"part-{number:05}",
                Files(pair=job.inputs),
                Files(part=folder / suffix_index.part_name(number)),
                {"documents": list(part.documents), "tokens": list(part.tokens)},
            )
            for number, part in enumerate(parts)
        ]
        checksums = job.map("sort", self.sort_part, tasks, unit="tokens", total=tokens.total_tokens)
        parts = [dataclasses.replace(part, crc32=crc32) for part, crc32 in zip(parts, checksums, strict=True)]
        tally = Tally(read=tokens.documents, kept=tokens.documents)
        urls = self._urls(job, tokens, folder, tally)
        Seal(tokens.identity(), tuple(parts), urls).write(folder)
        outputs: list[Location] = [*(task.writes.part for task in tasks), folder / SEAL]
        outputs += [folder / URLS, folder / URL_ENDS] if urls else []
        facts = {
            "tokens": tokens.total_tokens,
            "parts": len(parts),
            "bytes": sum(storage.size(path) for path in outputs),
            "urls": tokens.documents if urls else 0,
        }
        return Outcome(tally, outputs, facts=facts)

    def _urls(self, job: Job, tokens: IndexedTokens, folder: Path, tally: Tally) -> tuple[int, int] | None:
        """Write the documents' URLs; None, and a sentence for the summary, where they can't be known."""
        try:
            sources = list(_tokenized(trace(tokens.prefix)))
            missing = next((file for shards, _ in sources for file in shards if not storage.is_file(file)), None)
            if missing is not None:
                raise InputError(f"{missing} is gone.")
        except InputError as error:
            tally.problem(f"the index has no URLs, as the documents that were tokenized are not there: {error}")
            return None
        tasks = shard_tasks(sources, job.scratch)
        found = job.map("urls", read_urls, tasks, total=tokens.documents)
        if sum(found) != tokens.documents:
            tally.problem(
                f"the index has no URLs, as {sum(found):,} documents are there now, and {tokens.documents:,} were "
                "tokenized: run tokenize again, and then this."
            )
            return None
        found_of = Files(**{kind: [path for task in tasks for path in task.writes[kind]] for kind in KINDS})
        shards = [[task.options["source"], task.options["shuffle"]] for task in tasks]
        task = Task("all", found_of, Files(urls=folder / URLS, ends=folder / URL_ENDS), {"shards": shards})
        one, other = job.map("order-urls", write_urls, [task])[0]
        return one, other

    def preview(self, job: Job) -> Findings:
        """Say what it takes, as the table of all stages has it."""
        tokens = _opened(storage.local_path(job.inputs[0]).with_suffix(""))
        parts = len(divide(document_begins(tokens), self.part_tokens))
        workers = min(job.workers, parts)
        needs = dataclasses.replace(self, dry_run=False).needs(job.sample(), workers)
        found = {
            "tokens": tokens.total_tokens,
            "documents": tokens.documents,
            "parts": parts,
            "disk_bytes": needs.output,
            "memory_bytes": needs.memory,
            "seconds": round(needs.seconds / workers, 1),
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
    return (
        f"{found['tokens']:,} tokens in {found['documents']:,} documents, {found['parts']:,} parts: about "
        f"{readable(found['disk_bytes'])} of disk, {readable(found['memory_bytes'])} of memory, and "
        f"{spoken_duration(found['seconds'])} to sort; "
        "then the documents are read once for their URLs."
    )


def _part_of(
    tokens: IndexedTokens, begins: npt.NDArray[Any], documents: Sequence[int], places: Sequence[int]
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """The tokens of a part, which lie back to back in the `.bin`, and where its documents that have any end in them."""
    begin, end = places
    found = np.fromfile(bin_path(tokens.prefix), tokens.dtype, end - begin, offset=begin * tokens.dtype.itemsize)
    ends = begins[documents[0] : documents[1] + 1] - begin
    return found, ends[1:][np.diff(ends) > 0]


# The documents' URLs


Tokenized = tuple[list[Location], dict[str, Any]]
"""What one run of `webtext tokenize` read: shards, and for their tasks whether they were shuffled, by which seed, and
which documents were left out."""


def _tokenized(step: Step) -> Iterator[Tokenized]:
    """The sources of token files, one after another where several were joined.

    Raises InputError where these are not on record, or gone.
    """
    if step.place is None:
        raise InputError(f"{step.name} is gone, or was made again since.")
    if changes := [sentence for one in (step, *step.inputs) for sentence in one.changes()]:
        raise InputError(" ".join(changes))
    if step.stage == "tokenize":
        settings = step.record["settings"]
        chosen = {name: settings[name] for name in ("shuffle", "seed")}
        yield step.input_files(), {**chosen, "held_out": held_out_settings(settings)}
    elif step.stage == "merge-tokens" and not step.plain_files:
        for source in step.inputs:
            yield from _tokenized(source)
    else:
        raise InputError(f"{step.name} is not known to be made from documents.")


def shard_tasks(sources: Sequence[Tokenized], scratch: Location) -> list[Task]:
    """A task for each shard, for `read_urls`."""
    shards = [
        (place, {"source": number, **options}) for number, (files, options) in enumerate(sources) for place in files
    ]
    return [
        Task(
            f"part-{at:05}",
            Files(shard=place),
            Files(**{kind: scratch / f"urls-{at:05}{suffix}" for kind, suffix in KINDS.items()}),
            options,
        )
        for at, (place, options) in enumerate(shards)
    ]


def read_urls(task: Task, context: Context) -> int:
    """Task: the keys and URLs of the documents of a shard that have tokens. Returns their number."""
    keys: list[int] = []
    with storage.create(task.writes.urls, durable=False) as file:
        for read, document in enumerate(context.counted(read_documents(task.reads.shard)), 1):
            if not encoding_refused(document, **task.options["held_out"]):
                keys.append(shuffle_key(document, task.options["seed"]) if task.options["shuffle"] else read)
                file.write(document.id.encode("utf-8", "replace").replace(b"\n", b"%0A") + b"\n")
    save_array(task.writes.sort_keys, np.array(keys, np.uint64))
    return len(keys)


def write_urls(task: Task, context: Context) -> tuple[int, int]:
    """Task: the URLs of all documents in the order of the token files, from what the tasks of all shards left.

    Its option `shards` holds the source of each shard, and whether that is shuffled. Returns the CRC-32 of both files.
    """
    ends_of_all, found, size = [], [0, 0], 0
    files = zip(*(task.reads[kind] for kind in KINDS), strict=True)
    shards = [(*about, its) for about, its in zip(task.options["shards"], files, strict=True)]
    with storage.create(task.writes.urls) as urls:
        for (_, is_shuffled), own in itertools.groupby(shards, lambda shard: shard[:2]):
            for some in _in_order([its for _, _, its in own], is_shuffled=is_shuffled):
                found[0] = crc32(b"".join(some), found[0])
                urls.writelines(some)
                lengths = np.fromiter(map(len, some), np.uint64, len(some))
                ends_of_all.append(np.uint64(size) + np.cumsum(lengths, dtype=np.uint64))
                size += int(lengths.sum())
    with storage.create(task.writes.ends) as file:
        for ends in ends_of_all:
            found[1] = crc32(ends.tobytes(), found[1])
            file.write(ends.astype("<u8").tobytes())
    return found[0], found[1]


def _in_order(files: Sequence[tuple[Location, ...]], *, is_shuffled: bool) -> Iterator[list[bytes]]:
    """The URLs of one source in the order of its documents, some at a time; `files` of each of its shards."""
    contents = [_content(urls) for _, urls in files]
    ends = [np.flatnonzero(np.frombuffer(content, np.uint8) == ord("\n")) + 1 for content in contents]
    firsts = np.cumsum([0, *map(len, ends)])
    keys = np.concatenate([np.zeros(0, np.uint64), *(load_array(its_keys) for its_keys, _ in files)])
    # Without a shuffle the order is that of the shards, for any keys.
    order = np.argsort(keys, kind="stable") if is_shuffled else np.arange(len(keys))
    del keys
    for at in range(0, len(order), _AT_ONCE):
        documents = order[at : at + _AT_ONCE]
        of_shard = np.searchsorted(firsts, documents, side="right") - 1
        yield [
            bytes(contents[shard][ends[shard][document - 1] if document else 0 : ends[shard][document]])
            for shard, document in zip(of_shard.tolist(), (documents - firsts[of_shard]).tolist(), strict=True)
        ]


def _content(place: Location) -> memoryview:
    path = storage.local_path(place)
    return np.memmap(path, np.uint8, "r").data if storage.size(path) else memoryview(b"")
