"""A training step on this machine's CPU: ours beside transformers' GPT-2 and a minimal one, and part by part.

    ./uvw run benchmarks/train.py             124M at 4×256 in float32 and bf16, and the quickstart's model
    ./uvw run benchmarks/train.py --tiny      a tiny model, no result file: does everything run?

All three take the same batches in one process, in turns of one step, with fused AdamW, clipping at 1 and no dropout.
Ours is the step of `gpt2 train` itself, with reading and bookkeeping. Figures are seconds of CPU time, the median of
the turns; a ratio is that of the medians. The overhead of tensor parallelism is measured on whole runs, of which the
shorter one is subtracted from the longer: what starting costs is not in it.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import nn

from gpt2_train.config.settings import ModelConfig
from gpt2_train.training.trainer import Trainer
from machine import describe, save
from training_steps import Case, Step, minimal_step, our_trainer, transformers_step, write_tokens

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


def cpu_seconds(step: Step) -> float:
    """CPU time of all threads of this process while `step` runs."""
    started = time.process_time()
    step()
    return time.process_time() - started


class Parts:
    """CPU seconds of the parts of a trainer's steps, from hooks on its model and its own methods."""

    def __init__(self, trainer: Trainer) -> None:
        self.spent = dict.fromkeys(("blocks forward", "logits forward", "forward and backward", "step"), 0.0)
        for block in trainer.model.blocks:
            self._hook(block, "blocks forward")
        self._hook(trainer.model.output, "logits forward")
        self._wrap(trainer, "forward_backward", "forward and backward")
        self._wrap(trainer, "train_step", "step")

    def _hook(self, module: nn.Module, part: str) -> None:
        started = [0.0]
        module.register_forward_pre_hook(lambda *_: started.__setitem__(0, time.process_time()))

        def after(*_: Any) -> None:
            self.spent[part] += time.process_time() - started[0]

        module.register_forward_hook(after)

    def _wrap(self, trainer: Trainer, method: str, part: str) -> None:
        original = getattr(trainer, method)

        def measured(*arguments: Any) -> Any:
            started = time.process_time()
            try:
                return original(*arguments)
            finally:
                self.spent[part] += time.process_time() - started

        setattr(trainer, method, measured)

    def shares(self) -> dict[str, float]:
        """Part -> its share of a step."""
        spent, whole = self.spent, self.spent["step"]
        parts = {
            "blocks forward": spent["blocks forward"],
            "logits forward": spent["logits forward"],
            "loss, backward, embeddings": spent["forward and backward"]
            - spent["blocks forward"]
            - spent["logits forward"],
            "norm, clip, optimizer, reading": whole - spent["forward and backward"],
        }
        return {part: round(seconds / whole, 3) for part, seconds in parts.items()}


def compared(case: Case, folder: Path) -> dict[str, Any]:
    """CPU seconds of a step of ours, of transformers and of the minimal model, by turns; and ours part by part."""
    trainer = our_trainer(case, folder, 2 * case.turns + 4)
    steps: dict[str, Step] = {
        "ours": trainer.train_step,
        "transformers": transformers_step(case),
        "minimal": minimal_step(case),
    }
    for step in steps.values():
        step()  # what is only done once
    spent: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(case.turns):
        for name, step in steps.items():
            spent[name].append(cpu_seconds(step))
    medians = {name: statistics.median(seconds) for name, seconds in spent.items()}
    parts = Parts(trainer)
    for _ in range(max(1, case.turns // 2)):
        trainer.train_step()
    trainer.close()
    return {
        "what": case.name,
        "cpu_seconds_per_step": {name: round(seconds, 4) for name, seconds in medians.items()},
        "ours_is_faster_than": {
            name: round(medians[name] / medians["ours"], 3) for name in ("transformers", "minimal")
        },
        "parts": parts.shares(),
    }


def whole_run(case: Case, folder: Path, steps: int, tensor_parallel: int) -> float:
    """CPU seconds of a `gpt2 train` of `steps`, its processes together."""
    folder.mkdir()
    config = case.config
    data = write_tokens(folder / "tokens", config.vocabulary_size, steps * case.batch * (config.sequence_length + 1))
    shape = [
        f"--{name}={value}"
        for name, value in {
            "data": data, "tokenizer": "gpt2", "output": folder / "run", "layers": config.layers,
            "hidden": config.hidden, "heads": config.heads, "sequence-length": config.sequence_length,
            "vocabulary-size": config.vocabulary_size, "dropout": 0, "steps": steps,
            "global-batch-size": case.batch, "micro-batch-size": case.batch, "split": "1,0,0", "device": "cpu",
            "threads": 1, "tensor-parallel": tensor_parallel, "precision": "fp32",
        }.items()
    ]  # fmt: skip
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "gpt2_train", "train", "--no-save", *shape]
    subprocess.run(command, check=True, capture_output=True)
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
