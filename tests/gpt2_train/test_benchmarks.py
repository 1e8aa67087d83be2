"""The benchmarks of training run, on a tiny model: what is measured on a GPU must not fail there first."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")
BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def benchmark() -> Any:
    """A function from the name of a benchmark to its module."""
    before = sys.path[:]
    sys.path.insert(0, str(BENCHMARKS))
    yield importlib.import_module
    sys.path[:] = before


def test_the_steps_of_all_three_are_compared(benchmark: Any, tmp_path: Path) -> None:
    train = benchmark("train")
    row = train.compared(train.TINY[0], tmp_path)
    assert set(row["cpu_seconds_per_step"]) == {"ours", "transformers", "minimal"}
    assert all(seconds > 0 for seconds in row["cpu_seconds_per_step"].values())
    assert sum(row["parts"].values()) == pytest.approx(1, abs=0.01)


def test_all_three_learn_the_same_from_the_same_weights(benchmark: Any) -> None:
    """The minimal model is GPT-2: with our weights it has our loss."""
    import torch

    from gpt2_train.loss import token_losses
    from gpt2_train.model import GPT2

    config = benchmark("gpu").TINY
    ours = GPT2(config).initialise(torch.Generator().manual_seed(1))
    minimal = benchmark("minimal_gpt2").MinimalGPT2(2, 64, 4, 64, 500)
    minimal.load_state_dict(_renamed(ours.state_dict(), heads=config.heads))
    tokens = torch.randint(0, 500, (2, 65), generator=torch.Generator().manual_seed(2))
    loss = token_losses(ours(tokens[:, :-1]), tokens[:, 1:]).mean()
    assert float(minimal(tokens[:, :-1], tokens[:, 1:]).detach()) == pytest.approx(float(loss.detach()), abs=1e-5)


def _renamed(state: dict[str, Any], heads: int) -> dict[str, Any]:
    names = {
        "token_embedding": "tokens", "position_embedding": "positions", "final_norm": "norm",
        "attention_norm": "norm1", "feed_forward_norm": "norm2", "attention.qkv": "qkv", "attention.out": "out",
        "feed_forward.up": "up", "feed_forward.down": "down",
    }  # fmt: skip
    found = {}
    for name, value in state.items():
        if ".attention.qkv." in name:  # rows [heads, 3, d] -> [3, heads, d]
            value = value.unflatten(0, (heads, 3, -1)).transpose(0, 1).flatten(0, 2)
        for old, new in names.items():
            name = name.replace(f"{old}.", f"{new}.")
        found[name] = value
    return found


def test_the_gpu_benchmark_runs_on_a_cpu() -> None:
    """All that it measures is measured on a tiny model, and the parallel paths give the plain model's losses."""
    code = (
        "import json, gpu\n"
        "bench = gpu.Bench(smoke=True)\n"
        "found = gpu.size_results(bench, 'tiny', gpu.TINY, smoke=False)\n"
        "print(json.dumps([found, gpu.group_of_one(bench, gpu.TINY)]))\n"
    )
    environment = os.environ | {"OMP_NUM_THREADS": "1"}  # threads that share a busy core only wait for each other
    done = subprocess.run([sys.executable, "-c", code], cwd=BENCHMARKS, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

    found, group = json.loads(done.stdout.splitlines()[-1])
    assert {way: best["micro_batch"] for way, best in found["fastest"].items()} == dict.fromkeys(
        ("ours", "transformers", "minimal"), 2
    )
    assert found["kernels"]
    ways = {row["way"]: row["loss"] for row in found["losses"]}
    assert len(ways) > 3
    assert list(ways.values()) == pytest.approx([ways["cross_entropy"]] * len(ways), rel=1e-5)
    assert 0 <= found["saving"]["stall_seconds"] <= found["saving"]["seconds_until_written"]
    assert group["largest_difference"] < 1e-5
