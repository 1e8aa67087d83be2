"""File formats of documents, one per module: adding a module with a `Format` here makes it a value of `--format`."""
