#!/usr/bin/env bash
# Packages: xllamacpp 2026.10.11549 (llama.cpp of October 2026), gguf 0.19.0, tokenizers 0.23.3, tiktoken 0.14.0 (PyPI).
#
# Behaviour: GPT-2 splits a text into runs of letters, of numbers and of all else, before any merge. On which characters
# are letters or numbers tokenizers and tiktoken agree, those of Unicode 16. llama.cpp's table (`pre = gpt-2`) is that of
# an earlier Unicode: 4,382 of them are signs there, all of them new in Unicode 16.
#
# Why it matters here: a model that was trained on Garay, Todhri or the newer Egyptian hieroglyphs, and was converted to
# GGUF without a difference in any weight, reads its prompts in other tokens than it was trained on, as soon as its
# vocabulary has merges across the place of such a split. Texts without these characters are the same.
#
# Output seen:
#   letters and numbers for tiktoken, U+00A1 to U+1FFFF: 72,251
#   not for tokenizers: 0; not for llama.cpp: 4,382, U+1C89 to U+1E5FA
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check xllamacpp==2026.10.11549 gguf==0.19.0 tokenizers==0.23.3 tiktoken==0.14.0
venv/bin/python - 2>log <<'PYTHON' || { tail -3 log; exit 1; }
import http.client, json
import gguf, numpy, tiktoken, tokenizers, xllamacpp
from tokenizers import models, pre_tokenizers

printable = [*range(33, 127), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
others = iter(range(256, 512))
alphabet = [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]
# A token of a character's last byte and "a" shows that both are of one word: that the character is a letter.
merges = [(byte, sign) for byte in alphabet[128:] for sign in "a1"]
tokens = alphabet + [left + right for left, right in merges]
ids = {token: number for number, token in enumerate(tokens)}

width = 32
writer = gguf.GGUFWriter("model.gguf", "gpt2")
writer.add_context_length(64)
writer.add_embedding_length(width)
writer.add_feed_forward_length(4 * width)
writer.add_block_count(1)
writer.add_head_count(1)
writer.add_layer_norm_eps(1e-5)
writer.add_tokenizer_model("gpt2")
writer.add_tokenizer_pre("gpt-2")
writer.add_token_list(tokens)
writer.add_token_types([1] * len(tokens))
writer.add_token_merges([" ".join(pair) for pair in merges])
writer.add_eos_token_id(0)
writer.add_tensor("token_embd.weight", numpy.zeros((len(tokens), width), numpy.float32))
writer.add_tensor("position_embd.weight", numpy.zeros((64, width), numpy.float32))
for name, rows, columns in [("attn_qkv", 3, 1), ("attn_output", 1, 1), ("ffn_up", 4, 1), ("ffn_down", 1, 4)]:
    writer.add_tensor(f"blk.0.{name}.weight", numpy.zeros((rows * width, columns * width), numpy.float32))
    writer.add_tensor(f"blk.0.{name}.bias", numpy.zeros(rows * width, numpy.float32))
for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
    for part in ("weight", "bias"):
        writer.add_tensor(f"{name}.{part}", numpy.zeros(width, numpy.float32))
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()

parameters = xllamacpp.CommonParams()
parameters.model.path = "model.gguf"
parameters.n_ctx = 64
server = xllamacpp.Server(parameters)
connection = http.client.HTTPConnection(server.listening_address.removeprefix("http://"))

def by_llama_cpp(text):
    connection.request("POST", "/tokenize", json.dumps({"content": text}), {"Content-Type": "application/json"})
    return json.loads(connection.getresponse().read())["tokens"]

byte_of = {sign: bytes([byte]) for byte, sign in enumerate(alphabet)}
words = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
ranks = {b"".join(map(byte_of.__getitem__, token)): number for token, number in ids.items()}
by_tiktoken = tiktoken.Encoding("bytes", pat_str=words, mergeable_ranks=ranks, special_tokens={}).encode_ordinary
bpe = tokenizers.Tokenizer(models.BPE(ids, merges))
bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)

def parts(numbers, at):
    found = [[]]
    for number in numbers:
        found.append([]) if number == at else found[-1].append(number)
    return found

def kinds(encode, characters):
    """For each character whether it makes one word with a letter, and with a digit."""
    lines = parts(encode("\n".join(f"{character}a {character}1" for character in characters)), ids["Ċ"])
    return [line[-1] >= 256 or parts(line, ids["Ġ"])[0][-1] >= 256 for line in lines]

encoders = by_tiktoken, lambda text: bpe.encode(text).ids, by_llama_cpp
counted, of_tokenizers, of_llama_cpp = 0, [], []
places = [place for place in range(0xA1, 0x20000) if not chr(place).isspace() and not 0xD800 <= place < 0xE000]
for begin in range(0, len(places), 1024):
    some = places[begin : begin + 1024]
    expected, hugging_face, llama = (kinds(encode, map(chr, some)) for encode in encoders)
    counted += sum(expected)
    of_tokenizers += [place for place, is_one, other in zip(some, expected, hugging_face, strict=True) if is_one != other]
    of_llama_cpp += [place for place, is_one, other in zip(some, expected, llama, strict=True) if is_one != other]
print(f"letters and numbers for tiktoken, U+00A1 to U+1FFFF: {counted:,}")
print(f"not for tokenizers: {len(of_tokenizers)}; not for llama.cpp: {len(of_llama_cpp):,}, U+{of_llama_cpp[0]:X} to U+{of_llama_cpp[-1]:X}")
assert (len(of_tokenizers), len(of_llama_cpp)) == (0, 4382)
PYTHON
