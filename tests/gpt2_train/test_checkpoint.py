"""Checkpoints: complete or not there, checked before use, readable by anyone, free of code."""

from __future__ import annotations

import errno
import json
import os
import pickle
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gpt2_train import checkpoint
from gpt2_train.checkpoint import (
    find_checkpoint,
    list_checkpoints,
    load_model,
    load_tensors,
    load_tokenizer,
    model_tensors,
    read_info,
    save_checkpoint,
)
from gpt2_train.config import ModelConfig
from gpt2_train.errors import Gpt2Error, Gpt2UsageError
from gpt2_train.model import GPT2
from indexed_tokens import Tokenizer

SMALL = ModelConfig(layers=2, hidden=32, heads=4, sequence_length=16, vocabulary_size=100)


@pytest.fixture
def model() -> GPT2:
    return GPT2(SMALL).initialise(torch.Generator().manual_seed(1)).eval()


@pytest.fixture
def save(tmp_path: Path, model: GPT2) -> Callable[..., Path]:
    def saved(step: int = 5, **options: Any) -> Path:
        return save_checkpoint(
            tmp_path / "checkpoints", model_tensors(model), step=step, samples=8 * step, config=SMALL, **options
        )

    return saved


def test_a_saved_model_gives_the_same_logits(tmp_path: Path, model: GPT2, save: Callable[..., Path]) -> None:
    """Pitfall 30: the shape travels with the checkpoint, so that nobody has to guess the padding."""
    step = save(5)
    tokens = torch.randint(0, 100, (2, 16), generator=torch.Generator().manual_seed(2))
    for place in (tmp_path, tmp_path / "checkpoints", step):
        loaded, config, info = load_model(place)
        assert torch.equal(loaded(tokens), model(tokens))
        assert (config, info.step, info.samples, info.tokens) == (SMALL, 5, 40, 640)
        assert loaded.is_tied and not loaded.training


def test_a_model_loads_in_the_type_asked_for(tmp_path: Path, save: Callable[..., Path]) -> None:
    save()
    loaded, _, _ = load_model(tmp_path, dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.bfloat16}


def test_the_tokenizer_travels_along(tmp_path: Path, save: Callable[..., Path]) -> None:
    save(tokenizer=Tokenizer.gpt2())
    assert load_tokenizer(tmp_path).encode("Hello world") == [15496, 995]
    assert read_info(tmp_path).tokenizer["name"] == "gpt2"


def test_another_tokenizer_put_in_its_place_is_noticed(tmp_path: Path, save: Callable[..., Path]) -> None:
    step = save(tokenizer=Tokenizer.gpt2())
    merges = (step / "tokenizer" / "merges.txt").read_text().splitlines()
    (step / "tokenizer" / "merges.txt").write_text("\n".join(merges[:1000]) + "\n")
    with pytest.raises(Gpt2UsageError, match="not the one"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("place", ["nowhere", "empty"])
def test_a_missing_checkpoint_is_an_error_and_never_random_weights(tmp_path: Path, place: str) -> None:
    """Pitfall 29: it was a warning, then text from random weights."""
    (tmp_path / "empty").mkdir()
    with pytest.raises(Gpt2UsageError, match="checkpoint"):
        load_model(tmp_path / place)


def damage(step: Path, kind: str) -> None:
    file = next(step.glob("__*"))
    if kind == "cut off":
        os.truncate(file, file.stat().st_size - 1)
    elif kind == "changed":
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    elif kind == "missing":
        file.unlink()
    elif kind == "no index":
        (step / ".metadata").unlink()
    elif kind == "bad json":
        (step / "checkpoint.json").write_text((step / "checkpoint.json").read_text()[:-40])
    elif kind == "other json":
        (step / "checkpoint.json").write_text('{"format": 1}')


@pytest.mark.parametrize("kind", ["cut off", "changed", "missing", "no index", "bad json", "other json"])
def test_a_damaged_checkpoint_is_one_clear_sentence(tmp_path: Path, save: Callable[..., Path], kind: str) -> None:
    """Pitfall 29: never random, never wrong weights."""
    damage(save(), kind)
    with pytest.raises(Gpt2UsageError, match=r"step-0000005 is damaged \(.*\): give an older one, or delete"):
        load_model(tmp_path)


class _Attack:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.mark),))


def test_a_checkpoint_cannot_run_code(tmp_path: Path, save: Callable[..., Path]) -> None:
    """Pitfall 27: checkpoints held pickled objects. A valid CRC does not help an attacker either."""
    step = save()
    content = pickle.dumps(_Attack(tmp_path / "attacked"))
    (step / ".metadata").write_bytes(content)
    table = json.loads((step / "checkpoint.json").read_text())
    table["files"][".metadata"] = {"bytes": len(content), "crc32": zlib.crc32(content)}
    (step / "checkpoint.json").write_text(json.dumps(table))
    with pytest.raises(Gpt2UsageError, match="which no checkpoint holds"):
        load_model(tmp_path)
    assert not (tmp_path / "attacked").exists()


def test_a_model_of_another_size_is_refused(save: Callable[..., Path]) -> None:
    step = save()
    other = GPT2(ModelConfig(2, 64, 4, 16, 100))
    with pytest.raises(Gpt2UsageError, match=r"shape \(128, 32\), where \(128, 64\) is needed"):
        load_tensors(step, model_tensors(other))
    with pytest.raises(Gpt2UsageError, match=r"has no model\.extra"):
        load_tensors(step, {"model.extra": torch.zeros(3)})


def test_the_newest_are_kept_and_latest_names_the_last(tmp_path: Path, save: Callable[..., Path]) -> None:
    for step in (1, 2, 3, 4):
        save(step, keep=2)
    assert [path.name for path in list_checkpoints(tmp_path / "checkpoints")] == ["step-0000003", "step-0000004"]
    assert (tmp_path / "checkpoints" / "latest").read_text() == "step-0000004\n"


def test_a_checkpoint_that_a_run_removed_meanwhile_is_explained(tmp_path: Path, save: Callable[..., Path]) -> None:
    old = save(1, keep=1)
    save(2, keep=1)
    with pytest.raises(Gpt2UsageError, match=r"step-0000002 is there: a run at work removes old ones"):
        find_checkpoint(old)


def test_a_deleted_latest_falls_back_to_the_one_before(tmp_path: Path, save: Callable[..., Path]) -> None:
    save(1)
    newest = save(2)
    for file in sorted(newest.rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    newest.rmdir()
    assert find_checkpoint(tmp_path).name == "step-0000001"


@pytest.mark.parametrize("calls_that_work", [0, 1, 2])
def test_a_full_disk_keeps_the_checkpoint_before(
    tmp_path: Path, save: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, calls_that_work: int
) -> None:
    """Pitfall 27: checkpoints were written in place; here whichever file meets the full disk, the old one stays."""
    save(1)
    plain, calls = os.fsync, []

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) > calls_that_work:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        plain(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Gpt2Error, match=r"can't save the checkpoint .*step-0000002: the disk is full; earlier"):
        save(2)
    monkeypatch.undo()
    assert [path.name for path in (tmp_path / "checkpoints").iterdir() if path.is_dir()] == ["step-0000001"]
    assert load_model(tmp_path)[2].step == 1
    assert save(2).name == "step-0000002"


def test_what_a_killed_save_left_is_no_checkpoint(tmp_path: Path, save: Callable[..., Path]) -> None:
    save(1)
    unfinished = tmp_path / "checkpoints" / ".step-0000002.unfinished"
    unfinished.mkdir()
    (unfinished / "__0_0.distcp").write_bytes(b"half")
    assert find_checkpoint(tmp_path).name == "step-0000001"
    save(2)
    assert not unfinished.exists()


def test_a_newer_format_asks_for_an_update(tmp_path: Path, save: Callable[..., Path]) -> None:
    step = save()
    table = json.loads((step / "checkpoint.json").read_text()) | {"format": checkpoint.FORMAT + 1}
    (step / "checkpoint.json").write_text(json.dumps(table))
    with pytest.raises(Gpt2UsageError, match="newer version"):
        load_model(tmp_path)
