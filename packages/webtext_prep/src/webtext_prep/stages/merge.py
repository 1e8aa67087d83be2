"""`webtext merge`: any mix of text and JSON files to documents, one per page, each URL once.

Two phases: each file is read by itself and its documents are split by URL; then each shard drops the URLs that it has
already seen. A file that `webtext` itself wrote, a folder of text files with side-car metadata, and somebody else's
JSON lines all come out alike. What can't be read is counted and named with file and line, and the rest goes on.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote, unquote

import msgspec

from command_kit import setting
from webtext_prep.documents import storage
from webtext_prep.documents.compression import COMPRESSED_SUFFIXES, bare_name, read_chunks, read_lines
from webtext_prep.documents.document import Document
from webtext_prep.documents.formats.base import DocumentWriter
from webtext_prep.documents.inputs import is_mergeable
from webtext_prep.documents.shards import read_documents, write_documents
from webtext_prep.documents.stores.base import Location
from webtext_prep.documents.urls import bucket_of, shards_for, url_key
from webtext_prep.errors import InputError
from webtext_prep.running.stage import REPORT_EVERY, Outcome, Run, Stage, shards_outcome, write_shard
from webtext_prep.running.tally import Tally
from webtext_prep.running.task import Context, Task

BYTES_PER_SHARD = 64 << 20
"""With `--shards 0`: so many bytes of input files make one shard."""
BYTES_PER_TASK = 16 << 20
"""Files are read together, as one task, until they have so many bytes,"""
MOST_TASKS = 256
"""or so large a share of all: each task writes a file for each shard, and there may be thousands of those."""


class Unreadable(ValueError):
    """A record that holds no document; the message says why."""


def _objects(text: str) -> Iterator[Any]:
    """The JSON values in `text`, one after another with or without white space between them.

    Raises Unreadable where the next one is none.
    """
    decoder, at = json.JSONDecoder(), 0
    while at < len(text):
        try:
            value, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            raise Unreadable(f"no valid JSON, {error.msg} at character {error.pos}") from error
        except RecursionError as error:
            raise Unreadable("JSON nested too deep to read") from error
        except ValueError as error:
            raise Unreadable(f"no JSON that can be read, {error}") from error
        yield value
        while at < len(text) and text[at].isspace():
            at += 1


def _decoded(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Unreadable(f"no valid UTF-8, {error.reason} at byte {error.start}") from error


@dataclass(frozen=True)
class Merge(Stage):
    """Collect documents from .txt, .json and .jsonl files, compressed or not, and drop repeated URLs.

    A .txt file is one document; its URL (and metadata) is in a .json file of the same name beside it, or is the file's
    name, decoded. A .json file holds an object or a list of them; a .jsonl file one a line. What has no URL is called
    by its file, such as file:folder/name.jsonl:3, as seen from the folder that all the files lie in.
    Drops: unreadable (with file and line), empty, duplicate_url."""

    name: ClassVar[str] = "merge"
    order: ClassVar[int] = 40
    summary: ClassVar[str] = "text and JSON files -> documents, each URL once"
    input_kinds: ClassVar[str] = ".txt, .json and .jsonl files, compressed or not"

    text_key: str = setting("text", "the JSON key that holds the text", metavar="KEY")
    url_key: str = setting("url", "the JSON key that holds the URL", metavar="KEY")
    shards: int = setting(0, "output shards; 0 asks for one for each 64 MiB of input")

    def __post_init__(self) -> None:
        if not 0 <= self.shards <= 4096:
            raise InputError(f"--shards must be between 0 and 4096, but is {self.shards}.")

    @staticmethod
    def accepts(path: Location) -> bool:
        """Text and JSON files."""
        return is_mergeable(path)

    def document_in(self, value: Any, fallback_url: str) -> Document:
        """The document in a JSON value. Raises Unreadable if it is none."""
        if not isinstance(value, dict):
            raise Unreadable(f"expected a JSON object, found {type(value).__name__}")
        metadata = dict(value)
        text, url = metadata.pop(self.text_key, None), metadata.pop(self.url_key, None)
        if text is None:
            raise Unreadable(f"no key {self.text_key!r}; name the right one with --text-key")
        if not isinstance(text, str):
            raise Unreadable(f"{self.text_key!r} is not a string")
        if url is not None and not isinstance(url, str):
            raise Unreadable(f"{self.url_key!r} is not a string")
        metadata.pop("text", None)
        metadata.pop("url", None)
        return Document(url or fallback_url, text, metadata)

    def read(self, path: Path, name: str, tally: Tally) -> Iterator[Document]:
        """The documents of one file; what can't be read is counted and named.

        `name` stands for the file in the URL of a document that has none.
        """
        kind = bare_name(path).rsplit(".", 1)[-1]
        records = {"txt": self._read_text, "json": self._read_json, "jsonl": self._read_lines}[kind]
        for place, document in records(path, name):
            tally.read += 1
            if isinstance(document, Unreadable):
                tally.drop(Document(_file_url(name, place)), "unreadable", problem=str(document))
                tally.problem(f"{path}, line {place}: {document}.")
            elif not document.text.strip():
                tally.drop(document, "empty")
            else:
                yield document

    def _read_lines(self, path: Path, name: str) -> Iterator[tuple[int, Document | Unreadable]]:
        decode = msgspec.json.Decoder().decode
        for number, line in enumerate(read_lines(path), 1):
            if not line.strip():
                continue
            fallback = _file_url(name, number)
            try:
                yield number, self.document_in(decode(line), fallback)
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
                # Two records in one line, where a newline got lost, are two documents; anything else is a bad line.
                yield from ((number, found) for found in self._documents_in(line, fallback))
            except Unreadable as error:
                yield number, error

    def _read_json(self, path: Path, name: str) -> Iterator[tuple[int, Document | Unreadable]]:
        data = b"".join(read_chunks(path))
        try:
            values = list(_objects(_decoded(data).strip()))
        except Unreadable as error:
            if b"\n" in data.strip():
                # Many a .json file in the wild is JSON lines.
                yield from self._read_lines(path, name)
            else:
                yield 1, error
            return
        if len(values) == 1 and isinstance(values[0], list):
            values = values[0]
        for number, value in enumerate(values, 1):
            try:
                yield number, self.document_in(value, _file_url(name, number))
            except Unreadable as error:
                yield number, error

    def _documents_in(self, line: bytes, fallback: str) -> Iterator[Document | Unreadable]:
        try:
            for number, value in enumerate(_objects(_decoded(line).strip()), 1):
                yield self.document_in(value, fallback if number == 1 else f"{fallback}:{number}")
        except Unreadable as error:
            yield error

    def _read_text(self, path: Path, name: str) -> Iterator[tuple[int, Document | Unreadable]]:
        try:
            text = _decoded(b"".join(read_chunks(path)))
            metadata = self._sidecar(path)
        except Unreadable as error:
            yield 1, error
            return
        url = metadata.pop(self.url_key, None) or _url_from_name(name)
        metadata.pop("text", None)
        metadata.pop("url", None)
        yield 1, Document(str(url), text, metadata)

    @staticmethod
    def _sidecar(path: Path) -> dict[str, Any]:
        for sidecar in sidecars(path):
            if sidecar.is_file():
                try:
                    value = json.loads(sidecar.read_bytes())
                except (OSError, ValueError, RecursionError) as error:
                    raise Unreadable(f"its metadata {sidecar.name} can't be read: {error}") from error
                if not isinstance(value, dict):
                    raise Unreadable(f"its metadata {sidecar.name} is no JSON object")
                return value
        return {}

    def split(self, task: Task, context: Context) -> dict[str, Any]:
        """Task: some files to a piece for each shard. Returns the tally of what was read."""
        tally, count = Tally(), 0
        with contextlib.ExitStack() as stack:
            shards = task.options["shards"]
            pieces: list[DocumentWriter] = [
                stack.enter_context(write_documents(path, durable=False)) for path in task.outputs[:shards]
            ]
            if len(task.outputs) > shards:
                tally.dropped_writer = stack.enter_context(write_documents(task.outputs[shards]))
            for path, name in task.options["files"].items():
                for document in self.read(Path(path), name, tally):
                    pieces[bucket_of(url_key(document.url), shards)].write(document)
                    count += 1
                    if count % REPORT_EVERY == 0:
                        context.report(count)
        context.report(count)
        tally.kept = count
        return tally.as_dict()

    def merge_shard(self, task: Task, context: Context) -> dict[str, Any]:
        """Task: the pieces of one shard, in order of the files, to the shard."""
        documents = (document for path in task.inputs for document in read_documents(path))
        return write_shard(task, context, documents, self.process)

    def process(self, documents: Iterable[Document], tally: Tally) -> Iterator[Document]:
        """Yield the first document of each URL."""
        seen: set[str] = set()
        for document in documents:
            key = url_key(document.url)
            if key in seen:
                tally.drop(document, "duplicate_url")
                continue
            seen.add(key)
            yield document

    def run(self, job: Run) -> Outcome:
        """Read and split the files, then merge shard by shard."""
        inputs = [storage.local_path(path) for path in job.inputs]
        texts = {path for path in inputs if bare_name(path).endswith(".txt")}
        metadata = {sidecar for path in texts for sidecar in sidecars(path)}
        files = [path for path in inputs if path not in metadata]
        shards = self.shards or shards_for(sum(path.stat().st_size for path in files), BYTES_PER_SHARD)
        names = _names(files)
        tasks = []
        for number, group in enumerate(_groups(files)):
            folder = job.scratch / f"files-{number:05}"
            outputs: list[Location] = [folder / f"part-{shard:05}.jsonl.zst" for shard in range(shards)]
            dropped = job.dropped_path(shards + number)
            if dropped is not None:
                outputs.append(dropped)
            beside = [sidecar for path in group if path in texts for sidecar in sidecars(path) if sidecar.is_file()]
            options = {"files": {str(path): names[path] for path in group}, "shards": shards}
            tasks.append(Task(f"files-{number:05}", (*group, *beside), tuple(outputs), options))
        read = [
            Tally.from_dict(result) for result in job.map("read", self.split, tasks, total=job.expected_documents())
        ]
        merging = [
            Task(f"part-{shard:05}", tuple(task.outputs[shard] for task in tasks), job.shard_outputs(shard))
            for shard in range(shards)
        ]
        kept = sum(tally.kept for tally in read)
        outcome = shards_outcome(merging, job.map("shards", self.merge_shard, merging, total=kept))
        # What one phase kept the other one read: together they account for every record of the files.
        for tally in read:
            tally.kept = 0
            outcome.tally.add(tally)
        outcome.tally.read -= kept
        if job.keep_dropped:
            outcome.outputs += [task.outputs[shards] for task in tasks]
        return outcome


def sidecars(path: Path) -> tuple[Path, Path]:
    """Where the metadata of a text file may lie: `page.json` or `page.txt.json` for `page.txt`."""
    bare = path.with_name(bare_name(path))
    return bare.with_suffix(".json"), bare.with_name(f"{bare.name}.json")


def _names(files: list[Path]) -> dict[Path, str]:
    """Each file as seen from the folder that all of them lie in: two of one name in two folders are two."""
    if not files:
        return {}
    folders = {parent: parent.resolve() for parent in {path.parent for path in files}}
    root = os.path.commonpath(folders.values())
    return {path: (folders[path.parent] / path.name).relative_to(root).as_posix() for path in files}


def _file_url(name: str, place: int | None = None) -> str:
    """The URL of what has none: the file's name, and which record of it. No fragment: those do not tell pages apart."""
    return f"file:{quote(os.fsencode(name))}" + (f":{place}" if place is not None else "")


def _url_from_name(name: str) -> str:
    """`https%3A%2F%2Fexample.com%2Fa.txt` -> `https://example.com/a`; any other name becomes `file:name`."""
    bare = name.rsplit("/", 1)[-1]
    for suffix in COMPRESSED_SUFFIXES:
        bare = bare.removesuffix(suffix)
    decoded = unquote(bare.removesuffix(".txt"))
    return decoded if decoded.startswith(("http://", "https://")) else _file_url(name)


def _groups(files: list[Path]) -> list[list[Path]]:
    """Files in order, small ones together: each group is one task, so that a million small files are not a million."""
    sizes = [path.stat().st_size for path in files]
    whole = max(BYTES_PER_TASK, sum(sizes) // MOST_TASKS)
    groups: list[list[Path]] = []
    room = 0
    for path, size in zip(files, sizes, strict=True):
        if not groups or room < size:
            groups.append([])
            room = whole
        groups[-1].append(path)
        room -= size
    return groups
