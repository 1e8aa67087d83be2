"""What recipes of today add to the one of 2019: each option does what it says, also after an interruption."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.gpt2_train.test_train import assert_same_bits

from gpt2_train.checkpoint.info import find_checkpoint, table_crc
from gpt2_train.cli import main
from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.config.layout import choose_data_parallel
from gpt2_train.config.settings import GONE, TrainSettings
from gpt2_train.conversion.formats import open_weights
from gpt2_train.training.setup import shape_of_run

Run = Callable[..., int]


def checkpoint(output: Path, step: int) -> Path:
    return output / "checkpoints" / f"step-{step:07}"


def test_a_batch_in_tokens_is_one_in_sequences(tmp_path: Path, gpt2: Run) -> None:
    assert gpt2(tmp_path / "tokens", "--steps", 2, "--batch-tokens", 64) == 0
    assert gpt2(tmp_path / "sequences", "--steps", 2, "--global-batch-size", 4) == 0
    assert_same_bits(tmp_path / "tokens", tmp_path / "sequences")


ALL_TOGETHER = (
    "--optimizer", "muon", "--weight-decay", 0.5, "--schedule", "wsd", "--batch-tokens", 64, "--order", "hashed",
    "--dropout", 0.1, "--steps", 8, "--save-every", 3,
)  # fmt: skip


def test_all_options_together_resume_bit_for_bit_and_convert(tmp_path: Path, gpt2: Run) -> None:
    """Interrupted inside the decay; both models give the same logits in transformers' format."""
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    assert gpt2(unbroken, *ALL_TOGETHER) == 0
    shutil.copytree(unbroken, broken)
    shutil.rmtree(checkpoint(broken, 8))
    (broken / "checkpoints" / "latest").write_text("step-0000006\n")
    assert gpt2(broken, *ALL_TOGETHER) == 0
    assert_same_bits(unbroken, broken)
    tokens = torch.arange(12)[None]
    ours = open_weights(broken).load().eval()
    assert main(["convert", str(broken), str(tmp_path / "hf")]) == 0
    theirs = open_weights(tmp_path / "hf").load().eval()
    assert torch.equal(ours(tokens)[..., :100], theirs(tokens)[..., :100])


def test_settings_that_came_later_are_no_part_of_a_run_without_them() -> None:
    """So that a run that was begun before there were these options resumes."""
    later: dict[str, Any] = {"optimizer": "muon", "order": "hashed", "documents": "separate", "mask_end_of_text": True}
    assert not later.keys() & TrainSettings().identity().keys()
    assert later.items() <= TrainSettings(**later, steps=1, dropout=0.0).identity().items()


# --- settings that went ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "flag", ["--average-tail", "--cautious-decay", "--no-cautious-decay", "--init-residual", "--threads auto"]
)
def test_a_flag_that_went_is_answered_with_what_to_use_instead(
    flag: str, tmp_path: Path, gpt2: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        gpt2(tmp_path / "run", *flag.split(), *([] if "cautious" in flag else ["0.5"]))
    name = flag.removeprefix("--").removeprefix("no-").replace("-", "_")
    assert f"{flag} is gone: {GONE[name].instead}." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "gone"),
    [
        ("average_tail = 0.0", None),
        ("average_tail = 0.1", "average_tail"),
        ("cautious_decay = false", None),
        ("cautious_decay = true", "cautious_decay"),
        ('init_residual = "scaled"', None),
        ("sequence_parallel = false", None),
        ("sequence_parallel = true", "sequence_parallel"),
        ('init_residual = "zero"', "init_residual"),
    ],
)
@pytest.mark.parametrize("command", ["train", "estimate"])
def test_a_key_that_went_is_passed_over_where_it_was_not_used(
    command: str, line: str, gone: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in `config.toml` of older runs, which names every setting."""
    (tmp_path / "old.toml").write_text(f"[train]\n{line}\n")
    code = main([command, "--config", str(tmp_path / "old.toml"), *(["--data", "a"] if command == "train" else [])])
    error = capsys.readouterr().err
    if gone is not None:
        assert code == 2 and f"old.toml: {gone} is gone: {GONE[gone].instead}." in error
    elif command == "train":
        assert code == 2 and "no --output" in error
    else:
        assert code == 0


def test_a_run_that_used_what_went_is_read_and_not_resumed(
    tmp_path: Path, gpt2: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert gpt2(run, "--steps", 1) == 0
    change_table(run, lambda table: table["settings"].update(cautious_decay=False, average_tail=0.0))
    assert gpt2(run, "--steps", 2) == 0
    change_table(run, lambda table: table["settings"].update(init_residual="zero"))
    capsys.readouterr()
    assert gpt2(run, "--steps", 3) == 2
    assert "holds a run with --init-residual, which is gone (matrices begin as GPT-2's do" in capsys.readouterr().err
    assert main(["convert", str(run), str(tmp_path / "hf")]) == 0


def change_table(run: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change what the newest checkpoint of a run says, its checksum included."""
    path = find_checkpoint(run) / "checkpoint.json"
    table = json.loads(path.read_text())
    change(table)
    path.write_text(json.dumps(table | {"crc32": table_crc(table)}))


# --- settings that don't go together ---------------------------------------------------------------------------------

CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    (
        {"batch_tokens": 4096, "global_batch_size": 2},
        "--batch-tokens 4,096 is a batch of 4 sequences, and",
    ),
    ({"batch_tokens": 4096, "global_batch_size": 8}, "--global-batch-size is 8: give one of them"),
    ({"steps": 5, "minutes": 1.0}, "the run's length is given twice"),
    ({"documents": "separate"}, "--documents separate has no dropout of attention"),
    ({"min_lr": 1.0}, "--min-lr 1.0 is above --lr 0.00015"),
    ({"order": "hashed"}, "--order hashed spreads documents over the run: give its --steps"),
    ({"order": "hashed", "steps": 5, "data": ("a", "b")}, "give its --steps, and one --data"),
    ({"reordered": 0.5}, "--reordered is for --order hashed"),
    ({"sample_top_k": 5}, "--sample-top-k is a setting of samples, and there are none"),
    ({"eval_task_every": 5}, "--eval-task-every, but no --eval-task"),
    ({"model": "124M", "layers": 2}, "--model already sets layers, hidden and heads"),
]


@pytest.mark.parametrize(("settings", "sentence"), CONTRADICTIONS)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(Gpt2UsageError, match=re.escape(sentence)):
        TrainSettings(**settings)


NO_EFFECT: list[tuple[dict[str, Any], str, dict[str, Any]]] = [
    ({"cooldown": 0.5}, "--cooldown 0.5 has no effect: it is for --schedule wsd.", {"schedule": "wsd"}),
    ({"min_lr": 0.0, "schedule": "constant"}, "--min-lr 0.0 has no effect: --schedule constant", {"schedule": "wsd"}),
    (
        {"save_every": 5, "save": False},
        "--save-every 5 has no effect: --no-save writes none.",
        {"save": True},
    ),
    ({"keep_checkpoints": 5, "save": False}, "--keep-checkpoints 5 has no effect: --no-save", {"save": True}),
    ({"async_checkpoint": False, "save": False}, "--async-checkpoint False has no effect: --no-save", {"save": True}),
    (
        {"sample_top_k": 5, "sample_temperature": 0.0, "sample_every": 1},
        "--sample-top-k 5 has no effect: --sample-temperature 0 takes the most likely token.",
        {"sample_temperature": 1.0},
    ),
    ({"warmup": 50.0, "steps": 2}, "--warmup 50.0 has no effect: the run has fewer steps", {"steps": 50}),
]


@pytest.mark.parametrize(("settings", "sentence", "otherwise"), NO_EFFECT)
def test_a_setting_without_an_effect_is_said(
    settings: dict[str, Any], sentence: str, otherwise: dict[str, Any]
) -> None:
    (said,) = TrainSettings(**settings).without_effect(settings.get("steps"))
    assert said.startswith(sentence)
    changed = settings | otherwise
    assert TrainSettings(**changed).without_effect(changed.get("steps")) == []


def test_what_has_no_effect_is_said_before_the_first_step(
    tmp_path: Path, gpt2: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the length is in epochs, too, whose steps the data decides."""
    assert gpt2(tmp_path / "run", "--epochs", 0.01, "--warmup", 50, "--cooldown", 0.5) == 0
    shown = capsys.readouterr().err
    assert "warning: --warmup 50.0 has no effect: the run has fewer steps, and never reaches --lr." in shown
    assert shown.index("warning: --cooldown 0.5 has no effect: it is for --schedule wsd.") < shown.index("step 1/")


def test_another_vocabulary_than_that_of_the_first_weights_is_refused(
    tmp_path: Path, gpt2: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gpt2(tmp_path / "run", "--steps", 1) == 0
    settings = TrainSettings(init_from=str(tmp_path / "run"), vocabulary_size=200, sequence_length=16)
    first = open_weights(tmp_path / "run")
    with pytest.raises(Gpt2UsageError, match="knows 100 token ids, and --vocabulary-size is 200: leave it out"):
        shape_of_run(settings, None, first, first.tokenizer)


def test_the_batch_in_tokens_decides_the_layout(tmp_path: Path, gpt2: Run) -> None:
    """GPUs were chosen, and micro-batches refused, by the default of 8 sequences."""
    settings = TrainSettings(batch_tokens=24 * 1024)
    assert settings.global_batch_size == 24
    assert choose_data_parallel(settings, 12) == 12
    assert gpt2(tmp_path / "run", "--steps", 1, "--batch-tokens", 256, "--micro-batch-size", 16) == 0
