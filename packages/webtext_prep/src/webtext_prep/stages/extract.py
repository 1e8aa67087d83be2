"""`webtext extract`: the pages of web archives and of folders of HTML to documents, without fetching them again.

A task makes one shard: of an archive, of some thousand pages of a large one, or of files of HTML. Two phases: a large
archive is read once to find where such ranges of pages begin, which takes a twentieth of the time, and then range by
range; one that can't be entered in the middle is one range. Pages are extracted by several sandboxed processes at once,
and come out in the order in which they lie: the same bytes for any number of workers.
Of a damaged archive all pages are kept but for the pages at the damage, and the summary says where it is.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

from command_kit import hide_credentials, setting
from webtext_prep import storage
from webtext_prep.crawl.archives import wacz
from webtext_prep.documents.document import Document
from webtext_prep.documents.folders.raw_files import file_groups, file_names, sidecars_of
from webtext_prep.documents.folders.sampling import Sample
from webtext_prep.documents.folders.shards import shard_name, write_documents
from webtext_prep.documents.folders.stage_record import PAGES, RECORD, read_record, stage_folder
from webtext_prep.documents.formats.compression import bare_name
from webtext_prep.documents.records.base import SourceFile
from webtext_prep.errors import InputError
from webtext_prep.extraction.outcomes import OUTCOMES, PageOutcome
from webtext_prep.extraction.page_stage import PAGE_BYTES, PageStage
from webtext_prep.opt_outs import signals
from webtext_prep.opt_outs.decisions import AGENT, KEYS, NOTHING, Decision, decide, decide_by_host
from webtext_prep.opt_outs.hosts import Host, Hosts, encode_host, origin_of
from webtext_prep.running.estimates import Needs
from webtext_prep.running.job import Job
from webtext_prep.running.stage import Chosen, Outcome, Reads, shard_writer, shards_outcome
from webtext_prep.running.tasks import Context, Files, Problems, Tally, Task
from webtext_prep.storage.locations import Location
from webtext_prep.storage.stores.wacz import SUFFIX, is_wacz

if TYPE_CHECKING:
    from webtext_prep.crawl.archives.warc import ArchiveReader, Damage, FoundPage

BYTES_PER_SHARD = 256 << 20
"""Of files of HTML in one shard, if they are not more than 4,096 times as many."""
BYTES_PER_RANGE = 128 << 20
"""A larger WARC file is read in ranges of pages, each a task and a shard."""
PAGES_AHEAD = 2_000
"""Pages that may wait, finished, for one before them: while it takes its 20 seconds, the others go on."""


def _is_html(path: Location) -> bool:
    return bare_name(path).lower().endswith((".html", ".htm", ".xhtml"))


def _is_read(path: Location) -> bool:
    """Whether it is an archive, a file of HTML, or one that may lie next to them."""
    return _is_archive(path) or _is_html(path) or path.suffix.lower() in (".json", SUFFIX)


def _with_packed(files: list[Location], folders: Sequence[Location]) -> Chosen:
    """The archives in WACZ files in their place. Raises InputError where nothing at all is left to read."""
    problems, found = Problems(), list[Location]()
    for file in files:
        found += wacz.archives_in(file, _is_archive, problems) if is_wacz(file) else [file]
    sentences = problems.sentences()
    if not found:
        raise InputError(" ".join(sentences[:3]))
    return found, sentences


def _saved_pages(given: str) -> list[str]:
    """The output of a download, or of a rescue, stands for its pages. Raises InputError where there are none."""
    place = storage.location(given)
    if not storage.is_file(place / RECORD):
        return [given]
    if not storage.is_folder(place / PAGES):
        raise InputError(
            f"{given} holds documents and no saved pages: give archives or HTML files, or make it again by "
            "`webtext download --save-pages --restart`."
        )
    return [str(place / PAGES)]


@dataclass(frozen=True, slots=True)
class _Item:
    """A page on its way, and where it was found.

    Attributes:
        found: the page, if there is one.
        file: number of the file in its task.
        done: bytes of the task's files up to there.
        damage: why an archive can't be read there.
    """

    found: FoundPage | None
    file: int
    done: int
    damage: Damage | None = None

    @property
    def size(self) -> int:
        page = self.found.page if self.found is not None else None
        return len(page.body) if page is not None else 0


@dataclass(frozen=True)
class Extract(PageStage):
    """Extract the text of pages that are there already: in web archives, or in files of HTML.

    Reads WARC files (.warc, .warc.gz, .warc.zst: of Common Crawl, of `webtext download --save-pages`, and of other
    crawlers), also those in WACZ files, the texts in WET files, and HTML files (.html, .htm, compressed or not). The
    output of `webtext rescue`, or of a download with saved pages, may be given as it is. A page in a file has the URL
    that is in a .json file of the same name next to it, or is the file's name, decoded; or else the one that the page
    says it has; or file:folder/name.html. Writes document shards, and outcomes/ with one row for each page.
    Drops, by outcome: http_404 (and other statuses), redirect (a page that leads on by itself), not_html, not_a_page,
    too_large, truncated, revisit, malformed_response, malformed_url, unreadable, damaged, opted_out, payment_required,
    refused_by_edge, challenge, empty, soft_404, parked, other_kind, too_deep, extract_timeout, extract_memory,
    extract_crash, extract_error.
    """

    name: ClassVar[str] = "extract"
    order: ClassVar[int] = 35
    version: ClassVar[int] = 17
    oldest: ClassVar[int] = 10
    summary: ClassVar[str] = "web archives and HTML files -> documents, without fetching"
    reads = Reads(
        "web archives (.warc, .warc.gz, .warc.zst, .wet.gz, .wacz) and HTML files (.html, .htm)",
        _is_read,
        "pages",
        is_one_document=_is_html,
        named=_saved_pages,
        choose=_with_packed,
    )

    pages_per_range: ClassVar[int] = 5_000
    """Pages in a range in which a large archive is read: a minute of one core with the slowest extractor."""

    truncated: bool = setting(False, "also take pages that the crawler cut off (WARC-Truncated)")
    opt_outs_from: str = setting("", "what hosts say, as `webtext opt-outs` found it", metavar="HOSTS.jsonl")

    def setting_files(self) -> list[Path]:
        """What hosts say, as it is given. Raises InputError where that is no file of this machine."""
        if not self.opt_outs_from or self.opt_outs == "ignore":
            return []
        place = Path(self.opt_outs_from)
        if not place.is_file():
            raise InputError(f"--opt-outs-from {place} is no file: give what `webtext opt-outs --output` has written.")
        return [place]

    def needs(self, sample: Sample, workers: int) -> Needs:
        """As the table says of pages; of WET files all is text."""
        plain = sample.plain / max(1, sample.text)
        found, texts = super().needs(sample.part(1 - plain), workers), sample.part(plain)
        documents, kept, text = found.documents + texts.documents, found.kept + texts.documents, found.text + texts.text
        return replace(found, output=found.output + texts.written, documents=documents, kept=kept, text=text)

    def run(self, job: Job) -> Outcome:
        """Each range of pages of an archive, and each group of HTML files, by itself."""
        files = [path for path in job.inputs if path.suffix.lower() != ".json"]
        sidecars = sidecars_of(files, is_one_text=_is_html)
        names = dict(zip(files, file_names(files), strict=True))
        sizes = dict(zip(files, storage.sizes(files), strict=True))
        archives = {path for path in files if _is_archive(path)}
        of_archives = {path: size for path, size in sizes.items() if path in archives}
        unlike = self._digests(job, of_archives)
        ranges, hosts = self._ranges(job, of_archives), self._hosts(job, of_archives)
        groups = file_groups(files, list(sizes.values()), archives, at_least=BYTES_PER_SHARD)
        of_html = [group for group in groups if group[0] not in archives]
        shared = self._shared_claims(job, of_html, names, sidecars)
        tasks: list[Task] = []
        for group in groups:
            theirs = [sidecars[path] for path in group if path in sidecars]
            for behind, until in ranges.get(group[0], [(None, None)]):
                outcomes = job.output / OUTCOMES / shard_name(len(tasks), job.format)
                options = {"files": [[names[path], path in sidecars] for path in group]}
                options |= {"behind": behind, "until": until} if group[0] in ranges else {}
                begin, end = behind[0] if behind else 0, until[0] if until else sum(sizes[path] for path in group)
                hints = {"bytes": end - begin}
                writes = job.shard_files(len(tasks), outcomes=outcomes, dropped=None)  # outcomes tell all
                claims = None if group[0] in archives else shared
                reads = Files(pages=group, sidecars=theirs, hosts=hosts, shared=claims)
                tasks.append(Task(f"part-{len(tasks):05}", reads, writes, options, hints))
        results = job.map("shards", self.extract_files, tasks, unit="bytes", total=sum(sizes.values()))
        outcome = shards_outcome(tasks, results)
        problems = Problems.total(results)
        if damaged := len(problems.found.keys() & set(map(str, archives))):
            outcome.tally.notes["damaged archives"] = damaged
        sentences = problems.sentences()
        if outcome.tally.read == 0 and sentences:
            raise InputError(f"{self.name}: no pages in the input: {sentences[0]}")
        for sentence in [*sentences, *unlike.sentences()]:
            outcome.tally.problem(sentence)
        alone = len(set(job.inputs) - set(files) - set(sidecars.values()))
        if alone:
            outcome.tally.problem(f"not read: {alone:,} .json files without a page next to them.")
        if all(map(_is_rescued, {path.parent for path in files})):
            outcome.advice = None  # archives may have none of the pages
        outcome.facts["page_bytes"] = sum(result["page_bytes"] for result in results)
        return outcome

    def _digests(self, job: Job, sizes: dict[Location, int]) -> Problems:
        """The archives in WACZ files that are not what these say."""
        packed, unlike = list(filter(wacz.is_packed, sizes)), Problems()
        tasks = [Task(f"archive-{number:05}", Files(archive=path)) for number, path in enumerate(packed)]
        found = job.map("digests", self.check_digest, tasks, unit="bytes", total=sum(sizes[path] for path in packed))
        for path, sentence in zip(packed, found, strict=True):
            if sentence:
                unlike.add(sentence, sentence, [str(path)])
        return unlike

    def _ranges(self, job: Job, sizes: dict[Location, int]) -> dict[Location, list[tuple[Any, Any]]]:
        """Large archives, each with its ranges of pages: the place after which one begins, and that of its last page.

        None stands for the beginning and for the end.
        """
        # The texts of WET files take no longer to write than to find.
        pages = [path for path in sizes if not bare_name(path).lower().endswith(".wet")]
        large = [path for path in pages if sizes[path] > BYTES_PER_RANGE]
        tasks = [Task(f"archive-{number:05}", Files(archive=path)) for number, path in enumerate(large)]
        found = job.map("ranges", self.find_ranges, tasks, unit="bytes", total=sum(sizes[path] for path in large))
        return {
            path: list(itertools.pairwise([None, *places, None])) for path, places in zip(large, found, strict=True)
        }

    def _hosts(self, job: Job, sizes: dict[Location, int]) -> list[Location]:
        """Files of opt-outs of hosts: the given one, and what the archives themselves hold of their files."""
        if self.opt_outs == "ignore":
            return []
        pages = [path for path in sizes if not bare_name(path).lower().endswith(".wet")]
        tasks = [
            Task(f"archive-{number:05}", Files(archive=path), Files(hosts=job.scratch / "hosts" / f"{number:05}.jsonl"))
            for number, path in enumerate(pages)
        ]
        counts = job.map("hosts", self.find_hosts, tasks, unit="bytes", total=sum(sizes[path] for path in pages))
        return [*self.setting_files(), *(task.writes.hosts for task, count in zip(tasks, counts, strict=True) if count)]

    def _shared_claims(
        self,
        job: Job,
        groups: list[list[Location]],
        names: dict[Location, str],
        sidecars: dict[Location, Location],
    ) -> Location | None:
        """The file with the claims to a URL that several of the HTML files have; None if there is but one file."""
        if sum(map(len, groups)) < 2:
            return None
        tasks = []
        for number, group in enumerate(groups):
            reads = Files(pages=group, sidecars=[sidecars[path] for path in group if path in sidecars])
            writes = Files(claims=job.scratch / "claims" / f"{number:05}.txt")
            options = {"files": [[names[path], path in sidecars] for path in group]}
            tasks.append(Task(f"claims-{number:05}", reads, writes, options))
        job.map("claims", self.find_claims, tasks)
        shared = job.scratch / "claims" / "shared.txt"
        found = Files(claims=[task.writes.claims for task in tasks])
        job.map("shared claims", self.find_shared, [Task("shared", found, Files(shared=shared))])
        return shared

    def find_claims(self, task: Task, context: Context) -> int:
        """Task: which URL each of some HTML files has, or says it has."""
        from webtext_prep.crawl.archives.html_files import claim_in

        claims = [claim for file in _html_files(task) if (claim := claim_in(file)) is not None]
        with storage.create(task.writes.claims) as lines:
            lines.write("".join(f"{claim}\n" for claim in claims).encode())
        return len(claims)

    def find_shared(self, task: Task, context: Context) -> int:
        """Task: the claims that several files have."""
        counts = Counter[bytes]()
        for place in task.reads["claims"]:
            counts.update(storage.read_bytes(place).split())
        shared = sorted(claim for claim, count in counts.items() if count > 1)
        with storage.create(task.writes.shared) as lines:
            lines.write(b"".join(claim + b"\n" for claim in shared))
        return len(shared)

    def find_hosts(self, task: Task, context: Context) -> int:
        """Task: the robots.txt, ai.txt and other files of opt-outs in an archive. Returns their number."""
        # Of most files of hosts only the first 500 KiB are looked at.
        count, reader = 0, replace(self, max_bytes=4 << 20, truncated=True)._reader(task.reads.archive)
        with storage.create(task.writes.hosts) as file:
            for found in reader.host_files(context.report):
                path, body = urlsplit(found.url).path, found.host_file or b""
                preferences, date = signals.read_host_file(path, body, AGENT, found.url), found.fetched_at or ""
                host = Host(origin_of(found.url), path, "ok", date, preferences.rules, preferences.unreadable)
                file.write(encode_host(host) + b"\n")
                count += 1
        return count

    def check_digest(self, task: Task, context: Context) -> str:
        """Task: whether an archive is what its WACZ file says."""
        return wacz.check_digest(task.reads.archive, context.report)

    def find_ranges(self, task: Task, context: Context) -> list[list[Any]]:
        """Task: the places in an archive after which a range of its pages begins."""
        places = self._reader(task.reads.archive).entrances(self.pages_per_range, context.report)
        return [list(astuple(place)) for place in places]

    def extract_files(self, task: Task, context: Context) -> dict[str, Any]:
        """Task: an archive or a range of it, or some files of HTML, to documents and outcomes."""
        from webtext_prep.running.processes import run_until_done

        return run_until_done(self._extract(task, context))

    async def _extract(self, task: Task, context: Context) -> dict[str, Any]:
        from webtext_prep.extraction.pages import CAPTURE, count, make_row, outcome_row
        from webtext_prep.extraction.processes.ordered_work import in_order

        tally, problems, page_bytes = Tally(), Problems(), 0
        hosts = Hosts(task.reads["hosts"])
        async with contextlib.AsyncExitStack() as stack:
            documents = stack.enter_context(shard_writer(task, tally))
            outcomes = stack.enter_context(write_documents(task.writes.outcomes))
            pool = await stack.enter_async_context(self.pool(context.scratch, context.slots))

            async def extract(item: _Item) -> tuple[dict[str, Any], Document | None]:
                found = item.found
                if found is None:
                    return {}, None
                decision = self._decided(found, hosts)
                if found.page is not None and (decision.refusal is None or self.opt_outs != "obey"):
                    return await make_row(found.page, pool, decision)
                outcome = found.outcome if decision.refusal is None else PageOutcome.OPTED_OUT
                row = outcome_row(found.url, outcome, status=found.status, final_url=found.final_url)
                return row | decision.row, None

            pages = in_order(
                self._items(task),
                extract,
                size=lambda item: item.size,
                most=PAGES_AHEAD,
                most_bytes=PAGE_BYTES // context.slots,
            )
            await stack.enter_async_context(contextlib.aclosing(pages))
            async for item, (row, document) in pages:
                if item.damage is not None:
                    _note_damage(problems, task.reads["pages"][item.file], item.damage)
                found = item.found
                if found is not None:
                    tally.read += 1
                    count(row, tally.notes)
                    if found.fetched_at is not None:
                        row["fetched_at"] = found.fetched_at
                    if document is not None and found.metadata.keys() >= set(CAPTURE):
                        row |= {"outcome": str(PageOutcome.ARCHIVED), **{key: found.metadata[key] for key in CAPTURE}}
                    outcomes.write(Document(found.url, metadata={key: row[key] for key in row if key != "url"}))
                    if document is not None:
                        # As a download writes it: what an owner says stands at the end.
                        again = document.metadata.keys() & set(KEYS)
                        known = {key: value for key, value in found.metadata.items() if key not in again}
                        document.metadata = {**known, **document.metadata}
                        documents.write(document)
                        page_bytes += row["bytes"]
                    else:
                        tally.drop(Document(found.url, metadata=found.metadata), row["outcome"])
                    if found.problem:
                        problems.add(found.outcome, found.problem, [str(task.reads["pages"][item.file])])
                if tally.read % 16 == 0:
                    context.report(item.done)
        context.report(task.hints["bytes"])
        return {**tally.as_dict(), "page_bytes": page_bytes, "unreadable": problems.found}

    def _decided(self, found: FoundPage, hosts: Hosts) -> Decision:
        """What the owner of a page says of it."""
        page = found.page
        if page is None or self.opt_outs == "ignore":
            return NOTHING
        url = found.final_url or found.url
        # As a download, which asks the host that the list names first, and goes on to the one that it leads to.
        asked = Decision(decide_by_host(found.url, hosts.of(found.url)) if found.final_url else None)
        body, known = page.body if page.is_html else b"", asked.metadata | found.metadata
        return decide(url, hosts.of(url), page.headers, body, known=known)

    def _items(self, task: Task) -> Iterator[_Item]:
        """What the files of a task hold, or the range of an archive that it is for."""
        from webtext_prep.crawl.archives.html_files import read_html_file
        from webtext_prep.crawl.archives.warc import Damage, PagePlace

        if _is_archive(task.reads["pages"][0]):
            (path,), ((name, _),) = task.reads["pages"], task.options["files"]
            behind, until = (PagePlace(*at) if (at := task.options.get(end)) else None for end in ("behind", "until"))
            begin = behind.offset if behind is not None else 0
            for entry, place in self._reader(path, name).pages(behind, until):
                found, damage = (entry.page, entry) if isinstance(entry, Damage) else (entry, None)
                yield _Item(found, 0, place.offset - begin, damage)
            return
        shared = {line.decode() for place in task.reads.get("shared", ()) for line in storage.read_bytes(place).split()}
        before = 0
        for number, file in enumerate(_html_files(task)):
            before += storage.size(file.location)
            yield _Item(read_html_file(file, self.max_bytes, shared), number, before)

    def _reader(self, place: Location, name: str = "") -> ArchiveReader:
        from webtext_prep.crawl.archives.warc import ArchiveReader

        return ArchiveReader(place, name, max_bytes=self.max_bytes, keep_truncated=self.truncated)


def _is_rescued(folder: Location) -> bool:
    """Whether the files in a folder are what `webtext rescue` has found."""
    record = read_record(stage_folder(folder))
    return record is not None and record["stage"] == "rescue"


def _html_files(task: Task) -> Iterator[SourceFile]:
    """The HTML files of a task, each with its name and sidecar."""
    sidecars = iter(task.reads["sidecars"])
    for path, (name, has_sidecar) in zip(task.reads["pages"], task.options["files"], strict=True):
        yield SourceFile(path, name, next(sidecars) if has_sidecar else None)


def _is_archive(path: Location) -> bool:
    """Whether the name is that of a WARC or WET file."""
    compression = path.name[len(bare_name(path)) :].lower()
    return compression in ("", ".gz", ".zst") and bare_name(path).lower().endswith((".warc", ".wet"))


def _note_damage(problems: Problems, path: Location, damage: Damage) -> None:
    """Say where an archive can't be read; what was read of it is kept."""
    what = "it can't be read beyond byte" if damage.is_last else "it is damaged at byte"
    kept = "what was before that" if damage.is_last else "what is before and after that"
    sentence = (
        f"{what} {damage.offset:,} ({damage.reason}), and {kept} is kept: fetch it again, and run the command again"
    )
    place = f"byte {damage.offset:,}" if f"{path}" in problems.found else hide_credentials(str(path))
    problems.add(f"{path}", sentence, [place])
