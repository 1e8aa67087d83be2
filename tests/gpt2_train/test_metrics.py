"""`metrics.jsonl`: what a run that resumes keeps of it."""

from __future__ import annotations

import json
from pathlib import Path

from tests.gpt2_train.conftest import rows

from command_kit.colours import PLAIN, Paint
from gpt2_train.distributed.mesh import painted
from gpt2_train.metrics.log import MetricsLog


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


def test_lines_have_the_colours_of_progress_and_a_model_s_text_has_none() -> None:
    def shown(line: str) -> str:
        assert painted(line, PLAIN) == line
        return painted(line, Paint(True)).replace("\x1b[0m", "]").replace("\x1b[", "[")

    assert shown("model: 4 layers, hidden 64") == "[1mmodel:] 4 layers, hidden 64"
    assert shown("warning: a slow disk") == "[33mwarning:] a slow disk"
    assert shown("step 1/1,000  loss 8.19  lr 0.1  16:35 left") == (
        "[1mstep 1/1,000]  [36mloss 8.19]  lr 0.1  [32m16:35 left]"
    )
    assert shown("step 3/4  valid loss nan  (9 tokens)") == "[1mstep 3/4]  [36mvalid loss nan]  (9 tokens)"
    assert shown("step 3/4  sample  'A' 'loss 3: 2:00\\nleft'") == "[1mstep 3/4]  sample  'A' 'loss 3: 2:00\\nleft'"
    assert shown("resuming a run at step 3") == "resuming a run at step 3"
