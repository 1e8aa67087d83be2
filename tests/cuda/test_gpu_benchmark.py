"""Pieces of `benchmarks/gpu.py` on a GPU that is not there: a real one must not be where it fails first.

Losses are 0 there and texts are noise, so that pieces differ from a CPU; but they end, and every part of them works.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.cuda.gpus import Gpus, Running

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
CODE = """
import sys
sys.path.insert(0, sys.argv.pop(1))
import gpu
from gpu_pieces import commands
from tests.gpt2_train import forks
gpu.subprocess = commands.subprocess = forks.forking
sys.exit(gpu.main())
"""
"""The script as a fork, and so are the processes that it starts, of which each would import torch."""
PARTS = {
    "doctor": 1, "train-124M": 2, "loss": 6, "generate": 3, "parity": 2, "nccl": 5, "saving": 1, "killed": 1,
    "memory": 1,
}  # fmt: skip
"""What each piece yields at least; the others take minutes of what these run, too."""


@pytest.mark.exhaustive
def test_the_pieces_run_to_their_end(tmp_path):
    pytest.importorskip("transformers")
    (tmp_path / "asked").mkdir()
    flags = ["--smoke", "--only", *PARTS, "--results", tmp_path / "gpu.json"]
    words = [sys.executable, "-c", CODE, BENCHMARKS, *flags]
    done = Running(words, Gpus(), tmp_path / "asked").end()
    assert done.code == 0, done.output + done.errors
    sections = json.loads((tmp_path / "gpu.json").read_text())["pieces"]
    assert sections.keys() == PARTS.keys()
    for piece, section in sections.items():
        assert "failed" not in section, piece
        assert len(section["results"]) >= PARTS[piece], piece
        assert not [row for row in section["results"].values() if "failed" in row], piece
