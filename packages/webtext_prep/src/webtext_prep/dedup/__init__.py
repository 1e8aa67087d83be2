"""Near-duplicates: `blocks` and `buckets` of signatures, candidate `pairs`, and the `decisions` between them.

`candidate_phases` and `decision_phases` are the phases of `webtext dedup`; `preview` and `drop_rates` are its dry run,
`reference_index` what `--against` compares with.
"""
