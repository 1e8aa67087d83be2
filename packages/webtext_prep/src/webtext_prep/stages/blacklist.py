"""`webtext blacklist`: from lists of URLs, as they were found, to clean URL shards.

Two phases on all cores. The first splits the lists by host, so that one host is always in one shard; a large list is
many tasks, by ranges of its bytes. The second judges the URLs of each shard: is it one, is its site blocked, does its
path end like a file, has it been seen. Each shard keeps the order of the input, and depends on nothing but the input
and the settings.
"""

from __future__ import annotations

import functools
import io
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple
from urllib.parse import unquote

from command_kit import setting
from webtext_prep import storage
from webtext_prep.documents.document import Document, encode_document, encode_json, in_batches
from webtext_prep.documents.folders import url_lists
from webtext_prep.documents.folders.inputs import is_url_list
from webtext_prep.documents.folders.partitions import RUN_BYTES, read_partitions, write_partitions
from webtext_prep.documents.folders.raw_files import columns_of
from webtext_prep.documents.formats.lines import has_ranges, line_blocks, read_lines, read_range, read_utf8
from webtext_prep.errors import InputError, WebtextError
from webtext_prep.running.file_ranges import cut_into_runs, cut_runs, cutting_task
from webtext_prep.running.job import Job
from webtext_prep.running.stage import Outcome, Reads, Stage, shard_writer, shards_outcome
from webtext_prep.running.tasks import UNREADABLE_SHARE, Context, Files, Tally, Task
from webtext_prep.storage.locations import Location
from webtext_prep.urls.urls import (
    REPLACEMENT,
    bucket_of,
    canonical_host,
    host_of,
    hosts_of_lines,
    parts_of,
    registered_name,
    shards_for,
    url_key,
    urls_of_lines,
)

BYTES_PER_SHARD = 8 << 20
"""With `--shards 0`: bytes of input for each shard, some 100,000 URLs."""
BYTES_PER_TASK = 64 << 20
"""Bytes of the ranges in which a larger list is split."""
ROWS_PER_TASK = 500_000
"""Rows of the ranges in which a larger list in Parquet is split."""
BYTES_PER_STREAM = 16 << 20
"""A larger list that has no ranges, as it is compressed, a table, or in UTF-16, is first cut into runs of lines."""
BLOCK_BYTES = 1 << 20
"""Bytes of a list that are looked at together."""
MOST_HOSTS = 1 << 16
"""Hosts, and ends of paths, of which it is remembered what was found."""
NO_URLS = (
    "these are not URLs; give lists with one on each line (a table with tabs as .tsv), or if they are texts, give them "
    "to `webtext merge`, and pages or web archives to `webtext extract`"
)
"""What to do about a list of which much is malformed."""


def read_rules(path: str, shipped: str) -> frozenset[str]:
    """The lines of a list of rules, in lower case, without comments; the shipped list if `path` is empty.

    A list is read once in a process, however many tasks ask for it, unless the file changes.

    Raises InputError if it can't be read.
    """
    place = Path(path) if path else Path(__file__).parents[1] / "lists" / shipped
    try:
        version = tuple(storage.stamp(place))
    except OSError as error:
        raise InputError(f"can't read the list {place} ({error}): give a text file with one rule per line.") from error
    return _rules_in(place, version)


@functools.lru_cache(maxsize=4)
def _rules_in(place: Path, version: tuple[Any, ...]) -> frozenset[str]:
    try:
        text = b"\n".join(read_lines(place)).decode()
    except UnicodeDecodeError as error:
        raise InputError(f"the list {place} is not valid UTF-8 ({error.reason}): save it as UTF-8.") from error
    lines = (line.strip().lower() for line in text.splitlines())
    return frozenset(line for line in lines if line and not line.startswith("#"))


@functools.lru_cache(maxsize=4)
def _hosts(rules: frozenset[str]) -> frozenset[str]:
    return frozenset(map(canonical_host, rules))


def blocked_site(host: str, rules: frozenset[str]) -> str | None:
    """The registered name of `host` that is in `rules`, alone (under any suffix) or with its suffix; None if none is.

    Both are in their one form (`canonical_host`).
    """
    return next((name for name in registered_name(host) if name in rules), None)


def blocked_extension(path: str, rules: frozenset[str]) -> str | None:
    """The file extension in `rules` that the path of a URL has, without percent-escapes, or None."""
    _, dot, rule = path[path.rfind("/") + 1 :].lower().partition(".")
    while dot and rule not in rules:
        _, dot, rule = rule.partition(".")
    return rule if dot else None


def taken_apart(url: str) -> tuple[str, str, str]:
    """The key of a URL, its host, and its path without percent-escapes; no host if it is malformed, or no UTF-8."""
    host, path, key = ("", "", url) if REPLACEMENT in url else parts_of(url)
    return key, host, unquote(path)


class _Drop(NamedTuple):
    """Why a URL is dropped, and its receipt after the URL: the reason and what decided, as JSON."""

    reason: str
    rest: str


def _drop(reason: str, **values: Any) -> _Drop:
    return _Drop(reason, encode_json({"reason": reason, **values}).decode()[1:])


@dataclass(frozen=True)
class Blacklist(Stage):
    """Drop URLs that are malformed, too long, blocked by site or file extension, or repeated; split the rest by host.

    Reads URL lists: one URL, or one JSON object with "url", per line, or a table with a column "url" (.csv, .tsv);
    plain, .gz, .xz, .bz2 or .zst; files, folders, globs, URLs, or standard input (-). Writes URL shards for
    `webtext download`.
    Drops: not_utf8, malformed, too_long, blocked_domain, blocked_extension, duplicate."""

    name: ClassVar[str] = "blacklist"
    order: ClassVar[int] = 20
    version: ClassVar[int] = 7
    libraries = ("tldextract",)
    summary: ClassVar[str] = "URL lists -> clean URLs, one host always in one shard"
    reads = Reads(
        "URL lists (.txt, .jsonl, .csv, .tsv, or without a suffix; compressed or not)",
        is_url_list,
        "URLs",
        has_standard_input=True,
    )

    blocked_domains: str = setting("", "the list of blocked sites, instead of the shipped one", metavar="FILE")
    blocked_extensions: str = setting("", "the list of blocked extensions, instead of the shipped one", metavar="FILE")
    shards: int = setting(0, "output shards; 0 means one for each 8 MiB of input", ge=0, le=4096)
    max_length: int = setting(2048, "drop URLs with more characters", ge=1)

    def __post_init__(self) -> None:
        _ = self.rules  # a list that can't be read is reported before anything is done

    @functools.cached_property
    def rules(self) -> tuple[frozenset[str], frozenset[str]]:
        """Blocked sites and file extensions. Raises InputError for a list that can't be read."""
        extensions = read_rules(self.blocked_extensions, "blocked_extensions.txt")
        sites = read_rules(self.blocked_domains, "blocked_domains.txt")
        return _hosts(sites), frozenset(rule.lstrip(".") for rule in extensions)

    def setting_files(self) -> list[Path]:
        """The lists given instead of the shipped ones."""
        return [Path(name) for name in (self.blocked_domains, self.blocked_extensions) if name]

    def judge(self, url: str) -> str | None:
        """The reason to drop a URL, or None to keep it."""
        found = self.judging()(url, *taken_apart(url))
        return found and found.reason

    def judging(self) -> Callable[[str, str, str, str], _Drop | None]:
        """Judges one URL after another, each with its key, host and path: why to drop it, with the rule that it meets
        or its length; or None to keep it.

        It remembers what it found of hosts and endings, and the keys of what it kept.
        """
        (domains, extensions), most = self.rules, self.max_length
        seen = set[str]()
        sites = dict[str, _Drop | None]()
        endings = dict[str, _Drop | None]()
        malformed, not_utf8, duplicate = map(_drop, ("malformed", "not_utf8", "duplicate"))

        def judged(url: str, key: str, host: str, path: str) -> _Drop | None:
            if not host or len(url) > most:
                if REPLACEMENT in url:
                    return not_utf8
                return _drop("too_long", characters=len(url), max_length=most) if len(url) > most else malformed
            if host not in sites:
                rule = blocked_site(host, domains)
                sites[host] = None if rule is None else _drop("blocked_domain", rule=rule)
            found = sites[host]
            if found is not None:
                return found
            ending = path[path.rfind("/") + 1 :].partition(".")[2]
            if ending:
                if ending not in endings:
                    if len(endings) == MOST_HOSTS:
                        endings.clear()
                    rule = blocked_extension(f".{ending}", extensions)
                    endings[ending] = None if rule is None else _drop("blocked_extension", rule=rule)
                found = endings[ending]
                if found is not None:
                    return found
            if not path:
                key = url_key(url)
            before = len(seen)
            seen.add(key)  # looked for once: of a million keys that waits for memory
            return duplicate if len(seen) == before else None

        return judged

    def cut(self, task: Task, context: Context) -> list[list[Any]]:
        """Task: a large list that can only be read from its beginning to runs; see `cut_into_runs`."""
        place, size = task.reads.file, task.options["run_bytes"]
        return cut_into_runs(task, context, lambda chunks, head: url_lists.list_blocks(place, chunks, size, head))

    def split(self, task: Task, context: Context) -> int:
        """Task: a list, or a part of one, to a file with a bucket for each shard. Returns the number of URLs."""
        count, shards, buckets = 0, task.options["shards"], dict[bytes, int]()
        with write_partitions(task.writes.pieces, shards) as writer:
            for lines in _blocks(task):
                held = defaultdict[int, list[bytes]](list)
                for line, host in lines:
                    bucket = buckets.get(host)
                    if bucket is None:
                        bucket = buckets[host] = bucket_of(host.decode("utf-8", "surrogatepass"), shards)
                    held[bucket].append(line)
                for bucket, some in held.items():
                    writer.add_bytes(bucket, b"\n".join([*some, b""]))
                count += len(lines)
                context.report(count)
                if len(buckets) > MOST_HOSTS:
                    buckets.clear()
        return count

    def judge_shard(self, task: Task, context: Context) -> dict[str, Any]:
        """Task: the bucket of one shard, in order of the lists, to the shard."""
        tally, judge = Tally(), self.judging()
        with shard_writer(task, tally) as writer:
            for run in map(io.BytesIO, read_partitions(task.reads["pieces"], task.options["bucket"])):
                while lines := run.readlines(BLOCK_BYTES):
                    kept, reasons, receipts = list[str](), list[str](), list[str]()
                    for line, key, host, path in urls_of_lines(b"".join(lines).decode()):
                        row = None if host else url_lists.read_url(line.encode())
                        if row is not None:
                            line, (key, host, path) = row.url, taken_apart(row.url)
                        found = judge(line, key, host, path)
                        if found is None:
                            kept.append(f'{{"url":"{line}"}}' if row is None else encode_document(row).decode())
                            continue
                        reasons.append(found.reason)
                        if not host or row is not None:
                            line = encode_json((row or Document(line)).id).decode()[1:-1]
                        receipts.append(f'{{"url":"{line}",{found.rest}')
                    writer.write_lines("\n".join([*kept, ""]).encode(), len(kept))
                    tally.drop_encoded(reasons, "\n".join([*receipts, ""]).encode())
                    tally.read += len(lines)
                    context.report(tally.read)
        return tally.as_dict()

    def run(self, job: Job) -> Outcome:
        """Split by host, then judge."""
        size = sum(storage.sizes(job.inputs))
        shards = self.shards or shards_for(size, BYTES_PER_SHARD)
        tasks = self._splitting_tasks(job, shards)
        counts = job.map("split", self.split, tasks, unit="URLs")
        pieces = Files(pieces=[task.writes.pieces for task in tasks])
        judged = [
            Task(f"part-{shard:05}", pieces, job.shard_files(shard), {"bucket": shard}) for shard in range(shards)
        ]
        results = job.map("shards", self.judge_shard, judged, unit="URLs", total=sum(counts))
        outcome = shards_outcome(judged, results)
        if outcome.tally.read != sum(counts):
            raise WebtextError(f"internal error: {sum(counts)} URLs were split, and {outcome.tally.read} judged.")
        malformed, read = outcome.tally.dropped["malformed"], outcome.tally.read
        if malformed > UNREADABLE_SHARE * read:  # probably something else
            outcome.advice = NO_URLS
            if outcome.tally.kept:
                outcome.tally.problem(f"{malformed:,} of {read:,} lines are malformed: {NO_URLS}.")
        return outcome

    def _splitting_tasks(self, job: Job, shards: int) -> list[Task]:
        """The parts that the lists are split in: ranges of bytes or rows where a list has any, else runs, else all."""
        sizes = storage.sizes(job.inputs)
        parts = [_ranges(path, size) for path, size in zip(job.inputs, sizes, strict=True)]
        cutting = {
            number: cutting_task(job.scratch / f"list-{number:05}", path, RUN_BYTES)
            for number, path in enumerate(job.inputs)
            if not parts[number] and sizes[number] > BYTES_PER_STREAM and url_lists.is_text(path)
        }
        runs = dict(zip(cutting, job.map("cut", self.cut, list(cutting.values()), unit="bytes"), strict=True))
        columns = columns_of(job.inputs)
        tasks = []
        for number, path in enumerate(job.inputs):
            places = [(path, options) for options in parts[number] or [{}]]
            if number in cutting:
                places = []
                for run, (place, first, head) in enumerate(cut_runs(cutting[number], runs[number])):
                    part = url_lists.run_part(path, first, head)
                    rows = {"rows": asdict(part)} if part is not None else {}
                    places.append((place, {"run": run, **rows}))
            for at, (place, options) in enumerate(places):
                name = f"list-{number:05}-{at:05}"
                pieces = Files(pieces=job.scratch / f"{name}.parts")
                options |= {"shards": shards, "columns": columns[number]}
                tasks.append(Task(name, Files(file=place), pieces, options))
        return tasks


def _ranges(path: Location, size: int) -> list[dict[str, Any]]:
    """The ranges of a large list that can be read without the bytes before them; none if there are not several."""
    if size <= BYTES_PER_STREAM:
        return []
    if url_lists.is_list_of_lines(path):
        edges = range(0, size, BYTES_PER_TASK) if has_ranges(path) else ()
        return [{"range": [start, start + BYTES_PER_TASK]} for start in edges]
    return [{"rows": asdict(part)} for part in url_lists.row_ranges(path, ROWS_PER_TASK)]


def _blocks(task: Task) -> Iterator[list[tuple[bytes, bytes]]]:
    """The rows that a task splits, as lines of a list, each with its host, or with all of what has none."""
    path, options, columns = task.reads.file, task.options, task.options["columns"]
    if "rows" in options or not ("range" in options or "run" in options or url_lists.is_list_of_lines(path)):
        part = url_lists.UrlPart(**options["rows"]) if "rows" in options else None
        rows = url_lists.read_urls(path, part, columns=columns)
        yield from in_batches(map(_line_of, rows), 1000, 1000, lambda _: 1)
        return
    chunks = read_range(path, *options["range"]) if "range" in options else read_utf8(path)
    for block in line_blocks(path, chunks, BLOCK_BYTES):
        lines = hosts_of_lines(block.replace(b"\r\n", b"\n"))
        if b"&amp;" in block:  # rows of JSON, which have no host here, are left to `read_url`
            lines = [(line.replace(b"&amp;", b"&") if host else line, host) for line, host in lines]
        unusual = [number for number, (_, host) in enumerate(lines) if columns or not host]
        for number in reversed(unusual):
            row = url_lists.read_url(lines[number][0], columns)
            lines[number : number + 1] = [] if row is None else [_line_of(row)]
        yield lines


def _line_of(row: Document) -> tuple[bytes, bytes]:
    return url_lists.encode_url(row), (host_of(row.url) or row.url).encode("utf-8", "surrogatepass")
