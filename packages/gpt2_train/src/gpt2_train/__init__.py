"""Train, evaluate and sample GPT-2 from indexed token files, on one process or many.

The parts, in the order in which a training run meets them: `config` (settings), `layout` (batches and processes),
`launch` (starts the processes), `run_folder` (one run, one folder), `prepare` (all that is settled before the first
step), `data` (samples from token files), `model` (GPT-2 in one plain file), `parallel` (tensor and data parallelism,
applied from outside), `loss`, `optim`, `trainer` (the loop), `checkpoint`. Importing this package imports none of them,
so that `gpt2 --help` is instant.
"""
