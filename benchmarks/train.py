"""A training step on this machine's CPU: ours beside transformers' GPT-2 and a minimal one, and part by part.

    ./uvw run benchmarks/train.py             124M at 4×256 in float32 and bf16, and the quickstart's model
    ./uvw run benchmarks/train.py --tiny      a tiny model, no result file: does everything run?

All three take batches of one shape, each in a process of its own, in turns of one step, with fused AdamW, clipping at
1 and no dropout. Ours is a step of the command `gpt2 train` itself (`step_process.py`): freed memory is kept, threads
that wait sleep, and the garbage collector leaves what is there. The others are plain scripts with torch's defaults.
Figures are seconds of CPU time, the median of the turns; a ratio is that of the medians. The overhead of tensor
parallelism is measured on whole runs, of which the shorter one is subtracted from the longer: what starting costs is
not in it.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpt2_train.config.settings import ModelConfig
from machine import describe, save
from training_steps import Case, train_words

GPT2_124M = ModelConfig.preset("124M", sequence_length=256, dropout=0.0)
QUICKSTART = ModelConfig(4, 128, 4, 128, dropout=0.0)
SMALL_VOCABULARY = ModelConfig(6, 192, 6, 256, 4096, dropout=0.0)
CASES = [
    Case("124M, 4×256, fp32", GPT2_124M, 4),
    Case("124M, 4×256, bf16", GPT2_124M, 4, "bf16"),
    Case("4 layers of 128, 4×128, GPT-2's vocabulary", QUICKSTART, 4, turns=25),
    Case("6 layers of 192, 8×256, 4,096 tokens", SMALL_VOCABULARY, 8, turns=15),
]
TINY = [Case("tiny", ModelConfig(2, 32, 4, 16, 100, dropout=0.0), 2, turns=2)]


class Program:
    """One program's steps, in a process of its own.

    Args:
        name: `ours`, `transformers` or `minimal`.
        case: what it trains.
        folder: where it may write.
        steps: that will be asked of it.
    """

    def __init__(self, name: str, case: Case, folder: Path, steps: int) -> None:
        script = Path(__file__).with_name("step_process.py")
        words = [sys.executable, str(script), name, case.as_json(), str(folder), str(steps)]
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def step(self, what: str = "step") -> dict[str, Any]:
        """Take a step: its CPU seconds, and with `parts` the shares of its parts."""
        assert self.process.stdin is not None and self.process.stdout is not None
        print(what, file=self.process.stdin, flush=True)
        return dict(json.loads(self.process.stdout.readline()))

    def end(self) -> None:
        """End the process."""
        self.process.communicate()


def compared(case: Case, folder: Path) -> dict[str, Any]:
    """CPU seconds of a step of ours, of transformers and of the minimal model, by turns; and ours part by part."""
    steps = case.turns + 1 + max(1, case.turns // 2)
    programs = {name: Program(name, case, folder, steps) for name in ("ours", "transformers", "minimal")}
    for program in programs.values():
        program.step()  # what is only done once
    spent: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(case.turns):
        for name, program in programs.items():
            spent[name].append(program.step()["seconds"])
    medians = {name: statistics.median(seconds) for name, seconds in spent.items()}
    parts = [programs["ours"].step("parts")["parts"] for _ in range(max(1, case.turns // 2))]
    for program in programs.values():
        program.end()
    return {
        "what": case.name,
        "cpu_seconds_per_step": {name: round(seconds, 4) for name, seconds in medians.items()},
        "ours_is_faster_than": {
            name: round(medians[name] / medians["ours"], 3) for name in ("transformers", "minimal")
        },
        "parts": parts[-1],
    }


def whole_run(case: Case, folder: Path, steps: int, tensor_parallel: int) -> float:
    """CPU seconds of a `gpt2 train` of `steps`, its processes together."""
    folder.mkdir()
    words = train_words(case, folder, steps, threads=1, tensor_parallel=tensor_parallel)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "gpt2_train", "train", *words], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def tensor_parallel_overhead(case: Case, folder: Path, steps: int) -> dict[str, Any]:
    """CPU seconds of a step in one process and in two that share each matrix."""
    spent = {}
    for size in (1, 2):
        few, many = (whole_run(case, folder / f"{size}-{count}", count, size) for count in (2, steps + 2))
        spent[size] = (many - few) / steps
    return {
        "what": f"tensor parallel 2, {case.name}",
        "cpu_seconds_per_step": {"one process": round(spent[1], 4), "two processes": round(spent[2], 4)},
        "overhead": round(spent[2] / spent[1] - 1, 3),
    }


def results(*, tiny: bool) -> Iterator[dict[str, Any]]:
    """A row for each case."""
    cases = TINY if tiny else CASES
    for case in cases:
        with tempfile.TemporaryDirectory() as name:
            yield compared(case, Path(name))
    with tempfile.TemporaryDirectory() as name:
        yield tensor_parallel_overhead(cases[-1], Path(name), 2 if tiny else 20)


def main() -> None:
    """Measure, print, and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="a tiny model, no result file")
    arguments = parser.parse_args()
    rows = []
    for row in results(tiny=arguments.tiny):
        print(row, flush=True)
        rows.append(row)
    if not arguments.tiny:
        save("train", {"machine": describe("torch", "transformers"), "results": rows})


if __name__ == "__main__":
    main()
