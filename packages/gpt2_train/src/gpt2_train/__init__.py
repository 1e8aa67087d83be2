"""Train, evaluate and sample GPT-2 from indexed token files, on one process or many.

The rooms, from the ground up: `config` (settings, checks without torch), `model` (GPT-2 in one plain file),
`distributed` (processes, tensor and data parallelism), `optim`, `data` (samples from token files), `checkpoint`,
`metrics`, `conversion` (other programs' formats), `inference`, `evaluation`, `serving`, and `training`, which uses most
of them. A room imports only rooms below it. Each command is a module `command` of the room whose work it starts.
Importing this package imports none of them, so that `gpt2 --help` is instant.
"""
