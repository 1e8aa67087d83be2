"""Models whose files claim what they do not hold, or hold what no model does: one sentence at once, and exit code 2."""

import collections
import json
import os
import pickle
import shutil
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.gpt2_train.megatron_folders import save_megatron, save_torch_dist
from tests.gpt2_train.small_models import BYTES, byte_tokenizer, random_model, save
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex

import gpt2_train.cli
from gpt2_train.checkpoint.info import table_crc
from gpt2_train.checkpoint.load import parameter_shapes
from gpt2_train.checkpoint.names import EMBEDDING
from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.config.settings import PRESETS, ModelConfig
from gpt2_train.conversion.formats import open_weights
from gpt2_train.model.gpt2 import GPT2

DEEP = "[" * 100_000
DEEP_TABLE = '{"a":' * 100_000
HUGE = 10**4000
"""Just short of the digits that Python reads."""

Damage = Callable[[Path], object]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model in each format that is read."""
    folder = tmp_path_factory.mktemp("models")
    save(folder / "run", random_model(BYTES), byte_tokenizer())
    assert gpt2_train.cli.main(["convert", str(folder / "run"), str(folder / "hf"), "--to", "hf"]) == 0
    for name in ("checkpoint.json", f"{TENSORS}.index.json"):
        (folder / "hf" / name).unlink()  # others write none
    byte_tokenizer().save(save_megatron(folder / "megatron", random_model(BYTES), 2))
    byte_tokenizer().save(save_torch_dist(folder / "torch_dist", random_model(BYTES)))
    return folder


def edit(pattern: str, change: Callable[[Any], object], load: Any = None, store: Any = None) -> Damage:
    """Change what lies in each file of a pattern: a JSON table, unless another way to `load` and `store` is given."""

    def damage(model: Path) -> None:
        for file in [*model.glob(pattern)]:
            found = load(file) if load else json.loads(file.read_text())
            change(found)
            store(found, file) if store else file.write_text(json.dumps(found))

    return damage


def write(pattern: str, content: str | bytes) -> Damage:
    """Replace the content of a file."""
    data = content.encode() if isinstance(content, str) else content
    return lambda model: next(model.glob(pattern)).write_bytes(data)


# --- Hugging Face ----------------------------------------------------------------------------------------------------

TENSORS = "model.safetensors"
BIAS, QKV = (f"transformer.h.1.attn.c_attn.{kind}" for kind in ("bias", "weight"))
IDS = "transformer.wte.weight"


def config(**changes: Any) -> Damage:
    return edit("config.json", lambda table: table.update(changes))


def index(content: str) -> Damage:
    def damage(model: Path) -> None:
        (model / TENSORS).rename(model / f"{TENSORS}.index.json").write_text(content)

    return damage


def tensors(change: Callable[[dict[str, torch.Tensor]], object]) -> Damage:
    return edit(TENSORS, change, load_file, save_file)


def pickled(change: Callable[[dict[str, Any]], object]) -> Damage:
    """The same as `pytorch_model.bin`, which can hold more kinds of tensors."""

    def store(found: dict[str, Any], file: Path) -> None:
        file.unlink()  # tensors are still read from it
        torch.save(found, file.with_name("pytorch_model.bin"))

    return edit(TENSORS, change, load_file, store)


def tokenizer(change: Callable[[dict[str, Any]], object]) -> Damage:
    return edit("tokenizer.json", change)


def one_value(*shape: int) -> torch.Tensor:
    """A tensor of any size in four bytes."""
    return torch.zeros(1).as_strided(shape, (0,) * len(shape))


def wide(model: Path) -> None:
    """A model of width 2^20 in a few kilobytes, with a config that fits."""
    sizes = {32: 1 << 20, 96: 3 << 20, 128: 4 << 20}
    pickled(lambda t: t.update({n: one_value(*(sizes.get(size, size) for size in t[n].shape)) for n in t}))(model)
    config(n_embd=1 << 20)(model)


OF_HUGGING_FACE: list[tuple[Damage, str]] = [
    (config(n_layer=1_000_000), "holds no blocks.2.attention_norm.weight of a GPT-2"),
    (config(n_embd=1 << 30), "has token_embedding.weight of shape (257, 32), where (257, 1073741824)"),
    (config(vocab_size=(1 << 31) - 1), "has token_embedding.weight of shape (257, 32)"),
    (config(n_layer="12"), "layers is '12': it should be a whole number"),
    (config(resid_pdrop=float("nan")), "dropout is nan"),
    (config(resid_pdrop=[]), "dropout is []"),
    (config(n_inner=[]), "n_inner = []"),
    (config(n_inner=100), "n_inner = 100"),
    (config(model_type=["gpt2"]), "of type ['gpt2']"),
    (config(model_type="llama"), "a model of type llama"),
    (config(activation_function={}), "activation_function = {}"),
    (config(activation_function="relu"), "activation_function = relu"),
    (config(quantization_config={"quant_method": "fp8"}), "quantization_config = {'quant_method': 'fp8'}"),
    (config(scale_attn_by_inverse_layer_idx=True), "scale_attn_by_inverse_layer_idx = True"),
    (config(layer_norm_epsilon=1e-6), "layer_norm_epsilon = 1e-06"),
    (write("config.json", DEEP), "it is nested too deeply"),
    (write("config.json", '{"model_type": "gpt2", "n_layer": ' + DEEP_TABLE), "it is nested too deeply"),
    (write("config.json", '{"model_type": "gpt2", "n_layer": 1' + 5000 * "0" + "}"), "can't read"),
    (index(DEEP), "it is nested too deeply"),
    (index('{"weight_map": ["model.safetensors"]}'), "has no weight_map of tensors to files"),
    (index('{"weight_map": {"a": ["b"]}}'), "has no weight_map of tensors to files"),
    (index('{"weight_map": {"a": "\\u0000"}}'), "which is not in"),
    (index('{"weight_map": {"a": "../model/config.json"}}'), "which is not in"),
    (index("{}"), "has no weight_map of tensors to files"),
    (write(TENSORS, ""), "can't be read"),
    (write(TENSORS, (10**5).to_bytes(8, "little") + b"[" * 10**5), "can't be read"),
    (write(TENSORS, ((1 << 63) - 1).to_bytes(8, "little") + b"{}"), "can't be read"),
    (tensors(lambda t: t.update({BIAS: t[BIAS].to(torch.int8)})), "type that is not floating-point"),
    (tensors(lambda t: t.update({QKV: t[QKV][:5]})), "has blocks.1.attention.qkv.weight of shape (96, 5)"),
    (tensors(lambda t: t.update({IDS: torch.zeros(())})), "token_embedding.weight of shape ()"),
    (tensors(lambda t: t.pop(BIAS)), "holds no blocks.1.attention.qkv.bias"),
    (tensors(lambda t: t.update({"lm_head.weight": t[IDS] + 1})), "an output matrix of its own"),
    (tensors(lambda t: t.update({"lm_head.weight": t[IDS].to(torch.int8)})), "an output matrix of its own"),
    (pickled(lambda t: t.update({BIAS: t[BIAS].to_sparse()})), "type that is not floating-point"),
    (pickled(lambda t: t.update({BIAS: "text"})), "holds no blocks.1.attention.qkv.bias"),
    (wide, "parameters, and its files have"),
    (write("tokenizer.json", DEEP), "it is nested too deeply"),
    (tokenizer(lambda t: t["added_tokens"][0].update({"id": "256"})), "gives two ids to"),
    (tokenizer(lambda t: t["added_tokens"].append({"content": "<|endoftext|>", "id": []})), "gives two ids to"),
    (tokenizer(lambda t: t["model"]["vocab"].update({"x": 1 << 70})), "has no vocabulary"),
    (tokenizer(lambda t: t["model"]["vocab"].update({"\ud800": 300})), "has no vocabulary"),
    (tokenizer(lambda t: t["model"].update({"merges": [{"a": 1}]})), "expected two tokens"),
    (tokenizer(lambda t: t.update({"pre_tokenizer": ["ByteLevel"]})), "or a damaged one"),
]

# --- Megatron-LM -----------------------------------------------------------------------------------------------------

FIRST = "iter_*/mp_rank_00/*"
QKV_BIAS, NORM = "decoder.layers.1.self_attention.linear_qkv.bias", "decoder.layers.{}.input_layernorm.weight"


def rank(change: Callable[[dict[str, Any]], object], number: str = "*") -> Damage:
    """Change what lies in the file of a rank, or of all."""
    return edit(f"iter_*/mp_rank_{number}/*", change, lambda file: torch.load(file, weights_only=False), torch.save)


def holds(name: str, tensor: torch.Tensor, number: str = "*") -> Damage:
    return rank(lambda whole: whole["model"].update({name: tensor}), number)


def embedding(tensor: torch.Tensor) -> Damage:
    return holds("embedding.word_embeddings.weight", tensor)


def nested(whole: dict[str, Any]) -> None:
    table = whole["model"]
    for _ in range(300):
        table["inner"] = table = {}


def repacked(model: Path) -> None:
    (file,) = model.glob(FIRST)
    with zipfile.ZipFile(file) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in content.items():
            archive.writestr(name, data)


def misplaced(model: Path) -> None:
    (second,) = model.glob("iter_*/mp_rank_01")
    second.rename(second.with_name("mp_rank_999999999"))


OF_MEGATRON: list[tuple[Damage, str]] = [
    (holds(QKV_BIAS, torch.zeros(49), "01"), "of different shapes"),
    (rank(lambda w: w["model"].pop(QKV_BIAS), "01"), "hold different tensors"),
    (holds(QKV_BIAS, torch.zeros(49)), "attention.qkv.bias of shape (98,)"),
    (holds(QKV_BIAS, torch.zeros(())), "attention.qkv.bias of shape ()"),
    (holds(QKV_BIAS, torch.zeros(48).int()), "type that is not floating-point"),
    (holds(NORM.format(999999), torch.zeros(32)), "no blocks.2."),
    (holds(NORM.format(f"1{'0' * 5000}"), torch.zeros(32)), "no GPT-2"),
    (embedding(torch.zeros(257)), "has no token embedding"),
    (embedding(one_value(1 << 31, 1 << 31)), "hidden is 2147483648"),
    (embedding(one_value(1 << 30, 32)), "parameters, and its files have"),
    (rank(nested), "is nested too deeply"),
    (rank(lambda w: w["model"].update({"itself": w["model"]})), "is nested too deeply"),
    (rank(lambda w: w.update({"model": [1]})), "holds no `model`"),
    (rank(lambda w: setattr(w["args"], "num_attention_heads", 1)), "1 heads can't be shared among the 2 ranks"),
    (rank(lambda w: setattr(w["args"], "num_attention_heads", 10**500)), "number of attention heads"),
    (lambda m: (next(m.glob("iter_*")) / "mp_rank_999999999").mkdir(), "has no model_optim_rng.pt"),
    (misplaced, "lacks mp_rank_01"),
    (repacked, "is compressed"),
    (write(FIRST, b"PK\3\4" + bytes(100)), "can't be read"),
    (write(FIRST, b""), "can't be read"),
]

# --- torch_dist ------------------------------------------------------------------------------------------------------

NORMS = "decoder.layers.self_attention.linear_qkv.layer_norm_bias"


def of_index(change: Callable[[Any], object]) -> Damage:
    return edit(
        "iter_*/.metadata",
        change,
        lambda file: pickle.loads(file.read_bytes()),
        lambda found, file: file.write_bytes(found if isinstance(found, bytes) else pickle.dumps(found)),
    )


def entry(change: Callable[[Any], object], name: str = NORMS) -> Damage:
    return of_index(lambda index: change(index.state_dict_metadata[name]))


def place(change: Callable[[Any], object]) -> Damage:
    """Change where the first piece of the norms' biases is said to lie."""

    def of(index: Any) -> None:
        change(next(item for key, item in index.storage_data.items() if key.fqn == NORMS))

    return of_index(of)


def common(change: Callable[[Any], object]) -> Damage:
    """Change where the settings are said to lie that megatron-core 0.19 has beside the tensors."""

    def damage(model: Path) -> None:
        shutil.rmtree(model)
        save_torch_dist(model, random_model(BYTES), newer=True)
        of_index(lambda index: change(index.storage_data[MetadataIndex("common_state/shard_0_1")]))(model)

    return damage


def written(change: Callable[[bytes], bytes]) -> Damage:
    return lambda model: [file.write_bytes(change(file.read_bytes())) for file in model.glob("iter_*/*.distcp")]


def claims_any_size(found: Any) -> None:
    """The values of one piece, said to be 2^60."""
    found.size = torch.Size((1 << 60, 32))
    found.chunks = [ChunkStorageMetadata(torch.Size((0, 0)), found.size)]


class Attack:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("attacked",)


OF_TORCH_DIST: list[tuple[Damage, str]] = [
    (entry(claims_any_size), f"does not cover {NORMS}"),
    (entry(lambda e: setattr(e, "size", torch.Size((1 << 60, 0)))), f"{NORMS} has no values"),
    (entry(lambda e: e.chunks.pop()), f"does not cover {NORMS}"),
    (entry(lambda e: e.chunks.append(e.chunks[0])), f"does not cover {NORMS}"),
    (entry(lambda e: setattr(e, "size", [2, 32])), "has no shape or type"),
    (entry(lambda e: setattr(e.properties, "dtype", torch.int64)), "type that is not floating-point"),
    (entry(lambda e: setattr(e.properties, "dtype", torch.bfloat16)), "is not what its index says"),
    (place(lambda item: setattr(item, "length", 1 << 60)), f"does not cover {NORMS}"),
    (place(lambda item: setattr(item, "offset", -1)), f"does not cover {NORMS}"),
    (place(lambda item: setattr(item, "offset", 0)), "it is damaged"),
    (place(lambda item: setattr(item, "relative_path", "../common.pt")), f"does not cover {NORMS}"),
    (place(lambda item: setattr(item, "transform_descriptors", ["zstd"])), f"{NORMS} is compressed"),
    (of_index(lambda index: index.state_dict_metadata.pop(NORMS)), "holds no blocks.0.attention_norm.bias"),
    (of_index(lambda index: index.state_dict_metadata.update(x=Attack())), "which no checkpoint holds"),
    (write("iter_*/.metadata", pickle.dumps([1])), "something else than tensors"),
    (write("iter_*/.metadata", b"\x80\x04]r" + (1 << 24).to_bytes(4, "little") + b"."), "something else than tensors"),
    (written(lambda data: data[:-9]), "does not cover"),
    (written(lambda data: data.replace(b"PK", b"KP")), "can't be read"),
    (write("iter_*/common.pt", b"PK"), "can't be read"),
    (common(lambda item: setattr(item, "length", 1 << 60)), "can't be read"),
    (common(lambda item: setattr(item, "offset", -1)), "can't be read"),
    (common(lambda item: setattr(item, "relative_path", "../../model/iter_0000007/x")), "can't be read"),
    (lambda model: next(model.glob("iter_*/.metadata")).unlink(), "has no .metadata: copy all files"),
]

# --- our own checkpoints ---------------------------------------------------------------------------------------------

DESCRIPTION = "checkpoints/step-*/checkpoint.json"


def sealed(**changes: Any) -> Damage:
    """Change what `checkpoint.json` says, with a CRC that fits."""

    def change(table: dict[str, Any]) -> None:
        for key, value in changes.items():
            both = isinstance(value, dict) and isinstance(table[key], dict)
            table[key] = table[key] | value if both else value
        table["crc32"] = table_crc(table)

    return edit(DESCRIPTION, change)


def unlisted(table: dict[str, Any]) -> None:
    """Leave the weights out of what was recorded."""
    del table["files"]["model.safetensors"]
    table["crc32"] = table_crc(table)


def ours(**changes: Any) -> Damage:
    """Change `config.json`, and what `checkpoint.json` says of it."""

    def damage(model: Path) -> None:
        (step,) = model.glob("checkpoints/step-*")
        config(**changes)(step)
        content = (step / "config.json").read_bytes()
        sealed(files={"config.json": {"bytes": len(content), "crc32": zlib.crc32(content)}})(model)

    return damage


OF_OURS: list[tuple[Damage, str]] = [
    (ours(n_layer=1_000_000), "holds no blocks.2.attention_norm.weight"),
    (ours(n_embd=1 << 30), "has token_embedding.weight of shape"),
    (ours(n_embd=1 << 60), "hidden is 1152921504606846976"),
    (ours(n_layer="2"), "layers is '2'"),
    (ours(model_type="llama"), "a model of type llama"),
    *((sealed(**{key: value}), "checkpoint.json is incomplete") for key, value in (
        ("tokenizer", ["gpt2"]), ("settings", 5), ("data", ["x"]), ("data", 5), ("state", "x"),
        ("files", ["config.json"]), ("files", {"config.json": 5}),
    )),
    (sealed(step="5"), "Expected `int`, got `str` - at `$.step`"),
    (sealed(step=-1), "Expected `int` >= 0 - at `$.step`"),
    (sealed(step=float("inf")), "Expected `int`, got `float` - at `$.step`"),
    (sealed(tokens=True), "Expected `int`, got `bool` - at `$.tokens`"),
    (sealed(files={"model.safetensors": {"bytes": 1 << 60, "crc32": 1}}), "were written"),
    (sealed(files={"a\0": {"bytes": 1, "crc32": 1}}), "can't be read"),
    (sealed(files={"../../config.toml": {"bytes": 1, "crc32": 1}}), "which is no file in it"),
    (edit(DESCRIPTION, unlisted), "does not list model.safetensors"),
    (sealed(format=3.0), "names no format"),
    (write(DESCRIPTION, DEEP), "it is nested too deeply"),
    (write(DESCRIPTION, '{"format": 3, "model": ' + DEEP_TABLE), "it is nested too deeply"),
    (write(DESCRIPTION, '{"format": 1' + 5000 * "0" + "}"), "can't be read"),
    (write(DESCRIPTION, "[]"), "names no format"),
    (write("checkpoints/step-*/config.json", DEEP), "it is nested too deeply"),
    (write("checkpoints/step-*/tokenizer.json", DEEP), "tokenizer.json has 100,000 bytes where"),
]  # fmt: skip

HOSTILE = [
    pytest.param(name, damage, said, id=f"{name}-{number}")
    for name, table in (
        ("hf", OF_HUGGING_FACE),
        ("megatron", OF_MEGATRON),
        ("torch_dist", OF_TORCH_DIST),
        ("run", OF_OURS),
    )
    for number, (damage, said) in enumerate(table)
]  # fmt: skip


@pytest.mark.parametrize(("name", "damage", "said"), HOSTILE)
def test_a_hostile_model_is_refused_in_a_sentence(
    name: str,
    damage: Damage,
    said: str,
    models: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before anything of its size is built. A million layers were built before the first was missed, wrong types were
    internal errors, whole numbers were read as weights, and tables in themselves were hangs."""

    def built(self: object, config: ModelConfig) -> None:
        raise AssertionError("a model was built from what a file claims")

    shutil.copytree(models / name, tmp_path / "model")
    damage(tmp_path / "model")
    monkeypatch.setattr(GPT2, "__init__", built)
    status = gpt2_train.cli.main(["convert", str(tmp_path / "model"), str(tmp_path / "out"), "--to", "hf"])
    error = capsys.readouterr().err
    found = (status, error.count("\n"), "internal error" in error, "Traceback" in error)
    assert found == (2, 1, False, False), error[:2000]
    assert error.startswith("gpt2: error: ") and len(error) < 1200, error[:2000]
    assert said in error
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("value", ["12", 2.5, True, None, {"n": 2}, 1 << 40, HUGE])
@pytest.mark.parametrize("name", ["layers", "hidden", "heads", "sequence_length", "vocabulary_size"])
def test_a_shape_is_whole_numbers_of_models_that_there_are(name: str, value: Any) -> None:
    with pytest.raises(Gpt2UsageError, match=rf"{name} is .{{1,40}}: it should be a whole number, at most"):
        ModelConfig(**{**BYTES.as_table(), name: value})


def test_odd_settings_of_a_megatron_checkpoint_are_passed_over(models: Path, tmp_path: Path) -> None:
    """A version or a dropout that is no usable number was an internal error; neither is needed."""
    shutil.copytree(models / "megatron", tmp_path / "model")

    def odd(whole: dict[str, Any]) -> None:
        whole["iteration"] = -5
        whole["args"].hidden_dropout = 10**400
        whole["args"].vocab_size = True

    rank(odd)(tmp_path / "model")
    write("latest_checkpointed_iteration.txt", "\u00b2")(tmp_path / "model")
    options = ["--vocabulary-size", "257", "--to", "hf"]
    assert gpt2_train.cli.main(["convert", str(tmp_path / "model"), str(tmp_path / "out"), *options]) == 0


# --- values, and the shapes themselves -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["hf", "run"])
def test_values_that_are_no_numbers_are_a_warning(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model with NaN in its weights was read without a word, and wrote nonsense."""
    model = random_model(BYTES)
    with torch.no_grad():
        model.blocks[1].feed_forward.up.bias[3] = float("nan")  # type: ignore[union-attr, index, operator]
    source = save(tmp_path / "run", model, byte_tokenizer())
    if name == "hf":
        assert gpt2_train.cli.main(["convert", str(source), str(tmp_path / "hf"), "--to", "hf"]) == 0
        capsys.readouterr()
        assert gpt2_train.cli.main(["convert", str(tmp_path / "hf"), str(tmp_path / "out"), "--to", "hf"]) == 0
    else:
        open_weights(source).load()
    said = capsys.readouterr().err
    assert said.count("warning: ") == 1 and "blocks.1.feed_forward.up.bias" in said


@pytest.mark.parametrize("shape", [BYTES, ModelConfig(**PRESETS["124M"])])
def test_shapes_are_those_of_the_model(shape: ModelConfig) -> None:
    with torch.device("meta"):
        model = GPT2(shape)
    expected = collections.OrderedDict((name, tuple(value.shape)) for name, value in model.named_parameters())
    expected[EMBEDDING] = (shape.vocabulary_size, shape.hidden)
    assert list(parameter_shapes(shape)) == list(expected.items())
