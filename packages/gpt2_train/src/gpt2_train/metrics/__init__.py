"""The measurements of a run: `log` writes metrics.jsonl, `sinks/` send it elsewhere, `plots/` draw it (`command`)."""
