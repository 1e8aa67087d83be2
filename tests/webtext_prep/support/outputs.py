"""What a stage has written, as Python has it."""

from fastwarc.warc import ArchiveIterator

from webtext_prep.documents.folders.shards import read_documents
from webtext_prep.extraction.outcomes import OUTCOMES


def documents_of(output):
    """The documents of all shards, in order."""
    return [document for shard in sorted(output.glob("part-*")) for document in read_documents(shard)]


def outcomes_of(output, folder=OUTCOMES):
    """A row for each URL, in order; or of another folder with such rows."""
    return [{"url": row.url, **row.metadata} for row in documents_of(output / folder)]


def saved_pages(output):
    """URL and body of each page that is saved, in order, as FastWARC reads them."""
    return [
        (record.headers["WARC-Target-URI"], record.reader.read())
        for file in sorted((output / "pages").glob("*"))
        for record in ArchiveIterator(file)
        if record.headers["WARC-Type"] == "response"
    ]
