"""The whole road over a part of the corpus: each stage on the output of the one before, and what it took.

What came of each piece of work is kept in `road.json` of the folder, and is not done again.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

from command_kit import write_json
from measuring import maximum_of
from real_corpus_pieces.packages import Page
from scale_run import planned_stages, size_of
from warc_to_tokens import session
from webtext_prep.documents.folders.shards import read_documents

KNOWN = "road.json"
QUESTION_WORDS = 40
KILL_AT = 0.5
"""After this share of the time that a stage had taken it is killed."""
TIME_TO_START = 0.7
"""Seconds before which no stage is at work."""


@dataclass(frozen=True)
class Step:
    """A stage of the road.

    Attributes:
        name: as the table calls it, and its folder.
        stage: the command.
        source: the step whose output it reads.
        settings: beside input and output, as in a file of settings.
    """

    name: str
    stage: str
    source: str
    settings: str = ""


STEPS = (
    Step("extract", "extract", "warcs"),
    Step("merge", "merge", "extract"),
    Step("clean", "clean", "merge", 'language = "any"'),
    Step("clean, English", "clean", "merge"),
    Step("dedup", "dedup", "clean"),
    Step("dedup-passages", "dedup-passages", "dedup"),
    Step("decontaminate", "decontaminate", "dedup-passages", 'evaluation = ["{folder}/questions.jsonl"]'),
    Step("tokenize", "tokenize", "decontaminate"),
    Step("index-tokens", "index-tokens", "tokenize"),
)


@dataclass(frozen=True)
class Road:
    """The road over the pages of a folder."""

    folder: Path

    def known(self) -> dict[str, Any]:
        """What is kept of it."""
        path = self.folder / KNOWN
        found: dict[str, Any] = json.loads(path.read_bytes()) if path.exists() else {}
        return found

    def once(self, name: str, work: Callable[[], Any]) -> Any:
        """What a piece of work gave, which is done if it has not been."""
        found = self.known()
        if name not in found:
            value = work()
            found = self.known() | {name: value}
            write_json(self.folder / KNOWN, found)
            print(name, json.dumps(value), flush=True)
        return found[name]

    def note(self, name: str, used: session.Session) -> None:
        """Keep what a command said, to be read."""
        path = self.folder / "said" / f"{name}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text(used.output, encoding="utf-8")

    def place(self, step: str, output: str = "") -> Path:
        """The folder or prefix that a step writes, in the first run or that of another name."""
        place = self.folder / f"out{output}" / step.replace(", ", "-")
        return place / "corpus" if step == "tokenize" else place

    def command(self, step: Step, output: str = "", source: Path | None = None) -> list[str | Path]:
        """What runs a step."""
        table = self.folder / f"{step.name}.toml".replace(", ", "-")
        table.write_text(self._table(step), encoding="utf-8")
        given = source or (self.folder / "warcs" if step.source == "warcs" else self.place(step.source, output))
        if step.stage == "index-tokens":
            words: list[str | Path] = ["--input", f"{given}_text_document"]
        else:
            words = ["--input", given, "--output", self.place(step.name, output)]
        return [*webtext(step.stage), *words, "--config", table, "--json"]

    def _table(self, step: Step) -> str:
        return f"[{step.stage}]\n{step.settings.format(folder=self.folder)}\n"

    def run(self) -> None:
        """The plan, each step, and what is asked of the outputs."""
        write_questions(self.folder / "questions.jsonl")
        self.once("plan", self.plan)
        for step in STEPS:
            self.once(step.name, functools.partial(self.measure, step))
        self.once("report", self.report)
        self.once("why", self.why)

    def plan(self) -> dict[str, Any]:
        """What `webtext plan` says of the steps that follow one another."""
        config = self.folder / "plan.toml"
        config.write_text("".join(self._table(step) for step in STEPS if "," not in step.name), encoding="utf-8")
        given = ["--input", self.folder / "warcs", "--output", self.folder / "plan", "--config", config]
        used = run([*webtext("plan"), *given], self.folder)
        return {"cpu": round(used.total.cpu, 1), "stages": planned_stages(self.folder / "plan")}

    def measure(self, step: Step) -> dict[str, Any]:
        """What a step takes: CPU and other seconds, MB of memory and of disk, documents in and out, why they went."""
        place = self.place(step.name if step.stage != "index-tokens" else step.source)
        watched = place.parent if place.name == "corpus" else place
        watched.parent.mkdir(parents=True, exist_ok=True)
        before = size_of(watched)
        with maximum_of(functools.partial(size_of, watched), 0.5) as disk:
            used = run(self.command(step), self.folder)
        self.note(step.name, used)
        said = summary_of(used)
        return {
            "cpu": round(used.total.cpu, 2), "wall": round(used.total.wall, 1), "memory": round(used.total.peak),
            "disk": round((disk[0] - before) / 1e6, 1), "output": round((size_of(watched) - before) / 1e6, 1),
            "in": said.get("in", 0), "out": said.get("out", 0), "tokens": said.get("tokens", 0),
            "dropped": said.get("dropped", {}),
        }  # fmt: skip

    @property
    def tokens(self) -> Path:
        """The prefix of the token files."""
        place = self.place("tokenize")
        return place.with_name(f"{place.name}_text_document")

    def report(self) -> dict[str, Any]:
        """What `webtext report` takes, and how large its page is."""
        page = self.folder / "report.html"
        used = run([*webtext("report"), self.tokens, "--output", page], self.folder)
        return taken(used) | {"bytes": page.stat().st_size}

    def why(self) -> list[dict[str, Any]]:
        """What `webtext why` says of a document for each reason that one went, and of one that stayed."""
        from webtext_prep.documents.formats.lines import read_lines

        asked: dict[str, str] = {}
        for step in ("clean", "dedup", "dedup-passages", "decontaminate"):
            for file in sorted((self.place(step) / "dropped").glob("*.jsonl.zst")):
                for row in map(json.loads, read_lines(file)):
                    asked.setdefault(f"{step}: {row['reason']}", row["url"])
        for document in read_all(self.place("decontaminate")):
            asked.setdefault("kept", document.url)
            if document.piece:
                asked["cut"] = document.url
                break
        found = []
        for what, url in asked.items():
            used = run([*webtext("why"), url, self.tokens], self.folder)
            self.note(f"why {what}", used)
            found.append({"what": what, "url": url, **taken(used)})
        return found

    # Takedown, and kills

    def takedown(self, package: str) -> dict[str, Any]:
        """Look for the pages of a package, remove them from the input, and from all outputs.

        These must then have the bytes of a road over the other packages alone; the index is to be made again.
        """
        archive = self.folder / "warcs" / f"{package}.warc.gz"
        urls = self.folder / "takedown.txt"
        host = f"https://{package}.example/"
        lines = (self.folder / "urls.txt").read_text(encoding="utf-8").splitlines()
        urls.write_text("".join(f"{url}\n" for url in lines if url.startswith(host)), encoding="utf-8")
        command = [*webtext("takedown"), "--urls", urls, self.tokens]
        looked = session.run(command, self.folder)
        if archive.exists():
            archive.rename(self.folder / archive.name)
        applied = run([*command, "--apply"], self.folder)
        self.note("takedown", looked)
        self.note("takedown --apply", applied)
        steps = [step for step in STEPS if "," not in step.name and step.stage != "index-tokens"]
        shutil.rmtree(self.folder / "out-fresh", ignore_errors=True)
        for step in steps:
            run(self.command(step, "-fresh"), self.folder)
        differ = differences(self.folder / "out", self.folder / "out-fresh", {step.name for step in steps})
        return {
            "package": package, "urls": len(urls.read_text().splitlines()), "look": taken(looked),
            "apply": taken(applied), "differs": [name for name in differ if ".suffixes/" not in name],
        }  # fmt: skip

    def kills(self) -> dict[str, Any]:
        """Each step once more, killed in the middle and resumed, from files that came in another order."""
        reverse = self.folder / "warcs-reversed"
        if not reverse.exists():
            reverse.mkdir()
            for path in sorted((self.folder / "warcs").iterdir(), reverse=True):
                os.link(path, reverse / path.name)
        shutil.rmtree(self.folder / "out-killed", ignore_errors=True)
        rows = {}
        for step in STEPS:
            wall = self.known()[step.name]["wall"]
            command = self.command(step, "-killed", reverse if step.source == "warcs" else None)
            self.place(step.name, "-killed").parent.mkdir(parents=True, exist_ok=True)
            after = max(TIME_TO_START, KILL_AT * wall)
            killed = session.run(command, self.folder, kill=(step.stage, lambda: True, after))
            resumed = run(command, self.folder)
            rows[step.name] = {
                "killed after": round(killed.total.wall, 1), "status": killed.status,
                "resumed in": round(resumed.total.wall, 1), "whole": wall,
            }  # fmt: skip
            print(step.name, json.dumps(rows[step.name]), flush=True)
        names = {self.place(step.name).relative_to(self.folder / "out").parts[0] for step in STEPS[:-1]}
        return {"steps": rows, "differs": differences(self.folder / "out", self.folder / "out-killed", names)}


def webtext(command: str) -> list[str | Path]:
    """How a command of the data side begins."""
    return [sys.executable, "-m", "webtext_prep", command]


def run(command: Sequence[str | Path], folder: Path) -> session.Session:
    """Run a command to its end. Exits with its words where it fails."""
    used = session.run(command, folder, limit=6 * 3600)
    if used.status:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{used.output[-4000:]}")
    return used


def taken(used: session.Session) -> dict[str, float]:
    """CPU and other seconds, and MB of memory."""
    return {"cpu": round(used.total.cpu, 2), "wall": round(used.total.wall, 1), "memory": round(used.total.peak)}


def summary_of(used: session.Session) -> dict[str, Any]:
    """What a stage prints at its end."""
    found: dict[str, Any] = next(
        (json.loads(line) for line in reversed(used.output.splitlines()) if line.startswith("{")), {}
    )
    return found


def read_all(folder: Path) -> Iterator[Any]:
    """The documents of a stage's output."""
    for path in sorted(folder.glob("part-*")):
        yield from read_documents(path)


def differences(first: Path, second: Path, steps: Collection[str]) -> list[str]:
    """The files of some steps that differ in another run, but for records and the times of fetching."""

    def sums(folder: Path) -> dict[str, str]:
        return {
            name: hashlib.sha256(path.read_bytes()).hexdigest()
            for step in steps
            for path in sorted((folder / step).rglob("*"))
            if path.is_file()
            for name in [path.relative_to(folder).as_posix()]
            if not re.search(r"/\.|/outcomes/|stage\.json$", name)
        }

    ours, theirs = sums(first), sums(second)
    return sorted(name for name in ours | theirs if ours.get(name) != theirs.get(name))


def write_questions(path: Path) -> None:
    """Passages of Python's manual as evaluation texts: a package of the corpus has them, too."""
    rows = []
    for _, text in sorted(topics.items()):
        words = text.split()
        for begin in range(0, len(words) - QUESTION_WORDS, 3 * QUESTION_WORDS):
            passage = " ".join(words[begin : begin + QUESTION_WORDS])
            rows.append(json.dumps({"text": passage}) + "\n")
    path.write_text("".join(rows), encoding="utf-8")


def choose(pages: Sequence[Page], count: int) -> list[Page]:
    """So many pages, by a hash of their addresses: fewer are always among more."""
    ranked = sorted(pages, key=lambda page: hashlib.blake2b(page.url.encode(), digest_size=8).digest())
    chosen = {page.url for page in ranked[:count]}
    return [page for page in pages if page.url in chosen]
