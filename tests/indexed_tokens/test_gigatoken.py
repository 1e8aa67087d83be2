"""gigatoken encodes as tiktoken does, or the difference is named."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexed_tokens import IndexedTokensError, Tokenizer
from indexed_tokens import gigatoken_encoder as module
from indexed_tokens.gigatoken_encoder import HARD_TEXTS, GigatokenEncoder
from indexed_tokens.tokenizer import _byte_alphabet

pytest.importorskip("gigatoken")


@pytest.fixture(scope="module")
def encoder() -> GigatokenEncoder:
    return GigatokenEncoder(Tokenizer.gpt2())


@pytest.mark.parametrize("text", HARD_TEXTS)
def test_hard_texts(encoder, text):
    ids = encoder.encode(text)
    assert isinstance(ids, np.ndarray)
    assert ids.tolist() == Tokenizer.gpt2().encode(text)


@given(st.text(st.one_of(st.characters(), st.sampled_from(" \n\t'\u00a0\u3000se0\u00b2")), max_size=60))
def test_any_text(encoder, text):
    encoder.check([text])


@given(st.text(st.sampled_from("Doc the"), max_size=30))
def test_tokenizers_with_ids_of_their_own(text):
    merges = [("D", "o"), ("Do", "c"), ("\u0120", "t")]
    tokens = ["<|endoftext|>", *("".join(pair) for pair in merges), *_byte_alphabet()]
    own = Tokenizer({token: number for number, token in enumerate(tokens)}, merges)
    GigatokenEncoder(own).check([text])


def test_a_difference_is_named():
    other = Tokenizer.gpt2()
    encoder = GigatokenEncoder(other)
    tables = json.loads(encoder._tables)
    tables["model"]["merges"].remove("\u0120t he")
    encoder._tables = json.dumps(tables)
    with pytest.raises(IndexedTokensError, match=r"differ on the text 'on the way': token 1 is .*, and should be 262 "):
        encoder.check(["on", "on the way"])


def test_what_it_remembers_is_given_up_now_and_then(encoder, monkeypatch):
    monkeypatch.setattr(module, "RENEW_BYTES", 10)
    small = GigatokenEncoder(Tokenizer.gpt2())
    engines = set()
    for _ in range(5):
        assert small.encode("eleven char").tolist() == Tokenizer.gpt2().encode("eleven char")
        engines.add(id(small._engine))
        kept = small._engine  # keeps its id from being used again
    assert kept is not None
    assert len(engines) > 1
