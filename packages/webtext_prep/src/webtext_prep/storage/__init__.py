"""Files and folders as the stages use them: local or remote, read as streams, created atomically.

    for line in open_for_reading(location("s3://bucket/corpus/part-00000.jsonl")): ...

Each function asks the store of the location (`stores/`): plain files for paths, buckets for URLs of object storage, or
a store that another package brings under the entry-point group `webtext.stores`. Other URLs are read through fsspec,
and not written.
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from command_kit import hide_credentials
from command_kit.plugins import find_plugins
from webtext_prep.errors import InputError
from webtext_prep.storage import stores
from webtext_prep.storage.locations import Location, Url
from webtext_prep.storage.requests import EXTRAS
from webtext_prep.storage.stores.base import Store
from webtext_prep.storage.stores.local import LocalStore

_URL = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]+)(::.*)?://")
_LOCAL = LocalStore()
REQUESTS_AT_ONCE = 32
"""The number of objects that are asked about side by side: each answer takes milliseconds, and there may be 10,000."""
_Item = TypeVar("_Item")
_Value = TypeVar("_Value")


def location(text: str | os.PathLike[str], *, is_written: bool = False) -> Location:
    """A local path, or for `PROTOCOL://...` a URL.

    Raises InputError for an unknown protocol, and, for one that is to be written, where files can only be read.

    >>> location("work/urls")
    PosixPath('work/urls')
    """
    if isinstance(text, os.PathLike) or not (found := _URL.match(text)):
        return text if isinstance(text, Path) else Path(text)
    if found[1] in LocalStore.protocols and not found[2]:
        return Path(text[found.end() :])
    url = Url.parse(text)
    try:
        (writable(url) if is_written else store_of(url)).check(url)
    except (ValueError, ImportError) as error:
        raise InputError(_unopened(text, url.protocol, error)) from error
    return url


def _unopened(text: str, protocol: str, error: Exception) -> str:
    if isinstance(error, ImportError) and protocol in EXTRAS:
        return (
            f"{text} needs packages that are not installed: install them with `pip install "
            f"'webtext-gpt2[{EXTRAS[protocol]}]'`."
        )
    return f"{text} can't be opened ({error}): check the protocol, and that the package for it is installed."


def local_path(place: Location) -> Path:
    """The path of a local file. Raises ValueError for a URL, which can't be mapped into memory."""
    if not isinstance(place, Path):
        raise ValueError(f"{place} is not a local file")
    return place


def identity(place: Location) -> str:
    """The one name of a place, however it was given."""
    return os.path.realpath(place) if isinstance(place, Path) else str(place).rstrip("/")


@functools.lru_cache(maxsize=1)
def _stores() -> dict[str, Store]:
    found = find_plugins(stores, Store, group="webtext.stores")
    known = {protocol: store() for store in found for protocol in store.protocols}
    fallback = next(store() for store in found if not store.protocols)
    return {**known, "": fallback}


def store_of(place: Location) -> Store:
    """The store of a location."""
    if isinstance(place, Path):
        return _LOCAL
    known = _stores()
    return known.get(place.protocol, known[""])


def writable(place: Location) -> Store:
    """The store of a location that is to be written. Raises InputError where files can only be read."""
    store = store_of(place)
    if store.is_read_only:
        raise InputError(
            f"nothing can be written to {hide_credentials(str(place))}: write to a local folder, or to a URL of "
            "s3://, gs:// or az://."
        )
    return store


def modules_of(places: Iterable[Location]) -> set[str]:
    """Modules that their stores need and that take long to import, for whoever forks processes that will use them."""
    kinds = {place.protocol: place for place in places if not isinstance(place, Path)}
    return {name for place in kinds.values() for name in store_of(place).preload}


def open_for_reading(place: Location) -> BinaryIO:
    """Open a file for reading bytes. Raises OSError."""
    return store_of(place).open(place)


def create(place: Location, *, durable: bool = True) -> AbstractContextManager[BinaryIO]:
    """Open a file for writing bytes: it appears complete when the block ends well, or not at all.

    Without `durable` a power cut may lose it: for files between two phases. Raises OSError.
    """
    return writable(place).create(place, durable=durable)


def publish(file: Path, place: Location) -> None:
    """Move a finished local file to its final place. Raises OSError."""
    writable(place).publish(file, place)


def stamp(place: Location) -> list[Any]:
    """Name, size in bytes, and version of a file, as JSON-like values: what changes when it does. Raises OSError."""
    return store_of(place).stamp(place)


def size(place: Location) -> int:
    """Bytes of a file. Raises OSError."""
    return int(stamp(place)[1])


def stamps(places: Sequence[Location]) -> list[list[Any]]:
    """The stamp of each file. Raises OSError."""
    return each(stamp, places, places)


def sizes(places: Sequence[Location]) -> list[int]:
    """The bytes of each file. Raises OSError."""
    return each(size, places, places)


def each(call: Callable[[_Item], _Value], items: Sequence[_Item], places: Iterable[Location]) -> list[_Value]:
    """`call(item)` for each item, in their order; several at once where one of `places` is not on this machine."""
    if len(items) < 2 or all(isinstance(place, Path) for place in places):
        return [call(item) for item in items]
    with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
        return list(pool.map(call, items))


def is_file(place: Location) -> bool:
    """Whether there is a file of that name."""
    return store_of(place).is_file(place)


def is_folder(place: Location) -> bool:
    """Whether there is a folder of that name."""
    return store_of(place).is_folder(place)


def list_folder(folder: Location) -> list[tuple[Location, bool]]:
    """The entries of a folder by name, each with whether it is a folder; none if there is no such folder."""
    return store_of(folder).list_folder(folder)


def files_in(folder: Location) -> list[Location]:
    """The files of a folder, by name."""
    return [entry for entry, is_folder in list_folder(folder) if not is_folder]


def remove(place: Location) -> None:
    """Remove a file, if it is there. Raises OSError."""
    writable(place).remove(place)


def remove_folder(folder: Location) -> None:
    """Remove a folder and all that lies below it, if it is there. Raises OSError."""
    writable(folder).remove_folder(folder)


def remove_leftovers(folder: Location) -> None:
    """Remove temporary files that killed writers left in a folder."""
    writable(folder).remove_leftovers(folder)


def read_bytes(place: Location) -> bytes:
    """All bytes of a file. Raises OSError."""
    with open_for_reading(place) as file:
        return file.read()


def write_json(place: Location, value: Any) -> None:
    r"""Write `value` as indented JSON with a closing newline, atomically. Raises OSError.

    A byte of a file name that is not UTF-8 is written as `\udcNN`, which `json.loads` reads back.
    """
    with create(place) as file:
        file.write((json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace"))
