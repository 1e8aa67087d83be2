"""`gpt2 train --minutes`, on a clock that tests move."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.gpt2_train import forks
from tests.gpt2_train.conftest import command, losses, rows
from tests.gpt2_train.test_train import assert_same_bits, weights

from gpt2_train.checkpoint.info import read_info
from gpt2_train.checkpoint.save import StagingArea
from gpt2_train.cli import main
from gpt2_train.config.files import METRICS_FILE
from gpt2_train.training import plan, recorder
from gpt2_train.training import trainer as trainer_module
from gpt2_train.training.recorder import Recorder
from gpt2_train.training.trainer import Trainer

Run = Callable[..., int]
FLAGS = ("--save-every", 9, "--dropout", 0.1, "--keep-checkpoints", 0, "--micro-batch-size", 8)


class Machine:
    """One whose clock stands still but for what its work takes."""

    def __init__(self, step: Callable[[float], float], validation: float = 25.0) -> None:
        self.now, self.step, self.validation = 1000.0, step, validation
        self.began = self.now

    @property
    def minutes(self) -> float:
        """Since the run began."""
        return (self.now - self.began) / 60

    def begin(self, monkeypatch: pytest.MonkeyPatch) -> Machine:
        """Train on this machine from now on."""
        self.began = self.now

        def forward_backward(trainer: Trainer, batches: Any) -> torch.Tensor:
            self.now += self.step(self.now - self.began)
            return plain_step(trainer, batches)

        def validate(*arguments: Any, **options: Any) -> tuple[float, int]:
            self.now += self.validation
            return plain_validation(*arguments, **options)

        monkeypatch.setattr(plan, "clock", lambda: self.now)
        monkeypatch.setattr(Trainer, "forward_backward", forward_backward)
        monkeypatch.setattr(recorder, "validation_loss", validate)
        return self


plain_step, plain_validation = Trainer.forward_backward, recorder.validation_loss


def loaded_halfway(seconds: float) -> float:
    """Steps of 12 seconds, of 24 once half of 10 minutes are over."""
    return 12.0 if seconds < 300 else 24.0


def plans(output: Path) -> dict[int, int]:
    """The steps that were planned by each logged step."""
    return {row["step"]: row["steps"] for row in rows(output) if "lr" in row}


def rates(output: Path) -> dict[int, float]:
    return {row["step"]: row["lr"] for row in rows(output) if "lr" in row}


@pytest.mark.parametrize(("late", "evaluate_every"), [(False, 10), (True, 0)], ids=["read at once", "read late"])
def test_a_load_that_comes_halfway_does_not_make_a_run_late(
    tmp_path: Path, gpt2: Run, monkeypatch: pytest.MonkeyPatch, late: bool, evaluate_every: int
) -> None:
    """The number of steps was fixed before the first one: under a load that came later 60 seconds became 108."""
    monkeypatch.setattr(trainer_module, "works_by_itself", lambda device: late)
    machine = Machine(loaded_halfway).begin(monkeypatch)
    flags = ("--schedule", "linear", "--warmup", 0.1, "--eval-every", evaluate_every, "--micro-batch-size", 8)
    assert gpt2(tmp_path, "--minutes", 10, *flags) == 0
    assert 9.5 <= machine.minutes <= 10.5
    assert ["valid_loss" in row for row in rows(tmp_path)][-1]
    found, step = rates(tmp_path), read_info(tmp_path).step
    assert found[step] == 1e-3 and list(found) == list(range(1, step + 1))
    assert found[1] == pytest.approx(1e-3)  # a tenth of the peak
    peak = max(found, key=found.__getitem__)
    assert found[peak] == pytest.approx(1e-2, rel=0.05) and list(found.values())[peak:] == sorted(
        list(found.values())[peak:], reverse=True
    )
    planned = plans(tmp_path)
    assert planned[step] == step < planned[20] and all(later >= at for at, later in planned.items() if at > 1)


def test_a_slow_first_step_is_no_measure_of_the_others(
    tmp_path: Path, gpt2: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiling takes half of the time; warm-up and decay are those of the other half."""
    machine = Machine(lambda seconds: 300.0 if not seconds else 10.0).begin(monkeypatch)
    assert gpt2(tmp_path, "--minutes", 10, "--schedule", "wsd", "--warmup", 0.2, "--cooldown", 0.5) == 0
    assert 9.5 <= machine.minutes <= 10.5
    found = list(rates(tmp_path).values())
    assert found[0] == pytest.approx(1e-3) and found[3] < 0.8e-2 and found[-1] == 1e-3
    assert found[len(found) // 2 - 2] == 1e-2 > found[len(found) // 2 + 2]


def test_a_run_by_time_repeats_what_it_lost_to_the_last_bit(
    tmp_path: Path, gpt2: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rates by the clock could not be repeated; each of its decisions is recorded before its step is taken."""
    whole, again, killed = tmp_path / "whole", tmp_path / "again", tmp_path / "killed"
    Machine(loaded_halfway).begin(monkeypatch)
    assert gpt2(whole, "--minutes", 10, *FLAGS) == 0
    steps = read_info(whole).step
    for output in (again, killed):
        shutil.copytree(whole, output)
        for folder in (output / "checkpoints").glob("step-*"):
            if folder.name > "step-0000009":
                shutil.rmtree(folder)
    # From a checkpoint with all that was decided since, on a machine of another speed.
    Machine(lambda seconds: 1.0).begin(monkeypatch)
    assert gpt2(again, "--minutes", 10, *FLAGS) == 0
    assert_same_bits(whole, again)
    assert rates(again) == rates(whole)
    assert plans(again) == plans(whole)
    # Killed in step 21, whose row was not finished: 20 steps are repeated, and the clock goes on from there.
    lines = (killed / METRICS_FILE).read_bytes().splitlines(keepends=True)
    (killed / METRICS_FILE).write_bytes(b"".join(lines[:20]) + lines[20][:30])
    used = json.loads(lines[19])["used_seconds"]
    machine = Machine(lambda seconds: 40.0).begin(monkeypatch)
    assert gpt2(killed, "--minutes", 10, *FLAGS) == 0
    first, second = losses(whole), losses(killed)
    assert {step: second[step] for step in range(1, 21)} == {step: first[step] for step in range(1, 21)}
    assert rates(killed)[20] == rates(whole)[20] and rates(killed)[24] != rates(whole)[24]
    last = read_info(killed).step
    assert last < steps and rates(killed)[last] == 1e-3
    # Steps 10 to 20 took their time twice, and it counts once.
    assert 9.5 <= used / 60 + machine.minutes - 11 * 40 / 60 <= 10.5


def test_a_run_by_time_that_was_stopped_has_the_rest_of_its_time(
    tmp_path: Path, gpt2: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The time between two processes of a run is none of its own; more minutes make it longer."""

    def interrupt(self: Recorder) -> None:
        after_step(self)
        if self.state.step == 10:
            self.state.stop_signal = 15

    after_step = Recorder.after_step
    machine = Machine(lambda seconds: 20.0).begin(monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "after_step", interrupt)
        assert gpt2(tmp_path, "--minutes", 10, *FLAGS) == 128 + 15
    assert "at step 10 of 29, all saved" in capsys.readouterr().err
    machine.now += 5000
    machine.begin(monkeypatch)
    assert gpt2(tmp_path, "--minutes", 10, *FLAGS) == 0
    assert 9.5 <= 200 / 60 + machine.minutes <= 10.5
    assert read_info(tmp_path).state["time_budget"]["steps"] == read_info(tmp_path).step
    assert tomllib.loads((tmp_path / "config.toml").read_text())["train"]["minutes"] == 10
    capsys.readouterr()
    step = read_info(tmp_path).step
    assert gpt2(tmp_path, "--minutes", 10, *FLAGS) == 0
    assert "ask for more --minutes" in capsys.readouterr().err and read_info(tmp_path).step == step
    machine.begin(monkeypatch)
    assert gpt2(tmp_path, "--minutes", 20, *FLAGS) == 0
    assert machine.minutes == pytest.approx(10, abs=0.6)
    step = read_info(tmp_path).step
    assert gpt2(tmp_path, "--steps", step + 1, *FLAGS) == 0
    assert gpt2(tmp_path, "--minutes", 20, *FLAGS) == 0  # is over, at the next step


def test_minutes_are_refused_where_no_time_is_recorded(
    tmp_path: Path, gpt2: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gpt2(tmp_path, "--steps", 1) == 0
    assert gpt2(tmp_path, "--minutes", 1) == 2
    assert "did not begin with --minutes" in capsys.readouterr().err


@pytest.mark.exhaustive
def test_no_step_of_a_run_by_time_moves_the_weights_by_an_infinite_gradient(
    tmp_path: Path, gpt2: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps that were timed gave the optimizer an overflow of fp16: without a fused AdamW all weights were NaN."""
    monkeypatch.setattr("gpt2_train.optim.adamw.has_fused_adamw", lambda device: False)
    monkeypatch.setattr("gpt2_train.optim.gradients.FIRST_LOSS_SCALE", 2.0**40)
    Machine(lambda seconds: 10.0).begin(monkeypatch)
    assert gpt2(tmp_path, "--minutes", 3, "--precision", "fp16") == 0
    assert rows(tmp_path)[-2]["skipped"] > 0
    assert all(torch.isfinite(weight).all() for weight in weights(tmp_path).values())


@pytest.mark.parametrize(("every", "areas"), [(1000, 0), (3, 1)])
def test_a_run_by_time_makes_a_copy_for_saving_once_something_is_saved(
    tmp_path: Path, gpt2: Run, monkeypatch: pytest.MonkeyPatch, every: int, areas: int
) -> None:
    """12 bytes for each parameter were taken before the first step, though no save in the background ever came."""
    made: list[StagingArea] = []
    plain = StagingArea.__init__
    monkeypatch.setattr(StagingArea, "__init__", lambda area, tensors: made.append(area) or plain(area, tensors))
    Machine(lambda seconds: 10.0).begin(monkeypatch)
    assert gpt2(tmp_path, "--minutes", 1, "--save-every", every) == 0
    assert len(made) == areas


def test_a_run_by_time_without_memory_for_that_copy_saves_while_it_waits(
    tmp_path: Path, gpt2: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The copy is made when the first checkpoint is due: a run that ended then would lose all steps before it."""

    def no_room(area: StagingArea, tensors: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(StagingArea, "__init__", no_room)
    Machine(lambda seconds: 10.0).begin(monkeypatch)
    assert gpt2(tmp_path, "--minutes", 1, "--save-every", 3, "--keep-checkpoints", 0) == 0
    assert "warning: no memory on this machine for the copy" in capsys.readouterr().err
    assert (tmp_path / "checkpoints" / "step-0000003").is_dir()


class OwnClock:
    """The second process would have ended at once by its own."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds * (1 if os.environ.get("RANK", "0") == "0" else 100)


def train_by_own_clocks(late: bool, *words: str) -> None:
    """`gpt2 train` on a machine that soon takes twice the time for a step."""
    clock, plain = OwnClock(), trainer_module.Trainer.forward_backward

    def forward_backward(self: Any, batches: Any) -> Any:
        clock.seconds += 10 if clock.seconds < 60 else 20
        return plain(self, batches)

    plan.clock = clock
    trainer_module.Trainer.forward_backward = forward_backward  # type: ignore[method-assign]
    trainer_module.works_by_itself = lambda device: late
    sys.exit(main(list(words)))


@pytest.mark.parametrize(
    ("flag", "late"),
    [("--data-parallel", True), pytest.param("--tensor-parallel", False, marks=pytest.mark.exhaustive)],
)
def test_several_processes_keep_to_the_clock_of_the_first(
    tmp_path: Path, corpus: str, gpt2: Run, monkeypatch: pytest.MonkeyPatch, flag: str, late: bool
) -> None:
    """Each by its own clock would take other rates and another number of steps, and wait for the others forever."""
    flags = ("--minutes", 2, "--dropout", 0, "--save-every", 3, "--log-every", 100 if late else 1)
    words = command(tmp_path / "two", *flags, flag, 2, data=corpus)
    forks.in_group(1, train_by_own_clocks, late, *words[3:])
    monkeypatch.setattr(trainer_module, "works_by_itself", lambda device: late)
    Machine(lambda seconds: 10.0 if seconds < 60 else 20.0, validation=0.0).begin(monkeypatch)
    assert gpt2(tmp_path / "one", *flags) == 0
    assert plans(tmp_path / "one").keys() == plans(tmp_path / "two").keys() or late
    assert list(plans(tmp_path / "two").values())[-1] == read_info(tmp_path / "two").step >= 7
    assert rates(tmp_path / "two") == pytest.approx(rates(tmp_path / "one"), rel=0.1)
    first, second = losses(tmp_path / "one"), losses(tmp_path / "two")
    assert first == pytest.approx(second, abs=1e-2)
