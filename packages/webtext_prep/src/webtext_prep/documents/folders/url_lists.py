"""URL lists: lines that hold a bare URL or a JSON object with `url`; a table; or the shards of URLs of a stage.

A table (.csv, .tsv) has a header with a column `url`, or one column whose cells are URLs; its other columns are
metadata. A .csv file whose first line is a URL is a list of bare URLs, which may hold commas, unless it can be no such
list: a cell is in quotes, or has a space, or the URL is not the first. Of a .tsv file the first column counts at last.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from webtext_prep.documents.document import Document, decode_url_row, encode_document
from webtext_prep.documents.folders.shards import format_of
from webtext_prep.documents.formats.arrow_tables import row_groups
from webtext_prep.documents.formats.arrow_values import column_names
from webtext_prep.documents.formats.compression import bare_name
from webtext_prep.documents.formats.json_lines import JsonLines
from webtext_prep.documents.formats.lines import line_blocks, numbered_lines, read_lines, read_utf8
from webtext_prep.documents.formats.parquet import Parquet
from webtext_prep.documents.records.base import FileBlock, Unreadable
from webtext_prep.documents.records.tables import CsvRecords, Row, delimiter_of, read_rows
from webtext_prep.errors import InputError
from webtext_prep.storage.locations import Location
from webtext_prep.urls.urls import clean_metadata, without_any_credentials

_COLUMN = "url"
_DELIMITERS = {".csv": CsvRecords.delimiters, ".tsv": ("\t",)}
_USUAL_NAMES = ("address", "link", "page", "page url", "page_url", "uri", "href", "loc", "permalink")
"""Of a page's own URL, where several columns hold URLs: crawlers export `Address`, search consoles `page`."""
_FIGURE = re.compile(r"\s*(?:[-+]?\d+(?:\.\d+)?%?|\d{4}-\d\d-\d\d(?:[T ]\S+)?)\s*")
_IS_URL = re.compile(r"\s*https?:[/\\]{2}[^\s]+\s*", re.IGNORECASE)


def read_urls(
    location: Location, part: UrlPart | None = None, *, columns: Mapping[str, str] | None = None
) -> Iterator[Document]:
    """The rows of a URL list, or of a part of it, as documents without text; `#` begins a comment.

    What its folders tell (`raw_files.columns_of`) becomes metadata of rows that don't say it themselves.

    User names and passwords are taken out of URLs here, so that nothing after knows them. A text that is not a URL is
    given back as it is, for the caller to find that out.

    Raises InputError as its format does.
    """
    for row in _rows(location) if part is None else part.rows(location):
        row.text = ""
        yield _as_listed(row, columns)


def read_url(line: bytes, columns: Mapping[str, str] | None = None) -> Document | None:
    """The row in one line of a list of lines, as `read_urls` gives it."""
    row = decode_url_row(line)
    return None if row is None else _as_listed(row, columns)


def _as_listed(row: Document, columns: Mapping[str, str] | None) -> Document:
    """A row whose URL has no credentials, and `&` where it was copied out of HTML as `&amp;`."""
    row.url = without_any_credentials(row.url.replace("&amp;", "&"))
    if columns:
        row.metadata = {**columns, **row.metadata}
    return row


def encode_url(row: Document) -> bytes:
    """A row as a line that `read_url` reads: the bare URL, where that is all there is and looks like nothing else."""
    url = row.url
    if row.metadata or row.text or not (url.isascii() and url.isprintable() and url[:1] not in "#{" and " " not in url):
        return encode_document(row)
    return url.encode()


@dataclass(frozen=True)
class UrlPart:
    """Some rows of a table of URLs.

    Attributes:
        first: the number of the first one: of a line, from 1 on, or in Parquet of a row, from 0 on.
        stop: for Parquet, the number of the row after the last one.
        delimiter: for a run of lines that was cut out of a table: what separates its cells,
        names: and what its columns are called.
        has_header: whether the first row is the header.
    """

    first: int
    stop: int = 0
    delimiter: str = ""
    names: tuple[str, ...] = ()
    has_header: bool = False

    def rows(self, location: Location) -> Iterator[Document]:
        """The rows in the file that holds them."""
        if not self.delimiter:
            yield from itertools.islice(Parquet().read_from(location, self.first), self.stop - self.first)
            return
        rows = read_rows(location, (self.delimiter,), self.first, len(self.names))
        yield from _table(itertools.islice(rows, int(self.has_header), None), list(self.names))


def row_ranges(location: Location, size: int) -> list[UrlPart]:
    """Parts of about `size` rows of a list in Parquet; none for any other list."""
    if not isinstance(format_of(location.name), Parquet):
        return []
    count = sum(rows for rows, _ in row_groups(location))
    return [UrlPart(first, min(first + size, count)) for first in range(0, count, size)]


def list_blocks(location: Location, chunks: Iterable[bytes], size: int, head: Any) -> Iterator[FileBlock]:
    """The rows of a list that is text, in blocks; see `RecordReader.blocks`. A head says what `run_part` needs."""
    table = _table_of(location)
    if table is None:
        for lines in line_blocks(location, chunks, size):
            yield FileBlock(lines, len(lines), 0)
        return
    delimiter, names, _ = table
    # Their reader finds where a row ends, for any names of columns.
    for block in CsvRecords().blocks(location, chunks, size, [delimiter, names]):
        yield block._replace(head=[delimiter, names, False])


def run_part(location: Location, first: int, head: Any) -> UrlPart | None:
    """The part of a list that is a run cut out of it, whose first line has this number; None if any line is a row."""
    table = head or _table_of(location)
    return None if table is None else UrlPart(first, 0, table[0], tuple(table[1]), table[2])


def is_list_of_lines(location: Location) -> bool:
    """Whether each line of the file is a row by itself, by the name: neither a table nor Parquet."""
    found = format_of(location.name)
    return (found is None or isinstance(found, JsonLines)) and _suffix(location) not in _DELIMITERS


def is_text(location: Location) -> bool:
    """Whether the file is a list of lines or a table, by the name: no Parquet."""
    return is_list_of_lines(location) or _suffix(location) in _DELIMITERS


def _suffix(location: Location) -> str:
    return bare_name(location)[-4:].lower()


def _rows(location: Location) -> Iterator[Document]:
    found = format_of(location.name)
    if found is not None and not isinstance(found, JsonLines):
        yield from found.read(location)
        return
    table = _table_of(location)
    if table is not None:
        yield from UrlPart(1, 0, *table).rows(location)
        return
    for _, line in numbered_lines(location, read_utf8(location)):
        row = decode_url_row(line)
        if row is not None:
            yield row


def _table_of(location: Location) -> tuple[str, tuple[str, ...], bool] | None:
    """Of a table: what separates its cells, what its columns are called, and whether its first row says so.

    Raises InputError for a table of whose columns it is not plain which has the URLs.
    """
    delimiters = _DELIMITERS.get(_suffix(location))
    if delimiters is None:
        return None
    lines = itertools.islice(read_lines(location), 1)
    first_line = next(lines, b"").decode("utf-8", "surrogateescape")
    delimiter = delimiter_of(first_line, delimiters)
    rows = [row.cells for row in itertools.islice(read_rows(location, (delimiter,)), 101)]
    header, *others = [row for row in rows if isinstance(row, list) and not row[0].lstrip().startswith("#")] or [[]]
    cells = [cell.strip().lower() for cell in header]
    if _COLUMN in cells:
        return delimiter, _names(cells), True
    is_header = not any(map(_IS_URL.fullmatch, header))
    if (
        not is_header
        and delimiter != "\t"
        and _may_be_lines(first_line, header)
        and not _has_figures([header, *others])
    ):
        return None
    if len(header) > 1 and (found := _url_columns(others if is_header else [header, *others])):
        chosen = found[0] if len(found) == 1 or not is_header else _usual_column(location, cells, found)
        names = [_COLUMN if at == chosen else name for at, name in enumerate(cells)] if is_header else []
        return delimiter, _names(names) if is_header else ("",) * chosen + (_COLUMN,), is_header
    if _suffix(location) == ".tsv" and header:
        return delimiter, (_COLUMN,), False
    if len(header) > 1 and others:
        raise InputError(
            f"{location} has no column {_COLUMN}, but {', '.join(header)}, and none of them holds URLs: give a list of "
            "URLs, or a table with one column of them."
        )
    return None


def _names(cells: list[str]) -> tuple[str, ...]:
    return tuple(name if cell else "" for name, cell in zip(column_names(cells), cells, strict=True))


def _may_be_lines(first_line: str, cells: list[str]) -> bool:
    """Whether a line that holds a URL may be that URL alone, with its commas."""
    return bool(_IS_URL.fullmatch(first_line)) and bool(_IS_URL.fullmatch(cells[0])) and '"' not in first_line


def _has_figures(rows: list[list[str]]) -> bool:
    """Whether nothing but numbers and dates follow the URL in each of several rows: a table without a header."""
    figures = (len(row) == len(rows[0]) > 1 and all(map(_FIGURE.fullmatch, row[1:])) for row in rows)
    return len(rows) > 1 and all(figures)


def _url_columns(rows: list[list[str]]) -> list[int]:
    """The columns of which most cells that hold something are URLs."""
    columns = itertools.zip_longest(*rows, fillvalue="")
    filled = [[cell for cell in column if cell.strip()] for column in columns]
    return [at for at, column in enumerate(filled) if 2 * sum(map(bool, map(_IS_URL.fullmatch, column))) > len(column)]


def _usual_column(location: Location, cells: list[str], found: list[int]) -> int:
    usual = next((cells.index(name) for name in _USUAL_NAMES if name in cells and cells.index(name) in found), None)
    if usual is None:
        names = ", ".join(cells[at] for at in found)
        raise InputError(f"{location} has several columns of URLs, {names}: call the right one {_COLUMN}.")
    return usual


def _table(rows: Iterator[Row], names: list[str]) -> Iterator[Document]:
    for row in rows:
        if isinstance(row.cells, Unreadable):
            yield Document(f"line {row.line}: {row.cells}")
            continue
        values = dict(zip(names, row.cells, strict=False))
        url = values.pop(_COLUMN, "").strip()
        if url and not url.startswith("#"):
            metadata = {name: value for name, value in values.items() if name and value}
            yield Document(url, "", clean_metadata(metadata))
