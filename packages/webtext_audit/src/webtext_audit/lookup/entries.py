"""What is indexed: the hashes of the rows of one file, by URL, by passage, or by place in the shuffle.

Each function is called in a worker process with the file, its options, and a function that is told the rows done.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
import numpy as np
import xxhash

from webtext_audit.lookup.index import Entries
from webtext_prep.documents.document import Document
from webtext_prep.documents.folders.shards import format_of, read_documents
from webtext_prep.documents.folders.url_lists import is_list_of_lines, read_url, read_urls
from webtext_prep.documents.formats.json_lines import JsonLines
from webtext_prep.documents.formats.lines import read_lines
from webtext_prep.errors import InputError
from webtext_prep.reddit.dumps import read_blocks
from webtext_prep.reddit.rows import Submission, link_or_own_url, read_rows
from webtext_prep.storage.stores.base import Location
from webtext_prep.tokens.runs import shuffle_key
from webtext_prep.urls.urls import url_key, without_any_credentials, without_credentials

REPORT_EVERY = 4096
Report = Callable[[int], None]


def url_hash(url: str) -> int:
    """64 bits that two URLs of one page share, those that `url_key` makes equal."""
    return xxhash.xxh3_64_intdigest(url_key(url).encode("utf-8", "surrogatepass"))


class _Url(msgspec.Struct):
    url: str


def _entries(keyed: Iterable[tuple[int, int]], dtype: type = np.uint64, report: Report = lambda count: None) -> Entries:
    """Arrays of (hash, row) pairs."""

    def numbers() -> Iterator[int]:
        for count, (key, row) in enumerate(keyed, 1):
            yield key
            yield row
            if count % REPORT_EVERY == 0:
                report(count)

    pairs = np.fromiter(numbers(), np.uint64).reshape(-1, 2)
    report(len(pairs))
    return pairs[:, 0].astype(dtype), pairs[:, 1].astype(np.uint32)


def urls(shard: Location, options: dict[str, Any], report: Report) -> Entries:
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
        return _entries(((url_hash(url), row) for row, url in enumerate(found)), report=report)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InputError(f"{shard} holds a line without a URL ({error}).") from error


def listed(place: Location, options: dict[str, Any], report: Report) -> Entries:
    """The URLs of a list that a user gave; a row is the number of its line, or of the row of a table, less one."""
    return _entries(((url_hash(row.url), line) for line, row in listed_rows(place)), report=report)


def submitted(dump: Location, options: dict[str, Any], report: Report) -> Entries:
    """The pages that the submissions of a dump link to; a row is the number of its line, less one."""
    blocks = (read_rows(block) for block, _ in read_blocks(dump, None, 0))
    rows = enumerate(itertools.chain.from_iterable(blocks))
    pages = ((link_or_own_url(row), line) for line, row in rows if isinstance(row, Submission))
    return _entries(((url_hash(url), line) for url, line in pages), report=report)


def listed_rows(place: Location) -> Iterator[tuple[int, Document]]:
    """The rows of a URL list with the numbers of their lines, from 0 on; of a table or Parquet those of its rows."""
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


def order(shard: Location, options: dict[str, Any], report: Report) -> Entries:
    """Where the documents of a shard come in token files: by the key of their shuffle, or by number without one."""
    shuffled, seed = options["shuffle"], options["seed"]
    kept = ((row, document) for row, document in enumerate(read_documents(shard)) if document.text)
    return _entries(((shuffle_key(document, seed) if shuffled else row, row) for row, document in kept), report=report)


def passages(shard: Location, options: dict[str, Any], report: Report) -> Entries:
    """The fingerprints of the texts of a shard; see `lookup.passages`."""
    from webtext_audit.lookup.passages import Fingerprints

    found = Fingerprints()
    keys, rows, count = [], [], 0
    for count, document in enumerate(read_documents(shard), 1):
        own = found.of(document.text)
        keys.append(own)
        rows.append(np.full(len(own), count - 1, np.uint32))
        if count % REPORT_EVERY == 0:
            report(count)
    report(count)
    nothing: Any = [np.zeros(0, np.uint32)]
    return np.concatenate(keys or nothing), np.concatenate(rows or nothing)


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
