"""kill -9 at any moment of a save: the newest whole checkpoint opens, and the run goes on to the same bits."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from tests.gpt2_train import forks, layout_runs
from tests.gpt2_train.conftest import command
from tests.gpt2_train.test_train import assert_same_bits
from tests.power_cuts import Watched

from command_kit import settings_from
from command_kit.settings import as_table
from gpt2_train.checkpoint import tensor_files
from gpt2_train.checkpoint.info import list_checkpoints, read_info
from gpt2_train.checkpoint.save import Checkpointer, Saver
from gpt2_train.checkpoint.verify import verify_checkpoint
from gpt2_train.cli import make_parser
from gpt2_train.config.settings import TrainSettings

FLAGS = ("--steps", 6, "--save-every", 2, "--keep-checkpoints", 0, "--dropout", 0.1)
LAYOUTS: dict[str, tuple[int, tuple[object, ...]]] = {
    "one": (1, ()),
    "two halves": (2, ("--tensor-parallel", 2)),
    "two shares": (2, ("--data-parallel", 2)),
}
MOMENTS = 110
"""Writes, flushes and renames of a save on the first process, about; a moment after the last is in the next one."""


def settings_of(output: Path, layout: str, corpus: str) -> dict[str, Any]:
    """The settings of a run, as `layout_runs.work` takes them."""
    arguments = make_parser("train").parse_args(command(output, *FLAGS, *LAYOUTS[layout][1], data=corpus)[3:])
    return {"id": layout, "settings": as_table(settings_from(TrainSettings, arguments, command="train"))}


def work_until(folder: str, run: dict[str, Any], rank: int, moment: int) -> None:
    """One process of a run; that of `rank` is killed at a moment of its saves, counted from the second save on."""
    left = [moment]

    def counted(plain: Callable[..., Any]) -> Callable[..., Any]:
        def deadly(*arguments: Any, **options: Any) -> Any:
            left[0] -= saving[0]
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return plain(*arguments, **options)

        return deadly

    saving = [False]
    begin = Checkpointer._begin

    def begun(checkpointer: Checkpointer, unfinished: Path) -> None:
        saving[0] = "step-0000002" not in unfinished.name
        begin(checkpointer, unfinished)

    if rank == (dist.get_rank() if dist.is_initialized() else 0):
        Checkpointer._begin = begun  # type: ignore[method-assign]
        tensor_files._CountedFile.write = counted(tensor_files._CountedFile.write)  # type: ignore[method-assign]
        os.fsync, os.replace = counted(os.fsync), counted(os.replace)
    layout_runs.work(folder, run)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory, corpus: str) -> Callable[[str], Path]:
    """The run of a layout that nobody disturbed, trained when it is first asked for."""
    folder = tmp_path_factory.mktemp("unbroken")

    def run(layout: str) -> Path:
        if not (folder / layout).exists():
            forks.in_group(LAYOUTS[layout][0], layout_runs.work, folder, settings_of(folder / layout, layout, corpus))
        return folder / layout

    return run


def moments(layout: str, number: int) -> list[Any]:
    """Some processes of a layout, and moments at which each is killed, all but the first exhaustive."""
    generator = random.Random(layout)
    size = LAYOUTS[layout][0]
    marks = [() if layout != "two halves" and not count else pytest.mark.exhaustive for count in range(number)]
    return [
        pytest.param(layout, generator.randrange(size), generator.randrange(MOMENTS * 3 // 2), marks=mark)
        for mark in marks
    ]


@pytest.mark.parametrize(("layout", "rank", "moment"), [one for layout in LAYOUTS for one in moments(layout, 40)])
def test_a_run_killed_at_any_moment_of_a_save_goes_on_to_the_same_bits(
    layout: str, rank: int, moment: int, tmp_path: Path, corpus: str, unbroken: Callable[[str], Path]
) -> None:
    size, run = LAYOUTS[layout][0], settings_of(tmp_path / "run", layout, corpus)
    done = forks.in_group(size, work_until, tmp_path, run, rank, moment, fails=True)
    assert done[rank].returncode in (-signal.SIGKILL, 0)
    found = list_checkpoints(tmp_path / "run" / "checkpoints")
    assert found and not any(verify_checkpoint(folder, int).problems for folder in found)
    forks.in_group(size, layout_runs.work, tmp_path, run)
    assert_same_bits(unbroken(layout), tmp_path / "run")


def test_after_a_power_cut_each_checkpoint_is_whole_and_the_newest_that_was_saved_is_there(
    tmp_path: Path, gpt2: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A removed step came back without its files, a new run's folders were gone, and rows of metrics.jsonl, too."""
    root, told = tmp_path / "root", Saver.finish
    root.mkdir()
    with Watched(root) as watched:

        def finish(saver: Saver) -> None:
            told(saver)
            watched.say("saved")

        monkeypatch.setattr(Saver, "finish", finish)
        assert gpt2(root / "run", "--steps", 3, "--save-every", 1, "--keep-checkpoints", 1) == 0
    steps = [0, 0, 1, 2, 3]
    for promises, disk in watched.disks(every=6):
        found = list_checkpoints(root / "run" / "checkpoints")
        assert not any(verify_checkpoint(folder, int).problems for folder in found), disk
        newest = read_info(root / "run").step if found else 0
        assert newest >= steps[min(promises, 4)], disk
        rows = (root / "run" / "metrics.jsonl").read_text().splitlines() if newest else []
        assert [json.loads(row)["step"] for row in rows[:newest]] == list(range(1, newest + 1)), disk
