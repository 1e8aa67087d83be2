"""From what a user gives as input to the list of files to read: a file, a folder, a glob, or standard input.

A file, folder or glob may be a path of this machine or a URL of any fsspec file system. The order is that of the
arguments; inside a folder or a glob, that of the names. Hidden files and the output folder itself are never read; what
else is left out of a folder is counted by suffix, so that nothing is left out in silence. No input is an error.
"""

from __future__ import annotations

import fnmatch
import glob
import hashlib
import os
import re
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from command_kit.atomic import UnfinishedFile, remove_leftovers_of
from webtext_prep import storage
from webtext_prep.documents.folders.raw_files import is_raw_file
from webtext_prep.documents.folders.shards import is_document_shard, is_shard_name
from webtext_prep.documents.folders.stage_record import PAGES, RECEIPTS_SUFFIX, RECORD, STATE, read_record
from webtext_prep.documents.formats.compression import bare_name
from webtext_prep.errors import InputError
from webtext_prep.storage.locations import Location

Accepts = Callable[[Location], bool]
"""Whether a file is read, by its name."""


_SHOWN = 3
_SUFFIXES_SHOWN = 10


def is_page_file(place: Location) -> bool:
    """Whether the name is that of an HTML file or a web archive, which `webtext extract` reads."""
    return bare_name(place).lower().endswith((".html", ".htm", ".xhtml", ".warc", ".wacz", ".wet"))


def is_url_list(place: Location) -> bool:
    """Whether the name may be that of a list of URLs, or of the shards that a stage wrote of them."""
    name = bare_name(place).lower()
    is_list = name.endswith((".txt", ".jsonl", ".urls", ".list", ".csv", ".tsv")) or "." not in name
    return is_list or is_document_shard(place)


def find_inputs(paths: Iterable[str], *, accepts: Accepts, kinds: str, output: Location | None = None) -> Inputs:
    """The files that `paths` name, each a file, a folder or a glob.

    Args:
        paths: what the user gave.
        accepts: which files of a folder count, by name. A file given by name must count too.
        kinds: what such files are called in a message ("URL lists").
        output: the output folder, never read from.

    A file that is named twice is read once.

    Raises InputError for a path that does not exist, a folder or glob without such files, or no path at all.
    """
    found = Inputs(accepts, kinds, output)
    for given in paths:
        if not given:
            raise InputError(f"an empty path was given as input: say which {kinds} to read.")
        found.add(given)
    if not found.files:
        raise InputError(f"no input: give {kinds} with --input.")
    found.files = _without_repeats(found.files)
    return found


class Inputs:
    """What was found to read.

    Attributes:
        files: the files to read, in order.
        folders: the folders that were given.
        skipped: suffix to number of files of that suffix which lie in the given folders and are not read.
        broken_links: symbolic links in the given folders that lead nowhere.
        special_files: pipes and devices in the given folders.
    """

    def __init__(self, accepts: Accepts, kinds: str, output: Location | None) -> None:
        self._accepts, self._kinds = accepts, kinds
        self._output = storage.identity(output) if output is not None else None
        self.files: list[Location] = []
        self.folders: list[Location] = []
        self.skipped = Counter[str]()
        self.broken_links: list[Location] = []
        self.special_files: list[Location] = []

    def notes(self) -> list[str]:
        """Sentences for the end of a command: what lay in the given folders and was not read."""
        sentences = []
        if self.skipped:
            counts = sorted(self.skipped.items(), key=lambda item: (-item[1], item[0]))
            shown, others = counts[:_SUFFIXES_SHOWN], counts[_SUFFIXES_SHOWN:]
            words = [f"{count:,} {suffix}" for suffix, count in shown]
            words += [f"{sum(count for _, count in others):,} of {len(others):,} other suffixes"] if others else []
            sentences.append(f"not read, by suffix: {', '.join(words)}.")
        for files, kind in (
            (self.broken_links, "symbolic links that lead nowhere"),
            (self.special_files, "pipes or devices"),
        ):
            if files:
                names = ", ".join(map(str, files[:_SHOWN])) + (", ..." if len(files) > _SHOWN else "")
                sentences.append(f"not read, {len(files):,} {kind}: {names}.")
        return sentences

    def add(self, given: str) -> None:
        """Add what one argument names."""
        place = storage.location(given)
        if storage.is_folder(place):
            if storage.identity(place) == self._output:
                raise InputError(f"input and output are the same, {place}: give another --output.")
            if not isinstance(place, Path) and self._accepts(place) and storage.is_file(place):
                self.files.append(place)  # a key of a bucket may be a folder's name, too
            self._add_folder(place)
        elif storage.is_file(place):
            if not self._accepts(place):
                raise InputError(f"{place} has the wrong suffix: here {self._kinds} are read; {self._hint(place)}")
            self.files.append(place)
        elif isinstance(place, Path) and os.path.lexists(place):
            if _is_broken_link(place):
                raise InputError(f"{place} is a symbolic link that leads nowhere: fix or remove it.")
            raise InputError(
                f"{place} is a pipe or a device, which can't be read twice: write its content to a file and give that."
            )
        elif glob.has_magic(given):
            self._add_matches(place)
        else:
            raise InputError(f"no file or folder {place}: check the path.")

    def _add_folder(self, folder: Location) -> None:
        before = self.skipped.copy()
        files = list(self._files_below(folder))
        if not files:
            raise InputError(f"no {self._kinds} in the folder {folder}{self._instead(folder, before)}")
        self.files += files
        self.folders.append(folder)

    def _add_matches(self, pattern: Location) -> None:
        matches = [
            (match, is_folder)
            for match, is_folder in _matches(pattern)
            if not _lies_in(storage.identity(match), self._output)
        ]
        files = [file for file, is_folder in matches if not is_folder and file.name != RECORD]
        wanted = [file for file in files if self._is_readable(file)]
        folders = [folder for folder, is_folder in matches if is_folder and not wanted]
        self.files += wanted
        for folder in folders:
            self._add_folder(folder)
        if not wanted and not folders:
            raise InputError(
                f"no {self._kinds} match {pattern}: check the pattern (quoted, so that the shell leaves it)."
            )

    def _files_below(self, folder: Location) -> Iterator[Location]:
        """The files of `folder`, then of the folders in it; of what a stage wrote, the shards alone.

        Where shards are not what is read, pages that a download saved beside them may be.

        A folder that was met before is left out: a symbolic link may lead back.
        """
        passed = {self._output}
        remaining = [folder]
        while remaining:
            folder = remaining.pop()
            if (identity := storage.identity(folder)) in passed:
                continue
            passed.add(identity)
            folders = []
            entries = storage.list_folder(folder)
            names = {entry.name for entry, _ in entries}
            _refuse_table(folder, names)
            if RECORD in names:
                shards = self._shards_of_stage(folder, {entry.name for entry, is_folder in entries if not is_folder})
                wanted = list(filter(self._is_readable, shards))
                yield from wanted
                if not wanted and PAGES in names:
                    remaining.append(folder / PAGES)
                continue
            if STATE in names:
                raise InputError(
                    f"{folder} is not finished: run the stage that makes it again, it resumes where it stopped."
                )
            for entry, is_folder in entries:
                if entry.name.startswith("."):
                    continue
                if is_folder:
                    folders.append(entry)
                elif self._is_readable(entry):
                    yield entry
            remaining += reversed(folders)

    def _is_readable(self, file: Location) -> bool:
        if isinstance(file, Path) and not storage.is_file(file):
            (self.broken_links if _is_broken_link(file) else self.special_files).append(file)
            return False
        if file.name.endswith(RECEIPTS_SUFFIX):  # beside token files: rows about what is not in them
            return False
        if not self._accepts(file):
            self.skipped[_suffix(file)] += 1
            return False
        return True

    def _shards_of_stage(self, folder: Location, present: set[str]) -> Iterator[Location]:
        record = read_record(folder) or {}
        shards = record.get("shards") or sorted(filter(is_shard_name, present))
        # An export has its files in a folder of their own.
        there = present | {name for name in shards if "/" in name and storage.is_file(folder / name)}
        missing = next((name for name in shards if name not in there), None)
        if missing is not None:
            raise InputError(
                f"{folder / missing} is missing, which {folder / RECORD} lists: run `webtext {record['stage']}` again, "
                "it makes what is missing."
            )
        return (folder / name for name in shards)

    def _instead(self, folder: Location, before: Counter[str]) -> str:
        """What a folder without any input holds, and what to do."""
        others = self.skipped - before
        if not others:
            return ": give the folder or file that holds them."
        names = ", ".join(f"{count:,} {suffix}" for suffix, count in others.most_common(5))
        examples = (Path(f"a{suffix}") for suffix, _ in others.most_common())
        example = next((file for file in examples if is_raw_file(file) or is_page_file(file)), None)
        hint = self._hint(folder, example) if example else "give the folder or file that holds them."
        return f", which holds {names}: {hint}"

    def _hint(self, given: Location, example: Path | None = None) -> str:
        """What to do with a file that is not read, as the end of a sentence."""
        file = example or given
        suffix = _suffix(file)
        if suffix in (".bin", ".idx"):
            return "it holds tokens already, look at it with `webtext inspect`."
        reads_documents = self._accepts(Path("part-00000.parquet")) and not self._accepts(Path("a.urls"))
        if reads_documents and is_page_file(file):
            return (
                "extract the text of pages first, with `webtext extract "
                f"--input {shlex.quote(str(given))} --output extracted`, then give `--input extracted`."
            )
        if reads_documents and not self._accepts(Path("a.txt")) and is_raw_file(file):
            return (
                "turn text into documents first, with "
                f"`webtext merge --input {shlex.quote(str(given))} --output merged`, then give `--input merged`."
            )
        return "convert it to one of these first."


_LOGS = {"_delta_log": "a Delta", ".hoodie": "a Hudi"}
_ICEBERG = re.compile(r"(v\d+|\d{5,}-[0-9a-f-]{36})(\.gz)?\.metadata\.json")


def _refuse_table(folder: Location, names: set[str]) -> None:
    """Raise InputError for the files of a table of which a log alone tells which rows are still there.

    What a writer deletes or replaces stays in its files: deltalake 1.6.6 and pyiceberg 0.12.0 write the other rows of
    such a file once more, into another one (Delta's protocol, "Data files"; Iceberg's specification, "Overview").
    """
    kind = next((kind for log, kind in _LOGS.items() if log in names), "")
    if folder.name == "metadata" and any(map(_ICEBERG.fullmatch, names)):
        folder, kind = folder.parent, "an Iceberg"
    if kind:
        raise InputError(
            f"{folder} is {kind} table, whose files hold rows that were deleted or replaced, too: have a program that "
            "knows such tables write what is there now to Parquet, and give that."
        )


def _is_broken_link(path: Path) -> bool:
    return path.is_symlink() and not path.exists()


def _suffix(file: Location) -> str:
    """How a file's kind is called: `.txt.gz`, or `without a suffix`."""
    kind = Path(bare_name(file)).suffix.lower()
    compression = file.suffix if bare_name(file) != file.name else ""
    return kind + compression.lower() or "without a suffix"


def _lies_in(identity: str, folder: str | None) -> bool:
    return folder is not None and (identity == folder or identity.startswith(folder.rstrip("/") + "/"))


def _matches(pattern: Location) -> list[tuple[Location, bool]]:
    """What a pattern matches, by name and without hidden files, each with whether it is a folder."""
    if isinstance(pattern, Path):
        # Path.glob takes no absolute pattern.
        paths = sorted(glob.glob(str(pattern), recursive=True))  # noqa: PTH207
        return [(Path(match), Path(match).is_dir()) for match in paths]
    base, wanted = pattern, [pattern.name]
    while glob.has_magic(str(base.parent)):
        base = base.parent
        wanted.insert(0, base.name)
    found: set[tuple[Location, bool]] = {(base.parent, True)}
    for part in [*wanted, "*"] if wanted[-1] == "**" else wanted:
        folders = [place for place, is_folder in found if is_folder]
        if part == "**":
            found = {(below, True) for folder in folders for below in _folders_from(folder)}
        else:
            entries = (entry for folder in folders for entry in _shown_in(folder))
            found = {entry for entry in entries if fnmatch.fnmatchcase(entry[0].name, part)}
    return sorted(found, key=lambda item: (str(item[0]), item[1]))


def _folders_from(folder: Location) -> Iterator[Location]:
    """A folder, and all folders below it."""
    yield folder
    for entry, is_folder in _shown_in(folder):
        if is_folder:
            yield from _folders_from(entry)


def _shown_in(folder: Location) -> list[tuple[Location, bool]]:
    """The files and folders in a folder that are not hidden."""
    return [entry for entry in storage.list_folder(folder) if not entry[0].name.startswith(".")]


def _without_repeats(files: list[Location]) -> list[Location]:
    folders = {parent: storage.identity(parent) for parent in {file.parent for file in files}}
    places: dict[tuple[str, str], Location] = {}
    for file in files:
        places.setdefault((folders[file.parent], file.name), file)
    return list(places.values())


def spool_standard_input(folder: Path) -> Path:
    """Copy standard input to a file named after its content, so that the same input again is recognised as the same.

    It is written under a name of its own until it is complete: two commands at once don't mix their input.
    """
    name = folder / "stdin"
    remove_leftovers_of(name)
    digest = hashlib.sha256()
    unfinished = UnfinishedFile(name)
    try:
        while chunk := sys.stdin.buffer.read(1 << 20):
            digest.update(chunk)
            unfinished.file.write(chunk)
        unfinished.file.flush()
        kept = unfinished.path = folder / f"stdin-{digest.hexdigest()[:16]}.txt"
        # The one that is there keeps its time, by which it is recognised, unless a power cut took a part of it.
        if not (kept.is_file() and kept.stat().st_size == unfinished.name.stat().st_size):
            unfinished.commit()
    finally:
        unfinished.discard()
    return kept
