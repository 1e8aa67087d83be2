"""gigatoken encodes as tiktoken does, or the difference is named."""

import itertools
import random
import sys
import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexed_tokens import Tokenizer
from indexed_tokens import gigatoken_encoder as module
from indexed_tokens.gigatoken_encoder import HARD_TEXTS, GigatokenEncoder
from indexed_tokens.tokenizer import byte_alphabet


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
    tokens = ["<|endoftext|>", *("".join(pair) for pair in merges), *byte_alphabet()]
    own = Tokenizer({token: number for number, token in enumerate(tokens)}, merges)
    GigatokenEncoder(own).check([text])


def test_what_it_remembers_is_given_up_when_it_has_grown(monkeypatch):
    sizes = iter([100, 105, 111, 109, 112])
    monkeypatch.setattr(module, "_resident_bytes", lambda: next(sizes))
    monkeypatch.setattr(module, "MOST_BYTES", 10)
    monkeypatch.setattr(module, "LOOK_BYTES", 10)
    small = GigatokenEncoder(Tokenizer.gpt2())
    engines = [small._engine]
    for _ in range(4):
        assert small.encode("eleven char").tolist() == Tokenizer.gpt2().encode("eleven char")
        engines.append(small._engine)
    assert [a is b for a, b in itertools.pairwise(engines)] == [True, False, True, False]


def test_letters_that_only_one_of_the_programs_knows(encoder):
    """gigatoken 0.10 knows Unicode 17, tiktoken 0.14 Unicode 16: new letters were split from others, or not."""
    letters = "\u088f\ua7ce\U00010940\U000323b0\U00033479"
    encoder.check(f"a{letter}b {letter}{letter}'s 1{letter}" for letter in letters)


@pytest.mark.exhaustive
def test_every_code_point(encoder):
    encoder.check(f"{c}|a{c}b|1{c}2| {c} x{c}{c}\n{c}'s {c}" for c in map(chr, range(sys.maxunicode + 1)))


@pytest.mark.exhaustive
def test_hostile_texts(encoder):
    """100,000 texts: random bytes in five encodings, characters of all categories and half pairs, long runs; and some
    of 10 MB without a space, or of nothing else."""
    source = random.Random(1)
    categories: dict[str, list[str]] = {}
    for point in range(sys.maxunicode + 1):
        categories.setdefault(unicodedata.category(chr(point)), []).append(chr(point))
    parts = [
        "'s",
        "'t",
        "'re",
        "'ve",
        "'ll",
        "'d",
        "'m",
        "'S",
        " the",
        "\ud83d\ude00",
        "\udfff",
        "\u0301",
        *HARD_TEXTS[1:9],
    ]
    kinds = [parts] * len(categories) + list(categories.values())
    for _ in range(15_000):
        raw = source.randbytes(2 * source.randrange(1, 100))
        encoder.check(raw.decode(name, "replace") for name in ("utf-8", "latin-1", "cp437"))
        encoder.check([raw.decode("utf-8", "surrogateescape"), raw.decode("utf-16-le", "surrogatepass")])
        mixed = (source.choice(source.choice(kinds)) for _ in range(source.randrange(1, 60)))
        run = source.choice(" \n\ta1!\u00e9\u4e2d\u00a0\U0001f600") * source.randrange(1, 2000)
        encoder.check(["".join(mixed), run + source.choice(["", "x", " x", "\n", "!", "'s"])])
    encoder.check("".join(source.choices(letters, k=10_000_000)) for letters in ("abcdefghijk", "0123456789", "!?.,"))
    encoder.check(unit * 10_000_000 for unit in "a \n")
