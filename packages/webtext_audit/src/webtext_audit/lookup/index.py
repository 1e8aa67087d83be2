"""Sorted hashes on disk, by which a row among millions of rows is found with a binary search.

An index belongs to one finished output and lies in its state, in `why/DIGEST/KIND/`, under the digest of its record:
an output that is made again has none. It is built once, a file of the output a task, and appears complete or not at
all; a build that is interrupted goes on after the files that it had finished. It may be deleted at any time.

`keys.npy` holds the hashes of all files, sorted within each file, `rows.npy` the number of the row of
each, and `files.json` the files' names and where their hashes end. Both arrays are mapped, not read: a search costs a
few pages for each file. Memory to build it is that of one file's hashes a process.

An index holds the hashes of the rows of one file, by URL, by passage, or by place in the shuffle.

Each function is called in a worker process with the file, its options, and the context of the task.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import itertools
import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from command_kit import parse_json
from command_kit.atomic import atomic_folder, waiting_lock
from webtext_prep import storage
from webtext_prep.dedup.passages import minima
from webtext_prep.documents.batches import batches
from webtext_prep.documents.document import Document
from webtext_prep.documents.folders.partitions import save_array
from webtext_prep.documents.folders.shards import format_of, read_documents
from webtext_prep.documents.folders.stage_record import Step
from webtext_prep.documents.folders.url_lists import is_list_of_lines, read_url, read_urls
from webtext_prep.documents.formats.json_lines import JsonLines
from webtext_prep.documents.formats.lines import read_lines
from webtext_prep.errors import InputError
from webtext_prep.reddit.rows import Submission, link_or_own_url, read_blocks, read_rows
from webtext_prep.running.engines.local import run_tasks
from webtext_prep.running.tasks import Context, Files, Task
from webtext_prep.storage.locations import Location
from webtext_prep.text.fingerprints import Shingling, shingle_sequences
from webtext_prep.text.words import places_of
from webtext_prep.tokens.runs import encoding_refused, shuffle_key
from webtext_prep.urls.credentials import without_any_credentials, without_credentials
from webtext_prep.urls.urls import url_key

FOLDER = "why"
"""The folder of the indices in the state of an output."""
LOCK = "lock"
"""The lock in that folder of the command that builds some of them; others wait for it."""
SMALL_BYTES = 8 << 20
"""Bytes of input up to which it is indexed in this process: starting others would take longer."""
Entries = tuple[npt.NDArray[Any], npt.NDArray[np.uint32]]
"""Hashes and the numbers of their rows, in any order."""


@dataclass(frozen=True)
class Wanted:
    """An index that is asked for.

    Attributes:
        step: whose output it belongs to.
        kind: the name of its folder.
        files: the indexed ones.
        entries: the hashes of one file: called in worker processes with the file, the options and the context of the
            task, which counts the rows that are done.
        options: what the hashes depend on besides, as picklable values.
        rows: how many rows there are, for the progress; 0 if that is unknown.
        as_read: the stamps of the files when the stage read them, where these are a user's own. The index of that state
            is kept, in `KIND.read/`, once they have changed.
        instead: the folder in which it lies where the state of the output can't be written.
    """

    step: Step
    kind: str
    files: tuple[Location, ...]
    entries: Callable[[Location, dict[str, Any], Context], Entries]
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    rows: int = 0
    as_read: list[Any] | None = None
    instead: Path | None = None

    @property
    def folder(self) -> Path:
        """Where it lies; the catalogue asks of outputs on this machine alone."""
        if self.instead is not None:
            return self.instead / self.kind
        assert self.step.state is not None
        return self.step.state / FOLDER / self.step.sha256[:16] / self.kind


@dataclass(frozen=True)
class Hit:
    """A row that was found: row `row`, from 0 on, of `file`, file number `number` of the indexed ones."""

    number: int
    file: Location
    row: int


def kept_index(wanted: Wanted) -> Index | None:
    """The index of the files as the stage read them, if there was one before they changed."""
    with contextlib.suppress(OSError, ValueError):
        return Index(dataclasses.replace(wanted, kind=f"{wanted.kind}.read"))
    return None


class Index:
    """An index on disk.

    Args:
        wanted: which one; it must have been built.

    Raises OSError or ValueError where it is damaged.
    """

    def __init__(self, wanted: Wanted) -> None:
        folder = wanted.folder
        self.files = wanted.files
        self.keys: npt.NDArray[Any] = _mapped(folder / "keys.npy")
        self.rows: npt.NDArray[np.uint32] = _mapped(folder / "rows.npy")
        self.ends: list[int] = parse_json((folder / "files.json").read_bytes())["ends"]

    def _rows_of(self, key: int) -> Iterator[tuple[int, npt.NDArray[np.uint32]]]:
        """Of each file, how many of its hashes are lower than one, and the rows that have it, in their order."""
        wanted = self.keys.dtype.type(key)
        begin = 0
        for end in self.ends:
            keys = self.keys[begin:end]
            left, right = (int(np.searchsorted(keys, wanted, side=side)) for side in ("left", "right"))
            yield left, self.rows[begin + left : begin + right]
            begin = end

    def find(self, key: int) -> list[Hit]:
        """The rows of that hash, in the order of the files and rows."""
        by_file = enumerate(self._rows_of(key))
        return [Hit(number, self.files[number], int(row)) for number, (_, rows) in by_file for row in rows]

    def count(self, key: int) -> int:
        """The number of rows that have that hash."""
        return sum(len(rows) for _, rows in self._rows_of(key))

    def rank(self, key: int, hit: Hit) -> int:
        """The number of rows of all files before a row that has that hash, in the order of the hashes."""
        before = 0
        for number, (lower, rows) in enumerate(self._rows_of(key)):
            before += lower
            if number <= hit.number:
                before += len(rows) if number < hit.number else int((rows < hit.row).sum())
        return before


def open_indices(wanted: Sequence[Wanted], *, workers: int, label: str) -> list[Index]:
    """The indices that are asked for; missing ones, and ones that no longer fit their files, are built first.

    Of several commands that need the same index, one builds it and the others wait.

    Those of outputs on a disk that can't be written are built in a folder for temporary files, for this call alone.

    Raises InputError for a file that can't be read.
    """
    if not all(map(_is_built, wanted)):
        try:
            with contextlib.ExitStack() as locks:
                for folder in sorted({one.folder.parent.parent for one in wanted}):
                    locks.enter_context(waiting_lock(folder / LOCK))
                missing = [one for one in wanted if not _is_built(one)]
                _build(missing, workers, label)
        except OSError as error:
            if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
                raise
            return _open_elsewhere(wanted, workers, label)
    return [Index(one) for one in wanted]


def _open_elsewhere(wanted: Sequence[Wanted], workers: int, label: str) -> list[Index]:
    with tempfile.TemporaryDirectory(prefix="webtext-why-") as folder:
        places = [
            one if _is_built(one) else dataclasses.replace(one, instead=Path(folder, str(number)))
            for number, one in enumerate(wanted)
        ]
        _build([one for one in places if one.instead is not None], workers, label)
        # What is mapped into memory stays there when its file is removed.
        return [Index(one) for one in places]


def _is_built(wanted: Wanted) -> bool:
    return _is_of(wanted, storage.stamps(wanted.files))


def _is_of(wanted: Wanted, stamps: list[Any]) -> bool:
    """Whether the index that is there is of files with these stamps."""
    try:
        found = parse_json((wanted.folder / "files.json").read_bytes())
        return bool(found["files"] == stamps and found["options"] == wanted.options)
    except (OSError, ValueError, KeyError):
        return False


def _build(missing: Sequence[Wanted], workers: int, label: str) -> None:
    tasks, size = [], 0
    for one in missing:
        scratch = _scratch(one)
        for number, file in enumerate(one.files):
            stem = scratch / f"{number:05}"
            parts = Files(hashes=stem.with_suffix(".keys.npy"), rows=stem.with_suffix(".rows.npy"))
            hints = {"entries": one.entries, "options": one.options}
            if not all(map(storage.is_file, parts.all())):
                tasks.append(Task(f"{one.kind}-{number:05}", Files(file=file), parts, hints=hints))
                size += storage.size(file)
    workers = 1 if size <= SMALL_BYTES else workers
    total = sum(one.rows for one in missing) or None
    note = f"{len(tasks)} files" if len(tasks) > 1 else ""
    for _ in run_tasks(_index_file, tasks, workers=workers, label=label, unit="rows", total=total, note=note):
        pass
    for one in missing:
        _join(one)


def _scratch(wanted: Wanted) -> Path:
    """Where the parts of an index lie until all are there. Parts for other files or options are removed."""
    scratch = wanted.folder.with_name(f"{wanted.kind}.parts")
    says = json.dumps([storage.stamps(wanted.files), wanted.options])
    told = scratch / "files.json"
    if not (told.is_file() and told.read_text() == says):
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        told.write_text(says)
    return scratch


def _index_file(task: Task, context: Context) -> None:
    """Task: the sorted hashes of one file and their rows, by hash and then by row."""
    keys, rows = task.hints["entries"](task.reads.file, task.hints["options"], context)
    order = np.lexsort((rows, keys))
    save_array(task.writes.rows, rows[order])
    save_array(task.writes.hashes, keys[order])


def _join(wanted: Wanted) -> None:
    """All parts to one index, which appears complete."""
    scratch = _scratch(wanted)
    if wanted.as_read is not None and _is_of(wanted, wanted.as_read):
        wanted.folder.replace(wanted.folder.with_name(f"{wanted.kind}.read"))
    shutil.rmtree(wanted.folder, ignore_errors=True)
    ends: list[int] = []
    with atomic_folder(wanted.folder) as unfinished:
        for kind in ("keys", "rows"):
            parts = [scratch / f"{number:05}.{kind}.npy" for number in range(len(wanted.files))]
            ends = _concatenate(parts, unfinished / f"{kind}.npy")
        says = {"files": storage.stamps(wanted.files), "options": wanted.options, "ends": ends}
        (unfinished / "files.json").write_text(json.dumps(says))
    shutil.rmtree(scratch, ignore_errors=True)


def _concatenate(parts: Sequence[Path], place: Path) -> list[int]:
    """Write several arrays as one, a part in memory at a time; returns where each ends."""
    mapped = [_mapped(part) for part in parts]
    ends = list(itertools.accumulate(map(len, mapped)))
    kind = mapped[0].dtype if mapped else np.dtype(np.uint32)
    header = {"descr": np.lib.format.dtype_to_descr(kind), "fortran_order": False, "shape": (ends[-1] if ends else 0,)}
    # Not mapped into memory: a full disk would be a signal that ends the process.
    with place.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for part in mapped:
            file.write(np.ascontiguousarray(part).data)
    return ends


def _mapped(path: Path) -> npt.NDArray[Any]:
    """An array in a file, mapped into memory unless it is empty, which can't be. Raises OSError or ValueError."""
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError:
        return np.load(path, allow_pickle=False)


def url_hash(url: str, seed: int = 0) -> int:
    """64 bits that two URLs of one page share, as `url_key` decides; others for each seed."""
    return xxhash.xxh3_64_intdigest(url_key(url).encode("utf-8", "surrogatepass"), seed)


class _Url(msgspec.Struct):
    url: str


def _entries(keyed: Iterable[tuple[int, int]], context: Context) -> Entries:
    """Arrays of (hash, row) pairs."""
    numbers = itertools.chain.from_iterable(context.counted(keyed))
    pairs = np.fromiter(numbers, np.uint64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1].astype(np.uint32)


def urls(shard: Location, options: dict[str, Any], context: Context) -> Entries:
    """The URLs of a shard, or of another table of JSON lines, whose key `options["key"]` holds them."""
    key = options.get("key", "url")
    found: Iterable[str]
    if key != "url":
        rows = map(msgspec.json.Decoder(dict[str, Any]).decode, read_lines(shard))
        found = (row.get(key, "") for row in rows)
    elif isinstance(format_of(shard.name), JsonLines):
        # Only the URL of a line becomes an object.
        decode = msgspec.json.Decoder(_Url).decode
        lines = (line for line in read_lines(shard) if line.strip())
        found = (without_credentials(decode(line).url) for line in lines)
    else:
        found = (document.url for document in read_documents(shard))
    try:
        return _entries(((url_hash(url), row) for row, url in enumerate(found)), context)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InputError(f"{shard} holds a line without a URL ({error}).") from error


def listed(place: Location, options: dict[str, Any], context: Context) -> Entries:
    """The URLs of a list that a user gave; a row is the number of its line, or of the row of a table, less one."""
    return _entries(((url_hash(row.url), line) for line, row in listed_rows(place)), context)


def submitted(dump: Location, options: dict[str, Any], context: Context) -> Entries:
    """The pages that the submissions of a dump link to; a row is the number of its line, less one."""
    blocks = (read_rows(block) for block, _ in read_blocks(dump, None, 0))
    rows = enumerate(itertools.chain.from_iterable(blocks))
    pages = ((link_or_own_url(row), line) for line, row in rows if isinstance(row, Submission))
    return _entries(((url_hash(url), line) for url, line in pages), context)


def listed_rows(place: Location) -> Iterator[tuple[int, Document]]:
    """The rows of a URL list with the numbers of their lines, or of a table's or Parquet file's rows, from 0 on."""
    if is_list_of_lines(place):
        for line, content in enumerate(read_lines(place)):
            row = read_url(content)
            if row is not None:
                yield line, row
    else:
        yield from enumerate(read_urls(place))


def row_of(place: Location, number: int) -> Document | None:
    """The row of that number of a URL list, as `listed_rows` numbers them."""
    return next((row for line, row in listed_rows(place) if line == number), None)


def order(shard: Location, options: dict[str, Any], context: Context) -> Entries:
    """Where the documents of a shard come in token files: by the key of their shuffle, or by number without one."""
    shuffled, seed, held_out = options["shuffle"], options["seed"], options["hold_out"]
    kept = (
        (row, document)
        for row, document in enumerate(read_documents(shard))
        if not encoding_refused(document, held_out, only_held_out=options["only_held_out"])
    )
    return _entries(((shuffle_key(document, seed) if shuffled else row, row) for row, document in kept), context)


RUN = 8
"""Words in a run."""
WINDOW = 16
"""Runs of which one at least is kept, the one with the lowest hash: winnowing, as in `dedup.passages`."""
CERTAIN_WORDS = RUN + WINDOW - 1 + 2
"""Words with which a passage is found for certain; its first and last word may be parts of words."""
_RUNS = Shingling("word", RUN)


def passages(shard: Location, options: dict[str, Any], context: Context) -> Entries:
    """The fingerprints of the texts of a shard, about one for nine words, each once in its text."""
    keys, rows = [np.zeros(0, np.uint32)], [np.zeros(0, np.uint32)]
    for documents in batches(context.counted(read_documents(shard))):
        for runs in shingle_sequences([document.text for document in documents], _RUNS):
            keys.append(np.unique(runs[minima(runs, min(WINDOW, len(runs)))].astype(np.uint32)))
            rows.append(np.full(len(keys[-1]), len(rows) - 1, np.uint32))
    return np.concatenate(keys), np.concatenate(rows)


def of_passage(text: str) -> tuple[npt.NDArray[np.uint32], bool]:
    """The fingerprints that tell of a passage, and whether every document that holds it has all of them.

    Its first and last word are left out: they may be parts of words.
    """
    inner = places_of(text)[1:-1]
    if len(inner) < RUN:
        return np.zeros(0, np.uint32), False
    (runs,) = shingle_sequences([text[inner[0][0] : inner[-1][1]]], _RUNS)
    is_certain = len(runs) >= WINDOW
    return np.unique((runs[minima(runs, WINDOW)] if is_certain else runs).astype(np.uint32)), is_certain


def same_page(url: str) -> list[str]:
    """A URL as documents have it, and others under which its page may be known: the other scheme, `www.`, a slash."""
    bare, hash_sign, fragment = without_any_credentials(url.strip()).partition("#")
    scheme, separator, rest = bare.partition("://")
    if not separator or scheme.lower() not in ("http", "https"):
        return [bare + hash_sign + fragment]
    host, slash, path = rest.partition("/")
    hosts = [host, host[4:] if host.startswith("www.") else f"www.{host}"]
    ends = [slash + path, path and slash + (path[:-1] if path.endswith("/") else f"{path}/")]
    schemes = (scheme, "https" if scheme.lower() == "http" else "http")
    return list(
        dict.fromkeys(f"{s}://{h}{e}{hash_sign}{fragment}" for s, h, e in itertools.product(schemes, hosts, ends))
    )
