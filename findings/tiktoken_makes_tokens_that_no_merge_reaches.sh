#!/usr/bin/env bash
# Packages: tiktoken 0.14.0, tokenizers 0.23.3 (PyPI).
#
# Behaviour: byte-level BPE is a list of pairs, joined in that order. tiktoken takes no pairs but the ranks of the tokens,
# and joins any two neighbours that make a token, also where the list has another pair for it. With the merges `b c`,
# `a b`, `ab c` the text "abc" is a, bc by the list, which tokenizers follows; tiktoken makes it abc, a token that
# no text ever has. OpenAI's vocabularies have no such token, so that nothing shows it there.
#
# Why it matters here: a vocabulary that somebody trained, cut or joined has such tokens. Its merges handed to tiktoken
# as ranks, which is what converters do, give ids that the model has never met, in silence, and a vocabulary of ranks
# that is converted back into pairs gets pairs that were not in the list.
#
# Output seen:
#   'abc':  tokenizers ['a', 'bc'], tiktoken ['abc']
#   'ab c': tokenizers ['ab', 'Ġ', 'c'], tiktoken ['ab', 'Ġ', 'c']
#   without the token abc, tiktoken: ['a', 'bc']
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check tiktoken==0.14.0 tokenizers==0.23.3
PYTHONIOENCODING=utf-8 venv/bin/python - <<'PYTHON'
import tiktoken
from tokenizers import Tokenizer, models, pre_tokenizers

printable = [*range(33, 127), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
others = iter(range(256, 512))
alphabet = [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]
byte_of = {sign: bytes([byte]) for byte, sign in enumerate(alphabet)}
merges = [("b", "c"), ("a", "b"), ("ab", "c")]
tokens = alphabet + ["".join(pair) for pair in merges]

def by_tokenizers(text):
    bpe = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, merges))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return bpe.encode(text).tokens

def by_tiktoken(text, tokens):
    ranks = {b"".join(map(byte_of.__getitem__, token)): number for number, token in enumerate(tokens)}
    words = r" ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    encoding = tiktoken.Encoding("ranks", pat_str=words, mergeable_ranks=ranks, special_tokens={})
    return [tokens[number] for number in encoding.encode_ordinary(text)]

found = [(by_tokenizers(text), by_tiktoken(text, tokens)) for text in ("abc", "ab c")]
print("'abc':  tokenizers {}, tiktoken {}".format(*found[0]))
print("'ab c': tokenizers {}, tiktoken {}".format(*found[1]))
print("without the token abc, tiktoken:", by_tiktoken("abc", tokens[:-1]))
assert found == [(["a", "bc"], ["abc"]), (["ab", "Ġ", "c"], ["ab", "Ġ", "c"])]
assert by_tiktoken("abc", tokens[:-1]) == ["a", "bc"]
PYTHON
