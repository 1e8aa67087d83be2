"""What the tables of `data.py` are made of: rows, CPU seconds, peak memory, and documents to try things on.

Rates are per second of CPU time, that of child processes included, so that they hold on a busy machine and whatever
the number of workers. A function is measured in this process, a command with all the processes that it starts.
"""

from __future__ import annotations

import ast
import contextlib
import ctypes
import functools
import json
import multiprocessing
import os
import random
import re
import resource
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

from command_kit import available_cores

MB = 1_000_000
is_long = False
"""Whether runs of minutes are asked for: a table may have some in which what happens once no longer counts."""
_NOT_HANDED_ON = ("PYTHONDONTWRITEBYTECODE",)


@dataclass
class Row:
    """One line of a table.

    Attributes:
        what: what was measured; `ours: ` begins what this project does, the peer's name what others do.
        rate: units per second of CPU time.
        unit: what the rate counts.
        megabytes: MB of text per second of CPU time, where that makes sense.
        goal: the rate that is wanted, if one is.
        peak: the most memory that all processes took together, in MB.
        note: quality beside speed (recall, unequal bytes), or why there is no figure.
    """

    what: str
    rate: float | None = None
    unit: str = "documents"
    megabytes: float | None = None
    goal: float | None = None
    peak: float | None = None
    note: str = ""


@dataclass
class Usage:
    """What a piece of work took: CPU and wall-clock seconds, and the peak of memory (proportional share) in MB."""

    cpu: float
    wall: float
    peak: float = 0.0


def rate_of(
    what: str, work: Callable[[], Any], units: int, *, size: int = 0, goal: float | None = None, note: str = "",
    unit: str = "documents", repeats: int = 3
) -> Row:  # fmt: skip
    """Call `work`, which does `units` of something over `size` bytes of text, a few times; the best counts."""
    work()
    best = min(_seconds(work) for _ in range(repeats))
    return Row(what, units / best, unit, size / best / MB if size else None, goal, note=note)


def _seconds(work: Callable[[], Any]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def rate_on_all_cores(
    what: str,
    work: Callable[[], Any],
    units: int,
    *,
    goal: float | None = None,
    note: str = "",
    unit: str = "documents",
    repeats: int = 3,
) -> Row:
    """As `rate_of`, while every core does the same: cores that share their parts are slower than one of them alone."""
    cores = available_cores()
    context = multiprocessing.get_context("fork")
    with context.Pool(cores, initializer=_hold, initargs=(work,)) as pool:
        rows = pool.starmap(_rate_of_held, [(units, repeats)] * cores, chunksize=1)
    return Row(what, sum(rows) / cores, unit, goal=goal, note=note)


_held: list[Callable[[], Any]] = []


def _hold(work: Callable[[], Any]) -> None:
    _held.append(work)


def _rate_of_held(units: int, repeats: int) -> float:
    return rate_of("", _held[0], units, repeats=repeats).rate or 0.0


def run_command(arguments: Sequence[str | Path], **settings: Any) -> Usage:
    """Run a command to its end, with every process that it starts, and say what they took together.

    Orphans come back to this process, so that none is missed. Raises CalledProcessError if the command fails.
    """
    adopt_orphans()
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    # Without its bytecode on disk, Python compiles numba again in each process: that is not what users have.
    settings.setdefault("env", {name: value for name, value in os.environ.items() if name not in _NOT_HANDED_ON})
    process = subprocess.Popen([str(argument) for argument in arguments], start_new_session=True, **settings)
    with maximum_of(functools.partial(memory_of_session, process.pid), 0.1) as peak:
        status = process.wait()
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitpid(-process.pid, 0)  # of its process group: this process may have other children
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if status:
        raise subprocess.CalledProcessError(status, process.args)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Usage(cpu, time.monotonic() - start, max(peak))


def webtext(*arguments: str | Path, **settings: Any) -> Usage:
    """Run the command `webtext` of this environment, quietly."""
    command = [sys.executable, "-m", "webtext_prep", *arguments]
    return run_command(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **settings)


def adopt_orphans() -> None:
    """Become the parent of processes whose own one ends, so that what they took is counted, too."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


@contextlib.contextmanager
def maximum_of(measure: Callable[[], float], seconds: float) -> Iterator[list[float]]:
    """While open, `measure` is called every so many seconds, and once more at the end; the only entry is the most."""
    found, done = [0.0], threading.Event()

    def watch() -> None:
        while not done.wait(seconds):
            found[0] = max(found[0], measure())

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        done.set()
        thread.join()
        found[0] = max(found[0], measure())


def memory_of_session(session: int) -> float:
    """The memory that the processes of a session take together, in MB."""
    return sum(memory_of(process) for process in processes_of_session(session))


def processes_of_session(session: int) -> Iterator[Path]:
    """The folder in /proc of each process of a session."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            if int((process / "stat").read_text().rpartition(")")[2].split()[3]) == session:
                yield process


def memory_of(process: Path) -> float:
    """The memory of a process in MB, its share of what it has in common with others."""
    with contextlib.suppress(OSError):
        for line in (process / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024 / MB
    return 0.0


def show(title: str, rows: Sequence[Row]) -> None:
    """Print a table, each rate with its ratio to the goal."""
    print(f"\n{title}")
    width = max((len(row.what) for row in rows), default=0)
    for row in rows:
        rate = "" if row.rate is None else f"{row.rate:>12,.0f} {row.unit}/s"
        size = "" if row.megabytes is None else f"{row.megabytes:>8,.1f} MB/s"
        goal = "" if not row.goal or row.rate is None else f"goal {row.goal:,.0f}: {row.rate / row.goal:.2f}x"
        peak = "" if row.peak is None else f"{row.peak:,.0f} MB"
        print(f"  {row.what:<{width}} {rate:<26} {size:<14} {goal:<22} {peak:<10} {row.note}".rstrip())


def as_json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Rows as plain values, without what is not known."""
    return [
        {name: round(value, 3) if isinstance(value, float) else value for name, value in asdict(row).items()
         if value not in (None, "")}
        for row in rows
    ]  # fmt: skip


# Documents


@functools.lru_cache(maxsize=1)
def sentences() -> list[str]:
    """Some ten thousand sentences of English prose that every Python brings: its manual, and its docstrings."""
    found: dict[str, None] = {}
    for text in [*topics.values(), *_docstrings(Path(sysconfig.get_path("stdlib")))]:
        for sentence in re.split(r"(?<=[.!?])\s+|\n\s*\n", text):
            line = " ".join(sentence.split())
            if 40 <= len(line) <= 300 and line[0].isalpha() and line.isprintable():
                found[line] = None
    return list(found)


def _docstrings(library: Path) -> Iterator[str]:
    for path in sorted(library.glob("*.py")) + sorted(library.glob("[a-k]*/*.py")):
        with contextlib.suppress(SyntaxError, UnicodeDecodeError):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                    yield ast.get_docstring(node) or ""


def documents(count: int, size: int = 3000, *, seed: int = 1, duplicates: float = 0.1) -> list[dict[str, str]]:
    """The documents of `each_document`, all of them."""
    return list(each_document(count, size, seed=seed, duplicates=duplicates))


def each_document(count: int, size: int = 3000, *, seed: int = 1, duplicates: float = 0.1) -> Iterator[dict[str, str]]:
    """Documents (url, text) of some `size` characters, a fourth of them with non-ASCII punctuation.

    A share `duplicates` of them repeats an earlier one with a sentence or two changed.
    """
    source, pool = random.Random(seed), sentences()
    made: list[list[str]] = []
    for number in range(count):
        if made and source.random() < duplicates:
            parts = list(source.choice(made))
            parts[source.randrange(len(parts))] = source.choice(pool)
        else:
            parts, length = [], 0
            while length < size:
                parts.append(source.choice(pool))
                length += len(parts[-1]) + 1
            made.append(parts)
        lines = [" ".join(parts[at : at + 5]) for at in range(0, len(parts), 5)]
        text = "\n".join(lines)
        if number % 4 == 0:
            text = text.replace(" - ", " \u2014 ").replace("'", "\u2019").replace("e ", "\u00e9 ", 3)
        yield {"url": f"https://site-{number % 997}.example/{seed}/{number}", "text": text}


def write_json_lines(path: Path, rows: Sequence[dict[str, str]]) -> Path:
    """The rows as one JSON-lines file, which is compressed if its name says so."""
    from webtext_prep.documents.document import Document
    from webtext_prep.documents.folders.shards import write_documents

    path.parent.mkdir(parents=True, exist_ok=True)
    with write_documents(path) as writer:
        for row in rows:
            rest = {name: value for name, value in row.items() if name not in ("url", "text")}
            writer.write(Document(row["url"], row["text"], rest))
    return path


if __name__ == "__main__":
    texts = [row["text"] for row in documents(100)]
    print(json.dumps({"sentences": len(sentences()), "characters": sum(map(len, texts)) / len(texts)}))
