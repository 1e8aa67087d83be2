#!/usr/bin/env bash
# Packages: megatron-core 0.16.1, torch 2.13.0, numpy 2.4.6 (PyPI; Python 3.11).
#
# Behaviour: GPTDataset keeps its indices (which document, which sample, in which order) under a name made of the path of
# the token files, the split, the length of a sequence, the seed and the number of samples asked for; neither size nor
# time nor content of the files is in it. Where the files are written again under the same name, `path_to_cache` (by
# default `cache/GPTDataset_indices` beside them) gives the indices of the old ones, in silence.
#
# Why it matters here: a corpus is tokenised again, with more documents, into the same file, and training goes on: the
# new documents are never read, and the run says nothing. If documents have other lengths than before, samples begin and
# end in other places, are longer than a sequence, or raise an IndexError. Delete the cache, or give each version a name.
#
# Output seen:
#   20 documents:                     49 samples of 20 documents
#   40 documents, the same name:      49 samples of 20 documents
#   40 documents, an empty cache:     99 samples of 40 documents
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check megatron-core==0.16.1 torch==2.13.0 numpy==2.4.6
CUDA_VISIBLE_DEVICES="" venv/bin/python - 2>log <<'PYTHON' || { tail -3 log; exit 1; }
import numpy, torch
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

class Tokenizer:
    eod = pad = eos = 0
    vocab_size = 100
    unique_identifiers = {"class": "Tokenizer"}

def write(documents):
    builder = IndexedDatasetBuilder("corpus.bin", dtype=numpy.uint16)
    for number in range(documents):
        builder.add_item(torch.full((20,), 1 + number))
        builder.end_document()
    builder.finalize("corpus.idx")

def found(cache):
    config = GPTDatasetConfig(
        random_seed=1, sequence_length=8, blend=(["corpus"], None), split="100,0,0", path_to_cache=cache,
        tokenizer=Tokenizer(), reset_position_ids=False, reset_attention_mask=False, eod_mask_loss=False,
    )
    dataset = BlendedMegatronDatasetBuilder(GPTDataset, [40, 0, 0], lambda: True, config).build()[0]
    documents = {int(token) for sample in range(len(dataset)) for token in dataset[sample]["tokens"]}
    return len(dataset), len(documents)

write(20)
first = found("cache")
write(40)
again, fresh = found("cache"), found("empty")
print("20 documents:                     {} samples of {} documents".format(*first))
print("40 documents, the same name:      {} samples of {} documents".format(*again))
print("40 documents, an empty cache:     {} samples of {} documents".format(*fresh))
assert (first, again, fresh) == ((49, 20), (49, 20), (99, 40))
PYTHON
