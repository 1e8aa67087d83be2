"""What survives when the power goes: commands are recorded, cut off at each change, and run again on such a disk.

    ./uvw run benchmarks/power_cuts.py                        all three kinds; needs a C compiler (cc), some minutes
    ./uvw run benchmarks/power_cuts.py --only crawl           `stages`, `checkpoint` or `crawl`

A library that is loaded before all others (power_cut_pieces/recorder.c) notes each write, flush and change of a name.
`disk_states.py` makes of that what ext4, XFS and a disk that promises nothing may hold after a cut behind each change.
On each such folder the product's readers look first: what they take for finished must be. What a command had said
must be there. Then the same command runs again, in this process, with another boot id: its output must have the bytes
of a run that nobody disturbed. Folders that are alike are looked at once.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gzip
import io
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import disk_states
from disk_states import FILE_SYSTEMS, Record, Said
from page_server import serving

RECORDER = Path(__file__).with_name("power_cut_pieces") / "recorder.c"
CHANCES = 2
"""Disks by chance for each file system, beside the plain ones."""
MOST_SHOWN = 5
WORDS = [f"word{number}" for number in range(300)]
Tree = dict[str, bytes]


# Recording


def built(folder: Path) -> Path:
    """The library, made by the system's compiler."""
    library = folder / "recorder.so"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, RECORDER, "-ldl", "-lpthread"], check=True)
    return library


@dataclass(frozen=True)
class Recorder:
    """Runs commands, and notes what they do to the files below `root`."""

    library: Path
    root: Path
    log: Path

    def run(self, command: Sequence[object]) -> None:
        """Run a command to its end. Raises where it fails."""
        settings = {"LD_PRELOAD": str(self.library), "RECORD_BELOW": str(self.root), "RECORD_IN": str(self.log)}
        done = subprocess.run(list(map(str, command)), env=os.environ | settings, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(map(str, command))} failed:\n{done.stderr}")

    def read(self) -> Record:
        """All of it. Raises ValueError where it does not lead to what is there: something was not seen."""
        record = disk_states.read_log(self.log, self.root)
        all_of_it = disk_states.disk_after(record, len(record.changes), FILE_SYSTEMS[0], "nothing")
        for path, number in all_of_it.walk():
            known = number in record.folders or (self.root / path).read_bytes() == all_of_it.files.get(number, b"")
            if not known:
                raise ValueError(f"the record does not lead to {path}")
        found = {str(path.relative_to(self.root)) for path in self.root.rglob("*")}
        if found != {path for path, _ in all_of_it.walk()}:
            raise ValueError(f"the record leaves out {sorted(found ^ {path for path, _ in all_of_it.walk()})}")
        return record


# Cutting


@dataclass
class Case:
    """One recorded piece of work.

    Attributes:
        name: of the table.
        root: the folder that was watched, in which each disk is laid out.
        record: what was done to it.
        check: what is wrong with the folder after a cut behind so many changes, or "".
        era: what the answer of `check` depends on beside the folder.
    """

    name: str
    root: Path
    record: Record
    check: Callable[[int], str]
    era: Callable[[int], object]


@dataclass
class Found:
    """What came of a case: cut points, disks by file system, those that differ, and what was wrong."""

    cuts: int = 0
    disks: Counter[str] = field(default_factory=Counter)
    checked: int = 0
    losses: dict[str, list[str]] = field(default_factory=dict)
    seconds: float = 0.0


def cut_everywhere(case: Case, share: float, disks: int) -> Found:
    """Lay out some of the disks that there may be after each cut, in turn every kind, and check those that differ."""
    found, answers, begin = Found(), dict[object, str](), time.monotonic()
    ends = [at + 1 for at, change in enumerate(case.record.changes) if not isinstance(change, Said)]
    chance = random.Random(case.name)
    kinds = [(system, loss) for system in FILE_SYSTEMS for loss in (*system.losses, *map(str, range(CHANCES)))]
    turn = itertools.cycle(kinds)
    for cut in [0, *ends]:
        if cut != ends[-1] and chance.random() >= share:
            continue
        found.cuts += 1
        for system, loss in kinds if cut == ends[-1] else itertools.islice(turn, disks):
            disk = disk_states.disk_after(case.record, cut, system, loss)
            found.disks[system.name] += 1
            key = (disk.digest, case.era(cut))
            if key not in answers:
                disk.write(case.root)
                answers[key] = case.check(cut)
                found.checked += 1
            if answers[key]:
                found.losses.setdefault(system.name, []).append(f"cut {cut}, {loss}: {answers[key]}")
    found.seconds = time.monotonic() - begin
    return found


@contextlib.contextmanager
def started_again() -> Iterator[None]:
    """As after a start of the machine: its boot id is another."""
    from webtext_prep.storage.stores import local

    with tempfile.NamedTemporaryFile("w", suffix=".boot") as file:
        file.write(os.urandom(8).hex())
        file.flush()
        before, local.BOOT_ID_FILE = local.BOOT_ID_FILE, Path(file.name)
        local.boot_id.cache_clear()
        try:
            yield
        finally:
            local.BOOT_ID_FILE = before
            local.boot_id.cache_clear()


def quietly(main: Callable[[list[str]], int], words: Sequence[object]) -> str:
    """What a command said that failed, run in this process; "" if it went well."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            code = main(list(map(str, words)))
        except BaseException as error:
            return f"{type(error).__name__}: {error}"
    return f"exit {code}: {said.getvalue().strip()[-300:]}" if code else ""


def tree(folder: Path, prefix: str = "") -> Tree:
    """The files that a user sees in a folder, or those that begin with a prefix."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    }


def difference(found: Tree, wanted: Tree) -> str:
    """The names of files that differ."""
    return ", ".join(sorted(name for name in found | wanted if found.get(name) != wanted.get(name)))


# Stages


def text_of(seed: int) -> str:
    """Some sentences."""
    source = random.Random(seed)
    return " ".join(" ".join(source.choices(WORDS, k=12)).capitalize() + "." for _ in range(30))


def write_texts(folder: Path, extra: int) -> None:
    """Files of texts, of which some are nearly the same; the last file has `extra` more."""
    folder.mkdir(parents=True)
    rows = [{"url": f"http://a.com/{n}", "score": n, "text": f"{text_of(n % 17)} {n}."} for n in range(36 + extra)]
    for number, part in enumerate((rows[:12], rows[12:24], rows[24:])):
        lines = "".join(json.dumps(row) + "\n" for row in part).encode()
        (folder / f"{number}.jsonl.gz").write_bytes(gzip.compress(lines, mtime=0))


@dataclass
class StageCase:
    """A stage over two inputs, one after the other: the second run replaces what the first one wrote."""

    name: str
    root: Path
    inputs: tuple[Path, Path]
    options: tuple[object, ...] = ()
    is_tokens: bool = False

    def words(self, era: int, *, workers: int) -> list[object]:
        """The command."""
        name, common = self.name.split()[0], ("--workers", workers, "--json", "--no-space-check")
        return [name, "--input", self.inputs[era], "--output", self.root / "out", *self.options, *common]

    def make(self, recorder: Recorder) -> Case:
        """Record it."""
        from webtext_prep import cli

        wanted: list[Tree] = []
        command = Path(sys.executable).with_name("webtext")
        ends = []
        for era in (0, 1):
            recorder.run([command, *self.words(era, workers=2)])
            wanted.append(tree(self.root))
            ends.append(len(disk_states.read_log(recorder.log, self.root).changes))
        record = recorder.read()
        done = [max(at for at in range(end) if not isinstance(record.changes[at], Said)) + 1 for end in ends]

        def era_of(cut: int) -> tuple[int, bool]:
            return int(cut > ends[0]), cut in done

        def check(cut: int) -> str:
            era, is_done = era_of(cut)
            before = tree(self.root)
            if is_done and before != wanted[era]:
                return f"said to be done and is gone: {difference(before, wanted[era])}"
            if partial := self.believed_in_part(before, wanted):
                return f"taken for finished, and is not: {partial}"
            with started_again():
                if problem := quietly(cli.main, self.words(era, workers=1)):
                    return f"does not go on: {problem}"
            if wrong := difference(tree(self.root), wanted[era]):
                return f"other bytes in {wrong}"
            return ""

        return Case(self.name, self.root, record, check, era_of)

    def believed_in_part(self, found: Tree, wanted: list[Tree]) -> str:
        """What the next command would take for a finished output, though neither run wrote it so."""
        if self.is_tokens:
            named = {name for name in found if name.endswith((".bin", ".idx"))}
            outputs = {"out_text_document": named} if self.is_readable(self.root / "out_text_document") else {}
        else:
            folders = sorted({name.partition("/")[0] for name in found})
            outputs = {
                folder: {name for name in {*found, *wanted[0], *wanted[1]} if name.startswith(f"{folder}/")}
                for folder in folders
                if self.is_readable(self.root / folder)
            }
        for output, names in outputs.items():
            its, *known = ({name: one[name] for name in names if name in one} for one in (found, *wanted))
            if its not in known:
                return f"{output} ({min((difference(its, one) for one in known), key=len)})"
        return ""

    def is_readable(self, output: Path) -> bool:
        """Whether the next command reads what is there."""
        from indexed_tokens import IndexedTokens
        from webtext_prep.documents.folders.inputs import find_inputs
        from webtext_prep.documents.folders.shards import is_document_shard

        with contextlib.suppress(Exception):
            if self.is_tokens:
                IndexedTokens(output)
            else:
                find_inputs([str(output)], accepts=is_document_shard, kinds="documents")
            return True
        return False


def stage_cases(folder: Path, library: Path, only: str) -> Iterator[Case]:
    """Merge, clean, dedup and tokenize, each over the output of the one before."""
    from webtext_prep import cli

    for era in (0, 1):
        write_texts(folder / f"texts{era}", 3 * era)
    inputs = (folder / "texts0", folder / "texts1")
    stages: list[tuple[str, tuple[object, ...]]] = [
        ("merge", ("--shards", 2, "--hold-out", 0.1)),
        ("clean", ("--language", "any")),
        ("dedup", ()),
        ("dedup-passages", ("--shortest-piece", 20)),
        ("tokenize", ()),
        ("export", ()),
    ]
    for name, options in stages:
        root = folder / name / "root"
        root.mkdir(parents=True)
        if not only or name == only:
            case = StageCase(name, root, inputs, options, name == "tokenize")
            yield case.make(Recorder(library, root, folder / name / "log"))
        if name in ("merge", "clean", "dedup"):
            following = []
            for era in (0, 1):
                target = folder / name / f"made{era}"
                words = [name, "--input", inputs[era], "--output", target, *options, "--json", "--workers", 1]
                if problem := quietly(cli.main, words):
                    raise RuntimeError(problem)
                following.append(target)
            inputs = (following[0], following[1])


# A checkpoint


SMALL = """
    --layers 2 --hidden 32 --heads 4 --sequence-length 16 --micro-batch-size 2
    --global-batch-size 4 --lr 1e-2 --split 8,1,1 --log-every 1 --eval-every 4 --device cpu --threads 1
    --steps 12 --save-every 2 --keep-checkpoints 2
"""


def checkpoint_cases(folder: Path, library: Path, only: str) -> Iterator[Case]:
    """A training run of a tiny model, saved often."""
    import numpy as np

    from gpt2_train import cli
    from gpt2_train.checkpoint.info import find_checkpoint, list_checkpoints, read_info
    from gpt2_train.checkpoint.verify import verify_checkpoint
    from indexed_tokens import END_OF_TEXT, IndexedTokensWriter, Tokenizer, save_corpus_tokenizer

    source = np.random.default_rng(0)
    with IndexedTokensWriter(folder / "tiny_text_document") as writer:
        for _ in range(60):
            writer.add([*source.integers(0, 90, source.integers(5, 60)), 256])
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]  # as GPT-2 writes the 256 bytes
    symbols = [*map(chr, shown), *(chr(0x100 + number) for number in range(256 - len(shown)))]
    vocabulary = {symbol: number for number, symbol in enumerate([*symbols, END_OF_TEXT])}
    save_corpus_tokenizer(str(folder / "tiny_text_document"), Tokenizer(vocabulary, []))
    root = folder / "checkpoint" / "root"
    root.mkdir(parents=True)
    words = ["train", *SMALL.split(), "--data", folder / "tiny_text_document", "--output", root / "run"]
    recorder = Recorder(library, root, folder / "checkpoint" / "log")
    recorder.run([sys.executable, "-m", "gpt2_train", *words])
    record = recorder.read()
    run = root / "run"

    def losses() -> list[Any]:
        with contextlib.suppress(OSError, ValueError):
            rows = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
            return [(row["step"], row.get("loss"), row.get("valid_loss")) for row in rows]
        return []

    def tensors() -> Tree:
        return {path.name: path.read_bytes() for path in sorted(find_checkpoint(run).glob("*.safetensors"))}

    wanted, wanted_losses = tensors(), losses()
    said = [
        (at, int(word.rpartition("-")[2]))
        for at, change in enumerate(record.changes)
        if isinstance(change, Said)
        for line in change.text.splitlines()
        if "saved" in line
        for word in line.replace(",", " ").split()
        if "step-" in word
    ]
    if not said:
        raise RuntimeError("the run did not say which checkpoints it saved")
    end = max(at for at, change in enumerate(record.changes) if not isinstance(change, Said)) + 1
    resumed = Counter[bool]()

    def era_of(cut: int) -> int:
        return max((step for at, step in said if at < cut), default=0)

    def check(cut: int) -> str:
        promised = era_of(cut)
        known = list_checkpoints(run / "checkpoints") if run.exists() else []
        for path in known:
            if problems := verify_checkpoint(path, lambda _: None).problems:
                return f"{path.name} is there and not whole: {problems[0]}"
        if promised and (not known or read_info(run).step < promised):
            return f"step {promised} was said to be saved, and is gone"
        if cut == end and losses() != wanted_losses:
            return "rows of metrics.jsonl are gone after the end"
        is_due = random.Random(cut).random() < RESUMED
        resumed[is_due] += 1
        if not is_due:
            return ""
        if problem := quietly(cli.main, words):
            return f"does not go on: {problem}"
        if wrong := difference(tensors(), wanted):
            return f"other bits in {wrong}"
        return "" if losses() == wanted_losses else "rows of metrics.jsonl are missing after resuming"

    yield Case("gpt2 train", root, record, check, era_of)
    print(f"  resumed to the end after {resumed[True]} of {resumed.total()} disks")


RESUMED = 0.1
"""The share of the disks on which training goes on to its end, and a crawl fetches what is left."""


# The crawl's database


BATCHES, IN_BATCH = 50, 4


@functools.cache
def crawl_entries() -> list[list[Any]]:
    """Records in the transactions in which they are added; some come again in a second pass."""
    from webtext_prep.crawl.database import Entry
    from webtext_prep.documents.document import Document

    def entry(number: int, tried: int) -> Any:
        url = f"http://a.org/{number}"
        row = {"url": url, "outcome": "ok", "fetched_at": f"2026-01-0{tried}T00:00:00Z"}
        return Entry(row, Document(url, text_of(number) * (1 + number % 3), {"title": url}), tried)

    first = [[entry(batch * IN_BATCH + at, 1) for at in range(IN_BATCH)] for batch in range(BATCHES)]
    return [*first, *([entry(batch, 2)] for batch in range(0, BATCHES, 5))]


def crawl(root: Path) -> None:
    """What is recorded: a database that is filled, closed, filled again and closed, as two runs of a crawl do."""
    from webtext_prep.crawl.database import CrawlDatabase, Facts

    for batches in (crawl_entries()[:BATCHES], crawl_entries()[BATCHES:]):
        with CrawlDatabase(root / "kept" / "crawl.sqlite") as database:
            # Usually a thousand pages are in the log before they are put into the file: more than is added here.
            database._writer.execute("PRAGMA wal_autocheckpoint = 40")
            for batch in batches:
                database.add_many(batch)
                print("added", flush=True)
            database.facts = Facts(passes=1)
        print("closed", flush=True)


def database_case(folder: Path, library: Path) -> Case:
    """The database alone: what is found is a beginning of what was added, and after closing all of it."""
    from webtext_prep.crawl.database import CrawlDatabase

    root = folder / "database" / "root"
    root.mkdir(parents=True)
    recorder = Recorder(library, root, folder / "database" / "log")
    recorder.run([sys.executable, __file__, "--crawl", root])
    record = recorder.read()
    states: list[dict[str, dict[str, Any]]] = [{}]
    for batch in crawl_entries():
        states.append(states[-1] | {entry.row["url"]: entry.row for entry in batch})
    said = [
        (at, line)
        for at, change in enumerate(record.changes)
        if isinstance(change, Said)
        for line in change.text.split()
    ]

    def promised(cut: int) -> int:
        lines = [line for at, line in said if at < cut]
        closed = max((at for at, line in enumerate(lines) if line == "closed"), default=-1)
        return lines[: closed + 1].count("added")

    def check(cut: int) -> str:
        if promised(cut) and not (root / "kept" / "crawl.sqlite").exists():
            return "the database is gone"
        with CrawlDatabase(root / "kept" / "crawl.sqlite") as database:
            rows = {row["url"]: row for row in database.rows()}
            if database.notes:
                return f"damaged: {database.notes[0]}"
            if any(database.lines(url) is None for url in rows):
                return "a record is damaged"
            if rows not in states[promised(cut) :]:
                return f"{len(rows)} records are no beginning of what was added, or less than was closed"
            if random.Random(cut).random() >= RESUMED:
                return ""
            for batch in crawl_entries():
                database.add_many(batch)
            return "" if {row["url"]: row for row in database.rows()} == states[-1] else "can't be added to"

    return Case("database", root, record, check, promised)


def page_of(number: int) -> bytes:
    """An HTML page with some sentences."""
    paragraphs = "".join(f"<p>{text_of(number * 10 + at)}</p>" for at in range(3))
    return f"<html><head><title>Page {number}</title></head><body><main>{paragraphs}</main></body></html>".encode()


FETCH = "--save-pages --delay 0 --extractor resiliparse --allow-private-addresses loopback --json --workers 1"


def crawl_cases(folder: Path, library: Path, only: str) -> Iterator[Case]:
    """The database, and a whole `webtext download` with saved pages."""
    from webtext_prep import cli
    from webtext_prep.crawl import crawl as crawling

    if only != "download":
        yield database_case(folder, library)
    if only == "database":
        return
    crawling._now = lambda: "2026-01-01T00:00:00Z"  # type: ignore[assignment]
    with serving([page_of(number) for number in range(8)], folder / "pages") as address:
        root = folder / "download" / "root"
        root.mkdir(parents=True)
        for part in (0, 1):
            urls = "".join(f"{address}/{number}\n" for number in range(4 * part, 4 * part + 4))
            (folder / f"list-{part}.txt").write_text(urls)
        lists = [folder / "list-0.txt", folder / "list-1.txt"]
        words = ["download", "--input", *lists, "--output", root / "out", *FETCH.split()]
        recorder = Recorder(library, root, folder / "download" / "log")
        program = "import sys; from webtext_prep import cli; from webtext_prep.crawl import crawl; "
        program += "crawl._now = lambda: '2026-01-01T00:00:00Z'; sys.exit(cli.main(sys.argv[1:]))"
        recorder.run([sys.executable, "-c", program, *words])
        record, wanted = recorder.read(), tree(root)
        end = max(at for at, change in enumerate(record.changes) if not isinstance(change, Said)) + 1

        def check(cut: int) -> str:
            before = tree(root)
            if cut == end and before != wanted:
                return f"said to be done and is gone: {difference(before, wanted)}"
            if (root / "out" / "stage.json").exists() and before != wanted:
                return f"taken for finished, and is not: {difference(before, wanted)}"
            if random.Random(cut).random() >= RESUMED:
                return ""
            with started_again():
                if problem := quietly(cli.main, words):
                    return f"does not go on: {problem}"
            wrong = difference(tree(root), wanted)
            return f"other bytes in {wrong}" if wrong else ""

        yield Case("download", root, record, check, lambda cut: cut == end)


# All of it


KINDS: dict[str, Callable[[Path, Path, str], Iterator[Case]]] = {
    "stages": stage_cases,
    "checkpoint": checkpoint_cases,
    "crawl": crawl_cases,
}


def show(case: Case, found: Found) -> None:
    """Print what came of a case."""
    losses = {name: len(all_of_it) for name, all_of_it in found.losses.items()}
    disks = f"{found.disks.total():,} disks, {found.checked:,} differ and were checked"
    print(f"{case.name}: {found.cuts} cut points, {disks}")
    print(f"  losses: {losses or 0}; {found.seconds:.0f} s", flush=True)
    for name, problems in found.losses.items():
        kinds = Counter(problem.partition(": ")[2] for problem in problems)
        for problem, count in kinds.most_common(MOST_SHOWN):
            first = next(one for one in problems if one.endswith(problem))
            print(f"    {name}: {count} times, first {first}", flush=True)


def main() -> None:
    """Record, cut, check, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=KINDS, help="one kind of work")
    parser.add_argument("--case", default="", help="of that kind, the one with this name")
    parser.add_argument("--share", type=float, default=1.0, help="the share of the cut points")
    parser.add_argument("--disks", type=int, default=4, help="disks of each cut point")
    parser.add_argument("--crawl", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.crawl:
        crawl(arguments.crawl)
        return
    total = Counter[str]()
    with tempfile.TemporaryDirectory(prefix="power-cuts-") as temporary:
        folder = Path(temporary).resolve()
        library = built(folder)
        for kind in [arguments.only] if arguments.only else KINDS:
            (folder / kind).mkdir()
            for case in KINDS[kind](folder / kind, library, arguments.case):
                found = cut_everywhere(case, arguments.share, arguments.disks)
                show(case, found)
                total[f"{kind}: cut points"] += found.cuts
                total[f"{kind}: losses"] += sum(map(len, found.losses.values()))
    print(dict(total))


if __name__ == "__main__":
    main()
