"""Near-duplicates, `candidates` and the `decisions` between them, with `reports`; repeated `passages`."""
