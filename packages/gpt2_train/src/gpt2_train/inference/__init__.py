"""A model in use: `model` opens it, `generator` and `scorer` use it, `open` does so in several processes.

From the outside in: `command` and `trace_command` (the flags), `generator` (requests to texts), `engine` (many
sequences in one batch), `kv_cache` with `cuda_graphs`, `sampling`, `detokenizer`; `driver` and `worker` are the
processes that share a model. Nothing here needs a process group where there is one process.
"""
