"""From a list of URLs to clean, deduplicated documents and GPT-2 token files: the command `webtext`.

A document goes through the stages in `stages/`, one file each, in the order of `webtext --help`; `running/` runs a
stage over its shards so that it can be interrupted and gone on with at any moment.
"""

DISTRIBUTION = "webtext-gpt2-prep"
EXTRACTORS = ["trafilatura"]
"""Distributions whose versions `webtext --version` shows, too."""
