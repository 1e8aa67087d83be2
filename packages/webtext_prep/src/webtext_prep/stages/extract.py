"""`webtext extract`: the pages of web archives and of folders of HTML to documents, without fetching them again.

An archive is one task and one shard; files of HTML share them. Pages are read one after another, extracted by several
sandboxed processes at once, and come out in the order in which they lie: the same bytes whatever the workers. What is
finished goes into checkpoints, behind which reading goes on, as far as the archive allows from the middle of the file.
Of a damaged archive all pages are kept but for those at the damage, and the summary says where it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from command_kit import available_cores, hide_credentials, setting
from webtext_prep.documents import storage
from webtext_prep.documents.compression import bare_name
from webtext_prep.documents.document import Document
from webtext_prep.documents.outcomes import OUTCOMES
from webtext_prep.documents.problems import Problems
from webtext_prep.documents.raw_files import file_groups, file_names, sidecars_of
from webtext_prep.documents.sampling import Sample
from webtext_prep.documents.shards import shards_in
from webtext_prep.documents.stage_record import PAGES, RECORD
from webtext_prep.documents.stores.base import Location
from webtext_prep.errors import InputError
from webtext_prep.running.checkpoint import HELD_BYTES, Checkpoint
from webtext_prep.running.page_stage import PAGE_BYTES, PARSER_BYTES, PageStage
from webtext_prep.running.shard_writing import Holder, write_held
from webtext_prep.running.space import USUAL_RATIO, Needs
from webtext_prep.running.stage import PROCESS_BYTES, Outcome, Run, shards_outcome
from webtext_prep.running.tally import Tally
from webtext_prep.running.task import Context, Task

if TYPE_CHECKING:
    from webtext_prep.documents.records.base import SourceFile
    from webtext_prep.web.archives import Damage, Found, Place

ARCHIVES = (".warc", ".wet")
HTML = (".html", ".htm", ".xhtml")
_ARCHIVE_COMPRESSIONS = ("", ".gz", ".zst")
BYTES_PER_SHARD = 256 << 20
"""Of files of HTML in one shard, if they are not more than 4,096 times as many."""
PAGES_AHEAD = 2_000
"""Pages that may wait, finished, for one before them: while it takes its 20 seconds, the others go on."""
TEXT_SHARE = 0.08
"""Bytes of text in a byte of HTML with its headers, decompressed,"""
CONVERTED = b"WARC-Type: conversion"
"""but all is text in archives that hold such records."""
BYTES_A_PAGE = 110_000
"""Of HTML."""
BYTES_A_ROW = 70
"""Of each page in the outcomes, compressed."""


@dataclass(frozen=True, slots=True)
class _Item:
    """A page on its way, and where it was found.

    Attributes:
        found: the page, if there is one.
        file: number of the file in its task.
        place: where in it, if it is an archive.
        done: bytes of the task's files up to there.
        damage: why an archive can't be read there.
    """

    found: Found | None
    file: int
    place: Place | None
    done: int
    damage: Damage | None = None

    @property
    def size(self) -> int:
        page = self.found.page if self.found is not None else None
        return len(page.body) if page is not None else 0


@dataclass
class _Progress:
    """What a task has finished: the state of its checkpoints.

    Attributes:
        tally: what became of the pages.
        page_bytes: of the pages with text.
        file: number of the file of the last page; -1 before the first.
        place: of the last page in it, if it is an archive.
        done: bytes of the files that were read.
        problems: of files that could not be read.
    """

    tally: Tally = field(default_factory=Tally)
    page_bytes: int = 0
    file: int = -1
    place: list[Any] | None = None
    done: int = 0
    problems: Problems = field(default_factory=Problems)

    def as_state(self) -> dict[str, Any]:
        return {**vars(self), "tally": self.tally.as_dict(), "problems": self.problems.found}

    @classmethod
    def from_state(cls, state: dict[str, Any] | None) -> _Progress:
        if state is None:
            return cls()
        problems = Problems({reason: tuple(entry) for reason, entry in state["problems"].items()})
        return cls(**{**state, "tally": Tally.from_dict(state["tally"]), "problems": problems})


@dataclass(frozen=True)
class Extract(PageStage):
    """Extract the text of pages that are there already: in web archives, or in files of HTML.

    Reads WARC files (.warc, .warc.gz, .warc.zst: Common Crawl's, those of `webtext download --save-pages`, and of other
    crawlers), the texts in WET files, and HTML files (.html, .htm, compressed or not). The output of a download with
    saved pages may be given as it is. A page in a file has the URL that is in a .json file of the same name beside it,
    or is the file's name, decoded; or else the one that the page says it has; or file:folder/name.html. Writes document
    shards, and outcomes/ with one row for each page.
    Drops, by outcome: http_404 (and other statuses), not_html, too_large, truncated, revisit, malformed_response,
    malformed_url, unreadable, damaged, empty, too_deep, extract_timeout, extract_memory, extract_crash,
    extract_error."""

    name: ClassVar[str] = "extract"
    order: ClassVar[int] = 35
    version: ClassVar[int] = 2
    summary: ClassVar[str] = "web archives and HTML files -> documents, without fetching"
    unit: ClassVar[str] = "pages"
    input_kinds: ClassVar[str] = "web archives (.warc, .warc.gz, .warc.zst, .wet.gz) and HTML files (.html, .htm)"

    truncated: bool = setting(False, "also take pages that the crawler cut off (WARC-Truncated)")

    @staticmethod
    def accepts(path: Location) -> bool:
        """Archives, files of HTML, and what may lie beside those."""
        return _is_archive(path) or _is_html(path) or path.suffix.lower() == ".json"

    @staticmethod
    def is_one_document(path: Location) -> bool:
        """Files of HTML."""
        return _is_html(path)

    @staticmethod
    def files_named(given: str) -> list[str]:
        """The output of a download stands for the pages that it saved. Raises InputError where there are none."""
        place = storage.location(given)
        if not storage.is_file(place / RECORD):
            return [given]
        if not storage.is_folder(place / PAGES):
            raise InputError(
                f"{given} holds documents and no saved pages: give archives or HTML files, or make it again by "
                "`webtext download --save-pages --restart`."
            )
        return [str(place / PAGES)]

    def needs(self, sample: Sample, workers: int) -> Needs:
        """Documents, and outcomes; checkpoints of the files at work; pages in memory, and extractors."""
        is_text = CONVERTED in sample.excerpt
        pages = sample.text // BYTES_A_PAGE
        text = sample.text if is_text else int(sample.text * TEXT_SHARE)
        output = int(text / USUAL_RATIO) + pages * BYTES_A_ROW
        at_work = int(output * min(1.0, workers * sample.largest_share))
        memory = workers * (PROCESS_BYTES + HELD_BYTES) + PAGE_BYTES + max(workers, available_cores()) * PARSER_BYTES
        return Needs(output, at_work, memory, pages)

    def outputs_in(self, output: Location) -> list[Location]:
        """Shards of documents, of outcomes, and of what was dropped."""
        return [*super().outputs_in(output), *shards_in(output / OUTCOMES)]

    def run(self, job: Run) -> Outcome:
        """Each archive, and each group of HTML files, by itself."""
        files = [path for path in job.inputs if path.suffix.lower() != ".json"]
        sidecars = sidecars_of(files, is_one_text=_is_html)
        names = dict(zip(files, file_names(files), strict=True))
        sizes = storage.sizes(files)
        archives = {path for path in files if _is_archive(path)}
        tasks = []
        for number, group in enumerate(file_groups(files, sizes, archives, at_least=BYTES_PER_SHARD)):
            shard, *dropped = job.shard_outputs(number)
            theirs = [sidecars[path] for path in group if path in sidecars]
            options = {"files": [[names[path], path in sidecars] for path in group]}
            outputs = (shard, job.output / OUTCOMES / shard.name, *dropped)
            tasks.append(Task(f"part-{number:05}", (*group, *theirs), outputs, options))
        results = job.map("shards", self.extract_files, tasks, unit="bytes", total=sum(sizes))
        outcome = shards_outcome(tasks, results)
        problems = Problems()
        for result in results:
            for reason, (sentence, places, count) in result["unreadable"].items():
                problems.add(reason, sentence, places, count)
        sentences = problems.sentences()
        if outcome.tally.read == 0 and sentences:
            raise InputError(f"{self.name}: no pages in the input: {sentences[0]}")
        for sentence in sentences:
            outcome.tally.problem(sentence)
        alone = len(set(job.inputs) - set(files) - set(sidecars.values()))
        if alone:
            outcome.tally.problem(f"not read: {alone:,} .json files without a page beside them.")
        outcome.facts["page_bytes"] = sum(result["page_bytes"] for result in results)
        return outcome

    def extract_files(self, task: Task, context: Context) -> dict[str, Any]:
        """Task: an archive, or some files of HTML, to documents and outcomes."""
        from webtext_prep.running.event_loop import run_until_done

        checkpoint = Checkpoint(task, context, parts=len(task.outputs))
        progress = _Progress.from_state(checkpoint.state)
        run_until_done(self._extract(task, context, checkpoint, progress))
        write_held(task, checkpoint, progress.as_state(), units=progress.done)
        return {
            **progress.tally.as_dict(),
            "page_bytes": progress.page_bytes,
            "unreadable": progress.problems.found,
        }

    async def _extract(self, task: Task, context: Context, checkpoint: Checkpoint, progress: _Progress) -> None:
        """Extract what is left, into the checkpoint."""
        from webtext_prep.extraction.in_order import in_order
        from webtext_prep.extraction.pages import make_row, outcome_row

        documents, outcomes, *dropped = [Holder(path, checkpoint, part) for part, path in enumerate(task.outputs)]
        tally = progress.tally
        documents.written = tally.kept
        tally.dropped_writer = next(iter(dropped), None)
        context.report(progress.done)

        async with self.pool(context) as pool:

            async def extract(item: _Item) -> tuple[dict[str, Any], Document | None]:
                found = item.found
                if found is None:
                    return {}, None
                if found.page is not None:
                    return await make_row(found.page, pool)
                return outcome_row(found.url, found.outcome, status=found.status, final_url=found.final_url), None

            pages = in_order(
                self._items(task, progress),
                extract,
                size=lambda item: item.size,
                most=PAGES_AHEAD,
                most_bytes=PAGE_BYTES // context.slots,
            )
            async with contextlib.aclosing(pages):
                async for item, (row, document) in pages:
                    if item.damage is not None:
                        _note_damage(progress, task.inputs[item.file], item.damage)
                    found = item.found
                    if found is not None:
                        tally.read += 1
                        if found.fetched_at is not None:
                            row["fetched_at"] = found.fetched_at
                        outcomes.write(Document(found.url, metadata={key: row[key] for key in row if key != "url"}))
                        if document is not None:
                            document.metadata = {**found.metadata, **document.metadata}
                            documents.write(document)
                            progress.page_bytes += row["bytes"]
                        else:
                            tally.drop(Document(found.url, metadata=found.metadata), row["outcome"])
                        if found.problem:
                            progress.problems.add(found.outcome, found.problem, [str(task.inputs[item.file])])
                    tally.kept = documents.written
                    progress.file, progress.done = item.file, item.done
                    progress.place = None if item.place is None else list(asdict(item.place).values())
                    if tally.read % 16 == 0:
                        context.report(progress.done)
                    if checkpoint.is_due():
                        checkpoint.save(progress.as_state(), units=progress.done)
        context.report(sum(storage.size(path) for path in task.inputs[: len(task.options["files"])]))

    def _items(self, task: Task, progress: _Progress) -> Iterator[_Item]:
        """What the files of a task hold, behind what is finished."""
        from webtext_prep.documents.records.base import SourceFile
        from webtext_prep.web.archives import Damage, Place
        from webtext_prep.web.html_files import read_html_file

        named = task.options["files"]
        sidecars = iter(task.inputs[len(named) :])
        before = 0
        for number, (path, (name, has_sidecar)) in enumerate(zip(task.inputs, named, strict=False)):
            file = SourceFile(path, name, next(sidecars) if has_sidecar else None)
            size = storage.size(path)
            if _is_archive(path):
                behind = Place(*progress.place) if number == progress.file and progress.place is not None else None
                if number > progress.file or behind is not None:
                    for entry, place in self._archive_pages(file, behind):
                        found, damage = (entry.page, entry) if isinstance(entry, Damage) else (entry, None)
                        yield _Item(found, number, place, before + place.offset, damage)
            elif number > progress.file:
                yield _Item(read_html_file(file, self.max_bytes), number, None, before + size)
            before += size

    def _archive_pages(self, file: SourceFile, behind: Place | None) -> Iterator[tuple[Found | Damage, Place]]:
        from webtext_prep.web.archives import ArchiveReader

        reader = ArchiveReader(file.location, file.name, max_bytes=self.max_bytes, keep_truncated=self.truncated)
        return reader.pages(behind)


def _is_archive(path: Location) -> bool:
    """Whether the name is that of a WARC or WET file."""
    compression = path.name[len(bare_name(path)) :].lower()
    return compression in _ARCHIVE_COMPRESSIONS and bare_name(path).lower().endswith(ARCHIVES)


def _is_html(path: Location) -> bool:
    return bare_name(path).lower().endswith(HTML)


def _note_damage(progress: _Progress, path: Location, damage: Damage) -> None:
    """Say where an archive can't be read; what was read of it is kept."""
    is_first = f"{path}" not in progress.problems.found
    progress.tally.notes["damaged archives"] += is_first
    what = "it can't be read beyond byte" if damage.is_last else "it is damaged at byte"
    kept = "what was before that" if damage.is_last else "what is before and behind that"
    sentence = (
        f"{what} {damage.offset:,} ({damage.reason}), and {kept} is kept: fetch it again, and run the command again"
    )
    place = hide_credentials(str(path)) if is_first else f"byte {damage.offset:,}"
    progress.problems.add(f"{path}", sentence, [place])
