"""`gpt2 convert`: models in and out of other programs' formats, bit by bit, and used by those programs."""

import argparse
import collections
import json
import os
import pickle
import random
import types
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from tests.gpt2_train.megatron_folders import core_tensors, save_megatron, save_torch_dist
from tests.gpt2_train.small_models import BYTES, byte_tokenizer, random_model, save

import gpt2_train.cli
from gpt2_train.checkpoint.info import describe_tokenizer, read_info, table_crc
from gpt2_train.checkpoint.load import shapes_of
from gpt2_train.checkpoint.names import EMBEDDING
from gpt2_train.checkpoint.optimizer_state import load_optimizer
from gpt2_train.checkpoint.save import Checkpointer, model_tensors
from gpt2_train.checkpoint.verify import verify_checkpoint
from gpt2_train.config.settings import ModelConfig, TrainSettings
from gpt2_train.conversion.formats import ReadOptions, open_weights
from gpt2_train.conversion.formats.megatron import join
from gpt2_train.model.gpt2 import DTYPES, GPT2
from gpt2_train.training.setup import config_of_first_weights
from indexed_tokens import Tokenizer
from indexed_tokens.tokenizer import byte_alphabet

os.environ["HF_HUB_OFFLINE"] = "1"


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run's folder with a checkpoint of a model of bytes."""
    return save(tmp_path_factory.mktemp("runs") / "run", random_model(BYTES), byte_tokenizer())


def convert(*arguments: object) -> None:
    assert gpt2_train.cli.main(["convert", *map(str, arguments)]) == 0


def foreign(source: Path, folder: Path) -> None:
    """A folder as another program would write it: without a record of its files."""
    convert(source, folder)
    (folder / "checkpoint.json").unlink()


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert gpt2_train.cli.main(["convert", *map(str, arguments)]) == 2
    return capsys.readouterr().err


def same(one: Path, other: Path) -> bool:
    """Whether two models have the same values, bit by bit."""
    first, second = open_weights(one), open_weights(other)
    pairs = zip(first.items(), second.items(), strict=True)
    return first.config == second.config and all(a == b and torch.equal(x, y) for (a, x), (b, y) in pairs)


# Hugging Face


def test_transformers_loads_what_is_written_and_computes_the_same(run: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    convert(run, tmp_path / "hf")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", local_files_only=True).eval()
    assert type(theirs).__name__ == "GPT2LMHeadModel"
    tokens = torch.randint(0, 257, (3, 16), generator=torch.Generator().manual_seed(1))
    ours = open_weights(run).load()
    with torch.inference_mode():
        torch.testing.assert_close(ours(tokens)[..., :257], theirs(tokens).logits, atol=1e-4, rtol=0)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "hf", local_files_only=True)
    text = "A text, with café and\n a tab\t."
    assert tokenizer(text)["input_ids"] == byte_tokenizer().encode(text)
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert tokenizer.eos_token_id == 256


@pytest.mark.parametrize("options", [{}, {"max_shard_size": "60KB"}, {"torch": True}])
def test_folders_of_transformers_are_read_and_come_back_bit_by_bit(options: dict, tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(2)
    theirs = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=32, n_head=4, n_positions=16, vocab_size=257)).eval()
    theirs.save_pretrained(tmp_path / "hf", **({} if "torch" in options else options))
    if "torch" in options:
        (tmp_path / "hf" / "model.safetensors").unlink()
        torch.save(theirs.state_dict(), tmp_path / "hf" / "pytorch_model.bin")
    convert(tmp_path / "hf", tmp_path / "ours", "--tokenizer", _tokenizer(tmp_path))
    convert(tmp_path / "ours", tmp_path / "back", "--shard-gb", 0.00005)
    assert len(list((tmp_path / "back").glob("model-*.safetensors"))) > 1
    again = GPT2LMHeadModel.from_pretrained(tmp_path / "back", local_files_only=True)
    for (name, old), (_, new) in zip(theirs.state_dict().items(), again.state_dict().items(), strict=True):
        assert torch.equal(old, new), name


def test_a_folder_of_transformers_without_a_tokenizer_and_with_gpt2_s_ids_has_gpt2_s(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`model.save_pretrained` writes no tokenizer: such a folder was refused, with no word of GPT-2's."""
    from transformers import GPT2Config, GPT2LMHeadModel

    theirs = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=2, n_positions=16))
    theirs.save_pretrained(tmp_path / "hf")
    words = ["generate", "--checkpoint", str(tmp_path / "hf"), "--prompt", "A", "--tokens", "2", "--device", "cpu"]
    assert gpt2_train.cli.main(words) == 0
    note = f"gpt2: {tmp_path / 'hf'} has no tokenizer, but as many token ids as GPT-2: taking GPT-2's;"
    assert note in capsys.readouterr().err
    convert(tmp_path / "hf", tmp_path / "ours")
    assert note in capsys.readouterr().err
    assert open_weights(tmp_path / "ours").tokenizer.fingerprint == Tokenizer.gpt2().fingerprint
    # Data of another tokenizer of that size is not refused: which one the model had is not known.
    settings, weights = TrainSettings(init_from="hf", sequence_length=16), open_weights(tmp_path / "hf")
    other = types.SimpleNamespace(fingerprint="another", vocabulary_size=50257)
    assert config_of_first_weights(settings, weights, other).layers == 1
    GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=50)).save_pretrained(tmp_path / "small")
    assert open_weights(tmp_path / "small").tokenizer is None


def _tokenizer(folder: Path) -> Path:
    byte_tokenizer().save(folder / "tokenizer")
    return folder / "tokenizer"


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_what_is_written_keeps_what_its_source_has_seen_and_the_type_of_its_values(tmp_path: Path, dtype: str) -> None:
    """It said 0 samples and 0 tokens at step 40, and held float32 for any source, at twice the size."""
    model = random_model(BYTES)
    checkpointer = Checkpointer(tmp_path / "run" / "checkpoints", config=BYTES, tokenizer=byte_tokenizer())
    step = checkpointer.save(model_tensors(model), step=40, samples=320)
    convert(tmp_path / "run", tmp_path / "copy", "--dtype", dtype)
    convert(tmp_path / "copy", tmp_path / "again")
    save_megatron(tmp_path / "megatron", model.to(DTYPES[dtype]), step=7)
    convert(tmp_path / "megatron", tmp_path / "back", "--tokenizer", _tokenizer(tmp_path))
    for name, seen, samples in (("copy", 40, 320), ("again", 40, 320), ("back", 7, 56)):
        folder = tmp_path / name
        info = read_info(folder)
        assert (info.step, info.samples, info.tokens) == (seen, samples, samples * 16)
        assert {tensor.dtype for _, tensor in open_weights(folder).items()} == {DTYPES[dtype]}
        loaded = open_weights(folder).load()
        assert torch.equal(loaded.final_norm.bias, model.final_norm.bias.to(DTYPES[dtype]).float())
        assert json.loads((folder / "config.json").read_text())["torch_dtype"] == str(DTYPES[dtype])[6:]
    same = (tmp_path / "copy" / "model.safetensors").read_bytes() == (step / "model.safetensors").read_bytes()
    assert same is (dtype == "fp32")


def test_a_folder_that_its_user_changed_says_how_it_is_read(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was called damaged, with advice for steps of a run."""
    convert(run, tmp_path / "hf")
    config = tmp_path / "hf" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"resid_pdrop": 0.5}))
    assert "if you changed it yourself, delete its checkpoint.json" in refused(capsys, tmp_path / "hf", tmp_path / "no")
    (tmp_path / "hf" / "checkpoint.json").unlink()
    convert(tmp_path / "hf", tmp_path / "again")
    assert read_info(tmp_path / "again").config.dropout == 0.5


# Checkpoints of format 2


def of_format_2(folder: Path, model: GPT2) -> dict[str, torch.Tensor]:
    """Write a checkpoint as earlier versions did; returns what it holds."""
    tensors = model_tensors(model)
    for name, parameter in model.named_parameters():
        tensors |= {f"optimizer.{name}.{kind}": torch.randn_like(parameter) for kind in ("exp_avg", "exp_avg_sq")}
    files = {}
    for part in ("model", "optimizer"):
        writer = dcp.FileSystemWriter(folder / part, single_file_per_rank=True)
        dcp.save({name: t for name, t in tensors.items() if name.startswith(part)}, storage_writer=writer, no_dist=True)
        for file in (folder / part).iterdir():
            content = file.read_bytes()
            files[f"{part}/{file.name}"] = {"bytes": len(content), "crc32": zlib.crc32(content)}
    byte_tokenizer().save(folder / "tokenizer")
    table = {
        "format": 2, "step": 9, "samples": 72, "tokens": 72 * 16, "model": BYTES.as_table(), "settings": {"lr": 0.1},
        "tokenizer": describe_tokenizer(byte_tokenizer()), "data": [{"a": 1}], "state": {"loss": 2.5}, "files": files,
    }  # fmt: skip
    (folder / "checkpoint.json").write_text(json.dumps(table | {"crc32": table_crc(table)}))
    return tensors


def test_a_checkpoint_of_format_2_is_turned_into_todays_with_its_optimizer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = tmp_path / "run" / "checkpoints" / "step-0000009", tmp_path / "new" / "checkpoints" / "step-0000009"
    expected = of_format_2(old, random_model(BYTES))
    for words in (["generate", "--prompt", "a", "--checkpoint"], ["evaluate", "text-loss", __file__, "--checkpoint"]):
        assert gpt2_train.cli.main([*words, str(tmp_path / "run")]) == 2
        assert f"format 2 of earlier versions: `gpt2 convert {old} NEW`" in capsys.readouterr().err
    assert "by `gpt2 convert" in refused(capsys, old, tmp_path / "half", "--dtype", "bf16")
    convert(tmp_path / "run", new)
    info = read_info(tmp_path / "new")
    assert (info.step, info.samples, info.settings, info.data) == (9, 72, {"lr": 0.1}, [{"a": 1}])
    assert info.state == {"loss": 2.5} and verify_checkpoint(new, int).problems == []
    found = {name: torch.zeros_like(tensor) for name, tensor in expected.items() if name.startswith("optimizer.")}
    load_optimizer(info, found)
    found |= {f"model.{name}": tensor for name, tensor in open_weights(new).items()}
    for name, tensor in expected.items():
        rows = slice(0, 257) if "token_embedding" in name else slice(None)
        assert torch.equal(found[name][rows], tensor[rows]), name


class _Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("attacked",)


def flipped(folder: Path) -> None:
    content = bytearray((folder / "optimizer" / "__0_0.distcp").read_bytes())
    content[1000] ^= 1
    (folder / "optimizer" / "__0_0.distcp").write_bytes(content)


def with_index(change: Callable[[Any], Any]) -> Callable[[Path], None]:
    """Write another index, with a CRC that fits."""

    def damage(folder: Path) -> None:
        file = folder / "model" / ".metadata"
        found = pickle.loads(file.read_bytes())
        changed = change(found)
        content = changed if isinstance(changed, bytes) else pickle.dumps(changed)
        file.write_bytes(content)
        table = json.loads((folder / "checkpoint.json").read_text())
        table["files"]["model/.metadata"] = {"bytes": len(content), "crc32": zlib.crc32(content)}
        (folder / "checkpoint.json").write_text(json.dumps(table | {"crc32": table_crc(table)}))

    return damage


def without_pieces(index: Any) -> Any:
    index.state_dict_metadata["model.final_norm.bias"].chunks = []
    return index


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (flipped, "optimizer/__0_0.distcp is not what was written"),
        (with_index(lambda index: _Bomb()), "which no checkpoint holds"),
        (with_index(without_pieces), "does not cover model.final_norm.bias"),
        # An empty list, remembered under 2^24: the unpickler in C made it a table of gigabytes.
        (
            with_index(lambda index: b"\x80\x04]r" + (1 << 24).to_bytes(4, "little") + b"."),
            "something else than tensors",
        ),
    ],
)
def test_a_damaged_checkpoint_of_format_2_is_one_sentence(
    damage: Callable[[Path], None],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Pitfall 27: a pickle could run anything. A valid CRC does not help an attacker either."""
    monkeypatch.chdir(tmp_path)
    of_format_2(tmp_path / "old", random_model(BYTES))
    damage(tmp_path / "old")
    error = refused(capsys, "old", "new")
    assert said in error and error.count("\n") == 1
    assert not Path("attacked").exists() and not Path("new").exists()


# Megatron-LM


@pytest.mark.parametrize("size", [1, 2, 4])
def test_megatron_checkpoints_are_read_bit_by_bit(tmp_path: Path, size: int) -> None:
    model = random_model(BYTES)
    convert(save_megatron(tmp_path / "m", model, size), tmp_path / "ours", "--tokenizer", _tokenizer(tmp_path))
    assert read_info(tmp_path / "ours").step == 7
    ours = open_weights(tmp_path / "ours").load()
    for name, tensor in model.state_dict().items():
        rows = slice(0, 257) if name in (EMBEDDING, "output.weight") else slice(None)
        assert torch.equal(ours.state_dict()[name][rows], tensor[rows]), name


def test_the_order_of_qkv_rows_is_that_of_each_version() -> None:
    """Heads A and B, rows named by head, kind and place; the orders are those of Megatron-LM's own documentation."""
    heads, width = 2, 2
    rows = [f"{head}{kind}{place}" for head in "AB" for kind in "qkv" for place in range(width)]
    numbers = torch.arange(len(rows)).view(-1, 1)
    name = "blocks.0.attention.qkv.weight"

    def read(version: float, *shares: str) -> list[str]:
        stored = [torch.stack([numbers[rows.index(row)] for row in share.split()]) for share in shares]
        return [rows[int(row)] for row in join(name, stored, version=version, heads=heads).flatten()]

    assert read(0, "Aq0 Aq1 Bq0 Bq1 Ak0 Ak1 Bk0 Bk1 Av0 Av1 Bv0 Bv1") == rows
    assert read(0, "Aq0 Aq1 Ak0 Ak1 Av0 Av1", "Bq0 Bq1 Bk0 Bk1 Bv0 Bv1") == rows
    assert read(1, "Aq0 Ak0 Av0 Aq1 Ak1 Av1 Bq0 Bk0 Bv0 Bq1 Bk1 Bv1") == rows
    assert read(1, "Aq0 Ak0 Av0 Aq1 Ak1 Av1", "Bq0 Bk0 Bv0 Bq1 Bk1 Bv1") == rows
    for version in (2, 3):
        assert read(version, " ".join(rows)) == read(version, " ".join(rows[:6]), " ".join(rows[6:])) == rows


class _ArgumentsOfAnotherProgram:
    """Stands in for classes that Megatron's files name and that are not installed here."""


def _old_file(path: Path, tensors: dict[str, torch.Tensor], **rest: object) -> None:
    """A file as the scripts of 2019 wrote it: the old file format, settings and random states next to the model."""
    path.parent.mkdir(parents=True)
    state = {
        "iteration": 600,
        "model": collections.OrderedDict(tensors),
        "optimizer": {"optimizer": {"state": {}}, "cur_scale": 65536.0},
        "random_rng_state": random.getstate(),
        "np_rng_state": np.random.RandomState(1).get_state(),
        "torch_rng_state": torch.get_rng_state(),
        "other": _ArgumentsOfAnotherProgram(),
        **rest,
    }
    torch.save(state, path, _use_new_zipfile_serialization=False)


OLD_NAMES = {
    "embedding.": "",
    "decoder.": "transformer.",
    "self_attention.linear_qkv": "attention.query_key_value",
    "self_attention.linear_proj": "attention.dense",
    "pre_mlp_layernorm": "post_attention_layernorm",
    "linear_fc1": "dense_h_to_4h",
    "linear_fc2": "dense_4h_to_h",
}
"""What Megatron Core's names were in the scripts of 2019."""


def _old_tensors(model: GPT2, rank: int, size: int) -> dict[str, torch.Tensor]:
    """One rank's tensors of version 0: names and split of the scripts of 2019, rows of qkv as [3, heads, d]."""
    found = {}
    for name, (tensor, dimension) in core_tensors(model).items():
        for new, old in OLD_NAMES.items():
            name = name.replace(new, old)
        share = tensor if dimension is None else tensor.chunk(size, dimension)[rank]
        if "query_key_value" in name:
            share = share.view(4 // size, 3, 8, *share.shape[1:]).transpose(0, 1).flatten(0, 2)
        found[name] = share.clone()
    return found


@pytest.mark.parametrize("size", [1, 2])
def test_a_checkpoint_of_2019_is_read_without_running_anything_in_it(tmp_path: Path, size: int) -> None:
    model = random_model(BYTES)
    for rank in range(size):
        _old_file(
            tmp_path / "old" / "iter_0000600" / f"mp_rank_{rank:02d}" / "model_optim_rng.pt",
            _old_tensors(model, rank, size),
        )
    (tmp_path / "old" / "latest_checkpointed_iteration.txt").write_text("600")
    weights = open_weights(tmp_path / "old", ReadOptions(heads=4, vocabulary_size=257))
    assert (weights.config.layers, weights.config.hidden, weights.step) == (2, 32, 600)
    for name, parameter in model.named_parameters():
        rows = slice(0, 257) if name == EMBEDDING else slice(None)
        assert torch.equal(weights.read(name)[rows], parameter[rows]), name


@pytest.mark.parametrize("new_format", [True, False])
def test_code_in_a_file_is_not_run(tmp_path: Path, monkeypatch, capsys, new_format: bool) -> None:
    """Neither a call that the pickle asks for, nor one that hides behind a class of Megatron's name."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "old" / "mp_rank_00" / "model_optim_rng.pt"
    file.parent.mkdir(parents=True)
    tensors = _old_tensors(random_model(BYTES), 0, 1)
    torch.save({"model": tensors, "args": _Bomb()}, file, _use_new_zipfile_serialization=new_format)
    with pytest.raises(pickle.UnpicklingError):
        torch.load(file, weights_only=True)
    gpt2_train.cli.main(["convert", str(tmp_path / "old"), str(tmp_path / "ours"), "--heads", "4"])
    assert not (tmp_path / "attacked").exists()
    torch.save({"wte.weight": _Bomb()}, tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 1}))
    assert gpt2_train.cli.main(["convert", str(tmp_path), str(tmp_path / "ours2")]) == 2
    assert not (tmp_path / "attacked").exists()


def test_newer_names_and_versions_are_read(tmp_path: Path) -> None:
    """`language_model` with `transformer` or `encoder`, `attention` or `self_attention`, and `module.` before all."""
    model = random_model(BYTES)
    old = _old_tensors(model, 0, 1)
    stack = {name.removeprefix("transformer."): tensor for name, tensor in old.items() if "transformer" in name}
    for name in [name for name in stack if "query_key_value" in name]:
        own = name.replace("layers", "blocks").replace("query_key_value", "qkv")
        stack[name] = dict(model.named_parameters())[own].detach().clone()
    language_model = {
        "embedding": {
            "word_embeddings": {"weight": old["word_embeddings.weight"]},
            "position_embeddings": {"weight": old["position_embeddings.weight"]},
        },
    }
    arguments = argparse.Namespace(num_attention_heads=4, vocab_size=257, hidden_dropout=0.0)
    for number, (name, attention) in enumerate([("transformer", ".attention."), ("encoder", ".self_attention.")]):
        renamed = {key.replace(".attention.", attention): tensor for key, tensor in stack.items()}
        file = tmp_path / str(number) / "mp_rank_00_000" / "model_optim_rng.pt"
        file.parent.mkdir(parents=True)
        whole = {"module": {"language_model": {**language_model, name: renamed}}}
        torch.save({"model": whole, "checkpoint_version": 3.0, "args": arguments, "iteration": 5}, file)
        loaded = open_weights(tmp_path / str(number))
        assert loaded.config == ModelConfig(
            layers=2, hidden=32, heads=4, sequence_length=16, vocabulary_size=257, dropout=0.0
        )
        for key, parameter in model.named_parameters():
            assert torch.equal(loaded.read(key), parameter), key


def test_what_is_no_gpt2_of_megatron_is_refused(tmp_path: Path, capsys) -> None:
    def refusal(tensors: dict[str, torch.Tensor], *, folder: str, **rest: object) -> str:
        _old_file(tmp_path / folder / "mp_rank_00" / "model_optim_rng.pt", tensors, **rest)
        return refused(capsys, tmp_path / folder, tmp_path / "ours", "--heads", 4)

    tensors = _old_tensors(random_model(BYTES), 0, 1)
    assert "which no GPT-2 has" in refusal({**tensors, "transformer.adapter.weight": torch.ones(1)}, folder="a")
    without = {name: tensor for name, tensor in tensors.items() if "position" not in name}
    assert "no position embedding" in refusal(without, folder="b")
    short = {name: tensor for name, tensor in tensors.items() if "layers.0.mlp.dense_4h_to_h.bias" not in name}
    assert "holds no blocks.0.feed_forward.down.bias" in refusal(short, folder="c")
    untied = {**tensors, "lm_head.weight": tensors["word_embeddings.weight"] + 1}
    assert "an output matrix of its own" in refusal(untied, folder="d")
    (tmp_path / "e" / "mp_rank_00_001").mkdir(parents=True)
    assert "pipeline parallel" in refused(capsys, tmp_path / "e", tmp_path / "ours")


def test_the_names_are_those_of_megatron_core() -> None:
    """Names and shapes of its own model."""
    pytest.importorskip("megatron.core", reason="Megatron Core comes for Linux only")
    found = {name: tuple(tensor.shape) for name, (tensor, _) in core_tensors(GPT2(BYTES)).items()}
    assert found == _names_of_megatron_core()


def _names_of_megatron_core() -> dict[str, tuple[int, ...]]:
    import torch.distributed as dist
    from megatron.core import parallel_state
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed  # noqa: F401
    from megatron.core.transformer.transformer_config import TransformerConfig

    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        parallel_state.initialize_model_parallel()
        config = TransformerConfig(
            num_layers=2,
            hidden_size=32,
            num_attention_heads=4,
            use_cpu_initialization=True,
            perform_initialization=False,
        )
        model = GPTModel(
            config,
            get_gpt_layer_local_spec(),
            vocab_size=384,
            max_sequence_length=16,
            position_embedding_type="learned_absolute",
            share_embeddings_and_output_weights=True,
        )
        return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    finally:
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()


# Megatron Core's torch_dist


@pytest.mark.parametrize(("stacked", "fused"), [(True, True), (False, True), (False, False)])
@pytest.mark.parametrize("size", [1, 2])
def test_a_distributed_checkpoint_of_megatron_core_is_read_bit_by_bit(
    tmp_path: Path, size: int, stacked: bool, fused: bool
) -> None:
    """One name for all layers, or one for each; norms of their own, or fused as in Transformer Engine."""
    model = random_model(BYTES)
    folder = save_torch_dist(tmp_path / "m", model, size, stacked=stacked, fused=fused, newer=size == 2)
    weights = open_weights(folder)
    assert (weights.config, weights.step, weights.samples) == (BYTES, 7, 56)
    for name, parameter in model.named_parameters():
        assert torch.equal(weights.read(name), parameter), name
    tokens, legacy = torch.arange(16)[None], open_weights(save_megatron(tmp_path / "legacy", model, size))
    with torch.inference_mode():
        assert torch.equal(weights.load()(tokens), legacy.load()(tokens))


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"sharded_backend": "zarr"}, "of Megatron-LM's format zarr, which is not read"),
        ({"sharded_backend": "fsdp_dtensor"}, "format fsdp_dtensor, which is not read"),
        ({}, "format torch_dcp or fsdp_dtensor, which is not read: load it with Megatron-LM, and save it with"),
    ],
)
def test_other_formats_of_megatron_are_refused_by_their_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], table: dict, said: str
) -> None:
    (tmp_path / "m" / "iter_0000005").mkdir(parents=True)
    (tmp_path / "m" / "iter_0000005" / "metadata.json").write_text(json.dumps(table))
    if not table:
        (tmp_path / "m" / "iter_0000005" / ".metadata").write_bytes(b"")
    assert said in refused(capsys, tmp_path / "m", tmp_path / "ours")


# GGUF


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_gguf_file_holds_settings_tokens_and_tensors(run: Path, tmp_path: Path, dtype: str) -> None:
    gguf = pytest.importorskip("gguf")
    convert(run, tmp_path / "model.gguf", "--dtype", dtype)
    reader = gguf.GGUFReader(tmp_path / "model.gguf")

    def field(name: str) -> object:
        return reader.get_field(name).contents()

    assert field("general.architecture") == "gpt2"
    assert (field("gpt2.block_count"), field("gpt2.embedding_length"), field("gpt2.attention.head_count")) == (2, 32, 4)
    assert (field("gpt2.context_length"), field("gpt2.feed_forward_length")) == (16, 128)
    assert (field("tokenizer.ggml.model"), field("tokenizer.ggml.eos_token_id")) == ("gpt2", 256)
    assert len(field("tokenizer.ggml.tokens")) == 257
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    model = open_weights(run).load()
    assert len(tensors) == len(shapes_of(BYTES))
    for name, tensor in tensors.items():
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        own = _own_name(name)
        expected = model.get_parameter(own).detach()[: 257 if own == EMBEDDING else None]
        if "attn_qkv" in name:
            expected = expected.view(4, 3, 8, *expected.shape[1:]).transpose(0, 1).reshape(expected.shape)
        if expected.dim() == 2 and dtype != "fp32":
            expected = expected.to({"fp16": torch.float16, "bf16": torch.bfloat16}[dtype]).float()
        np.testing.assert_array_equal(values.reshape(expected.shape), expected.numpy(), err_msg=name)


@pytest.mark.parametrize("size", [256, 257])
def test_a_text_of_llama_cpp_does_not_end_at_a_comma(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], size: int
) -> None:
    """Without an end of text llama.cpp (October 2026) takes token 11 for it, in GPT-2's order the comma."""
    gguf = pytest.importorskip("gguf")
    vocabulary = {token: number for number, token in enumerate(byte_alphabet())}
    shape = ModelConfig(layers=1, hidden=8, heads=1, sequence_length=8, vocabulary_size=size)
    save(tmp_path / "run", random_model(shape), Tokenizer(vocabulary, []))
    convert(tmp_path / "run", tmp_path / "model.gguf")
    end = gguf.GGUFReader(tmp_path / "model.gguf").get_field("tokenizer.ggml.eos_token_id")
    is_warned = "llama.cpp takes ',' (token 11) for it: give it --ignore-eos" in capsys.readouterr().err
    assert (end and end.contents(), is_warned) == ((256, False) if size > 256 else (None, True))


def _own_name(name: str) -> str:
    for theirs, own in (
        ("token_embd", "token_embedding"), ("position_embd", "position_embedding"), ("output_norm", "final_norm"),
        ("attn_norm", "attention_norm"), ("attn_qkv", "attention.qkv"), ("attn_output", "attention.out"),
        ("ffn_norm", "feed_forward_norm"), ("ffn_up", "feed_forward.up"), ("ffn_down", "feed_forward.down"),
        ("blk.", "blocks."),
    ):  # fmt: skip
        name = name.replace(theirs, own)
    return name


# The command


def test_every_command_takes_a_model_of_another_format(run: Path, tmp_path: Path, capsys) -> None:
    convert(run, tmp_path / "hf")
    capsys.readouterr()
    outputs = []
    for model in (run, tmp_path / "hf"):
        arguments = ["generate", "--checkpoint", str(model), "--prompt", "abc", "--tokens", "9", "--greedy", "--json"]
        assert gpt2_train.cli.main(arguments[:-1]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]


def test_the_target_is_whole_or_not_there(run: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").write_text("mine")
    assert "is there already" in refused(capsys, run, tmp_path / "taken")

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gpt2_train.checkpoint.save.write_tensors", fail)
    assert gpt2_train.cli.main(["convert", str(run), str(tmp_path / "hf")]) == 1
    assert "No space left on device" in capsys.readouterr().err
    assert [entry.name for entry in tmp_path.iterdir()] == ["taken"]


def test_a_card_says_what_the_checkpoint_records(tmp_path: Path) -> None:
    checkpointer = Checkpointer(
        tmp_path / "run" / "checkpoints",
        config=BYTES,
        tokenizer=byte_tokenizer(),
        settings={"lr": 0.001, "data": ["0.5:corpus"], "tokenizer": "a\n# A heading"},
    )
    checkpointer.save(model_tensors(random_model(BYTES)), step=7, samples=56)
    convert(tmp_path / "run", tmp_path / "hf", "--card")
    card = (tmp_path / "hf" / "README.md").read_text()
    for line in ("layers = 2", "steps = 7", "lr = 0.001", 'data = ["0.5:corpus"]', r'tokenizer = "a\n# A heading"'):
        assert f"\n    {line}\n" in card
    assert card.isascii() and "\n# A heading" not in card


def test_the_digest_is_that_of_the_values_whatever_the_format(run: Path, tmp_path: Path) -> None:
    convert(run, tmp_path / "hf")
    save_megatron(tmp_path / "m", random_model(BYTES), 2)
    found = {open_weights(place).digest() for place in (tmp_path / "hf", tmp_path / "m")}
    assert len(found) == 1
    other = save(tmp_path / "other", random_model(BYTES, seed=9), byte_tokenizer())
    assert open_weights(other).digest() not in found


# Tokenizers and types that do not fit


def test_the_tokenizer_beside_megatron_s_iterations_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As Megatron-LM takes GPT-2's (`--vocab-file`, `--merge-file`): it was missing in what was written."""
    folder = save_megatron(tmp_path / "m", random_model(BYTES))
    byte_tokenizer().save(folder)
    convert(folder, tmp_path / "hf", "--to", "hf")
    convert(folder / "iter_0000007", tmp_path / "again", "--to", "hf")
    assert "tokenizer" not in capsys.readouterr().err
    for name in ("hf", "again"):
        assert open_weights(tmp_path / name).tokenizer.fingerprint == byte_tokenizer().fingerprint
    for name in ("vocab.json", "merges.txt"):
        (folder / name).unlink()
    convert(folder, tmp_path / "bare", "--to", "hf")
    assert f"{folder} has no tokenizer, and so what is written has none" in capsys.readouterr().err


@pytest.mark.parametrize("target", ["hf", "gguf"])
def test_a_tokenizer_with_more_ids_than_the_model_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], target: str
) -> None:
    """`--vocabulary-size 200` cut ids off, and transformers ended with an IndexError."""
    byte_tokenizer().save(save_megatron(tmp_path / "m", random_model(BYTES)))
    said = refused(capsys, tmp_path / "m", tmp_path / "small", "--to", target, "--vocabulary-size", 200)
    assert "has 257 token ids, and the model 200" in said
    assert not (tmp_path / "small").exists()


@pytest.mark.parametrize("target", ["hf", "gguf"])
@pytest.mark.parametrize(
    ("dtype", "beyond", "largest"), [("fp16", 1e5, 65519.0), ("fp16", -65520.0, 65519.0), ("bf16", 3.4e38, 3.38e38)]
)
def test_values_beyond_the_type_are_refused_by_name_and_the_largest_that_fit_are_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], target: str, dtype: str, beyond: float, largest: float
) -> None:
    """They became infinite without a word. torch 2.13 and numpy 2 round to infinity; 65,519 rounds to 65,504."""
    if target == "gguf":
        pytest.importorskip("gguf")
    model = random_model(BYTES)
    weight = model.blocks[1].feed_forward.down.weight
    with torch.no_grad():
        weight[0, 0] = beyond
    save(tmp_path / "run", model)
    said = refused(capsys, tmp_path / "run", tmp_path / "out", "--to", target, "--dtype", dtype)
    assert f"has 1 value that is beyond {dtype} in blocks.1.feed_forward.down.weight" in said
    assert not (tmp_path / "out").exists()
    with torch.no_grad():
        weight[0, 0] = largest
    save(tmp_path / "other", model)
    convert(tmp_path / "other", tmp_path / "out", "--to", target, "--dtype", dtype)


def test_a_tokenizer_without_an_end_of_text_stays_one_in_transformers(tmp_path: Path) -> None:
    """transformers 5.23 gave it <|endoftext|> as id 256, for which the model has no row."""
    from transformers import AutoTokenizer

    vocabulary = {token: number for token, number in byte_tokenizer().tables.vocabulary.items() if number < 256}
    shape = ModelConfig(layers=1, hidden=8, heads=1, sequence_length=8, vocabulary_size=256)
    save(tmp_path / "run", random_model(shape), Tokenizer(vocabulary, []))
    convert(tmp_path / "run", tmp_path / "hf")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "hf", local_files_only=True)
    assert len(theirs) == 256
    assert (theirs.bos_token_id, theirs.eos_token_id, theirs.unk_token_id) == (None, None, None)
    assert max(theirs("a <|endoftext|> b")["input_ids"]) < 256


SETTINGS_THAT_ENCODE_OTHERWISE = [
    ("tokenizer_config.json", {"add_prefix_space": True}, "a space before each text", True),
    ("tokenizer_config.json", {"tokenizer_class": "RobertaTokenizer"}, "the tokenizer class RobertaTokenizer", True),
    ("tokenizer_config.json", {"pad_token": "<pad>"}, "tokens besides <|endoftext|> (<pad>)", True),
    ("tokenizer_config.json", {"extra_special_tokens": ["<x>"]}, "tokens besides <|endoftext|> (<x>)", True),
    ("tokenizer_config.json", {"added_tokens_decoder": {"9": {"content": "<y>"}}}, "(<y>)", True),
    ("tokenizer_config.json", {"add_bos_token": True}, "a token to each text (add_bos_token)", False),
    ("special_tokens_map.json", {"eos_token": {"content": "</s>"}}, "tokens besides <|endoftext|> (</s>)", True),
    ("added_tokens.json", {"<z>": 257}, "tokens besides <|endoftext|> (<z>)", True),
]


@pytest.mark.parametrize(("name", "table", "why", "with_json"), SETTINGS_THAT_ENCODE_OTHERWISE)
def test_settings_beside_a_tokenizer_that_transformers_obeys_are_refused(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, table: dict, why: str, with_json: bool
) -> None:
    """They were passed over: the same text had other ids here than in `AutoTokenizer` (transformers 5.23)."""
    foreign(run, tmp_path / "hf")
    convert(tmp_path / "hf", tmp_path / "fine", "--to", "hf")
    if not with_json:
        (tmp_path / "hf" / "tokenizer.json").unlink()
    (tmp_path / "hf" / name).write_text(json.dumps(table))
    assert why in refused(capsys, tmp_path / "hf", tmp_path / "out", "--to", "hf")


def test_transformers_obeys_the_prefix_space_and_the_added_tokens(run: Path, tmp_path: Path) -> None:
    """What `test_settings_beside_...` rests on, in transformers itself."""
    from transformers import AutoTokenizer

    convert(run, tmp_path / "hf")
    config = tmp_path / "hf" / "tokenizer_config.json"
    plain = json.loads(config.read_text())
    for change, expected in (({}, [97]), ({"add_prefix_space": True}, [32, 97]), ({"pad_token": "a"}, [97])):
        config.write_text(json.dumps(plain | change))
        theirs = AutoTokenizer.from_pretrained(tmp_path / "hf", local_files_only=True)
        assert theirs("a")["input_ids"] == expected
    config.write_text(json.dumps(plain | {"pad_token": "<pad>"}))
    assert len(AutoTokenizer.from_pretrained(tmp_path / "hf", local_files_only=True)) == 258


def test_what_only_transformers_takes_from_generation_config_is_said(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    foreign(run, tmp_path / "hf")
    (tmp_path / "hf" / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [256, 10], "top_k": 5, "temperature": None, "transformers_version": "5.23.0"})
    )
    convert(tmp_path / "hf", tmp_path / "ours")
    said = capsys.readouterr().err
    assert "ends a text with the token id 10, and here <|endoftext|> (256) alone does" in said
    assert "generation_config.json sets top_k, which is not kept" in said
