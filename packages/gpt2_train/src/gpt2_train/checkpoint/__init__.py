"""Checkpoints that any number of processes writes and any other number reads, one process without a group included.

A checkpoint is a folder `step-0000100/`: `model/` and `optimizer/` with the tensors of each in the format of
torch.distributed.checkpoint, `tokenizer/`, and `checkpoint.json`: step, samples seen, the model's shape, the
tokenizer, what the data was, and size and CRC-32 of each tensor file. It is written under a temporary name, flushed,
renamed, and then named by the file `latest`, so that a crash at any moment leaves the older ones whole. Before a
tensor is used the files of its part are checked against their CRCs (about a second per gigabyte).

`info` finds checkpoints and reads `checkpoint.json`, `load` loads tensors in one process, `save` writes checkpoints,
`writer` their files, and `verify` checks whole ones.
"""
