"""Checkpoints: models as transformers reads them, with what a run goes on with; any number of processes reads any.

A checkpoint is a folder `step-0000100/`: a Hugging Face model (`config.json`, `model.safetensors`, tokenizer files),
the optimizer's state, one file of safetensors for each process that wrote it, and `checkpoint.json`: step, samples
seen, settings, what the data was, and size and CRC-32 of each file. It is written under a temporary name, flushed,
renamed, and then named by the file `latest`, so that a crash at any moment leaves the older ones whole. Before a
tensor is used the files of its part are checked against their CRCs (about a second per gigabyte).

`info` finds checkpoints and reads `checkpoint.json`, `hugging_face` the model's description, `load` its tensors,
`optimizer_state` the optimizer's;
`save` writes checkpoints, `tensor_files` their files, and `verify` checks whole ones. `names` has GPT-2's own.
"""
