"""What a run measures: `log` writes metrics.jsonl, `sinks/` send it elsewhere, `plots/` draw it (`command`)."""
