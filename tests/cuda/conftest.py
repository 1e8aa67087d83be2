"""What the tests on the null device share."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cuda import gpus
from tests.cuda.gpus import Done, Gpus, Running, faults
from tests.gpt2_train import forks

from indexed_tokens import IndexedTokensWriter

END_OF_TEXT = 50256
SHAPE = """
    --layers 2 --hidden 128 --heads 2 --sequence-length 128 --global-batch-size 8 --micro-batch-size 2 --device cuda
    --log-every 1 --eval-tokens 1024
""".split()  # noqa: SIM905


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what lies here where the null device can't be built."""
    reason = gpus.missing()
    for item in items:
        if reason and Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Documents of random tokens of GPT-2, each with an end of text."""
    prefix, random = tmp_path_factory.mktemp("corpus") / "tokens", np.random.default_rng(0)
    with IndexedTokensWriter(prefix) as writer:
        for length in random.integers(50, 600, 2000):
            writer.add(np.append(random.integers(0, END_OF_TEXT, length), END_OF_TEXT))
    return str(prefix)


@pytest.fixture(scope="session")
def checkpoint(corpus: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A run of one step on the CPU."""
    place = tmp_path_factory.mktemp("run")
    cpu = ["--device", "cpu", "--threads", 1, "--steps", 1]
    done = forks.run([sys.executable, "-m", "gpt2_train", "train", "--data", corpus, "--output", place, *SHAPE, *cpu])
    assert done.returncode == 0, done.stderr
    return str(place)


@pytest.fixture(scope="session")
def long_corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Enough random tokens of GPT-2 for steps of 512 sequences, each document with an end of text."""
    prefix = tmp_path_factory.mktemp("corpus") / "tokens"
    with IndexedTokensWriter(prefix) as writer:
        for tokens in np.random.default_rng(0).integers(0, END_OF_TEXT, (4000, 1500)):
            writer.add(np.append(tokens, END_OF_TEXT))
    return str(prefix)


@pytest.fixture(scope="session")
def first_process(long_corpus: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[dict[str, Any]]]:
    """`first_process([{"model": "124M", "micro": 8}])` says what the steps of a run's first process do and hold."""

    def run(layouts: list[dict[str, Any]]) -> list[dict[str, Any]]:
        folder = tmp_path_factory.mktemp("asked")
        program = Path(__file__).with_name("rank_zero.py")
        asked = [{"model": "124M", **layout} for layout in layouts]
        words = [sys.executable, program, long_corpus, folder, json.dumps(asked)]
        done = Running(words, Gpus(), folder).end()
        assert done.code == 0, done.errors
        assert faults(done) == []
        rows: list[dict[str, Any]] = json.loads(done.output)
        return rows

    return run


@pytest.fixture
def on_gpus(tmp_path: Path) -> Callable[..., Done]:
    """`on_gpus(words, Gpus(2))` runs a command line of `gpt2` to its end, which must be good unless `fine=False`."""
    number = 0

    def run(words: list[object], machine: Gpus = Gpus(), *, fine: bool = True, **more: Any) -> Done:  # noqa: B008
        nonlocal number
        number += 1
        folder = tmp_path / f"asked-{number}"
        folder.mkdir()
        done = Running([sys.executable, "-m", "gpt2_train", *words], machine, folder, **more).end()
        assert (done.code == 0) == fine, done.errors
        assert faults(done) == []
        return done

    return run


@pytest.fixture
def train(on_gpus: Callable[..., Done], corpus: str, tmp_path: Path) -> Callable[..., Done]:
    """`train("--steps", 3, gpus=2)` trains a small model in `tmp_path / "run"`; `compiled=True` as users do."""

    def run(*flags: object, gpus: int = 1, machine: Gpus | None = None, compiled: bool = False, **more: Any) -> Done:
        kept = [] if compiled else ["--no-compile"]
        words = ["train", "--data", corpus, "--output", tmp_path / "run", *SHAPE, *kept, *flags]
        return on_gpus(words, machine or Gpus(gpus), **more)

    return run
