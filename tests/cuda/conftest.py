"""What the tests on the null device share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cuda import gpus
from tests.cuda.gpus import Done, Gpus, Running, faults
from tests.gpt2_train.conftest import write_corpus

SHAPE = """
    --layers 2 --hidden 128 --heads 2 --sequence-length 128 --global-batch-size 8 --micro-batch-size 2 --device cuda
    --log-every 1 --eval-batches 1 --no-compile
""".split()  # noqa: SIM905


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what lies here where the null device can't be built."""
    reason = gpus.missing()
    for item in items:
        if reason and Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_corpus(tmp_path_factory.mktemp("corpus") / "tokens", 2000, shortest=50, longest=600)


@pytest.fixture
def on_gpus(tmp_path: Path) -> Callable[..., Done]:
    """`on_gpus(words, Gpus(2))` runs a command line of `gpt2` to its end; `fine=True` says that it must end well."""
    number = 0

    def run(words: list[object], machine: Gpus = Gpus(), *, fine: bool = True, **environment: str) -> Done:  # noqa: B008
        nonlocal number
        number += 1
        folder = tmp_path / f"asked-{number}"
        folder.mkdir()
        done = Running([sys.executable, "-m", "gpt2_train", *words], machine, folder, **environment).end()
        assert (done.code == 0) == fine, done.errors
        assert faults(done) == []
        return done

    return run


@pytest.fixture
def train(on_gpus: Callable[..., Done], corpus: str, tmp_path: Path) -> Callable[..., Done]:
    """`train("--steps", 3, gpus=2)` trains a small model in `tmp_path / "run"`."""

    def run(*flags: object, gpus: int = 1, machine: Gpus | None = None, **more: object) -> Done:
        words = ["train", "--data", corpus, "--output", tmp_path / "run", *SHAPE, *flags]
        return on_gpus(words, machine or Gpus(gpus), **more)

    return run
