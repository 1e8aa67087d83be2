"""Checkpoints that are written while training goes on: as safe as those that it waits for."""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from tests.gpt2_train import forks
from tests.gpt2_train.conftest import in_step, losses
from tests.gpt2_train.small_models import SMALL

from gpt2_train.checkpoint import save
from gpt2_train.checkpoint.info import CheckpointInfo, list_checkpoints, read_info
from gpt2_train.checkpoint.optimizer_state import load_optimizer
from gpt2_train.checkpoint.save import Checkpointer, Saved, Saver, StagingArea, model_tensors
from gpt2_train.config.errors import Gpt2Error
from gpt2_train.config.settings import TrainSettings
from gpt2_train.conversion.formats import open_weights
from gpt2_train.distributed.collectives import group_for_a_thread
from gpt2_train.distributed.mesh import fill, make_world
from gpt2_train.distributed.parallelize import parallelize
from gpt2_train.model.gpt2 import GPT2
from gpt2_train.optim.adamw import make_optimizer

Run = Callable[..., int]
LONG = 60.0
"""Seconds after which a gate that nobody opens counts as closed for good."""


class Gate:
    """Holds back the writing of one checkpoint until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
        self._opened = threading.Event()
        self.held: list[bool] = []
        plain = Checkpointer._write

        def held_back(checkpointer: Checkpointer, unfinished: Path, *rest: Any) -> Any:
            if f"step-{step:07d}" in unfinished.name:
                self.held.append(self._opened.wait(LONG))
            return plain(checkpointer, unfinished, *rest)

        monkeypatch.setattr(Checkpointer, "_write", held_back)

    def open(self) -> None:
        self._opened.set()

    @property
    def was_opened(self) -> bool:
        """Whether the writer passed because the gate was opened, and not since nobody came."""
        return self.held == [True]


def tensor_files(step: Path) -> dict[str, bytes]:
    return {path.relative_to(step).as_posix(): path.read_bytes() for path in sorted(step.glob("*.safetensors"))}


def test_training_goes_on_while_a_checkpoint_is_written(
    tmp_path: Path, gpt2: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The checkpoint of step 5 is held back until step 7 is under way, and holds what there was after step 5."""
    flags = ("--steps", 8, "--save-every", 5)
    assert gpt2(tmp_path / "waiting", *flags, "--no-async-checkpoint") == 0
    capsys.readouterr()
    gate = Gate(monkeypatch, 5)
    in_step(monkeypatch, 7, gate.open)
    assert gpt2(tmp_path / "going", *flags) == 0
    assert gate.was_opened
    for name in ("step-0000005", "step-0000008"):
        left, right = (tmp_path / run / "checkpoints" / name for run in ("waiting", "going"))
        assert tensor_files(left) == tensor_files(right)
        assert len(tensor_files(left)) == 2
    assert losses(tmp_path / "waiting") == losses(tmp_path / "going")
    said = capsys.readouterr().err
    assert "step 5/8  saved" in said and "(training waited 0." in said
    assert (tmp_path / "going" / "checkpoints" / "latest").read_text() == "step-0000008\n"


def test_a_checkpoint_under_way_is_finished_before_a_stop(
    tmp_path: Path, gpt2: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGTERM comes in step 7, while that of step 5 is still held back: both are there at the end."""
    gate = Gate(monkeypatch, 5)
    plain = Saver.finish
    monkeypatch.setattr(Saver, "finish", lambda saver: gate.open() or plain(saver))
    # The save itself is the first to ask for the end of the one before it.
    monkeypatch.setattr(Saver, "poll", lambda saver: None)
    started = Saver.save

    def save(saver: Saver, **what: Any) -> None:
        started(saver, **what)
        gate._opened.clear()

    monkeypatch.setattr(Saver, "save", save)
    in_step(monkeypatch, 7, lambda: signal.raise_signal(signal.SIGTERM))
    assert gpt2(tmp_path, "--steps", 20, "--save-every", 5) == 128 + signal.SIGTERM
    assert [path.name for path in list_checkpoints(tmp_path / "checkpoints")] == ["step-0000005", "step-0000007"]


def full_disk(monkeypatch: pytest.MonkeyPatch, from_file: int) -> None:
    """Let flushing fail from the file with this number on."""
    plain, calls = os.fsync, []

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if threading.current_thread().name == "checkpoint" and len(calls) > from_file:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        plain(descriptor)

    monkeypatch.setattr(os, "fsync", full)


def test_a_failed_save_ends_the_run_at_the_next_step(
    tmp_path: Path, gpt2: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The save of step 2 fails; that of step 1 stays, and the run does not train on to its end."""
    assert gpt2(tmp_path, "--steps", 2, "--save-every", 1) == 0
    capsys.readouterr()
    full_disk(monkeypatch, 0)
    savers: list[Saver] = []
    plain = Saver.save

    def save(saver: Saver, **what: Any) -> None:
        plain(saver, **what)
        savers.append(saver)

    monkeypatch.setattr(Saver, "save", save)

    # Step 4 does not end before the save of step 3 has failed.
    def wait() -> None:
        thread = savers[0]._thread
        assert thread is not None
        thread.join()

    in_step(monkeypatch, 2, wait)
    assert gpt2(tmp_path, "--steps", 20, "--save-every", 3) == 1
    err = capsys.readouterr().err
    assert "step-0000003: the disk is full; earlier checkpoints are untouched" in err and "Traceback" not in err
    assert err.count("error:") == 1 and "step 4/20" not in err
    assert [path.name for path in (tmp_path / "checkpoints").glob("[s.]*")] == ["step-0000001", "step-0000002"]
    monkeypatch.undo()
    assert gpt2(tmp_path, "--steps", 5) == 0


def test_a_run_that_diverges_keeps_the_checkpoint_under_way(
    tmp_path: Path, gpt2: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch, 5)

    def diverge() -> torch.Tensor:
        gate.open()
        return torch.tensor(float("nan"))

    in_step(monkeypatch, 7, diverge)
    assert gpt2(tmp_path, "--steps", 20, "--save-every", 5) == 1
    assert gate.was_opened
    assert read_info(tmp_path).step == 5


def test_the_next_save_waits_for_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first is held back until the second asks for its end; each holds the values of its time."""
    model = GPT2(SMALL).initialise(torch.Generator().manual_seed(1))
    saved: list[Saved] = []
    saver = Saver(Checkpointer(tmp_path, config=SMALL), model_tensors(model), saved.append)
    gate = Gate(monkeypatch, 1)
    saver.save(goes_on=True, step=1, samples=8, state={})
    first = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    plain = Saver.finish
    monkeypatch.setattr(Saver, "finish", lambda saver: gate.open() or plain(saver))
    saver.save(goes_on=True, step=2, samples=16, state={})
    assert gate.was_opened and [entry.step for entry in saved] == [1]
    saver.finish()
    saver.close()
    assert [entry.folder.name for entry in saved] == ["step-0000001", "step-0000002"]
    for folder, offset in ((saved[0].folder, 0), (saved[1].folder, 1)):
        for name, values in open_weights(folder).items():
            assert torch.equal(values, first[name][: len(values)] + offset)


def test_a_failure_is_raised_once_and_the_next_save_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = GPT2(SMALL).initialise()
    saver = Saver(Checkpointer(tmp_path, config=SMALL), model_tensors(model), lambda saved: None)
    full_disk(monkeypatch, 1)
    saver.save(goes_on=True, step=1, samples=8, state={})
    with pytest.raises(Gpt2Error, match="the disk is full"):
        saver.finish()
    assert list(tmp_path.iterdir()) == [] and not saver.has_failed
    monkeypatch.undo()
    saver.save(goes_on=True, step=2, samples=16, state={})
    saver.finish()
    assert read_info(tmp_path).step == 2


def test_no_memory_for_the_copy_is_said_with_what_to_do(
    tmp_path: Path, gpt2: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: Any) -> Any:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(save, "StagingArea", full)
    assert gpt2(tmp_path, "--steps", 4, "--save-every", 2) == 1
    assert "no memory on this machine for the copy that checkpoints are written from" in capsys.readouterr().err
    assert gpt2(tmp_path, "--steps", 4, "--save-every", 2, "--no-async-checkpoint") == 0


def test_memory_that_cannot_be_pinned_leaves_no_error_for_the_next_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA hands an error that nobody asked for to the next launch; what takes it here is a kernel of no importance."""
    pending: list[str] = []

    class Refusing:
        def cudaHostRegister(self, *_: int) -> int:
            pending.append("out of memory")
            return 2

    def launched(*_: Any, **__: Any) -> None:
        raise RuntimeError(pending.pop())

    monkeypatch.setattr(torch.cuda, "cudart", Refusing)
    monkeypatch.setattr(torch, "zeros", launched)
    assert save._pin(np.zeros(8, np.uint8)) is None
    assert not pending


def test_memory_that_cannot_be_locked_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each save then waited for its copy without a word."""
    monkeypatch.setattr(StagingArea, "is_locked", False)
    said: list[str] = []
    tensors = model_tensors(GPT2(SMALL).initialise())
    saver = Saver(Checkpointer(tmp_path, config=SMALL), tensors, lambda saved: None, warn=said.append)
    for step in (1, 2):
        saver.save(goes_on=True, step=step, samples=8, state={})
    saver.finish()
    (line,) = said
    assert line.startswith("warning: the system locks no memory") and "`ulimit -l`" in line


def test_the_copy_takes_what_the_tensors_take(tmp_path: Path) -> None:
    tensors = {
        "matrix": torch.randn(3, 5),
        "half": torch.randn(7).bfloat16(),
        "none": torch.zeros(0, 4),
        "number": torch.tensor(2.5),
        "turned": torch.randn(4, 6).t(),
    }
    area = StagingArea(tensors)
    assert area.bytes == 64 + 64 + 0 + 64 + 128
    area.copy()()
    assert all(torch.equal(area.copies[name], tensor) for name, tensor in tensors.items())
    tensors["matrix"].zero_()
    assert area.copies["matrix"].abs().sum() > 0


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("--save-every", 1), 1),
        (("--save-every", 2), 0),
        (("--save-every", 1, "--no-save"), 0),
        (("--save-every", 1, "--no-async-checkpoint"), 0),
    ],
)
def test_no_memory_is_taken_where_nothing_is_saved_before_the_end(
    tmp_path: Path, gpt2: Run, monkeypatch: pytest.MonkeyPatch, flags: tuple[Any, ...], expected: int
) -> None:
    areas: list[StagingArea] = []
    plain = StagingArea.__init__
    monkeypatch.setattr(StagingArea, "__init__", lambda area, tensors: areas.append(area) or plain(area, tensors))
    assert gpt2(tmp_path, "--steps", 2, *flags) == 0
    assert len(areas) == expected


# --- two processes ---------------------------------------------------------------------------------------------------


def hand_on(before: Path, after: Path, tensor_parallel: int) -> Saver:
    """Load what some processes saved, and save it in the layout of these."""
    info = read_info(before)
    model = GPT2(info.config).initialise(torch.Generator().manual_seed(9))
    parallelize(model, make_world(torch.device("cpu"), tensor_parallel))
    optimizer = make_optimizer(model, TrainSettings(), torch.device("cpu")).tensors()
    fill(model, open_weights(before).items(info.config.padded_vocabulary))
    load_optimizer(info, optimizer)
    checkpointer = Checkpointer(after, config=info.config, group=group_for_a_thread())
    saver = Saver(checkpointer, model_tensors(model) | optimizer, lambda saved: None)
    saver.save(goes_on=True, step=info.step, samples=info.samples, state={})
    # The copies are what is saved, whatever training does meanwhile.
    with torch.no_grad():
        for tensor in saver.tensors.values():
            tensor.add_(1)
    saver.finish()
    return saver


def save_in_many(before: str, after: str, tensor_parallel: int) -> None:
    """One of some processes that hand on a checkpoint."""
    hand_on(Path(before), Path(after), tensor_parallel)


def save_in_layouts(folder: str) -> None:
    """Load what one process saved, save it in two layouts, and die in a third save if this is the second process."""
    place, before = Path(folder), "one"
    for name, tensor_parallel in (("tensor", 2), ("data", 1)):
        saver = hand_on(place / before, place / name, tensor_parallel)
        before = name
    plain = save.write_optimizer_boxes

    def deadly(*rest: Any) -> Any:
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(*rest)

    save.write_optimizer_boxes = deadly
    saver.save(goes_on=True, step=4, samples=24, state={})
    try:
        saver.finish()
    except Gpt2Error as error:
        print(error, flush=True)
    os._exit(0)


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int], str]:
    """Two processes that load what one saved, save it in two layouts, and of which one is killed in a third save.

    Returns the folder, how they ended, and what the first one said.
    """
    folder = tmp_path_factory.mktemp("layouts")
    Checkpointer(folder / "one", config=SMALL).save(all_tensors(), step=3, samples=24)
    done = forks.in_group(2, save_in_layouts, folder, fails=True)
    return folder, [process.returncode for process in done], done[0].stdout


def all_tensors() -> dict[str, torch.Tensor]:
    """A model and its optimizer's state, random, as one process has them."""
    random = torch.Generator().manual_seed(3)
    model = GPT2(SMALL).initialise(random)
    tensors = model_tensors(model) | make_optimizer(model, TrainSettings(), torch.device("cpu")).tensors()
    for tensor in tensors.values():
        tensor.copy_(torch.randn(tensor.shape, generator=random))
    return tensors


def assert_same_tensors(place: Path) -> CheckpointInfo:
    """A checkpoint holds `all_tensors`; returns what it says."""
    info, expected = read_info(place), all_tensors()
    found = {name: torch.full_like(tensor, -7) for name, tensor in expected.items() if name.startswith("optimizer.")}
    load_optimizer(info, found)
    found |= {f"model.{name}": tensor for name, tensor in open_weights(place).items()}
    assert info.step == 3 and found.keys() == expected.keys()
    for name, tensor in expected.items():
        rows = slice(0, 100) if "token_embedding" in name else slice(None)
        assert torch.equal(found[name][rows], tensor[rows]), name
    return info


@pytest.mark.exhaustive
def test_moments_go_from_eight_processes_to_three_and_one(tmp_path: Path) -> None:
    Checkpointer(tmp_path / "one", config=SMALL).save(all_tensors(), step=3, samples=24)
    before = "one"
    for size, tensor_parallel in ((8, 2), (3, 1), (4, 4), (1, 1)):
        forks.in_group(size, save_in_many, tmp_path / before, tmp_path / str(size), tensor_parallel)
        before = str(size)
        info = assert_same_tensors(tmp_path / before)
        assert len(info.names(of_optimizer=True)) == size


@pytest.mark.parametrize("layout", ["tensor", "data"])
def test_weights_and_moments_are_the_same_in_every_layout(
    two_processes: tuple[Path, list[int], str], layout: str
) -> None:
    """Pitfall 31: saved by one process; loaded and saved tensor parallel, then data parallel; loaded by one again."""
    info = assert_same_tensors(two_processes[0] / layout)
    # Both processes have written a part.
    names = [f"optimizer-0000{rank}-of-00002.safetensors" for rank in range(2)]
    assert info.names(of_optimizer=True) == names
    assert all(info.files[name]["bytes"] > 4 * SMALL.parameters // 2 for name in names)


def test_a_checkpoint_is_not_sealed_when_one_process_was_killed_while_writing(
    two_processes: tuple[Path, list[int], str],
) -> None:
    """The others must not name a checkpoint of which a part is missing; the one before is the latest."""
    folder, codes, said = two_processes
    assert codes == [0, -signal.SIGKILL]
    assert "can't save the checkpoint" in said and "step-0000004" in said
    assert [path.name for path in list_checkpoints(folder / "data")] == ["step-0000003"]
    assert (folder / "data" / "latest").read_text() == "step-0000003\n"
