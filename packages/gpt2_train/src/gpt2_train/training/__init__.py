"""A training run: `command` to `launch` (processes) to `setup` (what it reads) and `trainer` (the loop).

`plan` settles steps and batches, `memory` and `estimate` say what it needs, `run_folder` who may write
to its folder, `recorder` does what comes between two steps,
`samples_and_tasks` what it shows of its model on the way.
"""
