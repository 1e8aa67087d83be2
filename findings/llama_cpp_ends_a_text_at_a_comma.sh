#!/usr/bin/env bash
# Packages: xllamacpp 2026.10.11549 (llama.cpp of October 2026), gguf 0.19.0 (PyPI).
#
# Behaviour: a GGUF file of a byte-level BPE (`tokenizer.ggml.model = gpt2`) without `eos_token_id` and `bos_token_id`
# has an end of text in llama.cpp all the same: the token 11, whatever it is. In GPT-2's order of the bytes that is the
# comma. The log says no more than that this token is not among those that end a generation, to which it is then added.
#
# Why it matters here: of a tokenizer that was trained without <|endoftext|> nothing in the file is wrong, and each text
# ends where the model wants to write its first comma, with the reason `eos`. No key says that there is no such token:
# an id outside the vocabulary is refused, and 11 stays. A row that no text uses, given as the end, avoids it.
#
# Output seen:
#   without:                          end ',', a model that wants a comma writes 1 token and stops: eos
#   with an unused token as the end:  end '[UNUSED]', it writes 5 tokens and stops: limit
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check xllamacpp==2026.10.11549 gguf==0.19.0
venv/bin/python - 2>log <<'PYTHON' || { tail -3 log; exit 1; }
import http.client, json
import gguf, numpy, xllamacpp

printable = [*range(33, 127), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
tokens = [*map(chr, printable), *map(chr, range(256, 512 - len(printable))), "[UNUSED]"]  # in GPT-2's order

def write(path, end):
    width = 32
    writer = gguf.GGUFWriter(path, "gpt2")
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
    writer.add_token_merges(["a b"])
    if end is not None:
        writer.add_eos_token_id(end)
        writer.add_bos_token_id(end)
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

def told(path):
    parameters = xllamacpp.CommonParams()
    parameters.model.path = path
    parameters.n_ctx = 64
    server = xllamacpp.Server(parameters)
    connection = http.client.HTTPConnection(server.listening_address.removeprefix("http://"))
    connection.request("GET", "/props")
    end = json.loads(connection.getresponse().read())["eos_token"]
    order = {"prompt": "a", "n_predict": 5, "temperature": 0, "logit_bias": [[tokens.index(","), 100]]}
    connection.request("POST", "/completion", json.dumps(order), {"Content-Type": "application/json"})
    written = json.loads(connection.getresponse().read())
    return end, written["tokens_predicted"], written["stop_type"]

write("none.gguf", None)
write("unused.gguf", tokens.index("[UNUSED]"))
none, unused = told("none.gguf"), told("unused.gguf")
print("without:                          end {!r}, a model that wants a comma writes {} token and stops: {}".format(*none))
print("with an unused token as the end:  end {!r}, it writes {} tokens and stops: {}".format(*unused))
assert (none, unused) == ((",", 1, "eos"), ("[UNUSED]", 5, "limit"))
PYTHON
