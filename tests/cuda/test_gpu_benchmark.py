"""Pieces of `benchmarks/gpu.py` on a GPU that is not there: a real one must not be where it fails first.

Losses are 0 there and texts are noise, so that pieces differ from a CPU; but they end, and every part of them works.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.cuda.gpus import Gpus, Running

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu.py"
PARTS = {
    "doctor": 1, "train-124M": 3, "loss": 6, "generate": 3, "parity": 2, "nccl": 5, "saving": 1, "killed": 1,
    "memory": 1,
}  # fmt: skip
"""What each piece yields at least; the others take minutes of what these run, too."""


@pytest.mark.exhaustive
@pytest.mark.parametrize("piece", PARTS)
def test_a_piece_runs_to_its_end(piece, tmp_path):
    pytest.importorskip("transformers")
    (tmp_path / "asked").mkdir()
    words = [sys.executable, SCRIPT, "--smoke", "--only", piece, "--results", tmp_path / "gpu.json"]
    one_thread = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    done = Running(words, Gpus(), tmp_path / "asked", is_fork=False, **one_thread).end()
    assert done.code == 0, done.output + done.errors
    section = json.loads((tmp_path / "gpu.json").read_text())["pieces"][piece]
    assert "failed" not in section
    assert len(section["results"]) >= PARTS[piece]
    assert not [row for row in section["results"].values() if "failed" in row]
