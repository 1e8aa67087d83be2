"""What came of a step is read one step late; that the host waits for nothing else: tests/cuda/test_steps.py."""

from __future__ import annotations

import io
import json
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.gpt2_train.conftest import in_step, losses, rows

from gpt2_train.checkpoint.info import read_info
from gpt2_train.training import trainer as train_module
from gpt2_train.training.state import Heartbeat, StepResult
from gpt2_train.training.trainer import Trainer

Run = Callable[..., int]


class Screen(io.StringIO):
    """A terminal that shows what was written to it."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Training on CPU as on a GPU: (step read, steps begun) of each reading of a step's result."""
    read: list[tuple[int, int]] = []
    plain_step, plain_read = Trainer.train_step, StepResult.read
    begun = 0

    def counted_step(self: Trainer) -> bool:
        nonlocal begun
        begun = self.state.step + 1
        return plain_step(self)

    def noted(self: StepResult) -> None:
        read.append((self.step, begun))
        plain_read(self)

    monkeypatch.setattr(train_module, "works_by_itself", lambda device: True)
    monkeypatch.setattr(Trainer, "train_step", counted_step)
    monkeypatch.setattr(StepResult, "read", noted)
    return read


SETTINGS = ("--steps", 12, "--log-every", 5, "--eval-every", 4, "--save-every", 6, "--eval-tokens", 128)


def test_the_loss_of_a_step_is_read_one_step_late(
    tmp_path: Path, gpt2: Run, late: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert gpt2(tmp_path / "late", *SETTINGS, "--dropout", 0.1) == 0
    settled = {1, 4, 5, 6, 8, 10, 12}  # Logged, validated or saved.
    first = dict(reversed(late))
    assert first == {step: step if step in settled else step + 1 for step in range(1, 13)}
    monkeypatch.undo()
    assert gpt2(tmp_path / "plain", *SETTINGS, "--dropout", 0.1) == 0
    assert losses(tmp_path / "late") == losses(tmp_path / "plain")
    left, right = (
        [(row["step"], row.get("grad_norm"), row.get("valid_loss")) for row in rows(tmp_path / name)]
        for name in ("late", "plain")
    )
    assert left == right


def test_a_line_that_shows_life_waits_for_nothing(
    tmp_path: Path, gpt2: Run, late: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each process shows one by its own clock: one that read the outcome of a step for it would be ahead of others."""
    monkeypatch.setattr(Heartbeat, "is_due", lambda self: True)
    screen = Screen()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    assert gpt2(tmp_path, "--steps", 6, "--log-every", 100, "--no-save") == 0
    assert dict(reversed(late)) == {1: 1, 2: 3, 3: 4, 4: 5, 5: 6, 6: 6}
    # On a terminal each takes the place of the one before it.
    assert re.search(r"\r\x1b\[Kstep 4/6 .*?\r\x1b\[Kstep 5/6 ", screen.getvalue())
    assert "\nstep 4/6" not in screen.getvalue()


@pytest.mark.usefixtures("late")
def test_a_diverged_run_is_found_out_one_step_late_and_not_saved(
    tmp_path: Path, gpt2: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Steps 3 to 5 have no finite gradient; the third changes nothing, and the fourth is the last one begun."""
    plain, calls = train_module.gradient_norm, []

    def norm(parameters: Any) -> torch.Tensor:
        calls.append(1)
        return plain(parameters) * (float("nan") if len(calls) > 2 else 1.0)

    monkeypatch.setattr(train_module, "gradient_norm", norm)
    assert gpt2(tmp_path, "--steps", 20, "--log-every", 10, "--save-every", 2) == 1
    assert "the gradient of step 3 is not finite" in capsys.readouterr().err
    assert len(calls) == 4 and read_info(tmp_path).step == 2


def test_a_signal_ends_a_run_after_a_step(
    tmp_path: Path, gpt2: Run, late: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_step(monkeypatch, 3, lambda: signal.raise_signal(signal.SIGTERM))
    assert gpt2(tmp_path, "--steps", 20, "--log-every", 10) == 128 + signal.SIGTERM
    assert read_info(tmp_path).step == 4
    monkeypatch.undo()
    assert gpt2(tmp_path, "--steps", 6) == 0
    assert json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])["step"] == 6
