"""Near-duplicates: `candidates` from signatures, and the `decisions` between them.

`candidate_phases` and `decision_phases` are the phases of `webtext dedup`; `preview` and `drop_rates` are its dry run,
`reference_index` what `--against` compares with.
"""
