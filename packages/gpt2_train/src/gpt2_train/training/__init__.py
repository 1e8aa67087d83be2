"""A training run: `command` to `launch` (processes) to `run` (one process) to `setup` and `trainer` (the loop).

`plan` settles steps and batches, `inputs` opens the data, `memory` and `estimate` say what it needs, `run_folder` who
may write to its folder, `samples_and_tasks` what it shows of its model on the way.
"""
