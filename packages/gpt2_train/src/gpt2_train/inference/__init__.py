"""A model in use: `model` opens it, in one process or several, `generator` and `scorer` use it.

From the outside in: `command` (the flags), `generator` (requests to texts), `engine` (many sequences in one batch),
`kv_cache`, `sampling`; `divided` is a model in several processes, all of which do the same. Nothing here needs a
process group where there is one process.
"""
