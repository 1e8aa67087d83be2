"""`gpt2 train --minutes` and `--threads auto`: what a run settles by measuring, on a clock that tests move."""

from __future__ import annotations

import itertools
import math
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from tests.gpt2_train.test_train import assert_same_bits

from gpt2_train import calibration
from gpt2_train.calibration import fastest, seconds_per_step, thread_counts
from gpt2_train.checkpoint import read_info
from gpt2_train.cli import main
from gpt2_train.layout import overridden_keys
from gpt2_train.time_budget import TimeBudget, steps_that_fit

Run = Callable[..., int]
FLAGS = ("--save-every", 3, "--dropout", 0.1)


@pytest.fixture
def slow_clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each look at the clock finds it a second later: a practice step takes one second."""
    seconds = itertools.count()
    monkeypatch.setattr(calibration, "clock", lambda: float(next(seconds)))
    yield


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_run_by_time_is_the_run_of_its_steps_to_the_last_bit(
    tmp_path: Path, gpt2: Run, slow_clock: None, capsys: pytest.CaptureFixture[str], optimizer: str
) -> None:
    """12 seconds, of which calibration has 3, and the evaluation of 12 sequences half of one."""
    timed, counted = tmp_path / "timed", tmp_path / "counted"
    assert gpt2(timed, "--minutes", 0.2, "--optimizer", optimizer, *FLAGS) == 0
    assert "0.2 minutes hold 8 steps" in capsys.readouterr().err
    assert gpt2(counted, "--steps", 8, "--optimizer", optimizer, *FLAGS) == 0
    assert_same_bits(timed, counted)
    settings = tomllib.loads((timed / "config.toml").read_text())["train"]
    assert settings["steps"] == 8 and "minutes" not in settings


def test_a_run_by_time_resumes_with_the_steps_that_it_began_with(
    tmp_path: Path, gpt2: Run, slow_clock: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A resumed run does not measure again, on a machine that may be slower now; more minutes are at the same speed."""
    from gpt2_train import trainer

    def interrupt(self: trainer.Trainer) -> None:
        after_step(self)
        if self.state.step == 4:
            self.state.stop_signal = 15

    output = tmp_path / "timed"
    after_step = trainer.Trainer.after_step
    with monkeypatch.context() as patch:
        patch.setattr(trainer.Trainer, "after_step", interrupt)
        assert gpt2(output, "--minutes", 0.2, *FLAGS) == 128 + 15
    monkeypatch.setattr(calibration, "seconds_per_step", lambda *_: pytest.fail("measured again"))
    assert gpt2(output, "--minutes", 0.2, *FLAGS) == 0
    whole = tmp_path / "whole"
    assert gpt2(whole, "--steps", 8, *FLAGS) == 0
    assert_same_bits(output, whole)
    capsys.readouterr()
    assert gpt2(output, "--minutes", 0.2, *FLAGS) == 0
    assert "ask for more --minutes" in capsys.readouterr().err
    assert gpt2(output, "--minutes", 0.4, *FLAGS) == 0
    assert read_info(output).step == 16
    assert gpt2(output, "--steps", 17, *FLAGS) == 0
    assert read_info(output).state["time_budget"] == {"minutes": 0.2, "steps": 8}
    assert gpt2(whole, "--minutes", 1) == 2
    assert "did not begin with --minutes" in capsys.readouterr().err


def test_several_processes_take_the_steps_that_the_first_one_counts(
    monkeypatch: pytest.MonkeyPatch, slow_clock: None
) -> None:
    """Each by its own clock would take other steps, and wait for the others forever."""
    of_the_first = iter([5.0, 10.0, 15.0])
    monkeypatch.setattr(calibration, "from_first_rank", lambda work: next(of_the_first))
    assert seconds_per_step(lambda: None, 11) == (5.0, 3)


def test_threads_are_measured_once_and_kept(
    tmp_path: Path, gpt2: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Measuring leaves no trace in the weights, and a run that resumes has the threads that it began with."""
    monkeypatch.setattr("gpt2_train.device.available_cores", lambda: 4)

    def take_longer(function: Callable[[], object], limit: float) -> tuple[float, int]:
        function()
        return {4: 3.0, 2: 2.0, 1: 1.0}[torch.get_num_threads()], 1

    monkeypatch.setattr(calibration, "seconds_per_step", take_longer)
    auto = tmp_path / "auto"
    assert gpt2(auto, "--threads", "auto", "--steps", 2, *FLAGS) == 0
    assert "threads: 1 (a step takes, by threads, 1: 1.000 s, 2: 2.000 s, 4: 3.000 s)" in capsys.readouterr().err
    assert tomllib.loads((auto / "config.toml").read_text())["train"]["threads"] == 1
    monkeypatch.setattr(calibration, "seconds_per_step", lambda *_: pytest.fail("measured again"))
    assert gpt2(auto, "--threads", "auto", "--steps", 4, *FLAGS) == 0
    parts = tmp_path / "parts"
    assert gpt2(parts, "--steps", 2, *FLAGS) == 0
    assert gpt2(parts, "--steps", 4, *FLAGS) == 0
    assert_same_bits(auto, parts)


def test_the_fastest_number_of_threads_wins_over_a_load_that_comes_and_goes() -> None:
    """By the mean of turns; one that is far slower gets no second turn."""
    assert thread_counts(12) == [12, 6, 3, 1]
    times = {4: iter([1.0, 9.0]), 2: iter([1.5, 1.5, 1.5]), 1: iter([5.0])}
    best, seconds = fastest([4, 2, 1], lambda threads: next(times[threads]))
    assert (best, seconds) == (2, {4: 5.0, 2: 1.5, 1: 5.0})


def test_steps_are_timed_for_as_long_as_was_asked(slow_clock: None) -> None:
    taken: list[int] = []
    assert seconds_per_step(lambda: taken.append(1), 3.5) == (1.0, 4)
    assert len(taken) == 4
    assert seconds_per_step(lambda: taken.append(1), 0)[1] == 1


def test_steps_that_fit_leave_time_for_evaluations() -> None:
    assert steps_that_fit(100, 1, 0, 0) == 100
    assert steps_that_fit(100, 1, 10, 0) == 90
    assert steps_that_fit(100, 1, 10, 10) == 45
    assert steps_that_fit(-5, 1, 10, 0) == 1
    assert TimeBudget(2.5, 900).steps_in(2.5) == 900
    assert TimeBudget(2.5, 900).steps_in(5) == 1800


@pytest.mark.parametrize("other", ["steps", "epochs", "tokens"])
def test_a_length_in_minutes_stands_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str], other: str) -> None:
    assert main(["train", "--data", "x", "--output", str(tmp_path), "--minutes", "1", f"--{other}", "1"]) == 2
    assert "give one of --steps, --epochs, --tokens and --minutes." in capsys.readouterr().err
    assert other in overridden_keys(["minutes"]) and "minutes" in overridden_keys([other])


@pytest.mark.parametrize("minutes", ["0", "-1", str(math.inf), "nan"])
def test_minutes_are_a_positive_number(tmp_path: Path, capsys: pytest.CaptureFixture[str], minutes: str) -> None:
    assert main(["train", "--data", "x", "--output", str(tmp_path), f"--minutes={minutes}"]) == 2
    assert "--minutes" in capsys.readouterr().err
