"""The files of saved pages in the output of a download, by name."""

from __future__ import annotations

from webtext_prep import storage
from webtext_prep.documents.folders.stage_record import PAGES
from webtext_prep.storage.stores.base import Location

SUFFIX = ".warc.gz"


def pages_of(shard: Location) -> Location:
    """Where the pages of a shard of documents belong: `pages/part-00000.warc.gz`."""
    return shard.parent / PAGES / f"{shard.name.partition('.')[0]}{SUFFIX}"


def page_files_in(output: Location) -> list[Location]:
    """The files of pages that an output holds."""
    return [file for file in storage.files_in(output / PAGES) if file.name.endswith(SUFFIX)]
