"""The account of benchmarks/roofline.py: what it adds up is what a step of the model takes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cuda.gpus import Gpus, Running

from gpt2_train.config.settings import ModelConfig

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
CODE = """
import json, pathlib, tempfile
import roofline
config = roofline.ModelConfig(2, 128, 2, sequence_length=128, vocabulary_size=1000, dropout=0.0)
card = roofline.CARDS["H100"]
with tempfile.TemporaryDirectory() as name:
    for compiled in (False, True):
        more = {"attention": "flash", "compile": compiled}
        found = roofline.kernels_of(card, config, 4, pathlib.Path(name, str(compiled)), "", **more)
        print(json.dumps(found["micro_batch"]))
"""


@pytest.mark.exhaustive
def test_the_account_has_the_flops_of_the_formula(monkeypatch):
    """Products and attention come to 6N and half of 12·l·h·s for each token, since attention is causal; also where
    blocks are compiled."""
    for name, value in Gpus().environment().items():
        monkeypatch.setenv(name, value)
    done = subprocess.run([sys.executable, "-c", CODE], cwd=BENCHMARKS, capture_output=True, text=True, check=True)
    config = ModelConfig(2, 128, 2, sequence_length=128, vocabulary_size=1000, dropout=0.0)
    matrices = 12 * config.layers * config.hidden**2 + config.padded_vocabulary * config.hidden
    # Backward, attention takes 2.5 times as much as forward: its scores are made again.
    attention = 3.5 * 4 * config.layers * config.hidden * config.sequence_length / 2
    for sums in map(json.loads, done.stdout.splitlines()[-2:]):
        flops = sum(row[2] for name, row in sums.items() if name != "launches")
        assert flops == pytest.approx((6 * matrices + attention) * 4 * config.sequence_length)
        assert sums["launches"][0] > 10 * config.layers


@pytest.mark.parametrize("quiet", [False, True])
def test_a_quiet_device_counts_nothing(quiet, tmp_path):
    """What counts costs time that would pass for the host's."""
    words = [sys.executable, "-c", "import torch; torch.zeros(9, device='cuda').add_(1)"]
    done = Running(words, Gpus(), tmp_path, **({"NULL_CUDA_QUIET": "1"} if quiet else {})).end()
    assert done.code == 0, done.errors
    assert bool(done.asked) != quiet
