"""Documents of 3 kB, of which a tenth are near-duplicates, through every stage that needs no internet, at two sizes.

    ./uvw run benchmarks/scale_run.py --documents 30000     a minute or two on two idle cores
    ./uvw run benchmarks/scale_run.py --documents 300000    about 1 GB of text, ten times that
    ./uvw run benchmarks/scale.py                           then puts both on docs/scale.md

Each stage is its own command on the output of the one before. What it took, and what `webtext plan` had said of it,
is kept in results/scale.json after each stage.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import json
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from machine import describe, save
from measuring import each_document, maximum_of, sentences, write_json_lines
from pages import RESULTS
from warc_to_tokens import session

NAME = "scale"
STAGES = ("merge", "clean", "dedup", "dedup-passages", "decontaminate", "tokenize")
FILES = 8
QUESTIONS = 2_000
ONE_IN = 100
"""Of so many documents one has a passage of an evaluation text."""


def write_input(folder: Path, count: int) -> int:
    """Write `count` documents as JSON lines, and evaluation texts, and return how many bytes of text they have."""
    source, words = random.Random(7), " ".join(sentences()).split()
    questions = [" ".join(source.choices(words, k=40)) for _ in range(QUESTIONS)]
    write_json_lines(folder / "questions.jsonl", [{"url": "", "text": text} for text in questions])
    size, rows = 0, each_document(count)
    for number in range(FILES):
        part = list(itertools.islice(rows, -(-count // FILES)))
        for row in part[::ONE_IN]:
            row["text"] += "\n" + source.choice(questions)
        size += sum(len(row["text"].encode()) for row in part)
        write_json_lines(folder / "in" / f"documents-{number:02}.jsonl.zst", part)
    return size


def settings(folder: Path) -> dict[str, str]:
    """What each stage is given beside its input and output."""
    return {"decontaminate": f"evaluation = {json.dumps([str(folder / 'questions.jsonl')])}"}


def size_of(folder: Path) -> int:
    """Bytes on disk of the files below a folder: a file with holes counts what it has, one with two names once."""
    sizes: dict[tuple[int, int], int] = {}
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            if not path.is_dir():
                found = path.lstat()
                sizes[found.st_dev, found.st_ino] = found.st_blocks * 512
    return sum(sizes.values())


def run_stages(folder: Path, size: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """What each stage took: CPU and other seconds, MB of memory and of disk, documents in and out."""
    source = folder / "in"
    more = settings(folder)
    for stage in STAGES:
        place = folder / stage
        output = place / "all" if stage == "tokenize" else place
        table = folder / f"{stage}.toml"
        table.write_text(f"[{stage}]\n{more.get(stage, '')}\n", encoding="utf-8")
        command = [sys.executable, "-m", "webtext_prep", stage, "--input", source, "--output", output]
        with maximum_of(functools.partial(size_of, place), 0.5) as disk:
            used = session.run([*command, "--config", table, "--json"], folder)
        if used.status:
            sys.exit(f"webtext {stage} failed:\n{used.output[-4000:]}")
        said = next(json.loads(line) for line in reversed(used.output.splitlines()) if line.startswith("{"))
        yield stage, {
            "cpu": round(used.total.cpu, 2), "wall": round(used.total.wall, 1), "memory": round(used.total.peak),
            "disk": round(disk[0] / 1e6, 1), "output": round(size_of(place) / 1e6, 1), "in": said["in"],
            "out": said["out"], "tokens": said.get("tokens", 0),
        }  # fmt: skip
        source = output


def plan(folder: Path) -> dict[str, Any]:
    """What `webtext plan` says of the same stages, and what it took to say so."""
    more = settings(folder)
    config = folder / "plan.toml"
    config.write_text("\n".join(f"[{stage}]\n{more.get(stage, '')}\n" for stage in STAGES), encoding="utf-8")
    command = [sys.executable, "-m", "webtext_prep", "plan", "--input", folder / "in", "--output", folder / "plan"]
    used = session.run([*command, "--config", config], folder)
    if used.status:
        sys.exit(f"webtext plan failed:\n{used.output[-4000:]}")
    return {"cpu": round(used.total.cpu, 1), "stages": planned_stages(folder / "plan")}


def planned_stages(folder: Path) -> dict[str, dict[str, Any]]:
    """Of each stage in a plan seconds, MB of memory and disk, documents out and tokens."""
    said = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    return {
        row["stage"]: {
            "wall": round(row["seconds"], 1), "memory": round(row["memory"] / 1e6), "out": round(row["kept"]),
            "disk": round((row["output"] + row["scratch"]) / 1e6, 1), "tokens": round(row["tokens"] or 0),
        }
        for row in said["stages"]
    }  # fmt: skip


def main() -> None:
    """Measure one size."""
    parser = argparse.ArgumentParser(description="Run documents through the stages, and keep what it took.")
    parser.add_argument("--documents", type=int, default=30_000)
    parser.add_argument(
        "--folder", type=Path, help="where to work; kept. Without it a temporary one, removed at the end"
    )
    parser.add_argument("--dry-run", action="store_true", help="print only")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (arguments.folder or Path(temporary)).resolve()
        size = write_input(folder, arguments.documents)
        place = RESULTS / f"{NAME}.json"
        sizes = json.loads(place.read_bytes())["sizes"] if place.exists() else {}
        machine = describe("numpy", "numba", "tiktoken", "gigatoken")
        found: dict[str, Any] = {"bytes": size, "machine": machine, "plan": plan(folder), "stages": {}}
        for stage, took in run_stages(folder, size):
            found["stages"][stage] = took
            print(stage, json.dumps(took), json.dumps(found["plan"]["stages"].get(stage)), flush=True)
            if not arguments.dry_run:
                sizes[str(arguments.documents)] = found
                save(NAME, {"machine": machine, "sizes": dict(sorted(sizes.items(), key=lambda pair: int(pair[0])))})


if __name__ == "__main__":
    main()
