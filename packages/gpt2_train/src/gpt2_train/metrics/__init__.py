"""The measurements of a run: `log` writes metrics.jsonl, `sinks/` send it elsewhere, `curves` draws it (`command`)."""
