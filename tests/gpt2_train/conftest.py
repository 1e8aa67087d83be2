"""What the training tests share: a small corpus, and the command run in this process or in one of its own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.gpt2_train import forks
from tests.gpt2_train.small_models import byte_tokenizer, random_model, save

from gpt2_train.cli import main
from gpt2_train.distributed.jobs import STOP_SIGNALS
from gpt2_train.model.gpt2 import GPT2
from gpt2_train.training import trainer
from indexed_tokens import IndexedTokensWriter, save_corpus_tokenizer

COMMON = """
    --layers 2 --hidden 32 --heads 4 --sequence-length 16 --vocabulary-size 100
    --lr 1e-2 --min-lr 1e-3 --split 8,1,1 --log-every 1 --eval-every 0 --device cpu --threads 1 --micro-batch-size 2
""".split()  # noqa: SIM905


def write_corpus(prefix: Path, documents: int = 60, *, seed: int = 0, shortest: int = 5, longest: int = 60) -> str:
    """Token files of random documents with some order in them (ids under 100), and a tokenizer; returns the prefix."""
    random = np.random.default_rng(seed)
    with IndexedTokensWriter(prefix) as writer:
        for _ in range(documents):
            length = int(random.integers(shortest, longest + 1))
            tokens = random.integers(0, 90, length) % (1 + np.arange(length) % 7 * 13)
            writer.add(np.append(tokens, 99))
    save_corpus_tokenizer(prefix, byte_tokenizer())
    return str(prefix)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """One CPU thread, so that sums have one order; and signal handlers as they were."""
    threads = torch.get_num_threads()
    handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    """With a small tokenizer, which each checkpoint holds."""
    return write_corpus(tmp_path_factory.mktemp("corpus") / "tiny_text_document")


@pytest.fixture(scope="session")
def model() -> GPT2:
    """Random weights; it is looked at only."""
    return random_model()


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory, model: GPT2) -> Path:
    """A run whose checkpoint is `model`; it is read only."""
    return save(tmp_path_factory.mktemp("run"), model)


@pytest.fixture
def gpt2(corpus: str) -> Callable[..., int]:
    """`gpt2 train` on the small corpus in this process: gpt2(output, "--steps", 5) returns the exit code."""

    def run(output: Path, *flags: object, data: str = corpus) -> int:
        return main(["train", *COMMON, "--data", data, "--output", str(output), *map(str, flags)])

    return run


def command(output: Path, *flags: object, data: str | list[str]) -> list[str]:
    """The command line of `gpt2 train` for a process of its own."""
    data = [data] if isinstance(data, str) else data
    words = ["train", *COMMON, "--data", *data, "--output", str(output), *map(str, flags)]
    return [sys.executable, "-m", "gpt2_train", *words]


def run_command_line(output: Path, *flags: object, data: str) -> subprocess.CompletedProcess[str]:
    """Run `gpt2 train` in a process of its own, which is a fork, to its end."""
    return forks.run(command(output, *flags, data=data))


def read_until(process: forks.Started, sign: str) -> list[str]:
    """Read the standard error of a process up to the line with `sign`; returns the lines."""
    lines: list[str] = []
    for line in process.stderr:
        lines.append(line)
        if sign in line:
            return lines
    raise AssertionError(f"{sign!r} never came: {''.join(lines)}")


def in_step(monkeypatch: pytest.MonkeyPatch, number: int, action: Callable[[], torch.Tensor | None]) -> None:
    """Do `action` in the middle of training step `number`; a tensor that it returns is that step's gradient norm."""
    plain, calls = trainer.gradient_norm, []

    def counted(parameters: Any) -> torch.Tensor:
        calls.append(1)
        found = action() if len(calls) == number else None
        return plain(parameters) if found is None else found

    monkeypatch.setattr(trainer, "gradient_norm", counted)


def rows(output: Path) -> list[dict[str, Any]]:
    """The rows of a run's metrics."""
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


def losses(output: Path) -> dict[int, float]:
    """Training loss by step; fails on a step that is there twice."""
    found = [(row["step"], row["loss"]) for row in rows(output) if "loss" in row]
    assert len(found) == len(dict(found))
    return dict(found)
