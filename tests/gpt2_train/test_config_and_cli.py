"""Settings and the command line, without training anything."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gpt2_train.cli import COMMANDS, main
from gpt2_train.config import PRESETS, TrainSettings, plan_batches
from gpt2_train.errors import Gpt2Error, Gpt2UsageError, explained_out_of_memory
from gpt2_train.evaluate import EvaluateSettings
from gpt2_train.generate import GenerateSettings
from gpt2_train.prepare import plan_steps
from gpt2_train.run_folder import lock_folder


def test_help_does_not_import_torch() -> None:
    script = (
        "import sys; from gpt2_train import cli\n"
        "for words in (['--help'], ['train', '--help']):\n"
        "    try: cli.main(words)\n"
        "    except SystemExit as end: assert end.code == 0\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in COMMANDS)


@pytest.mark.parametrize("flag", ["--data", "--output", "--steps", "--tensor-parallel", "--split", "--config"])
def test_the_help_of_train_lists_its_flags(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    assert flag in capsys.readouterr().out


def test_an_unknown_command_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["trian"])
    assert end.value.code == 2
    assert "trian" in capsys.readouterr().err


def test_no_data_or_no_output_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train"]) == 2
    assert "no --data" in capsys.readouterr().err
    assert main(["train", "--data", "x"]) == 2
    assert "no --output" in capsys.readouterr().err


def test_the_defaults_follow_the_345m_recipe() -> None:
    settings = TrainSettings()
    assert (settings.lr, settings.min_lr, settings.warmup, settings.schedule) == (1.5e-4, 1e-5, 0.01, "cosine")
    assert (settings.weight_decay, settings.clip, settings.dropout) == (0.01, 1.0, 0.1)
    assert settings.model_config().parameters == 124_475_904


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_builds(name: str) -> None:
    assert TrainSettings(model=name).model_config().layers == PRESETS[name]["layers"]  # type: ignore[arg-type]


def test_numbers_of_a_model_come_together() -> None:
    with pytest.raises(Gpt2UsageError, match="--hidden and --heads missing"):
        TrainSettings(layers=3).model_config()


def test_a_zero_is_a_number_and_not_the_default() -> None:
    with pytest.raises(Gpt2UsageError, match="vocabulary_size is 0"):
        TrainSettings(vocabulary_size=0).model_config()
    with pytest.raises(Gpt2UsageError, match="--model already sets"):
        TrainSettings(model="124M", layers=0)


def test_a_limit_says_that_it_asks_for_a_finite_number() -> None:
    with pytest.raises(Gpt2UsageError, match="--clip is inf: it should be at least 0 and finite"):
        TrainSettings(clip=float("inf"))


@pytest.mark.parametrize("settings_class", [TrainSettings, EvaluateSettings, GenerateSettings])
def test_threads_that_no_machine_has_are_refused(settings_class: type) -> None:
    for threads, sentence in ((0, "--threads is 0: it should be at least 1"), (99_999_999, "should be at most 1024")):
        with pytest.raises(Gpt2UsageError, match=sentence):
            settings_class(threads=threads)


def test_want_of_memory_is_explained() -> None:
    with (
        pytest.raises(Gpt2Error, match=r"^out of memory: lower --batch-size\.$"),
        explained_out_of_memory("lower --batch-size"),
    ):
        torch.empty(1 << 60, dtype=torch.uint8)
    for error in (MemoryError(), torch.OutOfMemoryError("CUDA out of memory.")):
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
    """--layers beside a file with layers, hidden and heads dropped all three of them, and then asked for the others."""
    (tmp_path / "run.toml").write_text("[train]\nlayers = 3\nhidden = 128\nheads = 4\nsteps = 7\n")
    got: list[TrainSettings] = []
    monkeypatch.setattr("gpt2_train.launch.launch", lambda settings, **_: got.append(settings) or 0)
    assert main(["train", "--config", str(tmp_path / "run.toml"), "--data", "x", "--output", "y", *flags]) == 0
    (found,) = got
    assert (found.model, found.layers, found.hidden, found.heads, found.steps, found.epochs) == expected


def test_batches_are_divided_among_processes() -> None:
    assert plan_batches(512, None, 4, on_cpu=False) == (8, 16)
    assert plan_batches(12, None, 2, on_cpu=True) == (2, 3)
    assert plan_batches(7, None, 1, on_cpu=False) == (7, 1)
    with pytest.raises(Gpt2UsageError, match="choose a multiple of 3"):
        plan_batches(8, None, 3, on_cpu=True)


def test_length_comes_out_in_steps() -> None:
    assert plan_steps(TrainSettings(steps=7), 100) == 7
    assert plan_steps(TrainSettings(), 100) == 13
    assert plan_steps(TrainSettings(epochs=0.5), 160) == 10
    assert plan_steps(TrainSettings(tokens=8 * 1024 * 3 + 1), 100) == 4


def test_layout_and_length_are_no_part_of_a_runs_identity() -> None:
    changed = TrainSettings(
        steps=5, tensor_parallel=4, data_parallel=2, micro_batch_size=1, activation_checkpointing="full", compile=True,
        device="cpu", threads=3, log_every=1, save_every=2, eval_every=3, eval_batches=4,
        keep_checkpoints=5, output="x",
    )  # fmt: skip
    assert changed.identity() == TrainSettings().identity()
    assert TrainSettings(lr=1e-3).identity() != TrainSettings().identity()


def test_errors_can_be_caught_together() -> None:
    assert issubclass(Gpt2UsageError, Gpt2Error)
    assert (Gpt2Error.exit_code, Gpt2UsageError.exit_code) == (1, 2)
