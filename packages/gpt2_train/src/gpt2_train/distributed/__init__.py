"""The processes of a run and a model divided among them: `mesh`, `tensor_parallel`, `parallelize`, `device`.

`collectives` keeps a process from waiting for one that failed; `local_job` starts them, `jobs` is one of them.
"""
