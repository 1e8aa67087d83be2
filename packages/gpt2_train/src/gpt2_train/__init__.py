"""Train, evaluate and sample GPT-2 from indexed token files, on one process or many.

The parts, in the order in which a training run meets them: `config` (settings), `data` (samples from token files),
`model` (GPT-2 in one plain file), `parallel` (tensor and data parallelism put on from outside), `loss`, `optim`,
`checkpoint`, and `train`, the loop. Importing this package imports none of them, so that `gpt2 --help` is instant.
"""
