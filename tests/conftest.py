"""For all tests: property tests try the same examples on every run, however slow the machine; a full disk."""

import gc
import importlib
import os
import signal
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

import hypothesis
import pytest

from command_kit import atomic, available_cores

# A shell lets its background jobs ignore Ctrl-C, and the commands that tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Those who want colour everywhere (as some CI does) don't want it in what tests compare.
os.environ.pop("FORCE_COLOR", None)

# Thousands of processes are started; those that import torch take twice the time where they have to compile it.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Compiles in the process that asks: a pool of others is as many imports of torch, for a few small kernels.
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"

# megatron-core is installed on Linux only.
collect_ignore = [] if sys.platform == "linux" else ["indexed_tokens/test_megatron.py"]


# Each run of `gpt2 train` looks for garbage three times. What has been imported is none: see `frozen_imports`.
freeze = gc.freeze
gc.freeze = gc.unfreeze = lambda: None


@pytest.fixture(autouse=True)
def frozen_imports() -> None:
    """What there is before a test is not looked at again by the garbage collector, which takes half a second."""
    gc.collect()
    freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Processes of `-n auto`: two for each core, as tests often wait; up to 8, whose memory a laptop has."""
    return min(8, 2 * available_cores())


COMPILED_FIRST = (
    ("torch", "torch.distributed.checkpoint"),
    ("webtext_prep.dedup.kernels",),
    (
        "webtext_prep.text.fingerprint_kernels",
        "webtext_prep.text.classifier_kernels",
        "webtext_prep.documents.line_kernels",
    ),
    ("webtext_prep.tokens.pair_merging", "webtext_prep.tokens.suffix_sorting"),
)
"""What takes longest to import in a new clone, where neither Python nor numba has compiled anything."""


def pytest_collection() -> None:
    """Each process of `-n` begins with another part of that: all would compile the same, or wait for one that does."""
    process = os.environ.get("PYTEST_XDIST_WORKER")
    if process:
        first = int(process.removeprefix("gw")) % len(COMPILED_FIRST)
        for part in (*COMPILED_FIRST[first:], *COMPILED_FIRST[:first]):
            for module in part:
                importlib.import_module(module)


def pytest_configure(config: pytest.Config) -> None:
    """Property tests try more examples where the exhaustive tests run."""
    hypothesis.settings.register_profile(
        "same every time",
        derandomize=True,
        database=None,
        deadline=None,
        max_examples=25 if config.option.markexpr == "not exhaustive" else 300,
        suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.function_scoped_fixture],
    )
    hypothesis.settings.load_profile("same every time")


@pytest.fixture
def plugin(tmp_path, monkeypatch) -> Iterator[Callable[..., None]]:
    """`plugin(package, name, source)` adds a file of another folder to a package of plugins.

    `cache` is what remembers the plugins that there are.
    """
    folder, added, caches = tmp_path / "plugins", [], []

    def add(package: ModuleType, name: str, source: str, cache: Any = None) -> None:
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.py").write_text(source)
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
        added.append(f"{package.__name__}.{name}")
        caches.extend([cache] if cache else [])
        clear()

    def clear() -> None:
        for cache in caches:
            cache.cache_clear()

    yield add
    clear()
    for name in added:
        sys.modules.pop(name, None)


@pytest.fixture
def disk_full_for(monkeypatch) -> Callable[..., None]:
    """`disk_full_for(name, times=None)`: the disk is full when a file of this name is written atomically.

    With `times`, only for the first so many attempts.
    """

    def fill(name: str, times: int | None = None) -> None:
        create, lock, left = atomic._create, atomic._lock, times

        def lock_files(descriptor: int) -> bool:
            # All full files are the same device, of which only one could be locked.
            return stat.S_ISCHR(os.fstat(descriptor).st_mode) or lock(descriptor)

        monkeypatch.setattr(atomic, "_lock", lock_files)

        def open_full(unfinished: Path) -> BinaryIO:
            nonlocal left
            if not unfinished.name.startswith(f".{name}.") or left == 0:
                return create(unfinished)
            left = None if left is None else left - 1
            unfinished.touch()
            return Path("/dev/full").open("wb")

        monkeypatch.setattr(atomic, "_create", open_full)

    return fill
