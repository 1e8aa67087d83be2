"""Settings and the command line, without training anything."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
import tomllib
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from command_kit.settings import make_settings
from gpt2_train.cli import COMMANDS, main
from gpt2_train.config.errors import Gpt2Error, Gpt2UsageError, explained_compile_failure, explained_out_of_memory
from gpt2_train.config.layout import check_layout, choose_data_parallel, plan_batches
from gpt2_train.config.settings import ModelConfig, TrainSettings
from gpt2_train.optim.gradients import LossScale
from gpt2_train.training import launch
from gpt2_train.training.command import overridden_keys
from gpt2_train.training.launch import check_batch, processes_wanted, use_compile_cache
from gpt2_train.training.plan import plan_steps
from gpt2_train.training.run_folder import lock_folder
from gpt2_train.training.state import Heartbeat, StepResult, TrainState


def test_the_defaults_follow_the_345m_recipe() -> None:
    settings = TrainSettings()
    assert (settings.lr, settings.min_lr, settings.warmup, settings.schedule) == (1.5e-4, 1e-5, 0.01, "cosine")
    assert (settings.weight_decay, settings.clip, settings.dropout) == (0.01, 1.0, 0.1)
    assert settings.model_config().parameters == 124_475_904


def test_a_zero_is_a_number_and_not_the_default() -> None:
    with pytest.raises(Gpt2UsageError, match="vocabulary_size is 0"):
        TrainSettings(vocabulary_size=0).model_config()
    with pytest.raises(Gpt2UsageError, match="--model already sets"):
        TrainSettings(model="124M", layers=0)


def test_running_out_of_memory_is_explained() -> None:
    """On Apple's GPUs it was an internal error: torch's error there is no class of its own."""
    with (
        pytest.raises(Gpt2Error, match=r"^out of memory: lower --batch-size\.$"),
        explained_out_of_memory("lower --batch-size"),
    ):
        torch.empty(1 << 60, dtype=torch.uint8)
    mps = RuntimeError("MPS backend out of memory (MPS allocated: 9.05 GB, max allowed: 9.07 GB).")
    for error in (MemoryError(), torch.OutOfMemoryError("CUDA out of memory."), mps):
        with pytest.raises(Gpt2Error, match=r"^out of memory"), explained_out_of_memory("lower it"):
            raise error
    with pytest.raises(RuntimeError, match="shapes"), explained_out_of_memory("lower it"):
        raise RuntimeError("shapes differ")


def test_an_empty_prefix_is_refused() -> None:
    with pytest.raises(Gpt2UsageError, match="--data holds an empty prefix"):
        TrainSettings(data=("",)).corpora()


def test_the_folder_of_a_run_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(Gpt2UsageError, match="is a file, or lies below one: give a folder"), lock_folder(folder):
            pass
    assert (tmp_path / "file").read_text() == "mine"


def test_data_may_carry_weights() -> None:
    assert TrainSettings(data=("a", "b")).corpora() == [(None, "a"), (None, "b")]
    assert TrainSettings(data=("0.7:a", "0.3:b:c")).corpora() == [(0.7, "a"), (0.3, "b:c")]
    assert TrainSettings(data=("C:/a",)).corpora() == [(None, "C:/a")]
    with pytest.raises(Gpt2UsageError, match="weights to some"):
        TrainSettings(data=("0.7:a", "b")).corpora()


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("--layers", "6"), (None, 6, 128, 4, 7, None)),
        (("--model", "345M"), ("345M", None, None, None, 7, None)),
        (("--epochs", "2"), (None, 3, 128, 4, None, 2.0)),
    ],
)
def test_a_flag_replaces_what_the_file_says_in_other_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], expected: tuple[object, ...]
) -> None:
    """--layers with a file with layers, hidden and heads dropped all three of them, and then asked for the others."""
    (tmp_path / "run.toml").write_text("[train]\nlayers = 3\nhidden = 128\nheads = 4\nsteps = 7\n")
    got: list[TrainSettings] = []
    monkeypatch.setattr("gpt2_train.training.launch.launch", lambda settings, **_: got.append(settings) or 0)
    assert main(["train", "--config", str(tmp_path / "run.toml"), "--data", "x", "--output", "y", *flags]) == 0
    (found,) = got
    assert (found.model, found.layers, found.hidden, found.heads, found.steps, found.epochs) == expected


@pytest.mark.parametrize("group", [{"steps", "epochs", "tokens", "minutes"}, {"global_batch_size", "batch_tokens"}])
def test_one_length_stands_for_the_others_and_one_batch_for_the_other(group: set[str]) -> None:
    assert all(overridden_keys([one]) == group for one in group)


def test_batches_are_divided_among_processes() -> None:
    assert plan_batches(512, "auto", 4, on_cpu=False) == (8, 16)
    assert plan_batches(12, "auto", 2, on_cpu=True) == (2, 3)
    assert plan_batches(7, "auto", 1, on_cpu=False) == (7, 1)
    with pytest.raises(Gpt2UsageError, match="choose a multiple of 3"):
        plan_batches(8, "auto", 3, on_cpu=True)


def test_length_comes_out_in_steps() -> None:
    assert plan_steps(TrainSettings(steps=7), 100) == 7
    assert plan_steps(TrainSettings(), 100) == 13
    assert plan_steps(TrainSettings(epochs=0.5), 160) == 10
    assert plan_steps(TrainSettings(tokens=8 * 1024 * 3 + 1), 100) == 4


def test_layout_and_length_are_no_part_of_a_runs_identity() -> None:
    changed = TrainSettings(
        steps=5, tensor_parallel=4, data_parallel=2, micro_batch_size=1, activation_checkpointing="full", compile=True,
        device="cpu", threads=3, log_every=1, save_every=2, eval_every=3, eval_tokens=4,
        keep_checkpoints=5, output="x",
    )  # fmt: skip
    assert changed.identity() == TrainSettings().identity()
    assert TrainSettings(lr=1e-3).identity() != TrainSettings().identity()


# --- layouts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpus", "flags", "expected"),
    [
        (6, {"global_batch_size": 8}, 4),
        (8, {"global_batch_size": 8, "tensor_parallel": 2}, 4),
        (8, {"global_batch_size": 8, "micro_batch_size": 4}, 2),
        (5, {"global_batch_size": 7, "tensor_parallel": 2}, 1),
        (0, {"tensor_parallel": 2}, 1),
        (8, {"global_batch_size": 8, "data_parallel": 2}, 2),
    ],
)
def test_as_many_gpus_are_taken_as_the_batch_can_be_shared_among(
    gpus: int, flags: dict[str, int], expected: int
) -> None:
    """All of them were taken, whatever the batch, and the run then failed."""
    assert check_layout(TrainSettings(**flags), gpus) == expected  # type: ignore[arg-type]


def test_idle_gpus_are_pointed_out(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 6)
    assert processes_wanted(TrainSettings(global_batch_size=8)) == 4
    assert "using 4 of 6 GPUs (data parallel 4)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "file", "expected"),
    [
        ((), "", False),
        (("--global-batch-size", "8"), "", True),
        (("--batch-tokens", "8192"), "", True),
        ((), "global_batch_size = 8\n", True),
        ((), "lr = 1e-3\n", False),
    ],
)
def test_the_launcher_is_told_whether_somebody_chose_the_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], file: str, expected: bool
) -> None:
    found: list[bool] = []
    monkeypatch.setattr(launch, "launch", lambda settings, **_: found.append(settings.has_batch) or 0)
    (tmp_path / "run.toml").write_text(f'[train]\ndata = ["{tmp_path}/x"]\n{file}')
    (tmp_path / "x.bin").touch()
    (tmp_path / "x.idx").touch()
    assert main(["train", "--config", str(tmp_path / "run.toml"), "--output", str(tmp_path / "run"), *flags]) == 0
    assert found == [expected]


def test_the_default_batch_is_refused_on_several_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight GPUs of 80 GB were given one sequence each."""
    memory = types.SimpleNamespace(total_memory=80 * 2**30)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: memory)
    asked: dict[str, Any] = {"output": str(tmp_path), "dropout": 0.0}
    settings = TrainSettings(**asked)
    with pytest.raises(
        Gpt2UsageError, match=r"of 8 GPUs idle: add --global-batch-size 256 .32 sequences fit each GPU."
    ):
        check_batch(settings, 8)
    with pytest.raises(Gpt2UsageError, match=r"add --global-batch-size 128 .*another multiple of 4"):
        check_batch(TrainSettings(**asked, tensor_parallel=2), 8)
    larger = types.SimpleNamespace(config=ModelConfig.preset("1.5B", dropout=0.0))
    monkeypatch.setattr(launch, "open_first_weights", lambda settings, resumed: larger)
    with pytest.raises(Gpt2UsageError, match=r"add --global-batch-size 192 .24 sequences fit each GPU."):
        check_batch(TrainSettings(**asked, init_from="gpt2-xl"), 8)
    monkeypatch.undo()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    check_batch(TrainSettings(**asked, global_batch_size=settings.global_batch_size), 8)
    check_batch(settings, 1)
    check_batch(TrainSettings(**asked, device="cpu"), 8)
    (tmp_path / "checkpoints").mkdir()
    check_batch(settings, 8)  # one that resumes keeps its own


def test_the_batch_of_the_124m_pipeline_is_for_1_8_and_64_gpus() -> None:
    path = Path(__file__).parents[2] / "pipelines" / "gpt2_124M.toml"
    settings = make_settings(TrainSettings, tomllib.loads(path.read_text())["train"], str(path))
    assert [choose_data_parallel(settings, gpus) for gpus in (1, 8, 64)] == [1, 8, 64]


def test_a_layout_that_needs_more_gpus_than_there_are_is_refused() -> None:
    with pytest.raises(Gpt2UsageError, match="--tensor-parallel 4 needs that many GPUs, and this machine has 2"):
        check_layout(TrainSettings(tensor_parallel=4), 2)
    with pytest.raises(Gpt2UsageError, match="--tensor-parallel 2 times --data-parallel 4 needs 8 GPUs"):
        check_layout(TrainSettings(tensor_parallel=2, data_parallel=4), 4)


# --- what is said ----------------------------------------------------------------------------------------------------


WITHOUT_TORCH = """
import sys
from gpt2_train.cli import main
class Finder:
    def find_spec(self, name, *_):
        if name == "torch":
            raise ImportError("torch was asked for")
sys.meta_path.insert(0, Finder())
main(sys.argv[1:])
"""


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "--data", "corpus", "--output", "run", "--steps", "1"],
        ["generate", "--checkpoint", "run", "--prompt", "a"],
    ],
)
def test_that_torch_is_loaded_is_said_before(arguments: list[str]) -> None:
    """For 15 s after its command line nothing was to be seen."""
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH, *arguments], capture_output=True, text=True)
    first, second, *_ = done.stderr.splitlines()
    assert first == "loading PyTorch"
    assert "torch was asked for" in second


def test_what_needs_no_torch_does_not_load_it(tmp_path: Path) -> None:
    """Help, versions, charts, estimates and mistakes in settings waited for the second that importing torch takes."""
    (tmp_path / "metrics.jsonl").write_text(
        '{"step": 1, "tokens": 9, "loss": 2.0}\n{"step": 2, "tokens": 9, "loss": 2.0}\n'
    )
    small = ["train", "--data", "x", "--output", str(tmp_path / "y")]
    commands: list[tuple[int, list[str]]] = [
        (0, ["plot", str(tmp_path)]),
        (0, ["--help"]), (0, ["train", "--help"]), (0, ["--version"]), (0, ["estimate", "--model", "345M"]),
        (2, ["train"]), (2, small[:3]), (2, [*small, "--global-batch-size", "8", "--data-parallel", "3"]),
        (2, [*small, "--tensor-parallel", "5"]),
    ]  # fmt: skip
    script = (
        "import json, sys; from gpt2_train import cli\n"
        "for code, words in json.loads(sys.argv[1]):\n"
        "    try: found = cli.main(words)\n"
        "    except SystemExit as end: found = end.code or 0\n"
        "    assert found == code, words\n"
        "    assert 'torch' not in sys.modules, words\n"
        "    assert words[0] != 'plot' or 'numpy' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", script, json.dumps(commands)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stderr.splitlines()) == 4
    shown = [*COMMANDS, f"torch {importlib.metadata.version('torch')}", "354,871,296 param", "2.431 GFLOP per token"]
    assert [text for text in shown if text not in done.stdout] == []


def test_an_unknown_flag_shows_the_usage_of_its_command(capsys: pytest.CaptureFixture[str]) -> None:
    """It showed that of `gpt2`, which names none of the flags."""
    with pytest.raises(SystemExit):
        main(["train", "--stepz", "3"])
    assert capsys.readouterr().err.startswith("usage: gpt2 train")


@pytest.mark.parametrize(("words", "shown"), [([], "write text with a checkpoint"), (["checkpoint"], "verify")])
def test_alone_a_command_shows_its_help(words, shown, capsys) -> None:
    """`gpt2` alone said that COMMAND is required, and not which commands there are."""
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    assert shown in capsys.readouterr().err


def test_a_failure_of_the_compiler_names_the_way_round_it() -> None:
    """Without a C compiler (a slim container) it was an internal error."""
    compiler_error = type("InvalidCxxCompiler", (RuntimeError,), {"__module__": "torch._inductor.exc"})
    with pytest.raises(Gpt2Error) as caught, explained_compile_failure():
        raise compiler_error("No working C++ compiler found in torch._inductor.config.cpp.cxx")
    assert "No working C++ compiler found" in str(caught.value)
    assert "install a C++ compiler, or give --no-compile" in str(caught.value)
    with pytest.raises(RuntimeError, match="shapes"), explained_compile_failure():
        raise RuntimeError("shapes differ")


def test_a_slow_run_shows_a_line_every_half_minute() -> None:
    """The next line came ten steps later, however long they took."""
    now = [0.0]
    heartbeat = Heartbeat(30.0, lambda: now[0])
    due = []
    for second in range(0, 100, 10):
        now[0] = float(second)
        due.append(heartbeat.is_due())
    assert [index * 10 for index, is_due in enumerate(due) if is_due] == [30, 60, 90]


def test_the_time_left_is_known_from_the_first_step_on() -> None:
    """It was shown from the second logged step on, which on a CPU is minutes later."""
    state = TrainState(LossScale(), Heartbeat(30.0), steps=10)
    assert state.seconds_left() is None
    result = StepResult(1, torch.ones(()), torch.zeros(5))
    result.read()
    state.count_step(result, 2.5, 1)
    assert state.seconds_left() == pytest.approx(25.0)


def test_compiled_code_is_kept_on_this_machine_where_nobody_else_can_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was kept in --output, which is often network storage; then for each --output apart, so that none had any."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    found: dict[str, str] = {}

    def note(name: str, value: str) -> None:
        found[value] = name

    for version in ("2.13.0", "2.13.0", "2.14.0"):
        monkeypatch.setattr(torch, "__version__", version)
        use_compile_cache(note)
    assert len(found) == 4 and set(found.values()) == {"TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"}
    (root,) = {Path(path).parent for path in found}
    assert root.parent == tmp_path and root.stat().st_mode & 0o077 == 0
    root.chmod(0o777)
    use_compile_cache(note)
    assert {Path(path).parent for path in found} != {root}


@pytest.mark.parametrize("folder", ["train", "convert"])
def test_a_value_may_be_spelled_like_a_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], folder: str) -> None:
    absent = [str(tmp_path / "a"), str(tmp_path / "b")]
    assert main(["ablate", "--data", *absent, "--held-out", absent[0], "--output", folder]) == 2
    assert str(tmp_path / "a") in capsys.readouterr().err
