"""The record that a finished stage leaves in its output: what it was, and what became of every document.

    stage.json: {"stage": "clean", "version": 1, "settings": {...}, "in": 501, "out": 463, "dropped": {...}, ...,
                 "facts": {...}, "shards": {"part-00000.jsonl.zst": 463}, "inputs": [...]}

`inputs` holds, for each record of the folders that were read, its digest and its summary with `inputs` of its own: the
whole funnel can be followed from any folder, even if the ones before it are gone. It holds no path and no time: the
same input and settings give the same bytes.

`trace` follows it: the steps that made an output, as a tree, each with its record, how it ran, and the steps whose
output it read. A record (`stage.json`, or `PREFIX.json` of token files) holds the SHA-256 of each record that its stage
read, and what that one said. Where these lie is in `.state/run.json`. So a folder is found by its path, and recognised
by the digest of its record; where the whole run was moved, it is found next to the output. What is gone, or was made
again since, is known by the summary in the later record alone. Costs a few small files a step; no shard is read.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from command_kit import hide_credentials, parse_json, read_json
from webtext_prep import storage
from webtext_prep.errors import InputError, StorageError
from webtext_prep.storage.locations import Location

RECORD = "stage.json"
"""A finished stage's folder holds this file."""
PAGES = "pages"
"""The folder in the output of a download, or of a rescue, with the pages that it saved."""
STATE = ".state"
"""Where a stage keeps what it needs to resume."""
TOKEN_SUFFIXES = (".bin", ".idx", ".tokenizer.json")
"""Of the files whose record is `PREFIX.json`."""
RECEIPTS_SUFFIX = ".dropped.jsonl.zst"
"""Of the file next to them with a receipt for each document that was dropped."""

GONE = "gone"
"""The folder in the output of a download with the URLs of the pages that are gone, a list for each of its lists; and in
their rows the key of how they ended."""
_MAKERS = {"data": ("export",), PAGES: ("download", "rescue"), GONE: ("download",)}

_SUMMARY = ("stage", "version", "settings", "libraries", "in", "added", "out", "dropped", "notes", "facts", "inputs")


_KINDS: dict[str, type] = {
    "stage": str, "settings": dict, "in": int, "out": int, "dropped": Counter, "facts": dict, "shards": Counter,
    "inputs": list,
}  # fmt: skip
"""What lies under the keys of a record; for `Counter` and `list` see `_is_of`."""


def read_record(folder: Location, name: str = RECORD) -> dict[str, Any] | None:
    """The record of a finished stage in `folder`, or None if there is none.

    Raises InputError if it is damaged, and StorageError where the storage does not say.
    """
    path = folder / name
    try:
        record = parse_json(storage.read_bytes(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except StorageError:
        raise
    except (OSError, ValueError) as error:
        raise InputError(f"can't read {path} ({error}): run the stage again with --restart.") from error
    if not isinstance(record, dict) or "stage" not in record:
        raise InputError(f"{path} is not the record of a stage: the folder belongs to something else.")
    if (wrong := next((key for key, kind in _KINDS.items() if not _is_of(kind, record.get(key))), None)) is not None:
        raise InputError(f"{path} is damaged (its {wrong} is something else): run the stage again with --restart.")
    return record


def _is_of(kind: type, value: Any) -> bool:
    """Whether a value of a record is of its kind, or not there; a Counter is a table of whole numbers."""
    if value is None:
        return True
    if kind is Counter:
        return isinstance(value, dict) and all(type(count) is int for count in value.values())
    if kind is list:
        return isinstance(value, list) and all(isinstance(entry, dict) for entry in value)
    return isinstance(value, kind)


def recorded_documents(files: Iterable[Location]) -> int | None:
    """How many documents some shards hold, by the records next to them; None where one has no record.

    Raises InputError for a damaged record.
    """
    names: dict[Location, list[str]] = {}
    for file in files:
        names.setdefault(file.parent, []).append(file.name)
    total = 0
    for folder, own in names.items():
        record = read_record(folder)
        if record is None or not isinstance(record.get("shards"), dict):
            return None
        total += sum(record["shards"].get(name, 0) for name in own)
    return total


def record_beside(file: Location) -> Location | None:
    """The record of the stage that wrote a file: `stage.json` in its folder, for a token file `PREFIX.json`; or None.

    Raises InputError for a `stage.json` that is damaged.
    """
    for suffix in TOKEN_SUFFIXES:
        if file.name.endswith(suffix):
            beside = file.with_name(f"{file.name.removesuffix(suffix)}.json")
            return beside if _is_record(beside) else None
    folder = stage_folder(file.parent)
    return folder / RECORD if read_record(folder) is not None else None


def stage_folder(folder: Location) -> Location:
    """The folder of the stage that wrote the files in `folder`: itself, or the one around it.

    That is so of the folder `data` of an export, and of `pages` and `gone` of a download or rescue. Raises InputError
    for a damaged record.
    """
    makers = _MAKERS.get(folder.name, ())
    if makers and not storage.is_file(folder / RECORD):
        record = read_record(folder.parent)
        if record is not None and record["stage"] in makers:
            return folder.parent
    return folder


def summary_of(record: Location) -> dict[str, Any]:
    """What a later record keeps of one: its digest, and what it says but for shards and problems.

    Raises InputError if it is damaged or gone.
    """
    found = read_record(record.parent, record.name)
    if found is None:
        raise InputError(f"{record} is gone: run the command again.")
    return {"sha256": _digest(record), **{key: found[key] for key in _SUMMARY if key in found}}


def files_by_record(inputs: Iterable[Location]) -> tuple[list[Location], list[Location]]:
    """The records that lie next to some files, each once and in their order, and the files that have none.

    Raises InputError for a damaged record.
    """
    beside: dict[Location, Location | None] = {}
    records: dict[Location, None] = {}
    plain: list[Location] = []
    for file in inputs:
        place = file if file.name.endswith(TOKEN_SUFFIXES) else file.parent
        if place not in beside:
            beside[place] = record_beside(file)
        if (record := beside[place]) is None:
            plain.append(file)
        else:
            records[record] = None
    return list(records), plain


def lineage_of(inputs: Iterable[Location]) -> list[dict[str, Any]]:
    """The summary of each record that lies next to one of `inputs`, in their order, and how many files had none.

    Raises InputError for a damaged record.
    """
    records, plain = files_by_record(inputs)
    return [*map(summary_of, records), *([{"files": len(plain)}] if plain else [])]


TOKENS_SUFFIX = "_text_document"
"""What Megatron-LM's users expect between a prefix and `.bin`."""


RUN = "run.json"
"""In the state folder: how the last run went."""
COMPLETE = "complete.json"
"""In the state folder: the bytes of each file of a finished output."""


@dataclass(frozen=True)
class Step:
    """One stage's run, and the runs whose output it read.

    Attributes:
        place: its folder, or for token files their prefix (`corpus_text_document`); None if it is gone, or another run
            lies there now.
        was: where it lay when the next step read it, where that is known, for messages.
        record: the contents of its record; of a step without `place` what a later record kept of it: all but `shards`
            and `problems`.
        sha256: of its record.
        run: `.state/run.json`: `finished_at`, `seconds`, `host`, `system`, `python`, `version`, `engine`, `workers`,
            `folders`, ...; empty if it is gone.
        sizes: the bytes of each file of its output when it was finished, by name; empty if its state is gone.
        inputs: the steps whose output it read, in order.
        files: input files that no stage wrote, as far as they are known (the first thousand).
        plain_files: how many such files there were.
    """

    place: Location | None
    was: str
    record: dict[str, Any]
    sha256: str
    run: dict[str, Any] = field(default_factory=dict)
    inputs: tuple[Step, ...] = ()
    files: tuple[Location, ...] = ()
    plain_files: int = 0
    sizes: dict[str, int] = field(default_factory=dict)

    @property
    def stage(self) -> str:
        """The name of the stage that made the output."""
        return str(self.record["stage"])

    @property
    def is_tokens(self) -> bool:
        """Whether its output is a pair of token files."""
        return "data" in self.record.get("facts", {}) and not self.record.get("shards")

    @property
    def name(self) -> str:
        """How messages call it: where it lies, or lay."""
        return str(self.place) if self.place is not None else self.was or f"the output of `webtext {self.stage}`"

    @property
    def state(self) -> Path | None:
        """The folder for what belongs to it next to its output, on this machine; None if there is no such place."""
        return state_of(self.place) if isinstance(self.place, Path) else None

    def shards(self) -> list[Location]:
        """The shards of the output in order; none if it is gone, or holds tokens."""
        return [] if self.place is None else [self.place / name for name in self.record.get("shards") or {}]

    def changes(self) -> list[str]:
        """A sentence on input files of the user's own that are not what it read, and one on files of its output that
        are not what it wrote; none where both are, as far as that was recorded.

        An input file has changed if its size has, or where it was not moved its time. Costs a look at each file.
        """
        names, stamps = (self.run.get(key, []) for key in ("files", "stamps"))
        read = [
            (file, stamp if str(file) == was else stamp[:1])
            for file, was, stamp in zip(self.files, names, stamps, strict=False)
        ]
        folder = self.place.parent if self.place is not None and self.is_tokens else self.place
        wrote = [] if folder is None else [(folder / name, [size]) for name, size in self.sizes.items()]
        inputs, outputs = (
            [found for found in storage.each(_difference, files, [file for file, _ in files]) if found]
            for files in (read, wrote)
        )
        return [
            f"{found[0]}{f' (and {len(found) - 1:,} files more)' if found[1:] else ''}: {meaning}."
            for found, meaning in (
                (inputs, f"{self.name} was made from what was there before"),
                (outputs, f"`webtext {self.stage}` wrote something else there"),
            )
            if found
        ]

    def input_files(self) -> list[Location]:
        """The input files in order, as far as they are there: input number 5 became shard number 5 in most stages.

        Raises InputError for an input that is gone, since the ones after it would have other numbers.
        """
        gone = next((step for step in self.inputs if step.place is None), None)
        if gone is not None:
            raise InputError(f"{gone.name}, which {self.name} was made from, is gone, or was made again since.")
        if self.plain_files > len(self.files):
            raise InputError(f"only {len(self.files):,} of {self.plain_files:,} input files of {self.name} are known.")
        by_folder: dict[str, list[Location]] = {}
        for step in self.inputs:
            assert step.place is not None
            by_folder.setdefault(storage.identity(step.place), []).extend(step.shards())
        for file in self.files:
            by_folder.setdefault(storage.identity(file.parent), []).append(file)
        # Both kinds in the order in which the command line named their folders.
        order = {
            storage.identity(storage.location(folder)): at for at, folder in enumerate(self.run.get("folders", []))
        }
        folders = sorted(by_folder, key=lambda folder: order.get(folder, len(order)))
        return [file for folder in folders for file in by_folder[folder]]


def trace(given: str | Location) -> Step:
    """The steps that led to what a user names: a folder that a stage wrote, or token files by prefix or name.

    Raises InputError if there is no record of a stage, or a damaged one.
    """
    return trace_all([given])[0]


def trace_all(given: Iterable[str | Location]) -> list[Step]:
    """The steps that led to several outputs: what these have in common is one step. Raises InputError as `trace`."""
    tracer, found = _Tracer(), []
    for one in given:
        place = storage.location(one) if isinstance(one, str) else one
        where = _record_path(place)
        if where is None:
            raise InputError(
                f"{place} holds no record of a stage ({RECORD}): give a folder that a `webtext` stage made."
            )
        found.append(tracer.step(*where))
    return found


def all_steps(*ends: Step) -> list[Step]:
    """The steps that led to some outputs and these themselves, each once, none before one that it was made from."""
    found: dict[int, Step] = {}

    def visit(step: Step) -> None:
        if id(step) not in found:
            for before in step.inputs:
                visit(before)
            found[id(step)] = step

    for end in ends:
        visit(end)
    return list(found.values())


def record_place(output: Location, *, is_prefix: bool) -> Location:
    """Where the record of an output lies that `--output` names: in its folder, or next to the files of a prefix."""
    return output.with_name(f"{output.name}{TOKENS_SUFFIX}.json") if is_prefix else output / RECORD


def state_place(output: Location, *, is_prefix: bool) -> Location:
    """Where the state of an output lies, unless `--state` says otherwise."""
    return output.with_name(f".{output.name}{TOKENS_SUFFIX}.state") if is_prefix else output / STATE


def state_of(place: Path) -> Path:
    """Where the state of an output lies that was made without `--state`."""
    return place / STATE if place.is_dir() else place.with_name(f".{place.name}.state")


def _record_path(place: Location) -> tuple[Location, Location] | None:
    """A folder or prefix, and its record."""
    if storage.is_file(place / RECORD):
        return place, place / RECORD
    if place.name == RECORD and storage.is_file(place):
        return place.parent, place
    name = next((place.name.removesuffix(end) for end in TOKEN_SUFFIXES if place.name.endswith(end)), place.name)
    for candidate in (name, name + TOKENS_SUFFIX, name.removesuffix(".json")):
        record = place.with_name(f"{candidate}.json") if candidate else place
        if candidate and storage.is_file(record) and _is_record(record):
            return place.with_name(candidate), record
    return None


def _is_record(path: Location) -> bool:
    """Whether it is a record: any file may have such a name."""
    with contextlib.suppress(InputError):
        return read_record(path.parent, path.name) is not None
    return False


class _Tracer:
    """Follows records; a step that several others read is one step."""

    def __init__(self) -> None:
        self._found: dict[str, Step] = {}
        self._records_in: dict[str, list[tuple[Location, Location]]] = {}

    def step(self, place: Location, record_path: Location, was: str = "") -> Step:
        """The step in a folder, or at a prefix."""
        identity = storage.identity(place)
        if identity not in self._found:
            record = read_record(record_path.parent, record_path.name)
            assert record is not None
            run = _read_state(place, RUN)
            inputs, plain = self._inputs(record, run, place)
            files = tuple(relocated(storage.location(name), run, place) for name in run.get("files", []))
            digest = _digest(record_path)
            sizes = _read_state(place, COMPLETE).get("outputs", {})
            self._found[identity] = Step(place, was or str(place), record, digest, run, inputs, files, plain, sizes)
        return self._found[identity]

    def _inputs(
        self, record: dict[str, Any], run: dict[str, Any], place: Location | None
    ) -> tuple[tuple[Step, ...], int]:
        summaries = [entry for entry in record.get("inputs", []) if "sha256" in entry]
        plain = sum(entry.get("files", 0) for entry in record.get("inputs", []) if "sha256" not in entry)
        passed: set[str] = set()
        folders = run.get("folders", [])
        places = folders if len(folders) == len(summaries) else [""] * len(summaries)
        pairs = zip(summaries, places, strict=True)
        return tuple(self._input(summary, was, run, place, passed) for summary, was in pairs), plain

    def _input(
        self, summary: dict[str, Any], was: str, run: dict[str, Any], output: Location | None, passed: set[str]
    ) -> Step:
        """The step of one summary. `passed` are earlier steps of the same record, as two may have equal records."""
        digest = summary["sha256"]
        for place, record_path in self._candidates(run, output):
            if storage.identity(place) not in passed and _digest(record_path) == digest:
                passed.add(storage.identity(place))
                return self.step(place, record_path)
        if digest not in self._found:
            inputs, plain = self._inputs(summary, {}, None)
            record = {key: value for key, value in summary.items() if key != "sha256"}
            self._found[digest] = Step(None, was, record, digest, {}, inputs, (), plain)
        return self._found[digest]

    def _candidates(self, run: dict[str, Any], output: Location | None) -> Iterator[tuple[Location, Location]]:
        """Where an input of an output may lie: as `run` says, the same way from its new place, or next to it."""
        for name in run.get("folders", []):
            yield from self._in_folder(storage.location(name))
        if isinstance(output, Path):
            for name in run.get("folders", []):
                yield from self._in_folder(relocated(storage.location(name), run, output))
            for beside in (output.parent, output.parent.parent):
                for entry, is_folder in storage.list_folder(beside)[:1000]:
                    if is_folder:
                        yield from self._in_folder(entry)

    def _in_folder(self, folder: Location) -> list[tuple[Location, Location]]:
        """The record of a folder, and the records of the token files in it, each after the place that it tells of."""
        identity = storage.identity(folder)
        if identity not in self._records_in:
            found: list[tuple[Location, Location]] = []
            with contextlib.suppress(OSError):
                names = [entry for entry, is_folder in storage.list_folder(folder) if not is_folder]
                found = [(folder, entry) for entry in names if entry.name == RECORD]
                ends = (f"{TOKENS_SUFFIX}.json",)
                found += [(entry.with_name(entry.name[:-5]), entry) for entry in names if entry.name.endswith(ends)]
            self._records_in[identity] = found
        return self._records_in[identity]


def relocated(place: Location, run: dict[str, Any], output: Location) -> Location:
    """Where something lies now that a run named, if it moved together with the output."""
    if isinstance(place, Path) and isinstance(output, Path) and not place.exists() and "output" in run:
        way = os.path.relpath(place, Path(run["output"]).parent)
        return Path(os.path.normpath(output.parent / way))
    return place


def _digest(record_path: Location) -> str:
    return hashlib.sha256(storage.read_bytes(record_path)).hexdigest()


def _read_state(place: Location, name: str) -> dict[str, Any]:
    """A file about the output in its state, if that lies next to it."""
    found = read_json(state_of(place) / name) if isinstance(place, Path) else None
    return found if isinstance(found, dict) else {}


def _difference(recorded: tuple[Location, Sequence[Any]]) -> str:
    """How a file differs from its size, or its size and version, of before; empty if it does not, or can't be asked."""
    file, (size, *version) = recorded
    try:
        _, *found = storage.stamp(file)
    except FileNotFoundError:
        return f"{file} is gone"
    except OSError:
        return ""
    if found[0] != size:
        return f"{file} has changed ({found[0]:,} bytes, it had {size:,})"
    return f"{file} has been written again" if version and found[1:] != version else ""


MOST_FILES = 1000
"""Input files without a record that are named in `run.json`, at most."""


def places_of(output: Location, inputs: Sequence[Location], stamps: Sequence[Any]) -> dict[str, Any]:
    """The places of the output and of its input, for `run.json`: folders in their order, and files that no stage wrote.

    Of each of these also its stamp without the name, by which a reader sees that it has changed since.
    """

    def shown(place: Location) -> str:
        return hide_credentials(storage.identity(place))

    _, plain = files_by_record(inputs)
    stamp_of = dict(zip(inputs, stamps, strict=True))
    folders = dict.fromkeys(path.parent for path in inputs)
    return {
        "output": shown(output),
        "folders": [shown(folder) for folder in dict.fromkeys(map(stage_folder, folders))],
        "files": [shown(path) for path in plain[:MOST_FILES]],
        "stamps": [stamp_of[path][1:] for path in plain[:MOST_FILES]],
    }
