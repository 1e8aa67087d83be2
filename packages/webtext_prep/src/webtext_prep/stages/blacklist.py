"""`webtext blacklist`: from lists of URLs, as they were found, to clean URL shards.

Two phases on all cores. The first splits the lists by host, so that one host is always in one shard; a large list is
many tasks, by ranges of its bytes. The second judges the URLs of each shard: is it one, is its site blocked, does its
path end like a file, has it been seen. Each shard keeps the order of the input, and depends on nothing but the input
and the settings.

`Blacklist.judge` and `url_key` define what happens to a URL. Plain URLs, nearly all, never become Python objects:
`url_batches` gives the same answers for a block of lines at once, some 30 times as fast.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.resources
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import unquote, urlsplit

from command_kit import setting
from webtext_prep.documents import storage
from webtext_prep.documents.document import Document, encode_document
from webtext_prep.documents.inputs import is_url_list
from webtext_prep.documents.lines import has_ranges, line_blocks, read_lines, read_range, read_utf8
from webtext_prep.documents.partitions import RUN_BYTES, read_partitions, write_partitions
from webtext_prep.documents.problems import UNREADABLE_SHARE
from webtext_prep.documents.sampling import Sample
from webtext_prep.documents.shards import write_documents
from webtext_prep.documents.stores.base import Location
from webtext_prep.documents.url_lists import (
    UrlPart,
    is_list_of_lines,
    is_table,
    list_blocks,
    read_url,
    read_urls,
    row_ranges,
    run_part,
)
from webtext_prep.documents.urls import (
    REPLACEMENT,
    bucket_of,
    canonical_host,
    host_of,
    registered_name,
    shards_for,
    url_key,
)
from webtext_prep.errors import InputError, WebtextError
from webtext_prep.running.cutting import cut_into_runs, run_file
from webtext_prep.running.space import Needs
from webtext_prep.running.stage import REPORT_EVERY, Outcome, Run, Stage, shards_outcome
from webtext_prep.running.tally import Tally, with_reason
from webtext_prep.running.task import Context, Task

if TYPE_CHECKING:
    from webtext_prep.url_batches.batches import Judge

BYTES_PER_SHARD = 8 << 20
"""With `--shards 0`: bytes of input for each shard, some 100,000 URLs."""
BYTES_PER_TASK = 64 << 20
"""A larger list is split in ranges of so many bytes."""
ROWS_PER_TASK = 500_000
"""A larger list in Parquet is split in ranges of so many rows."""
BYTES_PER_STREAM = 16 << 20
"""A larger list that has no ranges, as it is compressed, a table, or in UTF-16, is first cut into runs of lines."""
BLOCK_BYTES = 1 << 20
"""Bytes of lines that are judged at once."""
PLAIN_BYTES = 2 << 20
"""Lists of so few bytes are done with, one URL at a time, before the compiled code would be loaded."""
NO_URLS = (
    "these are not URLs; give lists with one on each line, or if they are texts, give them to `webtext merge`, and "
    "pages or web archives to `webtext extract`"
)
"""What to do about a list of which much is malformed."""

_BARE = re.compile(r"[^\s#{]\S*")


def read_rules(path: str, shipped: str) -> frozenset[str]:
    """The lines of a list of rules, in lower case, without comments; the shipped list if `path` is empty.

    A list is read once in a process, however many tasks ask for it, unless the file changes.

    Raises InputError if it can't be read.
    """
    if not path:
        return _shipped_rules(shipped)
    place = Path(path)
    try:
        version = tuple(storage.stamp(place))
    except OSError as error:
        raise InputError(f"can't read the list {path} ({error}): give a text file with one rule per line.") from error
    return _rules_in(place, version)


@functools.lru_cache(maxsize=4)
def _rules_in(place: Path, version: tuple[Any, ...]) -> frozenset[str]:
    try:
        return _rules(b"\n".join(read_lines(place)).decode())
    except UnicodeDecodeError as error:
        raise InputError(f"the list {place} is not valid UTF-8 ({error.reason}): save it as UTF-8.") from error


@functools.lru_cache(maxsize=2)
def _shipped_rules(name: str) -> frozenset[str]:
    return _rules((importlib.resources.files("webtext_prep") / "lists" / name).read_text(encoding="utf-8"))


def _rules(text: str) -> frozenset[str]:
    lines = (line.strip().lower() for line in text.splitlines())
    return frozenset(line for line in lines if line and not line.startswith("#"))


@functools.lru_cache(maxsize=4)
def _hosts(rules: frozenset[str]) -> frozenset[str]:
    return frozenset(map(canonical_host, rules))


def is_blocked_site(host: str, rules: frozenset[str]) -> bool:
    """Whether the registered name of `host` is in `rules`, alone (under any suffix) or with its suffix.

    Both are in their one form (`canonical_host`).
    """
    name, domain = registered_name(host)
    return name in rules or domain in rules


def blocked_extension(url: str, rules: frozenset[str]) -> str | None:
    """The file extension in `rules` that the path of `url` has, or None. Host, query and fragment do not matter."""
    name = unquote(urlsplit(url).path).rsplit("/", 1)[-1].lower()
    _, *parts = name.split(".")
    return next((rule for start in range(len(parts)) if (rule := ".".join(parts[start:])) in rules), None)


def _host_key(url: str) -> str:
    """What decides the shard: the host, or the whole line where it has none."""
    try:
        return host_of(url)
    except ValueError:
        return url


def _are_no_urls(tally: Tally) -> bool:
    """Whether so much of a list is malformed that it is probably something else."""
    return tally.dropped["malformed"] > UNREADABLE_SHARE * tally.read


def _line(row: Document) -> bytes:
    """One line of a piece, as `read_urls` reads it: the bare URL where that is all there is, which is quicker."""
    if not row.metadata and row.url.isascii() and _BARE.fullmatch(row.url):
        return row.url.encode()
    return encode_document(row)


@dataclass(frozen=True)
class Blacklist(Stage):
    """Drop URLs that are malformed, too long, blocked by site or file extension, or repeated; split the rest by host.

    Reads URL lists: one URL, or one JSON object with "url", per line, or a table with a column "url" (.csv, .tsv);
    plain, .gz, .xz, .bz2 or .zst; files, folders, globs, URLs, or standard input (-). Writes URL shards for
    `webtext download`.
    Drops: not_utf8, malformed, too_long, blocked_domain, blocked_extension, duplicate."""

    name: ClassVar[str] = "blacklist"
    order: ClassVar[int] = 20
    version: ClassVar[int] = 4
    libraries: ClassVar[tuple[str, ...]] = ("tldextract",)
    summary: ClassVar[str] = "URL lists -> clean URLs, one host always in one shard"
    unit: ClassVar[str] = "URLs"
    input_kinds: ClassVar[str] = "URL lists (.txt, .jsonl, .csv, .tsv, or without a suffix; compressed or not)"
    process_bytes: ClassVar[int] = 200 << 20
    reads_standard_input: ClassVar[bool] = True

    blocked_domains: str = setting("", "the list of blocked sites, instead of the shipped one", metavar="FILE")
    blocked_extensions: str = setting("", "the list of blocked extensions, instead of the shipped one", metavar="FILE")
    shards: int = setting(0, "output shards; 0 means one for each 8 MiB of input", ge=0, le=4096)
    max_length: int = setting(2048, "drop URLs with more characters", ge=1)

    def __post_init__(self) -> None:
        _ = self.rules  # a list that can't be read is reported before anything is done

    @staticmethod
    def accepts(path: Location) -> bool:
        """Text files of URLs."""
        return is_url_list(path)

    @functools.cached_property
    def rules(self) -> tuple[frozenset[str], frozenset[str]]:
        """Blocked sites and file extensions. Raises InputError for a list that can't be read."""
        extensions = read_rules(self.blocked_extensions, "blocked_extensions.txt")
        sites = read_rules(self.blocked_domains, "blocked_domains.txt")
        return _hosts(sites), frozenset(rule.lstrip(".") for rule in extensions)

    def setting_files(self) -> list[Path]:
        """The lists given instead of the shipped ones."""
        return [Path(name) for name in (self.blocked_domains, self.blocked_extensions) if name]

    def needs(self, sample: Sample, workers: int) -> Needs:
        """All URLs split by shard, compressed lists also cut into runs before that, and the shards."""
        is_compressed = sample.text > sample.size
        scratch = sample.packed * (2 if is_compressed else 1)
        return Needs(sample.written, scratch, workers * self.process_bytes, sample.documents)

    def advice(self, tally: Tally) -> str:
        """What to do when no URL was kept."""
        return NO_URLS if _are_no_urls(tally) else super().advice(tally)

    def judge(self, url: str) -> str | None:
        """The reason to drop `url`, or None to keep it, whatever was seen before."""
        domains, extensions = self.rules
        if REPLACEMENT in url:
            return "not_utf8"
        if len(url) > self.max_length:
            return "too_long"
        try:
            host = host_of(url)
        except ValueError:
            return "malformed"
        if is_blocked_site(host, domains):
            return "blocked_domain"
        return "blocked_extension" if blocked_extension(url, extensions) else None

    def explain(self, document: Document) -> dict[str, Any]:
        """The rule that a URL meets, its site and its length."""
        url, (domains, extensions) = document.url, self.rules
        found: dict[str, Any] = {"characters": len(url), "max_length": self.max_length}
        with contextlib.suppress(ValueError):
            host = host_of(url)
            found["site"] = registered_name(host)[1]
            if is_blocked_site(host, domains):
                found["rule"] = next(rule for rule in registered_name(host) if rule in domains)
            elif extension := blocked_extension(url, extensions):
                found["rule"] = extension
        return found

    def judge_again(self, document: Document) -> Document | None:
        """See `Stage.judge_again`."""
        reason = self.judge(document.url)
        return None if reason is None else with_reason(document, reason)

    def judged_again(self, files: Sequence[Location], most: int | None = None) -> Iterator[Document | None]:
        """See `Stage.judged_again`."""
        seen: set[str] = set()
        for file in files:
            for row in itertools.islice(read_urls(file), most):
                dropped, key = self.judge_again(row), url_key(row.url)
                yield with_reason(row, "duplicate") if dropped is None and key in seen else dropped
                seen.add(key)

    def is_judged_again(self, reason: str) -> bool:
        """All reasons."""
        return True

    def cut(self, task: Task, context: Context) -> list[list[Any]]:
        """Task: a large list that can only be read from its beginning to runs; see `cut_into_runs`."""
        place, size = task.inputs[0], task.options["run_bytes"]
        return cut_into_runs(task, context, lambda chunks, head: list_blocks(place, chunks, size, head))

    def split(self, task: Task, context: Context) -> int:
        """Task: a list, or a part of one, to a file with a bucket for each shard. Returns the number of URLs."""
        count, shards = 0, task.options["shards"]

        def other(line: bytes) -> tuple[int, bytes]:
            row = _row(line)
            return bucket_of(_host_key(row.url), shards), _line(row)

        with write_partitions(task.outputs[0], shards) as writer:
            part = UrlPart(**task.options["rows"]) if "rows" in task.options else None
            is_part = "run" in task.options or "range" in task.options
            if part is None and (is_part or (task.hints["compiled"] and is_list_of_lines(task.inputs[0]))):
                from webtext_prep.url_batches.batches import split_lines

                for block in _blocks(task):
                    found, parts = split_lines(block, shards, other)
                    writer.add_run(parts)
                    count += found
                    context.report(count)
            else:
                for count, row in enumerate(read_urls(task.inputs[0], part), 1):
                    writer.add(bucket_of(_host_key(row.url), shards), _line(row))
                    if count % REPORT_EVERY == 0:
                        context.report(count)
        context.report(count)
        return count

    def judge_shard(self, task: Task, context: Context) -> dict[str, Any]:
        """Task: the bucket of one shard, in order of the lists, to the shard."""
        from webtext_prep.url_batches.judged import PlainJudge, batches

        tally = Tally()
        keep_dropped = len(task.outputs) > 1
        judge: Judge | PlainJudge = PlainJudge(self.judge, _row, keep_dropped=keep_dropped)
        if task.hints["compiled"]:
            from webtext_prep.url_batches.batches import Judge

            judge = Judge(self.judge, _row, *self.rules, self.max_length, keep_dropped=keep_dropped)
        with contextlib.ExitStack() as stack:
            writers = [stack.enter_context(write_documents(path)) for path in task.outputs]
            for block in batches(read_partitions(task.inputs, task.options["bucket"]), BLOCK_BYTES):
                found = judge.judge(block)
                tally.read += found.read
                tally.kept += found.kept_count
                tally.dropped += found.reasons
                parts = (found.kept, found.kept_count), (found.dropped, found.read - found.kept_count)
                for writer, (lines, count) in zip(writers, parts, strict=False):
                    writer.write_lines(lines, count)
                context.report(tally.read)
        return tally.as_dict()

    def run(self, job: Run) -> Outcome:
        """Split by host, then judge."""
        size = sum(storage.sizes(job.inputs))
        shards, hints = self.shards or shards_for(size, BYTES_PER_SHARD), {"compiled": size > PLAIN_BYTES}
        tasks = self._splitting_tasks(job, shards, hints)
        counts = job.map("split", self.split, tasks, unit="URLs")
        pieces = tuple(task.outputs[0] for task in tasks)
        judged = [
            Task(f"part-{shard:05}", pieces, job.shard_outputs(shard), {"bucket": shard}, hints)
            for shard in range(shards)
        ]
        results = job.map("shards", self.judge_shard, judged, unit="URLs", total=sum(counts))
        outcome = shards_outcome(judged, results)
        if outcome.tally.read != sum(counts):
            raise WebtextError(f"internal error: {sum(counts)} URLs were split, and {outcome.tally.read} judged.")
        if outcome.tally.kept and _are_no_urls(outcome.tally):
            malformed = f"{outcome.tally.dropped['malformed']:,} of {outcome.tally.read:,}"
            outcome.tally.problem(f"{malformed} lines are malformed: {NO_URLS}.")
        return outcome

    def _splitting_tasks(self, job: Run, shards: int, hints: dict[str, bool]) -> list[Task]:
        """The parts that the lists are split in: ranges of bytes or rows where a list has any, else runs, else all."""
        sizes = storage.sizes(job.inputs)
        parts = [_ranges(path, size) for path, size in zip(job.inputs, sizes, strict=True)]
        cutting = {
            number: Task(
                f"list-{number:05}",
                (path,),
                (job.scratch / f"list-{number:05}" / "state.json",),
                {"run_bytes": RUN_BYTES},
                folders=(job.scratch / f"list-{number:05}",),
            )
            for number, path in enumerate(job.inputs)
            if not parts[number] and _is_text(path) and sizes[number] > BYTES_PER_STREAM
        }
        runs = dict(zip(cutting, job.map("cut", self.cut, list(cutting.values()), unit="bytes"), strict=True))
        tasks = []
        for number, path in enumerate(job.inputs):
            places = [(path, options) for options in parts[number] or [{}]]
            if number in cutting:
                firsts = itertools.accumulate((records for records, _ in runs[number]), initial=1)
                places = []
                for run, ((_, head), first) in enumerate(zip(runs[number], firsts, strict=False)):
                    part = run_part(path, first, head)
                    rows = {"rows": asdict(part)} if part is not None else {}
                    places.append((run_file(cutting[number], run), {"run": run, **rows}))
            for at, (place, options) in enumerate(places):
                name = f"list-{number:05}-{at:05}"
                pieces = (job.scratch / f"{name}.parts",)
                tasks.append(Task(name, (place,), pieces, {"shards": shards, **options}, hints))
        return tasks


def _is_text(path: Location) -> bool:
    return is_list_of_lines(path) or is_table(path)


def _ranges(path: Location, size: int) -> list[dict[str, Any]]:
    """The ranges of a large list that can be read without what is before them; none if there are not several."""
    if size <= BYTES_PER_STREAM:
        return []
    if is_list_of_lines(path):
        edges = range(0, size, BYTES_PER_TASK) if has_ranges(path) else ()
        return [{"range": [start, start + BYTES_PER_TASK]} for start in edges]
    return [{"rows": asdict(part)} for part in row_ranges(path, ROWS_PER_TASK)]


def _row(line: bytes) -> Document:
    row = read_url(line)
    if row is None:
        raise ValueError("an empty line")
    return row


def _blocks(task: Task) -> Iterator[bytes]:
    """The lines that a task splits, in blocks."""
    path = task.inputs[0]
    chunks = read_range(path, *task.options["range"]) if "range" in task.options else read_utf8(path)
    return line_blocks(path, chunks, RUN_BYTES)
