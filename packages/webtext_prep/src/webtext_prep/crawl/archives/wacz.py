"""The web archives in WACZ files (1.1.1) of Browsertrix, ArchiveWeb.page or py-wacz, and the digests of these.

    archive/*.warc.gz   pages/*.jsonl   indexes/*   datapackage.json   datapackage-digest.json

Archives are read as if they lay beside the file (`storage/stores/wacz.py`). Lists of pages, which may have the text of
pages as their crawler saw it, are not read. `datapackage.json` has a digest of each file, and another file has its own.
A file of several crawls holds a WACZ file of each.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from typing import cast
from zipfile import ZIP_STORED

from command_kit import parse_json
from webtext_prep import storage
from webtext_prep.errors import DamagedFileError
from webtext_prep.running.tasks import Problems
from webtext_prep.storage.locations import Location, Url
from webtext_prep.storage.stores.wacz import SCHEME, inside, is_wacz, read_package, split

DATAPACKAGE = "datapackage.json"
DIGEST_OF_DATAPACKAGE = "datapackage-digest.json"
MAX_DATAPACKAGE = 16 << 20
"""Bytes."""
ALGORITHMS = frozenset({"md5", "sha1", "sha256", "sha512"})


def archives_in(
    package: Location, is_archive: Callable[[Location], bool], problems: Problems, *, is_inner: bool = False
) -> Iterator[Location]:
    """The archives in a WACZ file and in those that it holds, by name.

    What is wrong with it goes into `problems`. Raises OSError where the storage fails.
    """

    def is_read(place: Location) -> bool:
        return is_archive(place) or is_wacz(place)

    try:
        found = read_package(package)
    except DamagedFileError as error:
        problems.add(str(error), "it can't be read as a zip file: fetch it again", [str(package)])
        return
    for reason, names in found.refused.items():
        for name in names:
            if is_read(Url("", PurePosixPath(name))):
                problems.add(reason, f"not read: it {reason}", [f"{package}: {name}"])
    places = {inside(package, name): found.members[name] for name in sorted(found.members)}
    archives = [place for place in places if is_archive(place)]
    packages = [place for place in places if is_wacz(place)]
    yield from archives
    for place in packages:
        if is_inner or places[place].compress_type != ZIP_STORED:
            problems.add("inner", "it lies too deep, or compressed, in another one: take it out of there", [str(place)])
        else:
            yield from archives_in(place, is_archive, problems, is_inner=True)
    if archives:
        try:
            digests_in(package)
        except ValueError as error:
            problems.add(str(error), str(error), [str(package)])
    elif not packages:
        problems.add("none", "it holds no web archives (archive/*.warc.gz)", [str(package)])


def digests_in(package: Location) -> dict[str, str]:
    """The digest of each file in a WACZ file, as its `datapackage.json` has it: `sha256:...`.

    Raises ValueError, which says what is wrong with that: then no digest can be checked.
    """
    data, said = (_read(inside(package, name)) for name in (DATAPACKAGE, DIGEST_OF_DATAPACKAGE))
    if not data:
        raise ValueError(f"it has no {DATAPACKAGE}, so that no digest is checked")
    try:
        algorithm, digest = parse_json(said)["hash"].split(":") if said else ("", "")
        found = {str(entry["path"]): str(entry.get("hash")) for entry in parse_json(data)["resources"]}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"its {DATAPACKAGE} can't be read, so that no digest is checked") from error
    if algorithm in ALGORITHMS and hashlib.new(algorithm, data).hexdigest() != digest:
        raise ValueError(f"its {DATAPACKAGE} is not what {DIGEST_OF_DATAPACKAGE} says: fetch it again")
    return found


def _read(place: Location) -> bytes:
    """The beginning of a small file; nothing, if there is none."""
    with contextlib.suppress(FileNotFoundError), storage.open_for_reading(place) as file:
        return file.read(MAX_DATAPACKAGE)
    return b""


def is_packed(place: Location) -> bool:
    """Whether it is a file in a WACZ file."""
    return isinstance(place, Url) and place.protocol == SCHEME


def check_digest(place: Location, report: Callable[[int], None]) -> str:
    """A sentence if an archive in a WACZ file is not what `datapackage.json` says; `report` gets the bytes read."""
    package, name = split(cast(Url, place))
    try:
        algorithm, _, digest = digests_in(package).get(name, "").partition(":")
    except ValueError:  # which `archives_in` has said
        return ""
    if algorithm not in ALGORITHMS:
        return f"{DATAPACKAGE} has no digest of it that is known"
    found = hashlib.new(algorithm)
    with storage.open_for_reading(place) as file:
        while chunk := file.read(1 << 20):
            found.update(chunk)
            report(file.tell())
    wrong = f"it is not what its {algorithm} in {DATAPACKAGE} says, and what can be read is kept: fetch it again"
    return "" if found.hexdigest() == digest else wrong
