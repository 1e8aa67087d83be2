"""A training run: `command` to `launch` (processes) to `trainer` (a run in one of them, and its loop over steps).

`setup` reads what a run needs, `plan` settles steps and batches, `memory` and `estimate` say what it needs,
`run_folder` who may write to its folder, `recorder` does what comes between two steps, `samples_and_tasks` shows what
its model can do on the way.
"""
