"""Attention inside documents, and losses behind the end of a text that do not count."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.gpt2_train.conftest import command, losses, rows, run_command_line, write_corpus
from tests.gpt2_train.small_models import BYTES, byte_tokenizer
from tests.gpt2_train.small_models import END as BYTES_END
from torch import Tensor

from gpt2_train.cli import main
from gpt2_train.config.settings import ModelConfig
from gpt2_train.conversion.formats import open_weights
from gpt2_train.data.corpus import open_corpora
from gpt2_train.data.index import IndexCache
from gpt2_train.data.streams import blend_split
from gpt2_train.distributed.mesh import World, mixed_seed
from gpt2_train.distributed.parallelize import parallelize
from gpt2_train.model.attention import Documents, attention_kind, find_documents
from gpt2_train.model.gpt2 import GPT2
from gpt2_train.training import setup
from indexed_tokens import IndexedTokensWriter, save_corpus_tokenizer

END = 99
SMALL = ModelConfig(layers=2, hidden=32, heads=4, sequence_length=24, vocabulary_size=100, dropout=0.0)
ROWS = np.array(
    [
        [END, 1, 2, 3, END, 4, 5, 6, 7, 8, 9, 10, 11, END, END, 12, 13, 14, 15, 16, 17, 18, 19, 20],
        [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, END],
        list(range(24)),
    ]
)
LENGTHS = (4, 9, 1, 10, 23, 1, 24)


def model() -> GPT2:
    made = GPT2(SMALL).initialise(torch.Generator().manual_seed(1))
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() == 2:
                parameter.mul_(8)  # Attention that is far from even.
    return made


def apart(rows: np.ndarray[Any, Any], made: GPT2) -> Tensor:
    """Logits of each document fed by itself: what separate attention has to be equal to."""
    flat, found = torch.from_numpy(rows).reshape(-1), []
    for piece in flat.split(LENGTHS):
        found.append(made(piece[None])[0])
    return torch.cat(found).view(*rows.shape, -1)


def varlen_by_hand(query: Tensor, key: Tensor, value: Tensor, bounds: Tensor, *_: Any, **options: Any) -> Tensor:
    """What torch's kernel for GPUs computes, one document at a time."""
    assert options["window_size"] == (-1, 0) and bounds.dtype == torch.int32
    result = torch.empty_like(query)
    for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        parts = (part[begin:end].transpose(0, 1) for part in (query, key, value))
        result[begin:end] = F.scaled_dot_product_attention(*parts, is_causal=True).transpose(0, 1)
    return result


def found(kind: Any) -> Documents:
    documents = find_documents(ROWS, END, kind)
    return documents.with_mask() if kind == "mask" else documents


def test_documents_begin_with_the_end_of_text_before_them() -> None:
    documents = find_documents(ROWS, END, "loop")
    assert documents.lengths == LENGTHS
    assert documents.positions.flatten().tolist() == [place for length in LENGTHS for place in range(length)]


def test_bounds_are_padded_so_that_shapes_are_few() -> None:
    bounds = find_documents(ROWS, END, "varlen").bounds
    assert bounds is not None and bounds.dtype == torch.int32
    assert bounds.tolist() == [0, *np.cumsum(LENGTHS).tolist()] + [72] * (64 - len(LENGTHS))
    ends = np.full((10, 24), END)
    more = find_documents(ends, END, "varlen").bounds
    assert more is not None and len(more) == 257 and more[:241].tolist() == list(range(241)) and more[-1] == 240


@pytest.mark.parametrize("kind", ["mask", "loop", "varlen"])
def test_separate_documents_are_as_if_each_were_fed_alone(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits and gradients, in every form of attention."""
    import torch.nn.attention.varlen

    monkeypatch.setattr(torch.nn.attention.varlen, "varlen_attn", varlen_by_hand)
    made, expected = model(), model()
    logits, alone = made(torch.from_numpy(ROWS), found(kind)), apart(ROWS, expected)
    torch.testing.assert_close(logits, alone, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(made(torch.from_numpy(ROWS)), alone, atol=1e-2)
    logits.square().sum().backward()
    alone.square().sum().backward()
    for (name, one), other in zip(made.named_parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, atol=1e-3, rtol=1e-4, msg=name)


@pytest.mark.parametrize("mode", ["full", "selective"])
@pytest.mark.parametrize("kind", ["mask", "loop"])
def test_recomputed_activations_stay_inside_documents(mode: Any, kind: str) -> None:
    plain, again = model(), parallelize(model(), World(torch.device("cpu")), activation_checkpointing=mode)
    for made in (plain, again):
        made(torch.from_numpy(ROWS), found(kind)).square().sum().backward()
    for one, other in zip(plain.parameters(), again.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)


def test_no_prediction_depends_on_another_document() -> None:
    made = model().eval()
    changed = ROWS.copy()
    changed[0, 1:4] = 50
    before = made(torch.from_numpy(ROWS), find_documents(ROWS, END, "loop"))
    after = made(torch.from_numpy(changed), find_documents(changed, END, "loop"))
    assert not torch.equal(before[0, 1:4], after[0, 1:4])
    assert torch.equal(before[0, 4:], after[0, 4:]) and torch.equal(before[1:], after[1:])


@pytest.mark.parametrize("kind", [pytest.param("mask", marks=pytest.mark.exhaustive), "varlen"])
def test_separate_documents_compile_to_one_graph_for_any_documents(kind: str) -> None:
    """Under the shapes of a GPU's kernel, without its numbers: meta tensors."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    with torch.device("meta"):
        made = GPT2(SMALL).to(torch.bfloat16)
    for block in made.blocks:
        block.forward = torch.compile(block.forward, dynamic=False, fullgraph=True, backend="aot_eager")
    for tokens in (ROWS, np.roll(ROWS, 5, axis=1)):
        documents = find_documents(tokens, END, kind).to(torch.device("meta"))  # type: ignore[arg-type]
        documents = documents.with_mask() if kind == "mask" else documents
        logits = made(torch.from_numpy(tokens).to("meta"), documents)
        assert logits.shape == (3, 24, 128)
        logits.sum().backward()
    assert counters["stats"]["unique_graphs"] == 2  # the first block, and all others


def test_the_form_of_attention_follows_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda", 0)
    assert attention_kind(cpu, "fp32") == "loop"
    assert attention_kind(cpu, "fp32", is_compiled=True) == "mask"
    assert attention_kind(torch.device("mps"), "fp16") == "mask"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    assert attention_kind(gpu, "bf16", is_compiled=True) == "varlen"
    assert attention_kind(gpu, "fp32") == "mask"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    assert attention_kind(gpu, "fp16") == "mask"


# --- training --------------------------------------------------------------------------------------------------------

SEPARATE = ("--steps", 6, "--dropout", 0, "--vocabulary-size", 257, "--documents", "separate", "--mask-end-of-text")


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Token files of single bytes, with short documents and the tokenizer that made them."""
    prefix = tmp_path_factory.mktemp("texts") / "texts_text_document"
    random = np.random.default_rng(3)
    with IndexedTokensWriter(prefix) as writer:
        for _ in range(120):
            writer.add([*random.integers(97, 105, int(random.integers(1, 25))), BYTES_END])
    save_corpus_tokenizer(prefix, byte_tokenizer())
    return str(prefix)


@pytest.fixture(scope="module")
def separate(tmp_path_factory: pytest.TempPathFactory, texts: str) -> Path:
    output = tmp_path_factory.mktemp("separate") / "run"
    assert main(command(output, *SEPARATE, "--save-every", 3, data=texts)[3:]) == 0
    return output


def first_batch(data: str, folder: Path) -> np.ndarray[Any, Any]:
    corpora, weights = open_corpora([(None, data)], (8, 1, 1))
    blend = blend_split(
        corpora, weights, "train", sequence_length=16, seed=1234, cache=IndexCache(folder), say=lambda line: None
    )
    assert blend is not None
    return blend.read(blend.prepare(0, 8))


def test_the_loss_is_the_mean_over_the_predictions_that_count(tmp_path: Path, texts: str, separate: Path) -> None:
    """Of the whole batch at once, with a dense mask, where the run goes through it in micro-batches of two."""
    read = first_batch(texts, tmp_path)
    made = GPT2(dataclasses.replace(BYTES, dropout=0.0))
    made.initialise(torch.Generator().manual_seed(mixed_seed(1234)))
    documents = find_documents(read[:, :-1], BYTES_END, "mask").with_mask()
    tokens = torch.from_numpy(read)
    logits = made(tokens[:, :-1], documents)[..., :257]
    each = F.cross_entropy(logits.reshape(-1, 257), tokens[:, 1:].reshape(-1), reduction="none")
    is_behind = (tokens[:, :-1] == BYTES_END).reshape(-1)
    assert 0 < int(is_behind.sum()) < 64
    loss = each[~is_behind].mean()
    loss.backward()
    first = rows(separate)[0]
    assert first["loss"] == pytest.approx(loss.item(), rel=1e-6)
    norm = torch.nn.utils.get_total_norm([p.grad for p in made.parameters() if p.grad is not None])
    assert first["grad_norm"] == pytest.approx(float(norm), rel=1e-5)


def test_every_form_of_attention_trains_alike(
    tmp_path: Path, texts: str, separate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup, "attention_kind", lambda *_, **__: "mask")
    assert main(command(tmp_path / "run", *SEPARATE, data=texts)[3:]) == 0
    assert losses(tmp_path / "run") == pytest.approx(losses(separate), abs=1e-5)


@pytest.mark.parametrize(
    "layout", [("--tensor-parallel", 2), pytest.param(("--data-parallel", 2), marks=pytest.mark.exhaustive)]
)
def test_documents_are_separate_in_every_layout(
    tmp_path: Path, texts: str, separate: Path, layout: tuple[Any, ...]
) -> None:
    flags = (*SEPARATE, *layout, "--activation-checkpointing", "selective")
    done = run_command_line(tmp_path / "run", *flags, data=texts)
    assert done.returncode == 0, done.stderr
    assert losses(tmp_path / "run") == pytest.approx(losses(separate), abs=1e-4)
    last, expected = rows(tmp_path / "run")[-1], rows(separate)[-1]
    assert last["valid_loss"] == pytest.approx(expected["valid_loss"], abs=1e-4)
    assert last["valid_tokens"] == expected["valid_tokens"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--dropout", 0.1), "--documents separate has no dropout of attention, and dropout is 0.1: give --dropout 0."),
        (("--vocabulary-size", 256), "--documents separate needs a tokenizer with <|endoftext|>"),
    ],
)
def test_separate_documents_that_cannot_be_are_refused(
    tmp_path: Path, texts: str, flags: tuple[Any, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command(tmp_path / "run", *SEPARATE, *flags, data=texts)[3:]) == 2
    assert message in capsys.readouterr().err


def test_data_without_ends_of_text_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_corpus(tmp_path / "data")
    save_corpus_tokenizer(Path(data), byte_tokenizer())
    assert main(command(tmp_path / "run", *SEPARATE, data=data)[3:]) == 2
    assert f"no document of {data} ends with <|endoftext|>" in capsys.readouterr().err


# --- evaluation ------------------------------------------------------------------------------------------------------


def test_evaluation_measures_as_training_did(
    separate: Path, texts: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Each document of the split alone, its end predicted, its first token not; the baseline on the same tokens."""
    words = ["evaluate", "held-out-loss", texts, "--checkpoint", str(separate), "--json"]
    assert main([*words, "--device", "cpu"]) == 0
    result = json.loads(capsys.readouterr().out)
    made = open_weights(separate).load()
    corpus = open_corpora([(None, texts)], (8, 1, 1))[0][0]
    pieces = [corpus.tokens[number].astype(np.int64) for number in range(*corpus.ranges["valid"])]
    text = np.concatenate(pieces)
    total, counted, targets = 0.0, 0, []
    for begin in range(0, len(text) - 1, 16):
        window = torch.from_numpy(text[begin : begin + 17])[None]
        documents = find_documents(window[:, :-1].numpy(), BYTES_END, "mask").with_mask()
        with torch.no_grad():
            logits = made(window[:, :-1], documents)[0, :, :257]
        kept = window[0, :-1] != BYTES_END
        total += float(F.cross_entropy(logits, window[0, 1:], reduction="none")[kept].sum())
        counted += int(kept.sum())
        targets += window[0, 1:][kept].tolist()
    assert result["tokens"] == counted == len(text) - len(pieces)
    assert result["loss"] == pytest.approx(total / counted, rel=1e-5)
    assert result["bytes"] == sum(target != BYTES_END for target in targets)
    assert main([*words[:-1], "--device", "cpu"]) == 0
    assert "all but the first of each document" in capsys.readouterr().out
