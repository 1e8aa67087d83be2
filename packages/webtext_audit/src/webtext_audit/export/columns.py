"""The columns of an exported dataset: `url`, `text`, one for each usual key of the metadata, and one for the rest.

Metadata has no schema: keys come and go, and one key may hold a number here and a text there. A key becomes a column if
enough documents have it, of the type that most of its values have. What does not fit (a rare key, an object, a text
among numbers, null) goes to the column `metadata`, as JSON, in its own row: every document comes out again as it was.
"""

from __future__ import annotations

import contextlib
import datetime
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from webtext_audit.report.counters import Figures
from webtext_prep.documents.document import Document
from webtext_prep.errors import InputError
from webtext_prep.urls.urls import domain_of

if TYPE_CHECKING:
    import pyarrow as pa


REST = "metadata"
"""The column of JSON objects."""
FIRST = ("title", "domain", "language")
"""Columns that come first where they are; the others follow by name."""
MOST_COLUMNS = 64
LEAST_SHARE = 0.01
"""A key that fewer of the documents have becomes no column."""
OTHER_SHARE = 0.1
"""A column of times has at most this share of other texts; with more of them it is one of texts."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_EXACT_IN_FLOAT = 1 << 53
_INT64 = range(-(1 << 63), 1 << 63)
_LIST = "list"
_EMPTY_LIST = "list of nothing"

DTYPES = {
    "string": "string",
    "bool": "bool",
    "int": "int64",
    "float": "float64",
    "time": "timestamp[s, tz=UTC]",
    "list of string": "string",
    "list of int": "int64",
    "list of float": "float64",
}
"""Kind of column to the type of its values, as Hugging Face's `datasets` calls it."""


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
        name: as the metadata calls it.
        kind: a key of `DTYPES`.
    """

    name: str
    kind: str

    @property
    def is_list(self) -> bool:
        """Whether each value is a list."""
        return self.kind.startswith(_LIST)

    def fits(self, value: Any) -> bool:
        """Whether it can hold a value, and give back the same."""
        kind = kind_of(value)
        return (
            kind == self.kind
            or (self.kind == "string" and kind == "time")
            or (self.kind == "float" and kind == "int" and abs(value) <= _EXACT_IN_FLOAT)
            or (self.is_list and kind == _EMPTY_LIST)
        )


def kind_of(value: Any) -> str:
    """The kind of column that a value of metadata is for; empty if it is for none."""
    if isinstance(value, str):
        return "time" if _TIME.fullmatch(value) and _is_time(value) else "string"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int" if value in _INT64 else ""
    if isinstance(value, float):
        return "float" if math.isfinite(value) else ""
    if isinstance(value, list):
        if not value:
            return _EMPTY_LIST
        kinds = {kind_of(entry) for entry in value}
        kinds = {"string" if kind == "time" else kind for kind in kinds}
        name = f"{_LIST} of {kinds.pop()}" if len(kinds) == 1 else ""
        return name if name in DTYPES else ""
    return ""


def _is_time(text: str) -> bool:
    with contextlib.suppress(ValueError):
        return datetime.datetime.fromisoformat(text).isoformat() == f"{text[:-1]}+00:00"
    return False


def may_be_column(key: str) -> bool:
    """Whether a key of metadata can be the name of a column."""
    return _NAME.fullmatch(key) is not None and key not in ("url", "text", REST)


def choose_columns(kinds: Mapping[str, Mapping[str, int]], documents: int) -> list[Column]:
    """The columns besides `url`, `text` and the rest.

    Args:
        kinds: key of metadata to kind of value to the number of documents that have such a value under it.
        documents: how many there are in all.
    """
    counts = {key: Counter({kind: count for kind, count in of_key.items() if kind}) for key, of_key in kinds.items()}
    enough = [key for key, of_key in counts.items() if of_key and of_key.total() >= LEAST_SHARE * documents]
    usual = sorted(enough, key=lambda key: (key not in FIRST, -counts[key].total(), key))[:MOST_COLUMNS]
    in_order = [key for key in FIRST if key in usual] + sorted(key for key in usual if key not in FIRST)
    return [Column(key, _common_kind(counts[key])) for key in in_order]


def _common_kind(counts: Counter[str]) -> str:
    """The kind that most values have; a value that another kind can hold counts for that one."""
    counts = counts.copy()
    empty = counts.pop(_EMPTY_LIST, 0)
    if counts["string"] > OTHER_SHARE * (counts["string"] + counts["time"]):
        counts["string"] += counts.pop("time", 0)
    if counts["float"]:
        counts["float"] += counts.pop("int", 0)
    if empty and not any(kind.startswith(_LIST) for kind in +counts):
        counts["list of string"] += empty
    return min(+counts, key=lambda kind: (-counts[kind], kind))


def row_of(columns: Iterable[Column], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """What a document's metadata puts into which column; columns that get nothing are not there."""
    rest, row = dict(metadata), {}
    for column in columns:
        if column.name in rest and column.fits(rest[column.name]):
            row[column.name] = rest.pop(column.name)
    if rest:
        row[REST] = msgspec.json.encode(rest).decode()
    return row


def arrow_schema(columns: Iterable[Column]) -> pa.Schema:
    """The schema of the Parquet files."""
    import pyarrow as pa

    def type_of(column: Column) -> pa.DataType:
        inner = pa.timestamp("s", "UTC") if column.kind == "time" else pa.type_for_alias(DTYPES[column.kind])
        return pa.list_(inner) if column.is_list else inner

    fields = [("url", pa.string()), ("text", pa.string())]
    return pa.schema([*fields, *((column.name, type_of(column)) for column in columns), (REST, pa.string())])


def features(columns: Iterable[Column]) -> list[dict[str, Any]]:
    """The columns as the header of a dataset's card lists them."""
    fixed = [{"name": name, "dtype": "string"} for name in ("url", "text")]
    chosen = [{"name": column.name, "list" if column.is_list else "dtype": DTYPES[column.kind]} for column in columns]
    return [*fixed, *chosen, {"name": REST, "dtype": "string"}]


def times_in(columns: Iterable[Column]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """What makes times of a row's values in columns of times."""
    names = [column.name for column in columns if column.kind == "time"]
    return lambda row: row | {name: datetime.datetime.fromisoformat(row[name]) for name in names if name in row}


MOST_KEYS = 1000
"""Of different keys of metadata in one shard; later ones become no columns."""
NO_DOMAIN = ""
"""Documents without a web address, or with one whose host is no domain."""
_DOMAIN = re.compile(r"[\w-]+(\.[\w-]+)+")
_LANGUAGE = re.compile(r"[a-z]{2,3}(-[a-z]{2,8})?")

Count = list[int]
"""Documents, bytes of text (UTF-8), GPT-2 tokens."""


@dataclass
class Measures(Figures):
    """Counts of documents; the counts of several shards add up.

    Attributes:
        total: of all documents.
        domains: registered domain (`example.co.uk`) to its count; `NO_DOMAIN` for documents that have none.
        languages: language as the metadata has it (`en`, `zh-cn`) to its count; empty for documents without one.
        kinds: key of metadata to kind of value (`columns.kind_of`) to the number of documents.
    """

    total: Count = field(default_factory=lambda: [0, 0, 0])
    domains: dict[str, Count] = field(default_factory=dict)
    languages: dict[str, Count] = field(default_factory=dict)
    kinds: dict[str, dict[str, int]] = field(default_factory=dict)

    def add(self, document: Document, size: int, tokens: int) -> None:
        """Count one document of `size` bytes and `tokens` tokens."""
        found = document.metadata.get("language")
        language = found if isinstance(found, str) and _LANGUAGE.fullmatch(found) else ""
        for count in (
            self.total,
            self.domains.setdefault(proper_domain(document.url), [0, 0, 0]),
            self.languages.setdefault(language, [0, 0, 0]),
        ):
            count[0] += 1
            count[1] += size
            count[2] += tokens
        for key, value in document.metadata.items():
            of_key = self.kinds.get(key)
            if of_key is None:
                if len(self.kinds) >= MOST_KEYS or not may_be_column(key):
                    continue
                of_key = self.kinds[key] = {}
            kind = kind_of(value)
            of_key[kind] = of_key.get(kind, 0) + 1

    @property
    def domains_by_size(self) -> list[tuple[str, Count]]:
        """The domains with the most bytes first, without the documents that have none."""
        return [entry for entry in by_size(self.domains) if entry[0] != NO_DOMAIN]


def by_size(counts: Mapping[str, Count]) -> list[tuple[str, Count]]:
    """Names with their counts, the ones with the most bytes first (ties by name)."""
    return sorted(counts.items(), key=lambda entry: (-entry[1][1], entry[0]))


def proper_domain(url: str) -> str:
    """`domain_of` where that has the form of a domain or of an address in IPv4, else `NO_DOMAIN`."""
    name = domain_of(url).lower()
    return name if _DOMAIN.fullmatch(name) and not name.startswith("-") else NO_DOMAIN


def listed(top: str, domains: int) -> int:
    """How many of some domains are listed: a share of them such as `10%`, rounded up, or a number such as `1000`.

    Raises InputError for anything else.
    """
    with contextlib.suppress(ValueError):
        if not top.endswith("%") and int(top) > 0:
            return min(domains, int(top))
        if top.endswith("%") and 0 < (percent := float(top[:-1])) <= 100:
            # 10% of 30 is 3, though 0.1 * 30 is a little more.
            return math.ceil(round(percent / 100 * domains, 6))
    raise InputError(f"--top-domains {top}: give a share such as 10%, or a number such as 1000.")
