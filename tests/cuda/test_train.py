"""`gpt2 train` on GPUs that are not there: every layout runs to its end, one process and one context a GPU."""

import json
import re

import pytest
from tests.cuda.gpus import Gpus

SAVING = ["--steps", 4, "--eval-every", 2, "--save-every", 2]


def working(done) -> list:
    """The processes that computed something."""
    return [asked for asked in done.asked if asked.calls("product")]


@pytest.mark.parametrize(
    ("gpus", "flags"),
    [
        (1, "--precision fp32"),
        (1, "--precision fp16 --activation-checkpointing selective"),
        (1, "--documents separate --dropout 0"),
        pytest.param(2, "--optimizer muon", marks=pytest.mark.exhaustive),
        pytest.param(2, "--reshard --activation-checkpointing full", marks=pytest.mark.exhaustive),
        (2, "--tensor-parallel 2"),
        (4, "--data-parallel-replicate 2"),
        pytest.param(4, "--tensor-parallel 2", marks=pytest.mark.exhaustive),
        pytest.param(2, "--tensor-parallel 2 --optimizer muon", marks=pytest.mark.exhaustive),
        pytest.param(2, "--tensor-parallel 2 --documents separate --dropout 0", marks=pytest.mark.exhaustive),
        pytest.param(4, "", marks=pytest.mark.exhaustive),
        pytest.param(4, "--tensor-parallel 2 --reshard", marks=pytest.mark.exhaustive),
        pytest.param(8, "--tensor-parallel 2 --data-parallel-replicate 2", marks=pytest.mark.exhaustive),
    ],
)
def test_every_layout_trains_validates_and_saves(train, tmp_path, gpus, flags):
    """Each process computes on a GPU of its own, and makes no context on another (half a gigabyte there each)."""
    done = train(*SAVING, *flags.split(), gpus=gpus)
    assert sorted(gpu for asked in working(done) for gpu in asked.contexts) == [str(gpu) for gpu in range(gpus)]
    assert (tmp_path / "run" / "checkpoints" / "latest").read_text().strip() == "step-0000004"
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "valid_loss" in row] == [2, 4]


def test_samples_and_tasks_during_training(train, tmp_path):
    """The model that trains writes texts and is scored without a second copy of it on the GPU."""
    train("--steps", 2, "--sample-every", 2, "--sample-prompt", "The cat", "Once upon", "--dropout", 0)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    samples = [(row["step"], row["prompt"]) for row in rows if row.get("kind") == "sample"]
    assert samples == [(step, prompt) for step in (0, 2) for prompt in ("The cat", "Once upon")]


def test_the_largest_micro_batch_is_found_and_told(train):
    """`--micro-batch-size auto` on a small GPU takes what fits, and says so."""
    shape = ["--micro-batch-size", "auto", "--global-batch-size", 64, "--sequence-length", 512]
    done = train("--steps", 1, *shape, machine=Gpus(memory=1.5))
    told = re.search(r"(\d+) × (\d+) sequences each", done.errors)
    assert told is not None
    micro, accumulation = map(int, told.groups())
    assert 1 < micro < 64 and micro * accumulation == 64
    assert max(working(done)[0].peak_bytes) <= 1.5 * 2**30
