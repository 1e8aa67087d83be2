"""From what a user gives as input to the list of files to read: a file, a folder, a glob, or standard input.

The order is that of the arguments; inside a folder or a glob, that of the names. Hidden files and the output folder
itself are never read. No input is an error.
"""

from __future__ import annotations

import glob
import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from webtext_prep.documents.compression import COMPRESSED_SUFFIXES, bare_name
from webtext_prep.documents.shards import is_shard_name
from webtext_prep.documents.stage_record import RECORD, STATE, read_record
from webtext_prep.documents.stores.base import Location
from webtext_prep.errors import InputError


def is_url_list(path: Location) -> bool:
    """Whether the name may be that of a list of URLs."""
    name = bare_name(path)
    return name.endswith((".txt", ".jsonl", ".urls", ".list", ".csv")) or "." not in name


def is_mergeable(path: Location) -> bool:
    """Whether `webtext merge` reads files of that name."""
    return bare_name(path).endswith((".txt", ".json", ".jsonl"))


def _shards_of_stage(folder: Path, record: dict[str, Any]) -> list[Path]:
    missing = next((name for name in record.get("shards") or () if not (folder / name).is_file()), None)
    if missing is not None:
        raise InputError(
            f"{folder / missing} is missing, which {folder / RECORD} lists: run `webtext {record['stage']}` again, "
            "it makes what is missing."
        )
    return sorted(entry for entry in folder.iterdir() if is_shard_name(entry.name))


def _files_below(folder: Path, accepts: Callable[[Path], bool], passed: set[Path]) -> Iterator[Path]:
    """The files of `folder`, then those of the folders in it; of what a stage wrote, at any depth, the shards alone.

    Folders in `passed` are left out, as are those that were met before (a symbolic link may lead back).
    """
    passed.add(folder.resolve())
    record = read_record(folder)
    if record is not None:
        yield from _shards_of_stage(folder, record)
        return
    if (folder / STATE).is_dir():
        raise InputError(f"{folder} is not finished: run the stage that makes it once more, it goes on where it was.")
    folders = []
    for entry in sorted(entry for entry in folder.iterdir() if not entry.name.startswith(".")):
        if entry.is_dir():
            folders.append(entry)
        elif accepts(entry):
            if not entry.exists():
                raise InputError(f"{entry} is a link that leads nowhere: mend or remove it.")
            yield entry
    for entry in folders:
        if entry.resolve() not in passed:
            yield from _files_below(entry, accepts, passed)


def _files_of_folder(folder: Path, accepts: Callable[[Path], bool], kinds: str, output: Path | None) -> list[Path]:
    found = list(_files_below(folder, accepts, {output} if output is not None else set()))
    if not found:
        raise InputError(f"no {kinds} in the folder {folder}: give the folder or file that holds them.")
    return found


def find_inputs(
    paths: Iterable[str], *, accepts: Callable[[Path], bool], kinds: str, output: Location | None = None
) -> list[Path]:
    """The files that `paths` name, each a file, a folder or a glob.

    Args:
        paths: what the user gave.
        accepts: which files of a folder count, by name. A file given by name must count too.
        kinds: what such files are called in a message ("URL lists").
        output: the output folder, never read from.

    A file that is named twice is read once.

    Raises InputError for a path that does not exist, a folder or glob without such files, or no path at all.
    """
    resolved_output = output.resolve() if isinstance(output, Path) else None
    found: list[Path] = []
    for given in paths:
        path = Path(given)
        if not given:
            raise InputError(f"an empty path was given as input: say which {kinds} to read.")
        if path.is_dir():
            if path.resolve() == resolved_output:
                raise InputError(f"input and output are the same folder, {path}: give another --output.")
            found += _files_of_folder(path, accepts, kinds, resolved_output)
        elif path.exists():
            if not accepts(path):
                raise InputError(f"{path} is not one of the {kinds} read here, by its ending: {_hint(path)}")
            found.append(path)
        elif glob.has_magic(given):
            # Path.glob takes no absolute pattern.
            matches = [Path(match) for match in sorted(glob.glob(given, recursive=True))]  # noqa: PTH207
            matches = [match for match in matches if resolved_output not in (match.resolve(), *match.resolve().parents)]
            files = [match for match in matches if match.is_file() and match.name != RECORD and accepts(match)]
            if not files:
                folders = [match for match in matches if match.is_dir()]
                files = [
                    file for folder in folders for file in _files_of_folder(folder, accepts, kinds, resolved_output)
                ]
            if not files:
                raise InputError(f"no {kinds} match {given}: check the pattern (quoted, so that the shell leaves it).")
            found += files
        else:
            raise InputError(f"no file or folder {given}: check the path.")
    if not found:
        raise InputError(f"no input: give {kinds} with --input.")
    resolved = {parent: parent.resolve() for parent in {path.parent for path in found}}
    places: dict[tuple[Path, str], Path] = {}
    for path in found:
        places.setdefault((resolved[path.parent], path.name), path)
    return list(places.values())


def _hint(path: Path) -> str:
    if path.suffix in (".bin", ".idx"):
        return "it holds tokens already, look at it with `webtext inspect`."
    if path.suffix in (*COMPRESSED_SUFFIXES, ".txt", ".json"):
        return "turn it into documents with `webtext merge` first."
    return "rename it, or convert it first."


def spool_standard_input(folder: Path) -> Path:
    """Copy standard input to a file named after its content, so that the same input again is recognised as the same."""
    folder.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    unfinished = folder / ".stdin.unfinished"
    with unfinished.open("wb") as file:
        while chunk := sys.stdin.buffer.read(1 << 20):
            digest.update(chunk)
            file.write(chunk)
    kept = folder / f"stdin-{digest.hexdigest()[:16]}.txt"
    if kept.exists():
        unfinished.unlink()
    else:
        unfinished.replace(kept)
    return kept
