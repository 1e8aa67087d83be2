"""GPT-2 itself: sizes, causality, tying, the cache, initial weights."""

from __future__ import annotations

import math

import pytest
import torch
from tests.gpt2_train.small_models import SMALL

from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.config.settings import ModelConfig
from gpt2_train.model.attention import AttentionLayer, Packed
from gpt2_train.model.gpt2 import GPT2


@pytest.fixture
def model() -> GPT2:
    return GPT2(SMALL).initialise(torch.Generator().manual_seed(1)).eval()


@pytest.fixture
def tokens() -> torch.Tensor:
    return torch.randint(0, 100, (3, 16), generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize(("name", "parameters"), [("124M", 124_475_904), ("345M", 354_871_296), ("774M", 774_090_240)])
def test_a_preset_has_the_published_number_of_parameters(name: str, parameters: int) -> None:
    """Padding adds 47 rows of embedding to the sizes of the paper."""
    with torch.device("meta"):
        model = GPT2(ModelConfig.preset(name))
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters == model.config.parameters


def test_the_vocabulary_is_padded_to_a_multiple_of_128_only() -> None:
    """Pitfall 30: the padding is part of the model's shape, and the same at any tensor-parallel size."""
    assert ModelConfig.preset("124M").padded_vocabulary == 50304
    assert SMALL.padded_vocabulary == 128


def test_a_token_changes_no_earlier_logits(model: GPT2, tokens: torch.Tensor) -> None:
    changed = tokens.clone()
    changed[:, 9] = (changed[:, 9] + 1) % 100
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :9], after[:, :9])
    assert (before[:, 9:] != after[:, 9:]).any(dim=-1).all()


def test_the_output_matrix_is_the_embedding_also_after_materialising() -> None:
    model = GPT2.empty(SMALL, "cpu").initialise(torch.Generator().manual_seed(1))
    assert model.is_tied
    assert "output.weight" not in dict(model.named_parameters())
    model(torch.zeros(1, 4, dtype=torch.int64)).sum().backward()
    assert model.output.weight.grad is model.token_embedding.weight.grad


def test_more_positions_than_the_model_has_are_refused(model: GPT2) -> None:
    """Pitfall 32: nothing is written past the sequence length."""
    with pytest.raises(Gpt2UsageError, match="17 positions"):
        model(torch.zeros(1, 17, dtype=torch.int64))


def test_initial_weights_have_the_published_spread_and_follow_the_seed(model: GPT2) -> None:
    wide = GPT2(ModelConfig(layers=8, hidden=256, heads=4, sequence_length=8, vocabulary_size=100))
    wide.initialise(torch.Generator().manual_seed(3))
    assert float(wide.blocks[0].attention.qkv.weight.detach().std()) == pytest.approx(0.02, rel=0.02)
    assert float(wide.blocks[0].feed_forward.down.weight.detach().std()) == pytest.approx(
        0.02 / math.sqrt(16), rel=0.02
    )
    assert not wide.blocks[3].attention.qkv.bias.any()
    again = GPT2(SMALL).initialise(torch.Generator().manual_seed(1))
    other = GPT2(SMALL).initialise(torch.Generator().manual_seed(2))
    assert torch.equal(again.token_embedding.weight, model.token_embedding.weight)
    assert not torch.equal(other.token_embedding.weight, model.token_embedding.weight)


def test_a_new_model_predicts_about_evenly(model: GPT2, tokens: torch.Tensor) -> None:
    loss = torch.nn.functional.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    assert float(loss.detach()) == pytest.approx(math.log(128), abs=0.1)


class Window(Packed):
    """Each token sees itself and some before it."""

    def __init__(self, width: int) -> None:
        self.width = width

    def attend(
        self, layer: AttentionLayer, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))
        mask = torch.ones(query.size(2), query.size(2), dtype=torch.bool).tril().triu(1 - self.width)
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask).transpose(1, 2)


def test_another_attention_is_a_class_and_changes_nothing_in_the_model(model: GPT2, tokens: torch.Tensor) -> None:
    """A sliding window had to be written in four places."""
    length = tokens.size(1)
    torch.testing.assert_close(model(tokens, Window(length)), model(tokens))
    changed = tokens.clone()
    changed[:, 0] = (changed[:, 0] + 1) % 100
    # In two layers with a window of 2 each token sees two before it.
    before, after = model(tokens, Window(2)), model(changed, Window(2))
    assert torch.equal(before[:, 3:], after[:, 3:])
    assert not torch.equal(before[:, 2], after[:, 2])


@pytest.mark.parametrize("wrong", [{"heads": 5}, {"layers": 0}, {"dropout": 1.0}])
def test_a_shape_that_cannot_be_built_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(Gpt2UsageError):
        ModelConfig(**({"layers": 2, "hidden": 32, "heads": 4} | wrong))  # type: ignore[arg-type]
