"""Where the journal of a task is while it is at work, and what it leaves for the next attempt.

On this machine it lies in the scratch folder, and is found there again. On a node of an engine it is a working copy on
the node's own disk, made of the segments (`web/segments.py`) that earlier attempts have kept, and gone at the end.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from webtext_prep import storage
from webtext_prep.crawl.state.database import Journal, journal_path
from webtext_prep.crawl.state.history import JOURNALS
from webtext_prep.crawl.state.page_cache import SPOOL_SUFFIX, PageSpool
from webtext_prep.crawl.state.segments import Segments, segments_in
from webtext_prep.errors import RetryableError
from webtext_prep.running.tasks import Context
from webtext_prep.storage.stores.base import Location


@dataclass(frozen=True)
class Work:
    """What a task has fetched so far.

    Attributes:
        journal: the records.
        spool: the pages, if they are saved.
        segments: what keeps both, on a node of an engine.
    """

    journal: Journal
    spool: PageSpool | None = None
    segments: Segments | None = None


@contextlib.contextmanager
def opened(name: str, context: Context, *, save_pages: bool, is_kept: bool = True) -> Iterator[Work]:
    """The journal of the task of that name, with all that earlier attempts have kept.

    Args:
        name: of the task.
        context: its surroundings.
        save_pages: whether pages are saved.
        is_kept: whether to keep also what is added now.
    """
    kept = (context.scratch if context.kept is None else context.kept) / JOURNALS / name
    with contextlib.ExitStack() as stack:
        if context.kept is None:
            path = journal_path(context.scratch / JOURNALS, name)
        else:
            folder = (context.local or context.scratch) / JOURNALS
            folder.mkdir(parents=True, exist_ok=True)
            path = journal_path(Path(stack.enter_context(tempfile.TemporaryDirectory(dir=folder, prefix=name))), name)
        journal, spool = stack.enter_context(Journal(path)), None
        is_new = journal.is_empty
        if save_pages:
            spool = stack.enter_context(PageSpool(path.with_suffix(SPOOL_SUFFIX), is_new=is_new))
        segments = Segments(kept, journal, spool)
        if is_new:
            segments.restore()
        if context.kept is None or not is_kept:
            yield Work(journal, spool)
            return
        try:
            yield Work(journal, spool, segments)
        except BaseException:
            with contextlib.suppress(RetryableError):
                segments.save()
            raise
        segments.save()


def remove(name: str, context: Context) -> None:
    """Remove the journal of a task, when what it holds is in the output."""
    path = journal_path(context.scratch / JOURNALS, name)
    path.unlink(missing_ok=True)
    path.with_suffix(SPOOL_SUFFIX).unlink(missing_ok=True)
    folder: Location = (context.scratch if context.kept is None else context.kept) / JOURNALS / name
    if segments_in(folder):
        storage.remove_folder(folder)
