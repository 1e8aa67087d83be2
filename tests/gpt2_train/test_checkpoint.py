"""Checkpoints: complete or not there, checked before use, readable by anyone, free of code."""

from __future__ import annotations

import errno
import json
import os
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tests.gpt2_train.small_models import SMALL, byte_tokenizer

from gpt2_train.checkpoint import info
from gpt2_train.checkpoint.info import FORMAT, find_checkpoint, list_checkpoints, load_tokenizer, read_info, table_crc
from gpt2_train.checkpoint.optimizer_state import load_optimizer
from gpt2_train.checkpoint.save import Checkpointer, model_tensors
from gpt2_train.checkpoint.tensor_files import Box, boxes_fill
from gpt2_train.checkpoint.verify import verify_checkpoint
from gpt2_train.config.errors import Gpt2Error, Gpt2UsageError
from gpt2_train.config.settings import ModelConfig
from gpt2_train.conversion.formats import open_weights
from gpt2_train.model.gpt2 import GPT2
from indexed_tokens import Tokenizer

MODEL, OPTIMIZER = "model.safetensors", "optimizer-00000-of-00001.safetensors"


@pytest.fixture
def model() -> GPT2:
    return GPT2(SMALL).initialise(torch.Generator().manual_seed(1)).eval()


@pytest.fixture
def save(tmp_path: Path, model: GPT2) -> Callable[..., Path]:
    def saved(step: int = 5, state: dict[str, Any] | None = None, **options: Any) -> Path:
        checkpointer = Checkpointer(tmp_path / "checkpoints", config=SMALL, **options)
        return checkpointer.save(model_tensors(model), step=step, samples=8 * step, state=state)

    return saved


def test_a_saved_model_gives_the_same_logits(tmp_path: Path, model: GPT2, save: Callable[..., Path]) -> None:
    """Pitfall 30: the shape travels with the checkpoint, so that nobody has to guess the padding."""
    step = save(5)
    tokens = torch.randint(0, 100, (2, 16), generator=torch.Generator().manual_seed(2))
    for place in (tmp_path, tmp_path / "checkpoints", step):
        loaded, info = open_weights(place).load(), read_info(place)
        assert torch.equal(loaded(tokens)[..., :100], model(tokens)[..., :100])
        assert (info.config, info.step, info.samples, info.tokens) == (SMALL, 5, 40, 640)
        assert loaded.is_tied and not loaded.training


def test_the_tokenizer_travels_along(tmp_path: Path, save: Callable[..., Path]) -> None:
    save(tokenizer=Tokenizer.gpt2())
    assert load_tokenizer(tmp_path).encode("Hello world") == [15496, 995]
    assert read_info(tmp_path).tokenizer["name"] == "gpt2"


@pytest.mark.parametrize("place", ["nowhere", "empty"])
def test_a_missing_checkpoint_is_an_error_and_never_random_weights(tmp_path: Path, place: str) -> None:
    """Pitfall 29: it was a warning, then text from random weights."""
    (tmp_path / "empty").mkdir()
    with pytest.raises(Gpt2UsageError, match="checkpoint"):
        open_weights(tmp_path / place)


def damage(step: Path, kind: str) -> None:
    file = step / MODEL
    if kind == "cut off":
        os.truncate(file, file.stat().st_size - 1)
    elif kind == "changed":
        content = bytearray(file.read_bytes())
        content[-100] ^= 1
        file.write_bytes(content)
    elif kind == "missing":
        file.unlink()
    elif kind == "other config":
        (step / "config.json").write_text((step / "config.json").read_text().replace("0.1", "0.2"))
    elif kind == "no config":
        (step / "config.json").unlink()
    elif kind == "bad json":
        (step / "checkpoint.json").write_text((step / "checkpoint.json").read_text()[:-40])
    elif kind == "other json":
        (step / "checkpoint.json").write_text('{"format": 3}')


@pytest.mark.parametrize(
    "kind", ["cut off", "changed", "missing", "other config", "no config", "bad json", "other json"]
)
def test_a_damaged_checkpoint_is_one_clear_sentence(tmp_path: Path, save: Callable[..., Path], kind: str) -> None:
    """Pitfall 29: never random, never wrong weights."""
    damage(save(), kind)
    with pytest.raises(Gpt2UsageError, match=r"step-0000005 is damaged \(.*\): give an older one, or delete"):
        open_weights(tmp_path).load()


def write_sealed(step: Path, table: dict[str, Any]) -> None:
    """Write another `checkpoint.json`, with a CRC that fits."""
    (step / "checkpoint.json").write_text(json.dumps(table | {"crc32": table_crc(table)}))


@pytest.mark.parametrize(
    ("old", "new"), [('"step": 5', '"step": 4'), ('"samples": 40', '"samples": 41'), ("crc32", "crc33")]
)
def test_a_changed_character_of_the_description_is_noticed(
    tmp_path: Path, save: Callable[..., Path], old: str, new: str
) -> None:
    """A flipped digit of `step` went unnoticed: only `gpt2 checkpoint verify` compared checkpoint.json with its CRC."""
    place = save() / "checkpoint.json"
    before, found, after = place.read_text().rpartition(old)
    assert found
    place.write_text(before + new + after)
    for use in (open_weights, read_info):
        with pytest.raises(Gpt2UsageError, match=r"is damaged \(checkpoint.json is not what was written\)"):
            use(tmp_path)


def test_what_transformers_reads_is_there_by_gpt_2_s_own_names(save: Callable[..., Path], model: GPT2) -> None:
    """Whole, in float32, and without the rows of padding."""
    step = save(tokenizer=Tokenizer.gpt2())
    with safe_open(step / MODEL, framework="pt") as file:
        names = [*file.keys()]
        embedding = file.get_tensor("transformer.wte.weight")
        matrix = file.get_tensor("transformer.h.1.mlp.c_fc.weight")
    assert len(names) == 4 + 12 * SMALL.layers and "transformer.h.0.attn.c_attn.bias" in names
    # By it vLLM tells the model's files from the optimizer's.
    assert json.loads((step / f"{MODEL}.index.json").read_text())["weight_map"] == dict.fromkeys(sorted(names), MODEL)
    assert torch.equal(embedding, model.token_embedding.weight[: SMALL.vocabulary_size])
    assert torch.equal(matrix, model.blocks[1].feed_forward.up.weight.t())  # type: ignore[union-attr, operator]


def test_nothing_that_is_written_is_a_pickle(tmp_path: Path, model: GPT2) -> None:
    """Pitfall 27: checkpoints held pickled objects."""
    tensors = model_tensors(model) | optimizer_state(model)
    step = Checkpointer(tmp_path, config=SMALL, tokenizer=byte_tokenizer()).save(tensors, step=3, samples=24)
    assert {path.suffix for path in step.iterdir()} == {".json", ".txt", ".safetensors"}


def optimizer_state(model: GPT2) -> dict[str, torch.Tensor]:
    """Tensors that stand in for Adam's moments."""
    return {
        f"optimizer.{name}.{part}": torch.randn_like(parameter)
        for name, parameter in model.named_parameters()
        for part in ("exp_avg", "exp_avg_sq")
    }


def test_a_model_is_loaded_without_a_look_at_the_optimizer(
    tmp_path: Path, model: GPT2, monkeypatch: pytest.MonkeyPatch
) -> None:
    """generate and evaluate read and checked the optimizer's state too, twice the size of the model."""
    tensors = model_tensors(model) | optimizer_state(model)
    step = Checkpointer(tmp_path, config=SMALL).save(tensors, step=3, samples=24)
    checked: list[Path] = []
    plain = info.checksum_of_file
    monkeypatch.setattr(info, "checksum_of_file", lambda path, *rest: checked.append(path) or plain(path, *rest))
    (step / OPTIMIZER).write_bytes(b"damaged")
    loaded = open_weights(tmp_path).load()
    assert torch.equal(loaded.token_embedding.weight[:100], model.token_embedding.weight[:100])
    assert {path.name for path in checked} == {"config.json", "generation_config.json", MODEL, f"{MODEL}.index.json"}
    with pytest.raises(Gpt2UsageError, match=r"step-0000003 is damaged \(optimizer-"):
        load_optimizer(read_info(step), optimizer_state(model))


def test_a_model_without_its_optimizer_is_no_place_to_resume_from(save: Callable[..., Path], model: GPT2) -> None:
    with pytest.raises(Gpt2UsageError, match=r"holds a model without its optimizer.*by --init-from"):
        load_optimizer(read_info(save()), optimizer_state(model))


def test_a_save_that_is_under_way_is_not_removed_as_a_leftover(tmp_path: Path, model: GPT2) -> None:
    """Leftovers were removed at each save, so that one in the background would have lost its folder to the next."""
    checkpointer = Checkpointer(tmp_path, config=SMALL)
    checkpointer.save(model_tensors(model), step=1, samples=8)
    under_way = tmp_path / ".step-0000002.unfinished"
    under_way.mkdir()
    checkpointer.save(model_tensors(model), step=3, samples=24)
    assert under_way.is_dir()


def test_a_model_of_another_size_is_refused(tmp_path: Path, model: GPT2) -> None:
    tensors = model_tensors(model) | optimizer_state(model)
    known = read_info(Checkpointer(tmp_path, config=SMALL).save(tensors, step=3, samples=24))
    with pytest.raises(Gpt2UsageError, match=r"shape \(100, 32\), where \(128, 64\) is needed: it is of another size"):
        load_optimizer(known, optimizer_state(GPT2(ModelConfig(2, 64, 4, 16, 100))))
    with pytest.raises(Gpt2UsageError, match=r"has no optimizer\.final_norm\.bias\.momentum"):
        load_optimizer(known, {"optimizer.final_norm.bias.momentum": torch.zeros(32)})


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
    assert open_weights(tmp_path).step == 1 and open_weights(tmp_path).load()
    assert save(2).name == "step-0000002"


def test_what_a_killed_save_left_is_no_checkpoint(tmp_path: Path, save: Callable[..., Path]) -> None:
    save(1)
    unfinished = tmp_path / "checkpoints" / ".step-0000002.unfinished"
    unfinished.mkdir()
    (unfinished / MODEL).write_bytes(b"half")
    assert find_checkpoint(tmp_path).name == "step-0000001"
    save(2)
    assert not unfinished.exists()


@pytest.mark.parametrize(("number", "sentence"), [(FORMAT + 1, "newer version"), (1, "old format 1: train the model")])
def test_another_format_is_refused(tmp_path: Path, save: Callable[..., Path], number: int, sentence: str) -> None:
    step = save()
    table = json.loads((step / "checkpoint.json").read_text()) | {"format": number}
    (step / "checkpoint.json").write_text(json.dumps(table))
    with pytest.raises(Gpt2UsageError, match=sentence):
        open_weights(tmp_path).load()


# --- boxes that do not fill their tensors ----------------------------------------------------------------------------


def resealed(step: Path, name: str) -> None:
    """Let `checkpoint.json` say of a file what it is now: a CRC that fits does not help an attacker."""
    table = json.loads((step / "checkpoint.json").read_text())
    content = (step / name).read_bytes()
    table["files"][name] = {"bytes": len(content), "crc32": zlib.crc32(content)}
    write_sealed(step, table)


FIRST = "token_embedding.weight.exp_avg"
"""A matrix of 100 × 32, without its padding."""


def in_pieces(*rows: tuple[int, int]) -> Callable[[dict[str, torch.Tensor]], None]:
    """Store the first matrix in pieces of some rows, each as (begin, end)."""

    def change(tensors: dict[str, torch.Tensor]) -> None:
        del tensors[f"{FIRST}@0:0"]
        tensors.update({f"{FIRST}@{begin}:0": torch.ones(end - begin, 32) for begin, end in rows})

    return change


def renamed(old: str, new: str) -> Callable[[dict[str, torch.Tensor]], None]:
    return lambda tensors: tensors.update({new: tensors.pop(old)})


FORGED: dict[str, tuple[Callable[[dict[str, torch.Tensor]], None], str]] = {
    "a piece too few": (in_pieces((0, 50)), "do not cover"),
    "an overlap and a hole": (in_pieces((0, 50), (25, 75)), "do not cover"),
    "an overlap": (in_pieces((0, 60), (50, 100)), "do not cover"),
    "a piece beyond the end": (in_pieces((0, 50), (60, 110)), "do not cover"),
    "another number of dimensions": (renamed(f"{FIRST}@0:0", f"{FIRST}@0"), "do not cover"),
    "a place far away": (renamed(f"{FIRST}@0:0", f"{FIRST}@{1 << 40}:0"), "do not cover"),
    "a place beyond all numbers": (renamed(f"{FIRST}@0:0", f"{FIRST}@{1 << 60}:0"), "which is no part of an optimizer"),
    "no place": (renamed(f"{FIRST}@0:0", FIRST), "which is no part of an optimizer"),
    "another parameter": (renamed(f"{FIRST}@0:0", "blocks.9.x.exp_avg@0:0"), "which is no part of an optimizer"),
    "whole numbers": (lambda t: t.update({f"{FIRST}@0:0": torch.ones(100, 32).int()}), "which is no part"),
}


@pytest.mark.parametrize("forged", FORGED)
def test_an_optimizer_that_its_boxes_do_not_cover_is_refused(forged: str, tmp_path: Path, model: GPT2) -> None:
    """It was loaded as uninitialised memory, and `verify` found nothing."""
    tensors = model_tensors(model) | optimizer_state(model)
    step = Checkpointer(tmp_path, config=SMALL).save(tensors, step=3, samples=24)
    assert verify_checkpoint(step, int).problems == []
    change, said = FORGED[forged]
    found = load_file(step / OPTIMIZER)
    change(found)
    save_file(found, step / OPTIMIZER)
    resealed(step, OPTIMIZER)
    with pytest.raises(Gpt2UsageError, match=rf"step-0000003 is damaged \(.*{said}"):
        load_optimizer(read_info(step), optimizer_state(model))
    (problem,) = verify_checkpoint(step, int).problems
    assert said in problem


@pytest.mark.parametrize("name", [MODEL, OPTIMIZER])
@pytest.mark.parametrize(
    "claim", [{"shape": [1 << 60]}, {"shape": [1 << 60, 1 << 60]}, {"data_offsets": [0, 1 << 60]}, {"dtype": "X"}]
)
def test_a_header_that_claims_what_is_not_there_takes_no_memory(
    name: str, claim: dict[str, Any], tmp_path: Path, model: GPT2
) -> None:
    tensors = model_tensors(model) | optimizer_state(model)
    step = Checkpointer(tmp_path, config=SMALL).save(tensors, step=3, samples=24)
    content = (step / name).read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    header[min(key for key in header if "norm" in key or "ln_f" in key)] |= claim
    text = json.dumps(header).encode()
    (step / name).write_bytes(len(text).to_bytes(8, "little") + text + content[end:])
    resealed(step, name)
    tracemalloc.start()
    try:
        with pytest.raises(Gpt2UsageError, match=r"step-0000003 is damaged \(.*can't be read"):
            open_weights(step).load() if name == MODEL else load_optimizer(read_info(step), optimizer_state(model))
        assert tracemalloc.get_traced_memory()[1] < 50_000_000
    finally:
        tracemalloc.stop()


def box(*sides: tuple[int, int]) -> Box:
    """A part of a tensor, given as (begin, end) for each of its dimensions."""
    return tuple(begin for begin, _ in sides), tuple(end - begin for begin, end in sides)


@pytest.mark.parametrize(
    ("size", "pieces", "whole"),
    [
        ((4, 6), [box((0, 4), (0, 6))], True),
        ((4, 6), [box((0, 2), (0, 3)), box((0, 2), (3, 6)), box((2, 4), (0, 6))], True),
        ((5, 5), [box((0, 2), (0, 3)), box((0, 3), (3, 5)), box((3, 5), (2, 5)), box((2, 5), (0, 2)),
                  box((2, 3), (2, 3))], True),
        ((5,), [box((3, 5)), box((0, 3))], True),
        ((), [box()], True),
        ((0, 3), [], True),
        ((4, 4), [box((0, 2), (0, 2)), box((2, 4), (2, 4)), box((0, 2), (0, 2)), box((2, 4), (2, 4))], False),
        ((4,), [box((0, 2)), box((0, 2))], False),
        ((1,) * 5, [box(*[(0, 1)] * 5)], False),
    ],
)  # fmt: skip
def test_boxes_fill_a_tensor_or_not(size: tuple[int, ...], pieces: list[Box], whole: bool) -> None:
    assert boxes_fill(size, pieces) is whole


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda folder: Tokenizer.gpt2().save_json(folder / "tokenizer.json"), "its tokenizer is not the one"),
        (lambda folder: (folder / "tokenizer.json").write_text("{"), "its tokenizer can't be read: "),
    ],
)
def test_a_run_does_not_resume_from_a_checkpoint_with_a_damaged_tokenizer(
    damage: Callable[[Path], object], why: str, tmp_path: Path, gpt2: Callable[..., int], capsys: Any
) -> None:
    """It went on, and only `verify` found it."""
    run = tmp_path / "run"
    assert gpt2(run, "--steps", 1) == 0
    damage(find_checkpoint(run))
    capsys.readouterr()
    assert gpt2(run, "--steps", 2) == 2
    assert f"step-0000001 is damaged ({why}" in capsys.readouterr().err
