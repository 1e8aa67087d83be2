"""Models whose files claim what they do not hold, or hold what no model does: one sentence at once, and exit code 2."""

import collections
import json
import shutil
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.gpt2_train.small_models import BYTES, byte_tokenizer, random_model, save

import gpt2_train.cli
from gpt2_train.checkpoint.info import table_crc
from gpt2_train.checkpoint.load import EMBEDDING, parameter_shapes
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
    for name, options in (("hf", []), ("megatron", ["--tensor-parallel", "2"])):
        assert gpt2_train.cli.main(["convert", str(folder / "run"), str(folder / name), "--to", name, *options]) == 0
    return folder


@pytest.fixture
def check(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, Damage, str], None]:
    """`check(name, damage, said)`: a damaged model is refused in a sentence, before anything of its size is built."""

    def built(self: object, config: ModelConfig) -> None:
        raise AssertionError("a model was built from what a file claims")

    def refuse(name: str, damage: Damage, sentence: str) -> None:
        shutil.copytree(models / name, tmp_path / "model")
        damage(tmp_path / "model")
        capsys.readouterr()
        monkeypatch.setattr(GPT2, "__init__", built)
        status = gpt2_train.cli.main(["convert", str(tmp_path / "model"), str(tmp_path / "out"), "--to", "hf"])
        said = capsys.readouterr().err
        shown = said[:2000]
        assert (status, said.count("\n"), "internal error" in said, "Traceback" in said) == (2, 1, False, False), shown
        assert said.startswith("gpt2: error: ") and len(said) < 1200, shown
        assert not (tmp_path / "out").exists()
        assert sentence in said

    return refuse


# Hugging Face


def config(**changes: Any) -> Damage:
    def damage(model: Path) -> None:
        table = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps(table | changes))

    return damage


def text(name: str, content: str) -> Damage:
    return lambda model: (model / name).write_text(content)


def index(content: str) -> Damage:
    def damage(model: Path) -> None:
        (model / "model.safetensors").unlink()
        (model / "model.safetensors.index.json").write_text(content)

    return damage


def header(size: int, content: str) -> Damage:
    return lambda model: (model / "model.safetensors").write_bytes(size.to_bytes(8, "little") + content.encode())


def tensors(change: Callable[[dict[str, torch.Tensor]], object]) -> Damage:
    def damage(model: Path) -> None:
        found = load_file(model / "model.safetensors")
        change(found)
        save_file(found, model / "model.safetensors")

    return damage


def pickled(change: Callable[[dict[str, Any]], object]) -> Damage:
    """The same as `pytorch_model.bin`, which can hold more kinds of tensors."""

    def damage(model: Path) -> None:
        found: dict[str, Any] = load_file(model / "model.safetensors")
        change(found)
        (model / "model.safetensors").unlink()
        torch.save(found, model / "pytorch_model.bin")

    return damage


def one_value(*shape: int) -> torch.Tensor:
    """A tensor of any size in four bytes."""
    return torch.zeros(1).as_strided(shape, (0,) * len(shape))


def many_claims(found: dict[str, Any]) -> None:
    """A model of width 2^20 in a few kilobytes; its config is made to fit."""
    wide = {32: 1 << 20, 96: 3 << 20, 128: 4 << 20}
    for name, tensor in list(found.items()):
        found[name] = one_value(*(wide.get(size, size) for size in tensor.shape))


def both(*damages: Damage) -> Damage:
    def damage(model: Path) -> None:
        for one in damages:
            one(model)

    return damage


BIAS = "transformer.h.1.attn.c_attn.bias"
IDS = "transformer.wte.weight"
QKV = "transformer.h.1.attn.c_attn.weight"


def tokenizer(change: Callable[[dict[str, Any]], object]) -> Damage:
    def damage(model: Path) -> None:
        table = json.loads((model / "tokenizer.json").read_text())
        change(table)
        (model / "tokenizer.json").write_text(json.dumps(table))

    return damage


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (config(n_layer=1_000_000), "holds no blocks.2.attention_norm.weight of a GPT-2"),
        (config(n_embd=1 << 40), "hidden is 1099511627776: it should be a whole number, at most"),
        (config(n_embd=1 << 30), "has token_embedding.weight of shape (257, 32), where (257, 1073741824)"),
        (config(n_positions=1 << 40), "sequence_length is 1099511627776"),
        (config(vocab_size=(1 << 31) - 1), "has token_embedding.weight of shape (257, 32)"),
        (config(n_layer=HUGE), "layers is 1000000000000000"),
        (config(n_layer="12"), "layers is '12': it should be a whole number"),
        (config(n_layer=2.5), "layers is 2.5"),
        (config(n_head=True), "heads is True"),
        (config(n_layer=None), "layers is None"),
        (config(n_layer={"n": 2}), "layers is {'n': 2}"),
        (config(resid_pdrop=float("nan")), "dropout is nan"),
        (config(resid_pdrop=[]), "dropout is []"),
        (config(n_inner=[]), "n_inner = []"),
        (config(model_type=["gpt2"]), "of type ['gpt2']"),
        (config(activation_function={}), "activation_function = {}"),
        (text("config.json", DEEP), "it is nested too deeply"),
        (text("config.json", '{"model_type": "gpt2", "n_layer": ' + DEEP_TABLE), "it is nested too deeply"),
        (text("config.json", '{"model_type": "gpt2", "n_layer": 1' + 5000 * "0" + "}"), "can't read"),
        (index(DEEP), "it is nested too deeply"),
        (index('{"weight_map": ["model.safetensors"]}'), "has no weight_map of tensors to files"),
        (index('{"weight_map": {"a": 5}}'), "has no weight_map of tensors to files"),
        (index('{"weight_map": {"a": ["b"]}}'), "has no weight_map of tensors to files"),
        (index('{"weight_map": {"a": "\\u0000"}}'), "which is not in"),
        (index('{"weight_map": {"a": "../model/config.json"}}'), "which is not in"),
        (index("{}"), "has no weight_map of tensors to files"),
        (text("model.safetensors", ""), "can't be read"),
        (header(10**5, "[" * 10**5), "can't be read"),
        (header((1 << 63) - 1, "{}"), "can't be read"),
        (tensors(lambda t: t.update({BIAS: t[BIAS].to(torch.int8)})), "type that is not floating-point"),
        (tensors(lambda t: t.update({QKV: t[QKV][:5]})), "has blocks.1.attention.qkv.weight of shape (96, 5)"),
        (tensors(lambda t: t.update({QKV: torch.zeros(())})), "has blocks.1.attention.qkv.weight of shape ()"),
        (tensors(lambda t: t.update({IDS: torch.zeros(())})), "token_embedding.weight of shape ()"),
        (tensors(lambda t: t.pop(BIAS)), "holds no blocks.1.attention.qkv.bias"),
        (
            tensors(lambda t: t.update({"lm_head.weight": torch.zeros(257, 32, dtype=torch.int8)})),
            "output matrix of its",
        ),
        (pickled(lambda t: t.update({BIAS: t[BIAS].long()})), "type that is not floating-point"),
        (pickled(lambda t: t.update({BIAS: t[BIAS].to_sparse()})), "type that is not floating-point"),
        (pickled(lambda t: t.update({BIAS: "text"})), "holds no blocks.1.attention.qkv.bias"),
        (both(pickled(many_claims), config(n_embd=1 << 20)), "parameters, and its files have"),
        (text("tokenizer.json", DEEP), "it is nested too deeply"),
        (tokenizer(lambda t: t["added_tokens"][0].update({"id": "256"})), "gives two ids to"),
        (tokenizer(lambda t: t["added_tokens"].append({"content": "<|endoftext|>", "id": []})), "gives two ids to"),
        (tokenizer(lambda t: t["model"]["vocab"].update({"x": 1 << 70})), "has no vocabulary"),
        (tokenizer(lambda t: t["model"]["vocab"].update({"\ud800": 300})), "has no vocabulary"),
        (tokenizer(lambda t: t["model"].update({"merges": [{"a": 1}]})), "expected two tokens"),
        (tokenizer(lambda t: t.update({"pre_tokenizer": ["ByteLevel"]})), "or a damaged one"),
    ],
)
def test_a_hugging_face_folder_is_refused_in_a_sentence(
    check: Callable[[str, Damage, str], None], damage: Damage, said: str
) -> None:
    """A million layers were built before the first was missed, a width of 2^40 and wrong types were internal errors,
    text for a number was taken, and whole numbers were read as weights."""
    check("hf", damage, said)


# Megatron-LM


def rank(change: Callable[[dict[str, Any]], object], *ranks: int) -> Damage:
    """Change what lies in the files of some ranks (all without numbers)."""

    def damage(model: Path) -> None:
        for number in ranks or (0, 1):
            (file,) = model.glob(f"iter_*/mp_rank_{number:02d}/model_optim_rng.pt")
            found = torch.load(file, weights_only=False)
            change(found)
            torch.save(found, file)

    return damage


def encoder(whole: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = whole["model"]
    return found


def embedding(whole: dict[str, Any], tensor: torch.Tensor) -> None:
    whole["model"]["embedding.word_embeddings.weight"] = tensor


def nested(whole: dict[str, Any]) -> None:
    table = whole["model"]
    for _ in range(300):
        table["inner"] = {}
        table = table["inner"]


def repacked(model: Path) -> None:
    (file,) = model.glob("iter_*/mp_rank_00/model_optim_rng.pt")
    with zipfile.ZipFile(file) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in content.items():
            archive.writestr(name, data)


def renamed(name: str, other: str) -> Damage:
    return lambda model: next(model.glob(f"iter_*/{name}")).rename(next(model.glob("iter_*")) / other)


QKV_BIAS, NORM = "decoder.layers.1.self_attention.linear_qkv.bias", "decoder.layers.{}.input_layernorm.weight"


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (rank(lambda w: encoder(w).update({QKV_BIAS: torch.zeros(49)}), 1), "of different shapes"),
        (rank(lambda w: encoder(w).pop(QKV_BIAS), 1), "hold different tensors"),
        (rank(lambda w: encoder(w).update({QKV_BIAS: torch.zeros(49)})), "attention.qkv.bias of shape (98,)"),
        (rank(lambda w: encoder(w).update({QKV_BIAS: torch.zeros(())})), "attention.qkv.bias of shape ()"),
        (rank(lambda w: encoder(w).update({QKV_BIAS: torch.zeros(48).int()})), "type that is not floating-point"),
        (
            rank(lambda w: encoder(w).update({NORM.format(999999): torch.zeros(32)})),
            "no blocks.2.",
        ),
        (
            rank(lambda w: encoder(w).update({NORM.format(f"1{'0' * 5000}"): torch.zeros(32)})),
            "no GPT-2",
        ),
        (rank(lambda w: embedding(w, torch.zeros(257))), "has no token embedding"),
        (rank(lambda w: embedding(w, one_value(1 << 31, 1 << 31))), "hidden is 2147483648"),
        (rank(lambda w: embedding(w, one_value(1 << 30, 32))), "parameters, and its files have"),
        (rank(nested), "is nested too deeply"),
        (rank(lambda w: w["model"].update({"itself": w["model"]})), "is nested too deeply"),
        (rank(lambda w: w.update({"model": [1]})), "holds no `model`"),
        (rank(lambda w: setattr(w["args"], "num_attention_heads", 1)), "1 heads can't be shared among the 2 ranks"),
        (rank(lambda w: setattr(w["args"], "num_attention_heads", 10**500)), "number of attention heads"),
        (lambda m: (next(m.glob("iter_*")) / "mp_rank_999999999").mkdir(), "has no model_optim_rng.pt"),
        (
            lambda m: next(m.glob("iter_*/mp_rank_01")).replace(next(m.glob("iter_*")) / "mp_rank_999999999"),
            "lacks mp_rank_01",
        ),
        (repacked, "is compressed"),
        (lambda m: next(m.glob("iter_*/mp_rank_00/*")).write_bytes(b"PK\3\4" + bytes(100)), "can't be read"),
        (lambda m: next(m.glob("iter_*/mp_rank_00/*")).write_bytes(b""), "can't be read"),
    ],
)
def test_a_megatron_checkpoint_is_refused_in_a_sentence(
    check: Callable[[str, Damage, str], None], damage: Damage, said: str
) -> None:
    """Ranks of different sizes, one million layers by name and tables in themselves were internal errors or hangs."""
    check("megatron", damage, said)


def test_odd_settings_of_a_megatron_checkpoint_are_passed_over(models: Path, tmp_path: Path) -> None:
    """A version or a dropout that is no usable number was an internal error; neither is needed."""
    shutil.copytree(models / "megatron", tmp_path / "model")
    tracker = tmp_path / "model" / "latest_checkpointed_iteration.txt"

    def odd(whole: dict[str, Any]) -> None:
        whole["iteration"] = -5
        whole["args"].hidden_dropout = 10**400
        whole["args"].vocab_size = True

    rank(odd)(tmp_path / "model")
    tracker.write_text("\u00b2")
    options = ["--vocabulary-size", "257", "--to", "hf"]
    assert gpt2_train.cli.main(["convert", str(tmp_path / "model"), str(tmp_path / "out"), *options]) == 0


# Our own checkpoints


def sealed(**changes: Any) -> Damage:
    """Change what `checkpoint.json` says, with a CRC that fits."""

    def damage(model: Path) -> None:
        (place,) = model.glob("checkpoints/step-*/checkpoint.json")
        table = json.loads(place.read_text())
        for key, value in changes.items():
            if isinstance(value, dict) and isinstance(table[key], dict):
                table[key] |= value
            else:
                table[key] = value
        place.write_text(json.dumps(table | {"crc32": table_crc(table)}))

    return damage


def raw(content: str) -> Damage:
    return lambda model: next(model.glob("checkpoints/step-*/checkpoint.json")).write_text(content)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (sealed(model={"layers": 1_000_000}), "holds no blocks.2.attention_norm.weight"),
        (sealed(model={"hidden": 1 << 40}), "hidden is 1099511627776"),
        (sealed(model={"hidden": 1 << 30}), "has token_embedding.weight of shape"),
        (sealed(model={"layers": "2"}), "layers is '2'"),
        (sealed(model={"layers": True}), "layers is True"),
        (sealed(model={"heads": None}), "heads is None"),
        (sealed(model={"more": 1}), "checkpoint.json is incomplete"),
        (sealed(model=[2, 32]), "checkpoint.json is incomplete"),
        (sealed(step="5"), "Expected `int`, got `str` - at `$.step`"),
        (sealed(step=-1), "Expected `int` >= 0 - at `$.step`"),
        (sealed(step=float("inf")), "Expected `int`, got `float` - at `$.step`"),
        (sealed(tokens=True), "Expected `int`, got `bool` - at `$.tokens`"),
        (sealed(tokenizer=["gpt2"]), "checkpoint.json is incomplete"),
        (sealed(settings=5), "checkpoint.json is incomplete"),
        (sealed(data=["x"]), "checkpoint.json is incomplete"),
        (sealed(data=5), "checkpoint.json is incomplete"),
        (sealed(state="x"), "checkpoint.json is incomplete"),
        (sealed(files=["model/.metadata"]), "checkpoint.json is incomplete"),
        (sealed(files={"model/.metadata": 5}), "checkpoint.json is incomplete"),
        (sealed(files={"model/.metadata": {"bytes": 1 << 60, "crc32": 1}}), "were written"),
        (sealed(files={"model/\0": {"bytes": 1, "crc32": 1}}), "can't be read"),
        (sealed(format=2.0), "names no format"),
        (raw(DEEP), "it is nested too deeply"),
        (raw('{"format": 2, "model": ' + DEEP_TABLE), "it is nested too deeply"),
        (raw('{"format": 1' + 5000 * "0" + "}"), "can't be read"),
        (raw("[]"), "names no format"),
        (lambda m: next(m.glob("checkpoints/step-*/tokenizer/vocab.json")).write_text(DEEP), "it is nested too deeply"),
    ],
)
def test_a_checkpoint_is_refused_in_a_sentence(
    check: Callable[[str, Damage, str], None], damage: Damage, said: str
) -> None:
    """A checkpoint's shape was built before its tensors were looked at, and numbers of other types were taken."""
    check("run", damage, said)


def test_the_index_of_a_checkpoint_takes_no_more_memory_than_it_holds(models: Path, tmp_path: Path) -> None:
    """Five bytes of an index made Python's unpickler a table of gigabytes, for seconds, before it was refused."""
    shutil.copytree(models / "run", tmp_path / "model")
    (place,) = (tmp_path / "model").glob("checkpoints/step-*/model/.metadata")
    content = b"\x80\x04]r" + (1 << 24).to_bytes(4, "little") + b"."  # an empty list, remembered under 2^24
    place.write_bytes(content)
    files = {"model/.metadata": {"bytes": len(content), "crc32": zlib.crc32(content)}}
    sealed(files=files)(tmp_path / "model")
    tracemalloc.start()
    try:
        with pytest.raises(Gpt2UsageError, match=r"its index (holds something else|can't be read)"):
            open_weights(tmp_path / "model")
        assert tracemalloc.get_traced_memory()[1] < 50_000_000
    finally:
        tracemalloc.stop()


# Values, and the shapes themselves


@pytest.mark.parametrize("format_name", ["hf", "run"])
def test_values_that_are_no_numbers_are_a_warning(
    format_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model with NaN in its weights was read without a word, and wrote nonsense."""
    model = random_model(BYTES)
    with torch.no_grad():
        model.blocks[1].feed_forward.up.bias[3] = float("nan")  # type: ignore[union-attr, index, operator]
    source = save(tmp_path / "run", model, byte_tokenizer())
    if format_name == "hf":
        assert gpt2_train.cli.main(["convert", str(source), str(tmp_path / "hf"), "--to", "hf"]) == 0
        capsys.readouterr()
        assert gpt2_train.cli.main(["convert", str(tmp_path / "hf"), str(tmp_path / "out"), "--to", "megatron"]) == 0
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
