"""How many steps do AdamW and Muon take to a loss? A small model on the standard library's docstrings, as bytes.

    ./uvw run benchmarks/optimizers.py                    # --steps 120 --rates 3e-3 1e-2

Each optimizer runs with each learning rate, all else the same. Prints, for each loss, the step at which the mean of ten
steps first was below it, and the CPU time of a step. About a minute of CPU time for each run.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from indexed_tokens import IndexedTokensWriter
from machine import describe, save

END = 256
WINDOW = 10
LOSSES = (3.0, 2.8, 2.6, 2.5, 2.4, 2.3)


def write_docstrings(prefix: Path) -> int:
    """Token files of all docstrings of the standard library's top-level modules, a module a document; their bytes."""
    total = 0
    with IndexedTokensWriter(prefix) as writer:
        for file in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
            tree = ast.parse(file.read_bytes())
            nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)]
            text = "\n\n".join(found for node in nodes if (found := ast.get_docstring(node))).encode()
            if text:
                writer.add([*text, END])
                total += len(text)
    return total


def run(data: Path, output: Path, optimizer: str, rate: float, steps: int) -> tuple[list[float], float]:
    """(loss of each step, seconds of CPU time for a step)."""
    words = f"""train --data {data} --output {output} --optimizer {optimizer} --lr {rate} --min-lr 0 --steps {steps}
        --layers 4 --hidden 128 --heads 4 --sequence-length 128 --vocabulary-size 257 --global-batch-size 16
        --dropout 0 --weight-decay 0.1 --warmup 10 --schedule wsd --split 95,5,0 --log-every 1 --eval-every 0 --no-save
        --device cpu --threads 1"""
    begin = sum(os.times()[2:4])  # CPU time of processes that have ended.
    subprocess.run([sys.executable, "-m", "gpt2_train", *words.split()], check=True, stderr=subprocess.DEVNULL)
    seconds = sum(os.times()[2:4]) - begin
    rows = map(json.loads, (output / "metrics.jsonl").read_text().splitlines())
    return [row["loss"] for row in rows if "loss" in row], seconds / steps


def first_below(losses: list[float], loss: float) -> int | None:
    """The step at which the mean over ten steps first was below `loss`."""
    for step in range(WINDOW, len(losses) + 1):
        if statistics.fmean(losses[step - WINDOW : step]) < loss:
            return step
    return None


def main() -> None:
    """Measure, print, and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--rates", type=float, nargs="+", default=[3e-3, 1e-2])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "docstrings"
        print(f"{write_docstrings(data):,} bytes of docstrings; 4 layers, hidden 128, 2,048 bytes a step")
        print(f"{'optimizer':10} {'lr':>7} {'CPU s/step':>11} {'last loss':>10}  step at which the loss was below")
        print(" " * 42 + "".join(f"{loss:>6}" for loss in LOSSES))
        results = []
        for optimizer in ("adamw", "muon"):
            for rate in options.rates:
                losses, seconds = run(data, Path(folder) / f"{optimizer}-{rate}", optimizer, rate, options.steps)
                last = statistics.fmean(losses[-WINDOW:])
                steps = {str(loss): first_below(losses, loss) for loss in LOSSES}
                results.append({"optimizer": optimizer, "lr": rate, "cpu_seconds_per_step": round(seconds, 3),
                                "last_loss": round(last, 3), "steps_to_loss": steps})  # fmt: skip
                found = "".join(f"{step or '-':>6}" for step in steps.values())
                print(f"{optimizer:10} {rate:>7g} {seconds:>11.3f} {last:>10.3f} {found}", flush=True)
    save("optimizers", {"machine": describe("torch"), "steps": options.steps, "results": results})


if __name__ == "__main__":
    main()
