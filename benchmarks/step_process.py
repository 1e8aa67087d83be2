"""Training steps of one program in a process of its own: `python step_process.py PROGRAM CASE FOLDER STEPS`.

For each line on standard input it takes a step, and answers with the CPU seconds of all its threads; for a line `parts`
ours says, too, which part took which share of the steps since the first such line. `ours` is the command `gpt2 train`,
from its first line to its end, whose steps wait for their turn: allocator, threads, garbage collector, reading and log
are a run's. The others are plain scripts, in which nothing is set.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from gpt2_train import cli


class Parts:
    """CPU seconds of the parts of a trainer's steps, from hooks on its model and its own methods."""

    def __init__(self, trainer: Any) -> None:
        self.spent = dict.fromkeys(("blocks forward", "logits forward", "forward and backward", "step"), 0.0)
        for block in trainer.model.blocks:
            self._hook(block, "blocks forward")
        self._hook(trainer.model.output, "logits forward")
        original = trainer.forward_backward
        trainer.forward_backward = lambda batches: self.measured("forward and backward", lambda: original(batches))

    def _hook(self, module: Any, part: str) -> None:
        started = [0.0]
        module.register_forward_pre_hook(lambda *_: started.__setitem__(0, time.process_time()))

        def after(*_: Any) -> None:
            self.spent[part] += time.process_time() - started[0]

        module.register_forward_hook(after)

    def measured(self, part: str, work: Any) -> Any:
        """What `work` returns; its time is that of `part`."""
        started = time.process_time()
        try:
            return work()
        finally:
            self.spent[part] += time.process_time() - started

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


def asked() -> str:
    """The next line on standard input; the process ends with it."""
    line = sys.stdin.readline()
    if not line:
        os._exit(0)
    return line.strip()


def answer(seconds: float, parts: dict[str, float] | None = None) -> None:
    """Say what a step took."""
    print(json.dumps({"seconds": seconds, "parts": parts}), flush=True)


def train(words: list[str]) -> None:
    """`gpt2 train` with `words`, a step for each line."""
    from gpt2_train.training.trainer import Trainer

    plain = Trainer.train_step
    parts: Parts | None = None

    def train_step(trainer: Trainer) -> bool:
        nonlocal parts
        if asked() == "parts":
            parts = parts or Parts(trainer)
        started = time.process_time()
        went: bool = parts.measured("step", lambda: plain(trainer)) if parts else plain(trainer)
        answer(time.process_time() - started, parts.shares() if parts else None)
        return went

    Trainer.train_step = train_step  # type: ignore[method-assign]
    sys.exit(cli.main(["train", *words]))


def main(program: str, case: str, folder: str, steps: str) -> None:
    """Take steps until nothing more is asked for."""
    if program == "ours":
        cli.prepare_for_torch()  # as the command does before it loads torch
    import training_steps

    described = training_steps.Case.from_json(case)
    if program == "ours":
        train(training_steps.train_words(described, Path(folder), int(steps)))
    step = getattr(training_steps, f"{program}_step")(described)
    while asked():
        started = time.process_time()
        step()
        answer(time.process_time() - started)


if __name__ == "__main__":
    main(*sys.argv[1:])
