"""The processes of a run and a model divided among them: `mesh`, `tensor_parallel`, `parallelize`, `device`.

`collectives` keeps a process from waiting for one that failed; `jobs` starts and ends them.
"""
