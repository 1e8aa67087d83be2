"""`webtext download`: fetch each URL, extract its text, and account for every one.

A shard of URLs becomes a shard of documents in the same order and `outcomes/part-00000.jsonl.zst`, one row a URL. What
is finished goes into a journal at once, so that a kill loses seconds; it is found there, and in the outputs of earlier
runs, by URL, so that a list may be reordered or grown. A second run asks again only for what may pass now.
Fetching costs waiting, extracting costs processor time: one event loop fetches, worker processes extract, all cores.
When a page was fetched stands in its outcome row only, so that documents depend on the pages alone.
"""

from __future__ import annotations

import contextlib
import datetime
import filecmp
import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal
from urllib.parse import urlsplit

from command_kit import available_cores, setting, write_json
from webtext_prep.documents import storage
from webtext_prep.documents.document import Document
from webtext_prep.documents.inputs import is_url_list
from webtext_prep.documents.shards import read_documents, shard_name, shards_in, write_documents
from webtext_prep.documents.storage import is_local
from webtext_prep.documents.stores.base import Location
from webtext_prep.documents.url_lists import read_urls
from webtext_prep.documents.urls import registered_name
from webtext_prep.errors import InputError
from webtext_prep.running.stage import Outcome, Run, Stage, shards_outcome
from webtext_prep.running.tally import Tally
from webtext_prep.running.task import Context, Task

if TYPE_CHECKING:
    from webtext_prep.extraction.workers import ParsePool
    from webtext_prep.web.crawling import Visit
    from webtext_prep.web.journal import Journal
    from webtext_prep.web.requests import Reply

OUTCOMES = "outcomes"
"""The folder with one row for each URL, a shard for each shard of documents."""
_OWN = ("title", "domain", "final_url")
LOOK_EVERYWHERE = 16
"""With up to so many shards, what was fetched before is looked for in all of them; with more, where `webtext blacklist`
puts a URL when the number of shards is doubled or halved."""
DNS_THREADS = 32
"""Names looked up at once: each look-up holds a thread until the system gives up on it."""


def _read_json(path: Path) -> Any:
    """What a JSON file holds, or None if there is none."""
    with contextlib.suppress(OSError, ValueError):
        return json.loads(path.read_bytes())
    return None


def _replace_if_other(new: Path, old: Location) -> None:
    """Put `new` in the place of `old`, unless it says the same: later stages then need not run again."""
    if is_local(old) and storage.is_file(old) and filecmp.cmp(new, storage.local_path(old), shallow=False):
        new.unlink()
        return
    storage.publish(new, old)


def _candidates(shard: int, shards: int, earlier_shards: int) -> list[int]:
    """Which of `earlier_shards` may hold URLs that are now in `shard` of `shards`."""
    if max(shards, earlier_shards) <= LOOK_EVERYWHERE:
        return list(range(earlier_shards))
    if shards >= earlier_shards:
        return [shard % earlier_shards]
    return list(range(shard, earlier_shards, shards))


def _finished_rows(documents: Location, outcomes: Location) -> Iterator[tuple[dict[str, Any], Document | None]]:
    """The rows of a finished shard with their documents; ends early where the two files do not fit each other."""
    if not (storage.is_file(documents) and storage.is_file(outcomes)):
        return
    with contextlib.suppress(InputError):  # damaged: what can't be read is fetched again
        texts = read_documents(documents)
        for row in read_documents(outcomes):
            values = {"url": row.url, **row.metadata}
            if values.get("outcome") == "duplicate":
                continue
            document = next(texts, None) if values.get("outcome") == "ok" else None
            if values.get("outcome") == "ok" and (document is None or document.url != row.url):
                return
            if document is not None:
                # What the list says of the URL is taken from the list as it is now.
                document.metadata = {key: document.metadata[key] for key in _OWN if key in document.metadata}
            yield values, document


@dataclass(frozen=True)
class Download(Stage):
    """Fetch the pages of a list of URLs and keep their text.

    Reads URL shards as `webtext blacklist` writes them, or plain lists of URLs. Writes document shards in the order of
    the lists, and outcomes/ with one row for each URL. Run the same command again to go on after an interruption; once
    finished, running it again tries what may pass now (timeouts, servers in trouble), --rounds times in all.
    Drops, by outcome: http_404 (and other statuses), timeout, dns, connection, tls, host_down, robots,
    robots_unreachable, too_large, not_html, blocked_address, too_many_redirects, bad_redirect, malformed_url,
    malformed_response, duplicate, empty, too_deep, extract_timeout, extract_memory, extract_crash, extract_error."""

    name: ClassVar[str] = "download"
    order: ClassVar[int] = 30
    summary: ClassVar[str] = "URL shards -> documents, fetched politely and safely"
    unit: ClassVar[str] = "URLs"
    input_kinds: ClassVar[str] = "URL lists (shards of `webtext blacklist`, .jsonl, .txt; compressed or not)"

    extractor: Literal["trafilatura", "newspaper", "resiliparse"] = setting(
        "trafilatura", "what finds the text in a page"
    )
    max_urls: int = setting(0, "only the first N URLs of the input; 0 stands for all")
    robots: bool = setting(True, "ask for robots.txt and obey it")
    user_agent: str = setting("webtext/0.1", "how to introduce ourselves; the part before / is looked up in robots.txt")
    allow_private_addresses: bool = setting(False, "also connect to addresses outside the public internet")
    max_bytes: int = setting(5_000_000, "most bytes of a page, decompressed")
    extract_timeout: float = setting(20.0, "seconds of processor time to extract one page", metavar="SECONDS")
    extract_memory: int = setting(1024, "MiB of memory to extract one page", metavar="MIB")
    concurrency: int = setting(200, "requests at once, all --workers together", group="pace", identity=False)
    per_host: int = setting(2, "requests at once to one host", group="pace", identity=False)
    delay: float = setting(0.1, "seconds between requests to one host", metavar="SECONDS", group="pace", identity=False)
    timeout: float = setting(
        20.0, "seconds for one request, all in all", metavar="SECONDS", group="pace", identity=False
    )
    retries: int = setting(2, "further attempts at once at what may pass", group="pace", identity=False)
    rounds: int = setting(3, "runs of this command that try a URL that may pass", group="pace", identity=False)

    def __post_init__(self) -> None:
        for name, least, most in (
            ("max_urls", 0, None),
            ("max_bytes", 1, 1 << 30),
            ("extract_timeout", 0.1, 3600),
            ("extract_memory", 64, None),
            ("concurrency", 1, 10_000),
            ("per_host", 1, 1000),
            ("delay", 0, 3600),
            ("timeout", 0.1, 3600),
            ("retries", 0, 10),
            ("rounds", 1, 1000),
        ):
            value = getattr(self, name)
            if not (value >= least and (most is None or value <= most)):
                limits = f"at least {least:,}" if most is None else f"between {least:,} and {most:,}"
                raise InputError(f"--{name.replace('_', '-')} must be {limits}, but is {value}.")
        if not self.user_agent.strip() or not self.user_agent.isascii() or not self.user_agent.isprintable():
            raise InputError(f"--user-agent must be printable ASCII text, not {self.user_agent!r}.")

    @staticmethod
    def accepts(path: Location) -> bool:
        """URL shards and plain lists."""
        return is_url_list(path)

    def advice(self, tally: Tally) -> str:
        """What to do when no page was kept."""
        if tally.dropped["blocked_address"] == tally.read:
            return "these addresses are private; give --allow-private-addresses with --restart if they are meant"
        return "check the list, and the network of this machine"

    def outputs_in(self, output: Location) -> list[Location]:
        """Shards of documents, of outcomes, and of what was dropped."""
        return [*super().outputs_in(output), *shards_in(output / OUTCOMES)]

    # The whole job

    def run(self, job: Run) -> Outcome:
        """Fetch all shards, each by itself."""
        limits = self._limits(job)
        tasks = []
        for number, (path, limit) in enumerate(zip(job.inputs, limits, strict=False)):
            shard, *dropped = job.shard_outputs(number)
            outputs = (shard, job.output / OUTCOMES / shard_name(number), *dropped)
            options = {} if limit is None else {"limit": limit}
            tasks.append(Task(f"part-{number:05}", (path,), outputs, options))
        self._keep_earlier(job)
        at_once = max(1, min(job.workers, len(tasks)))
        write_json(job.scratch / "plan.json", {"at_once": at_once, "shards": len(tasks)})
        again = self._due_again(job)
        total = job.expected_documents()
        if self.max_urls and (total is None or total > self.max_urls):
            total = sum(limit or 0 for limit in limits)
        results = job.map("shards", self.fetch_shard, tasks, unit=self.unit, total=total, again=again)
        outcome = shards_outcome(tasks, results)
        may_pass = {task.name: result["may_pass"] for task, result in zip(tasks, results, strict=True)}
        outcome.facts["page_bytes"] = sum(result["page_bytes"] for result in results)
        outcome.facts["may_pass_in_another_run"] = sum(may_pass.values())
        write_json(job.state / "may_pass.json", may_pass)
        (job.scratch / "round.json").unlink(missing_ok=True)
        shutil.rmtree(job.scratch / "gone_over", ignore_errors=True)
        return outcome

    def wants_another_run(self, job: Run) -> bool:
        """Whether some URLs may pass now, and have not been tried in --rounds runs."""
        return any((_read_json(job.state / "may_pass.json") or {}).values())

    def _limits(self, job: Run) -> list[int | None]:
        """How many rows to take from each input; shorter than the list of inputs if --max-urls leaves some out."""
        if not self.max_urls:
            return [None] * len(job.inputs)
        limits: list[int | None] = []
        left = self.max_urls
        for path in job.inputs:
            if left == 0:
                break
            rows = sum(1 for _ in itertools.islice(read_urls(path), left))
            limits.append(rows)
            left -= rows
        return limits

    def _keep_earlier(self, job: Run) -> None:
        """If the inputs are not those of the last run, set aside what it fetched before anything overwrites it.

        Files are linked, not copied: shards are only ever replaced as a whole.
        """
        path = job.state / "layout.json"
        layout = {
            "version": self.version,
            "shards": len(job.inputs),
            "inputs": [storage.stamp(entry) for entry in job.inputs],
        }
        earlier = _read_json(path)
        if earlier == layout:
            return
        if earlier is not None and earlier["version"] != self.version:
            for output in self.outputs_in(job.output):
                storage.remove(output)
            shutil.rmtree(job.scratch, ignore_errors=True)
        elif earlier is not None:
            number = len(list(job.scratch.glob("earlier-*")))
            folder = job.scratch / f"earlier-{number:05}"
            unfinished = job.scratch / "unfinished"
            shutil.rmtree(unfinished, ignore_errors=True)
            (unfinished / OUTCOMES).mkdir(parents=True)
            for entry in shards_in(job.output):
                outcomes = job.output / OUTCOMES / entry.name
                if outcomes.exists():
                    self._link(entry, unfinished / entry.name)
                    self._link(outcomes, unfinished / OUTCOMES / entry.name)
            if (job.scratch / "journals").is_dir():
                for journal in (job.scratch / "journals").iterdir():
                    self._link(journal, unfinished / journal.name)
            write_json(unfinished / "layout.json", earlier)
            unfinished.rename(folder)
            shutil.rmtree(job.scratch / "journals", ignore_errors=True)
        write_json(path, layout)

    @staticmethod
    def _link(path: Location, target: Path) -> None:
        if is_local(path):
            with contextlib.suppress(OSError):  # a file system without links
                os.link(storage.local_path(path), target)
                return
        target.write_bytes(storage.read_bytes(path))

    def _due_again(self, job: Run) -> list[str]:
        """Finished shards with URLs that may pass now, without those that this round has gone over already."""
        path = job.scratch / "round.json"
        names = _read_json(path)
        if names is None:
            names = [name for name, count in (_read_json(job.state / "may_pass.json") or {}).items() if count]
            write_json(path, names)
        return [name for name in names if not (job.scratch / "gone_over" / name).exists()]

    # One shard

    def fetch_shard(self, task: Task, context: Context) -> dict[str, Any]:
        """Task: one list of URLs to documents and outcomes."""
        count = 0

        def report(units: int) -> None:
            nonlocal count
            count += units
            context.report(count)

        import asyncio

        from webtext_prep.web.journal import Journal

        scratch = context.scratch
        plan = _read_json(scratch / "plan.json")
        path = scratch / "journals" / f"{task.name}.journal"
        with Journal(path) as journal:
            self._seed(task, plan["shards"], journal, scratch)
            asyncio.run(self._fetch(self._unfinished(task, journal, report), journal, report, plan["at_once"], scratch))
            result = self._write(task, journal, scratch / "new")
        (scratch / "gone_over").mkdir(exist_ok=True)
        (scratch / "gone_over" / task.name).touch()
        path.unlink()
        return result

    @staticmethod
    def _rows(task: Task) -> Iterator[Document]:
        return itertools.islice(read_urls(task.inputs[0]), task.options.get("limit"))

    def _seed(self, task: Task, shards: int, journal: Journal, scratch: Path) -> None:
        """Bring into the journal what earlier runs have fetched of this shard's URLs, whatever shard it was in."""
        from webtext_prep.web.journal import Journal, url_digest

        number = int(task.name.removeprefix("part-"))
        earlier = sorted(scratch.glob("earlier-*"), reverse=True)
        if not earlier and not storage.is_file(task.outputs[0]):
            return
        wanted = {url_digest(row.url) for row in self._rows(task)}

        def take(row: dict[str, Any], document: Document | None, *, seeded: bool) -> None:
            if row["url"] not in journal and url_digest(row["url"]) in wanted:
                journal.add(row, document, seeded=seeded)

        for values, document in _finished_rows(task.outputs[0], task.outputs[1]):
            take(values, document, seeded=True)
        for folder in earlier:
            count = (_read_json(folder / "layout.json") or {}).get("shards", 0)
            for candidate in _candidates(number, shards, count):
                name = shard_name(candidate)
                if (old := folder / f"part-{candidate:05}.journal").exists():
                    with Journal(old) as cut_short:
                        for url in cut_short.urls():
                            found = cut_short.get(url)
                            if found is not None:
                                take(*found, seeded=url_digest(url) not in cut_short.fetched)
                for values, document in _finished_rows(folder / name, folder / OUTCOMES / name):
                    take(values, document, seeded=True)

    def _unfinished(self, task: Task, journal: Journal, report: Callable[[int], None]) -> Iterator[str]:
        """The URLs that are left to fetch, each once; the others are reported as done."""
        from webtext_prep.web.journal import url_digest
        from webtext_prep.web.requests import may_pass

        begun: set[bytes] = set()
        for row in self._rows(task):
            digest = url_digest(row.url)
            is_done = digest in begun
            if not is_done and digest in journal.fetched:
                is_done = True
            elif not is_done and (known := journal.row(row.url)) is not None:
                is_done = not (may_pass(known["outcome"]) and known["rounds"] < self.rounds)
            if is_done:
                report(1)
            else:
                begun.add(digest)
                yield row.url

    async def _fetch(
        self, urls: Iterator[str], journal: Journal, report: Callable[[int], None], at_once: int, scratch: Path
    ) -> None:
        """Fetch `urls` and write each into the journal when it is finished."""
        first = next(urls, None)
        if first is None:
            return
        import asyncio
        from concurrent.futures import ThreadPoolExecutor

        from webtext_prep.extraction.workers import ParsePool
        from webtext_prep.web.crawling import Crawler
        from webtext_prep.web.requests import Client

        # What this process may take of what all of them share.
        concurrency = max(1, self.concurrency // at_once)
        parsers = max(1, available_cores() // at_once)
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(DNS_THREADS))
        client = Client(
            connections=concurrency,
            timeout=self.timeout,
            max_bytes=self.max_bytes,
            user_agent=self.user_agent,
            allow_private=self.allow_private_addresses,
        )
        pool = ParsePool(
            self.extractor,
            workers=parsers,
            seconds=self.extract_timeout,
            memory=self.extract_memory,
            folder=str(scratch),
        )

        async def finish(visit: Visit, reply: Reply) -> None:
            earlier = journal.row(visit.asked) or {}
            row, document = await self._judge(visit, reply, pool, earlier)
            journal.add(row, document)
            report(1)

        async with client, pool:
            crawler = Crawler(
                client,
                finish,
                concurrency=concurrency,
                per_host=self.per_host,
                delay=self.delay,
                retries=self.retries,
                obey_robots=self.robots,
            )
            await crawler.run(itertools.chain([first], urls))

    @staticmethod
    async def _judge(
        visit: Visit, reply: Reply, pool: ParsePool, earlier: dict[str, Any]
    ) -> tuple[dict[str, Any], Document | None]:
        """The outcome row of a URL, and its document if there is text."""
        row: dict[str, Any] = {"url": visit.asked, "outcome": reply.outcome}
        if reply.status is not None:
            row["status"] = reply.status
        if visit.redirects:
            row["final_url"] = reply.url
        row["attempts"] = earlier.get("attempts", 0) + visit.attempts
        row["rounds"] = earlier.get("rounds", 0) + 1
        document = None
        if reply.outcome == "ok":
            row["bytes"] = len(reply.body)
            parsed = await pool.extract(reply.body, reply.url, reply.charset, is_html=reply.is_html)
            row["outcome"] = parsed.outcome
            if parsed.detail:
                row["detail"] = parsed.detail
            if parsed.outcome == "ok":
                document = Document(visit.asked, parsed.text)
                if parsed.title:
                    document.metadata["title"] = parsed.title
                document.metadata["domain"] = registered_name(urlsplit(reply.url).hostname or "")[1]
                if visit.redirects:
                    document.metadata["final_url"] = reply.url
        row["fetched_at"] = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return row, document

    def _write(self, task: Task, journal: Journal, folder: Path) -> dict[str, Any]:
        """Write documents and outcomes in the order of the list; metadata of the list stays with its URL."""
        from webtext_prep.web.journal import url_digest
        from webtext_prep.web.requests import may_pass

        tally = Tally()
        may_pass_later = page_bytes = 0
        written: set[bytes] = set()
        kinds = ("documents", OUTCOMES, "dropped")[: len(task.outputs)]
        drafts = [folder / kind / task.outputs[0].name for kind in kinds]
        with contextlib.ExitStack() as stack:
            documents, outcomes, *sinks = [stack.enter_context(write_documents(path)) for path in drafts]
            tally.dropped_writer = sinks[0] if sinks else None
            for asked in tally.counted(self._rows(task)):
                digest = url_digest(asked.url)
                row: dict[str, Any] = {"outcome": "duplicate"}
                document = None
                if digest not in written:
                    row, document = self._found(journal, asked.url)
                written.add(digest)
                outcomes.write(Document(asked.url, metadata={key: row[key] for key in row if key != "url"}))
                if document is not None:
                    document.metadata = {**asked.metadata, **document.metadata}
                    page_bytes += row.get("bytes", 0)
                    documents.write(document)
                else:
                    tally.drop(asked, row["outcome"])
                    may_pass_later += may_pass(row["outcome"]) and row.get("rounds", 0) < self.rounds
            tally.kept = documents.written
        for draft, output in zip(drafts, task.outputs, strict=True):
            _replace_if_other(draft, output)
        return {**tally.as_dict(), "may_pass": may_pass_later, "page_bytes": page_bytes}

    @staticmethod
    def _found(journal: Journal, url: str) -> tuple[dict[str, Any], Document | None]:
        found = journal.get(url)
        if found is None:
            raise AssertionError(f"{url} was never finished")
        return found
