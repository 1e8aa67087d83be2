"""The first hour on a GPU, in pieces: is it right, how fast is it, how much memory does it take, what survives?

    python benchmarks/gpu.py                            every piece that has no result yet
    python benchmarks/gpu.py --minutes 9.5              those that fit into a call of ten minutes; call it again
    python benchmarks/gpu.py --step                     what concerns a step of training, most wanted first: 14 minutes
    python benchmarks/gpu.py --only doctor quickstart   these alone
    python benchmarks/gpu.py --again loss               once more, in place of the result that is there
    python benchmarks/gpu.py --smoke                    every piece in its smallest form: two minutes

Each piece is a process of its own, which has eight minutes at most, so that a failure costs that piece alone. What it
found is saved at once in `results/gpu.json` and compared with what is expected of an H100
(`gpu_pieces/account.py`). A piece that is saved is not run again, also if it failed: `--again` does that.

Exit status: 0, also if pieces are left; 1 if one of this call failed; 2 for bad usage, or where there is no GPU
(`--smoke` runs without one).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from command_kit import write_json
from gpu_pieces.account import differences
from pages import RESULTS
from pages import write as write_pages

HERE = Path(__file__).resolve().parent
LONGEST = 8.0
"""Minutes after which a piece is ended."""


@dataclasses.dataclass(frozen=True)
class Piece:
    """A part of the hour.

    Attributes:
        name: its section in the results.
        work: module and function: given whether the smallest form is wanted, it yields (part, what was found).
        minutes: what it takes on an H100; it is not begun with less.
        question: what it answers.
    """

    name: str
    work: str
    minutes: float
    question: str


STEP = (
    Piece("train-124M", "gpu_pieces.training:train_124m", 1, "124M in 32s: speed and memory by what is compiled?"),
    Piece("train-345M", "gpu_pieces.training:train_345m", 1, "345M in 32s?"),
    Piece("train-1.5B", "gpu_pieces.training:train_xl", 3.5, "1.5B in 16s, with selective checkpointing and without?"),
    Piece("residual", "gpu_pieces.training:residual", 3, "What does a residual stream in bf16 gain each of them?"),
    Piece("courses", "gpu_pieces.commands:courses", 2.5, "Are losses with it those without it?"),
    Piece("profile", "gpu_pieces.kernels:profile", 0.5, "Which kernels take how much of a step?"),
    Piece("quickstart", "gpu_pieces.commands:quickstart", 2, "Does a small model learn, resume, write as on a CPU?"),
    Piece("muon", "gpu_pieces.training:muon", 0.5, "What does a step of Muon cost beside AdamW's?"),
)
"""The pieces about a step, 14 minutes; a step is of 512 sequences."""

PIECES = (
    *STEP,
    Piece("doctor", "gpu_pieces.commands:doctor", 0.5, "What does `gpt2 doctor` find?"),
    Piece("peers", "gpu_pieces.training:peers", 3, "How fast are transformers and a minimal GPT-2?"),
    Piece("loss", "gpu_pieces.kernels:loss", 3, "What do output matrix and loss cost, in several ways?"),
    Piece("attention", "gpu_pieces.kernels:attention", 1, "Which kernel of attention is fastest?"),
    Piece("generate", "gpu_pieces.writing:generate", 2, "Tokens a second, with graphs and without?"),
    Piece("serve", "gpu_pieces.writing:serve", 2, "Tokens a second under 32 clients?"),
    Piece("parity", "gpu_pieces.writing:parity", 2, "Are greedy texts those of transformers?"),
    Piece("nccl", "gpu_pieces.training:nccl", 1, "Do parallel steps in a group of one give the plain model's losses?"),
    Piece("saving", "gpu_pieces.training:saving", 3, "How long does a save of 345M keep training waiting?"),
    Piece("killed", "gpu_pieces.commands:killed", 2, "Does a run go on that was killed?"),
    Piece("memory", "gpu_pieces.commands:memory", 1, "Is it one sentence that memory does not suffice?"),
)


class Results:
    """The file of results, which is whole after each piece.

    Args:
        path: where it lies, or will.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.pieces: dict[str, dict[str, Any]] = json.loads(path.read_text())["pieces"] if path.exists() else {}

    def add(self, name: str, section: dict[str, Any]) -> None:
        """Save what became of a piece."""
        self.pieces[name] = section
        write_json(self.path, {"pieces": self.pieces})


def environment() -> dict[str, str]:
    """That of a process which finds what lies here."""
    places = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(places), "PYTHONUNBUFFERED": "1"}


def describe_machine() -> dict[str, Any]:
    """What the results say of machine and versions; asked in another process, so that this one needs no GPU."""
    code = "import json, machine; print(json.dumps(machine.describe('torch', 'triton', 'transformers')))"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), stdout=subprocess.PIPE, check=True)
    return dict(json.loads(done.stdout))


def run_piece(piece: Piece, seconds: float, *, smoke: bool) -> dict[str, Any]:
    """What a piece found in a process of its own, with `failed` if that did not end well; parts before it are kept."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "found.json"
        words = [sys.executable, "-m", "gpu_pieces.child", piece.work, str(file), *(["--smoke"] if smoke else [])]
        process = subprocess.Popen(words, env=environment(), start_new_session=True)
        late = False
        try:
            process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            late = True
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # also what it has started
            process.wait()
        section: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"results": {}}
    if late:
        section["failed"] = f"it had not ended after {seconds / 60:.1f} minutes"
    elif process.returncode:
        section.setdefault("failed", f"its process ended with status {process.returncode}")
    return section | {"seconds": round(time.monotonic() - begin, 1)}


def run_pieces(pieces: Sequence[Piece], results: Results, minutes: float | None, *, smoke: bool) -> bool:
    """Run the pieces that have no result yet, as far as the time goes; returns whether all went well."""
    end = time.monotonic() + 60 * minutes if minutes else float("inf")
    machine = describe_machine()
    if "gpu" not in machine and not smoke:
        raise SystemExit("gpu.py: torch sees no GPU here: give --smoke to try all pieces without one.")
    print(f"{machine.get('gpu', 'no GPU')}, torch {machine['versions']['torch']}", flush=True)
    todo = [piece for piece in pieces if piece.name not in results.pieces]
    fine = True
    for number, piece in enumerate(todo):
        left = end - time.monotonic()
        if not smoke and left < 60 * piece.minutes:
            print(f"{piece.name} has to wait: it takes some {piece.minutes:g} minutes, and {left / 60:.1f} are left")
            continue
        to_come = sum(later.minutes for later in todo[number:])
        print(f"\n{piece.name} ({number + 1} of {len(todo)}): {piece.question}", flush=True)
        if not smoke:
            print(f"  some {piece.minutes:g} minutes, {to_come:g} to the end", flush=True)
        section = {"machine": machine} | run_piece(piece, min(60 * LONGEST, left), smoke=smoke)
        section["differs"] = differences(piece.name, section, smoke=smoke)
        results.add(piece.name, section)
        fine &= "failed" not in section
        for line in [*(["FAILED: " + section["failed"]] if "failed" in section else []), *section["differs"]]:
            print(f"  {line}")
        print(f"  {section['seconds']:.0f} s, saved", flush=True)
    return fine


def summary(pieces: Sequence[Piece], results: Results) -> str:
    """What is done, what failed or differs, and what is left, as lines."""
    lines = []
    for piece in pieces:
        section = results.pieces.get(piece.name)
        if section is None:
            lines.append(f"  {piece.name:<12} left: {piece.minutes:g} minutes")
        elif "failed" in section:
            lines.append(f"  {piece.name:<12} failed: {section['failed'].splitlines()[0]}")
        else:
            differs = len(section["differs"])
            lines.append(f"  {piece.name:<12} " + (f"differs in {differs}" if differs else "as expected"))
    return "\n".join(lines)


def main(words: Sequence[str] | None = None, pieces: Sequence[Piece] = PIECES) -> int:
    """Run, save, compare; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [piece.name for piece in pieces]
    parser.add_argument("--list", action="store_true", help="name the pieces and what became of them, and end")
    parser.add_argument("--only", nargs="+", choices=names, metavar="PIECE", help="these pieces alone")
    step = [piece.name for piece in pieces if piece in STEP]
    parser.add_argument("--step", action="store_const", dest="only", const=step, help="those about a step alone")
    parser.add_argument("--again", nargs="+", choices=names, default=[], metavar="PIECE", help="run these once more")
    parser.add_argument("--minutes", type=float, metavar="X", help="begin no piece that would take longer than this")
    parser.add_argument("--smoke", action="store_true", help="every piece in its smallest form; no figure means much")
    parser.add_argument("--results", type=Path, metavar="FILE", help="where to save instead of results/gpu.json")
    options = parser.parse_args(words)
    results = Results(options.results or RESULTS / f"gpu{'-smoke' if options.smoke else ''}.json")
    if options.list:
        for piece in pieces:
            print(f"{piece.name:<12} {piece.minutes:>4g} min  {piece.question}")
        print(summary(pieces, results))
        return 0
    wanted = options.only or options.again or names
    chosen = [piece for piece in pieces if piece.name in [*wanted, *options.again]]
    for name in options.again:
        results.pieces.pop(name, None)
    try:
        fine = run_pieces(chosen, results, options.minutes, smoke=options.smoke)
    except SystemExit as end:
        print(end, file=sys.stderr)
        return 2
    if results.path == RESULTS / "gpu.json":
        write_pages()
    print(f"\n{results.path}\n{summary(chosen, results)}")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
