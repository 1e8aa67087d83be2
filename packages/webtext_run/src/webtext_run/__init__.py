"""Runs a whole pipeline of `webtext` and `gpt2` commands as a TOML file describes it: `pipelines/run.py`."""
