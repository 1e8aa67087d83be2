"""Checkpoints: complete or not there, checked before use, readable by anyone, free of code."""

from __future__ import annotations

import dataclasses
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
import torch.distributed as dist
from tests.gpt2_train import forks
from tests.gpt2_train.small_models import SMALL
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex

from gpt2_train.checkpoint import load
from gpt2_train.checkpoint.info import FORMAT, find_checkpoint, list_checkpoints, load_tokenizer, read_info, table_crc
from gpt2_train.checkpoint.load import _tile, model_tensors
from gpt2_train.checkpoint.save import Checkpointer, load_tensors
from gpt2_train.checkpoint.verify import verify_checkpoint
from gpt2_train.config.errors import Gpt2Error, Gpt2UsageError
from gpt2_train.config.settings import ModelConfig
from gpt2_train.conversion.formats import open_weights
from gpt2_train.model.gpt2 import GPT2
from indexed_tokens import Tokenizer


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


def test_a_model_loads_in_the_type_asked_for(tmp_path: Path, save: Callable[..., Path]) -> None:
    save()
    loaded = open_weights(tmp_path).load(dtype=torch.bfloat16)
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
        open_weights(tmp_path / place)


def damage(step: Path, kind: str) -> None:
    file = next(step.glob("model/__*"))
    if kind == "cut off":
        os.truncate(file, file.stat().st_size - 1)
    elif kind == "changed":
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    elif kind == "missing":
        file.unlink()
    elif kind == "no index":
        (step / "model/.metadata").unlink()
    elif kind == "bad json":
        (step / "checkpoint.json").write_text((step / "checkpoint.json").read_text()[:-40])
    elif kind == "other json":
        (step / "checkpoint.json").write_text('{"format": 2}')


@pytest.mark.parametrize("kind", ["cut off", "changed", "missing", "no index", "bad json", "other json"])
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


class _Attack:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.mark),))


def test_a_checkpoint_cannot_run_code(tmp_path: Path, save: Callable[..., Path]) -> None:
    """Pitfall 27: checkpoints held pickled objects. A valid CRC does not help an attacker either."""
    step = save()
    content = pickle.dumps(_Attack(tmp_path / "attacked"))
    (step / "model/.metadata").write_bytes(content)
    table = json.loads((step / "checkpoint.json").read_text())
    table["files"]["model/.metadata"] = {"bytes": len(content), "crc32": zlib.crc32(content)}
    write_sealed(step, table)
    with pytest.raises(Gpt2UsageError, match="which no checkpoint holds"):
        open_weights(tmp_path).load()
    assert not (tmp_path / "attacked").exists()


class _AttributeOf:
    """Pickled as `getattr(owner, name)`."""

    def __init__(self, owner: object, name: str) -> None:
        self.owner, self.name = owner, name

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return getattr, (self.owner, self.name)


def replace_index(step: Path, change: Callable[[Any], object], part: str = "model") -> None:
    """Rewrite the index of a part of a checkpoint, `change` applied, with a CRC that fits."""
    with (step / part / ".metadata").open("rb") as file:
        metadata = pickle.load(file)
    change(metadata)
    content = pickle.dumps(metadata)
    (step / part / ".metadata").write_bytes(content)
    table = json.loads((step / "checkpoint.json").read_text())
    table["files"][f"{part}/.metadata"] = {"bytes": len(content), "crc32": zlib.crc32(content)}
    write_sealed(step, table)


def test_the_index_as_the_first_releases_of_python_3_11_write_it_is_read(
    save: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under Python 3.11.0 to 3.11.3, Debian 12's among them, no checkpoint could be loaded: an enum's member is pickled
    as an attribute of its class there."""
    from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING

    monkeypatch.setattr(
        _MEM_FORMAT_ENCODING, "__reduce_ex__", lambda member, _: (getattr, (type(member), member.name)), raising=False
    )
    step = save()
    assert b"getattr" in (step / "model/.metadata").read_bytes()
    assert open_weights(tmp_path).load()


def test_attributes_of_anything_but_enums_are_not_given_out(tmp_path: Path, save: Callable[..., Path]) -> None:
    from torch.distributed.checkpoint.metadata import Metadata

    step = save()
    replace_index(step, lambda metadata: metadata.planner_data.update({"x": _AttributeOf(Metadata, "__init__")}))
    with pytest.raises(Gpt2UsageError, match="asks for __init__ of"):
        open_weights(tmp_path).load()


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
    plain = load.checksum_of_file
    monkeypatch.setattr(load, "checksum_of_file", lambda path, *rest: checked.append(path) or plain(path, *rest))
    for file in (step / "optimizer").iterdir():
        file.write_bytes(b"damaged")
    loaded = open_weights(tmp_path).load()
    assert torch.equal(loaded.token_embedding.weight[:100], model.token_embedding.weight[:100])
    assert sorted(path.relative_to(step).as_posix() for path in checked) == ["model/.metadata", "model/__0_0.distcp"]
    with pytest.raises(Gpt2UsageError, match=r"step-0000003 is damaged \(optimizer/"):
        load_tensors(tmp_path, tensors)


def test_a_damaged_index_is_said_of_the_checkpoint_and_not_of_a_folder_in_it(
    tmp_path: Path, save: Callable[..., Path]
) -> None:
    """Its folder is what the user is told to delete."""
    step = save()
    (step / "model/.metadata").write_bytes(b"not an index")
    table = json.loads((step / "checkpoint.json").read_text())
    table["files"]["model/.metadata"] = {"bytes": 12, "crc32": zlib.crc32(b"not an index")}
    write_sealed(step, table)
    with pytest.raises(Gpt2UsageError, match=r"step-0000005 is damaged \(its index"):
        open_weights(tmp_path).load()


def test_a_save_that_is_under_way_is_not_removed_as_a_leftover(tmp_path: Path, model: GPT2) -> None:
    """Leftovers were removed at each save, so that one in the background would have lost its folder to the next."""
    checkpointer = Checkpointer(tmp_path, config=SMALL)
    checkpointer.save(model_tensors(model), step=1, samples=8)
    under_way = tmp_path / ".step-0000002.unfinished"
    under_way.mkdir()
    checkpointer.save(model_tensors(model), step=3, samples=24)
    assert under_way.is_dir()


def save_or_load(what: str, *folders: str) -> str | list[Any]:
    """What this process says of saving to, or loading from, its own folder."""
    folder, tensors = folders[dist.get_rank()], {"model.a": torch.zeros(4)}
    try:
        if what == "load":
            return [load_tensors(folder, tensors).step, tensors["model.a"].tolist()]
        return Checkpointer(Path(folder), config=ModelConfig(1, 8, 1, 4, 10)).save(tensors, step=2, samples=1).name
    except Gpt2Error as error:
        return str(error)


def by_two_processes(what: str, *folders: Path) -> list[Any]:
    """What each of two processes says."""
    return [json.loads(process.stdout) for process in forks.in_group(2, save_or_load, what, *folders)]


def test_processes_that_list_different_checkpoints_load_the_same_one(tmp_path: Path) -> None:
    """Each process looked for the newest checkpoint itself, and one with a stale listing left the others waiting."""
    config = ModelConfig(1, 8, 1, 4, 10)
    for step in (1, 2):
        Checkpointer(tmp_path / "new", config=config).save({"model.a": torch.full((4,), step)}, step=step, samples=1)
    Checkpointer(tmp_path / "stale", config=config).save({"model.a": torch.full((4,), 1.0)}, step=1, samples=1)
    said = by_two_processes("load", tmp_path / "new", tmp_path / "stale")
    assert said == [[2, [2.0] * 4]] * 2


def test_saving_to_a_disk_of_each_machines_own_says_so(tmp_path: Path) -> None:
    """Such a checkpoint was published without the files of other machines, and found damaged only when needed."""
    said = by_two_processes("save", tmp_path / "one", tmp_path / "two")
    assert "can't save the checkpoint" in said[0] and "process 1 on " in said[0]
    assert all("must be on storage that all machines of the run share; earlier" in sentence for sentence in said)
    assert not any(tmp_path.glob("*/step-*"))


def test_a_model_of_another_size_is_refused(save: Callable[..., Path]) -> None:
    step = save()
    other = GPT2(ModelConfig(2, 64, 4, 16, 100))
    with pytest.raises(Gpt2UsageError, match=r"shape \(32,\), where \(64,\) is needed: it is of another size"):
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
    assert open_weights(tmp_path).step == 1 and open_weights(tmp_path).load()
    assert save(2).name == "step-0000002"


def test_what_a_killed_save_left_is_no_checkpoint(tmp_path: Path, save: Callable[..., Path]) -> None:
    save(1)
    unfinished = tmp_path / "checkpoints" / ".step-0000002.unfinished"
    unfinished.mkdir()
    (unfinished / "__0_0.distcp").write_bytes(b"half")
    assert find_checkpoint(tmp_path).name == "step-0000001"
    save(2)
    assert not unfinished.exists()


@pytest.mark.parametrize(("change", "sentence"), [(1, "newer version"), (-1, "old format 1: train the model again")])
def test_another_format_is_refused(tmp_path: Path, save: Callable[..., Path], change: int, sentence: str) -> None:
    step = save()
    table = json.loads((step / "checkpoint.json").read_text()) | {"format": FORMAT + change}
    (step / "checkpoint.json").write_text(json.dumps(table))
    with pytest.raises(Gpt2UsageError, match=sentence):
        open_weights(tmp_path).load()


# --- an index that does not cover its tensors ------------------------------------------------------------------------


def box(*sides: tuple[int, int]) -> ChunkStorageMetadata:
    """A piece of a tensor, given as (begin, end) for each of its dimensions."""
    return ChunkStorageMetadata(
        offsets=torch.Size([begin for begin, _ in sides]), sizes=torch.Size([end - begin for begin, end in sides])
    )


FIRST = "model.token_embedding.weight"
"""A matrix of 128 × 32."""


def in_pieces(metadata: Any, name: str, *pieces: ChunkStorageMetadata) -> None:
    """Say that a tensor is stored in `pieces`, each of which is somewhere."""
    (place,) = (place for place in metadata.storage_data if place.fqn == name)
    item = metadata.storage_data.pop(place)
    metadata.state_dict_metadata[name].chunks = list(pieces)
    for number, piece in enumerate(pieces):
        one = dataclasses.replace(item, offset=item.offset + number, length=1)
        metadata.storage_data[MetadataIndex(name, piece.offsets)] = one


HALVES = box((0, 64), (0, 32)), box((64, 128), (0, 32))
FORGED: dict[str, Callable[[Any], object]] = {
    "no pieces": lambda index: in_pieces(index, FIRST),
    "a piece too few": lambda index: in_pieces(index, FIRST, HALVES[0]),
    "a piece twice": lambda index: in_pieces(index, FIRST, HALVES[0], HALVES[0]),
    "an overlap and a hole": lambda index: in_pieces(index, FIRST, HALVES[0], box((32, 96), (0, 32))),
    "a piece beyond the end": lambda index: in_pieces(index, FIRST, HALVES[0], box((96, 160), (0, 32))),
    "a piece before the beginning": lambda index: in_pieces(index, FIRST, box((-64, 0), (0, 32)), HALVES[1]),
    "another number of dimensions": lambda index: in_pieces(index, FIRST, box((0, 4096))),
    "a piece that is nowhere": lambda index: index.storage_data.clear(),
    "pieces at one place": lambda index: index.storage_data.update(
        dict.fromkeys(index.storage_data, next(iter(index.storage_data.values())))
    ),
}


@pytest.mark.parametrize("forged", FORGED)
def test_a_tensor_that_its_index_does_not_cover_is_refused(
    forged: str, tmp_path: Path, save: Callable[..., Path]
) -> None:
    """It was loaded as uninitialised memory, and `verify` found nothing."""
    step = save()
    replace_index(step, FORGED[forged])
    with pytest.raises(Gpt2UsageError, match=r"is damaged \(its index does not cover model\..*, each value once\)"):
        open_weights(tmp_path).load()
    assert ["its index does not cover" in problem for problem in verify_checkpoint(step, int).problems] == [True]


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
def test_pieces_tile_a_tensor_or_not(size: tuple[int, ...], pieces: list[ChunkStorageMetadata], whole: bool) -> None:
    assert _tile(size, [(tuple(piece.offsets), tuple(piece.sizes)) for piece in pieces]) is whole


def test_verify_reads_the_index_of_the_optimizer_too(tmp_path: Path, model: GPT2) -> None:
    step = Checkpointer(tmp_path, config=SMALL).save(model_tensors(model) | optimizer_state(model), step=3, samples=24)
    assert verify_checkpoint(step, int).problems == []
    replace_index(step, lambda index: in_pieces(index, "optimizer.final_norm.bias.exp_avg"), part="optimizer")
    (problem,) = verify_checkpoint(step, int).problems
    assert problem == "its index does not cover optimizer.final_norm.bias.exp_avg, each value once"


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda folder: (folder / "merges.txt").write_text("#version: 0.2\na b\n"), "its tokenizer"),
        (lambda folder: (folder / "vocab.json").write_text("{"), "its tokenizer can't be read: "),
    ],
)
def test_a_run_does_not_resume_from_a_checkpoint_with_a_damaged_tokenizer(
    damage: Callable[[Path], object], why: str, tmp_path: Path, gpt2: Callable[..., int], capsys: Any
) -> None:
    """It went on, and only `verify` found it."""
    run = tmp_path / "run"
    assert gpt2(run, "--steps", 1) == 0
    damage(find_checkpoint(run) / "tokenizer")
    capsys.readouterr()
    assert gpt2(run, "--steps", 2) == 2
    assert f"step-0000001 is damaged ({why}" in capsys.readouterr().err
