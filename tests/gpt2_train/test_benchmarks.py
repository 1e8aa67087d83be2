"""The benchmarks of training run, on a tiny model: what is measured on a GPU must not fail there first."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="needs transformers")
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

    from gpt2_train.model.gpt2 import GPT2
    from gpt2_train.model.loss import token_losses

    config = benchmark("gpu_pieces.bench").TINY
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


@pytest.mark.exhaustive
def test_what_a_gpu_is_to_measure_is_measured_on_a_cpu() -> None:
    """On a tiny model all ways of the loss give one loss, and the parallel paths the plain model's losses."""
    code = (
        "import json\n"
        "from gpu_pieces import kernels, training\n"
        "works = kernels.loss, training.nccl, training.train_124m, training.saving, training.copies\n"
        "print(json.dumps([dict(work(smoke=True)) for work in works]))\n"
    )
    environment = os.environ | {"OMP_NUM_THREADS": "1"}  # threads that share a busy core only wait for each other
    done = subprocess.run([sys.executable, "-c", code], cwd=BENCHMARKS, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

    loss, group, speed, saving, copies = json.loads(done.stdout.splitlines()[-1])
    ways = [row["loss"] for row in loss.values()]
    assert len(ways) > 3
    assert ways == pytest.approx([loss["cross_entropy"]["loss"]] * len(ways), rel=1e-5)
    assert len(group) == 5
    assert group["losses"]["largest_difference"] < 1e-5
    assert speed["not compiled"]["tokens_per_second"] > 0
    assert 0 <= saving["save"]["stall_seconds"] <= saving["save"]["seconds_until_written"]
    assert all("tokens_per_second" in row for row in copies.values())


PIECES_OF_A_TEST = """
import os, signal

def fine(*, smoke):
    yield "blocks", {"tokens_per_second": 2e5, "estimate_over_peak": 1.0}
    yield "model", {"failed": "out of memory"}
    yield "not compiled", {"estimate_over_peak": 1.3}

def failing(*, smoke):
    yield "kept", {"ms": 3}
    raise RuntimeError("Invalid argument")

def killed(*, smoke):
    yield "kept", {"ms": 3}
    os.kill(os.getpid(), signal.SIGKILL)

def slow(*, smoke):
    yield "kept", {"ms": 3}
    signal.pause()
"""


@pytest.fixture
def run_pieces(benchmark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`run_pieces(...)` is a call of gpu.py, as on an H100, with pieces that end at once; (status, saved sections)."""
    gpu = benchmark("gpu")
    (tmp_path / "pieces_of_a_test.py").write_text(PIECES_OF_A_TEST)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(gpu, "describe_machine", lambda: {"gpu": "NVIDIA H100", "versions": {"torch": "2"}})
    names = {"train-124M": "fine", "loss": "failing", "muon": "killed", "serve": "slow"}
    pieces = [gpu.Piece(name, f"pieces_of_a_test:{work}", 0.001, "?") for name, work in names.items()]

    def run(*words: str) -> tuple[int, dict[str, Any]]:
        status = gpu.main([*words, "--results", str(tmp_path / "gpu.json")], pieces)
        return status, json.loads((tmp_path / "gpu.json").read_text())["pieces"]

    return run


def test_a_failing_piece_of_the_gpu_benchmark_costs_that_piece_alone(run_pieces: Any) -> None:
    """A traceback in one way of the loss lost what came after it, and what the piece had found before."""
    status, found = run_pieces("--only", "loss", "muon", "train-124M")
    assert status == 1
    assert found["loss"]["failed"] == "RuntimeError: Invalid argument"
    assert found["muon"]["failed"] == "its process ended with status -9"
    assert all(found[name]["results"] == {"kept": {"ms": 3}} for name in ("loss", "muon"))
    assert "failed" not in found["train-124M"]


def test_the_gpu_benchmark_says_what_differs_from_the_account(run_pieces: Any) -> None:
    _, found = run_pieces("--only", "train-124M")
    assert found["train-124M"]["differs"] == [
        "model: out of memory",
        "blocks: tokens_per_second is 200,000, 53% below the 430,000 to 540,000 that are expected",
        "not compiled: estimate_over_peak is 1.3, 18% above the 0.9 to 1.1 that are expected",
    ]


def test_what_has_to_be_right_is_compared_in_the_smallest_form_and_on_every_gpu(benchmark: Any) -> None:
    results = {"resume": {"resumed": 0}, "losses": {"largest_difference": 0.5}}
    found = {"machine": {}, "results": results}
    differences = benchmark("gpu_pieces.account").differences
    assert differences("killed", found, smoke=True) == ["resume: resumed is 0 and should be 1"]
    assert differences("nccl", found, smoke=True) == ["losses: largest_difference is 0.5 and should be at most 0.01"]
    assert differences("muon", found, smoke=True) == []


def test_the_account_of_a_step_counts_where_there_is_one(benchmark: Any, tmp_path: Path) -> None:
    """Of the same GPU, model, way to compile and micro-batch."""
    account = benchmark("gpu_pieces.account")
    step = {"micro_batch": 32, "tokens_per_second": 100_000}
    steps = {"H100, 124M, blocks": step, "A100, 124M, blocks": step | {"tokens_per_second": 1}}
    (tmp_path / "roofline.json").write_text(json.dumps({"steps": steps}))
    row = {"tokens_per_second": 120_000, "estimate_over_peak": 1.0, "micro_batch": 32}
    found = {
        micro: account.differences(
            "train-124M",
            {"machine": {"gpu": "NVIDIA H100 80GB HBM3"}, "results": {"blocks": row | {"micro_batch": micro}}},
            smoke=False,
            roofline=tmp_path / "roofline.json",
        )
        for micro in (32, 16)
    }
    ours = "blocks: tokens_per_second is 120,000"
    assert f"{ours}, 9% above the 90,000 to 110,000 that are expected" in found[32]
    assert f"{ours}, 72% below the 430,000 to 540,000 that are expected" in found[16]


def test_the_gpu_benchmark_goes_on_where_it_was(run_pieces: Any, capfd: pytest.CaptureFixture[str]) -> None:
    """What is saved is not run again unless it is asked for; a piece that hangs ends with the time of its call."""
    assert run_pieces("--only", "train-124M")[0] == 0
    capfd.readouterr()
    status, found = run_pieces("--only", "train-124M", "serve", "--minutes", "0.02")
    assert status == 1
    assert found["serve"]["failed"].startswith("it had not ended after")
    output = capfd.readouterr().out
    assert "serve (1 of 1)" in output and "train-124M (" not in output
    assert run_pieces()[0] == 1  # those that are left, which fail
    assert "serve (" not in capfd.readouterr().out
    assert run_pieces("--again", "train-124M")[0] == 0
    assert "train-124M (1 of 1)" in capfd.readouterr().out
