"""`metrics.jsonl`: what a run that resumes keeps of it."""

from __future__ import annotations

import json
from pathlib import Path

from tests.gpt2_train.conftest import rows

from gpt2_train.metrics import MetricsLog


def test_a_resumed_run_counts_the_seconds_of_training_on_from_its_checkpoint(tmp_path: Path) -> None:
    found = [{"step": 5, "seconds": 1000.0}, {"step": 10, "seconds": 2000.0}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in found) + '{"step": 11, "se')
    log = MetricsLog(tmp_path, True, 5)
    log.write({"step": 6, "loss": 3.0})
    kept, new = rows(tmp_path)
    assert kept == found[0]
    assert new["step"] == 6 and 1000 <= new["seconds"] < 1900


def test_processes_other_than_the_first_write_nothing(tmp_path: Path) -> None:
    MetricsLog(tmp_path, False, 0).write({"step": 1})
    assert not list(tmp_path.iterdir())
