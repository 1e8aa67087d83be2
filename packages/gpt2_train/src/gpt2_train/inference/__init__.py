"""A model in use: `model` opens it, in one process or several, `generator` and `scorer` use it.

From the outside in: `command` and `trace` (the flags), `generator` (requests to texts), `engine` (many sequences in one
batch), `kv_cache`, `sampling`; `driver` and `worker` are the processes that share a model. Nothing here needs a process
group where there is one process.
"""
