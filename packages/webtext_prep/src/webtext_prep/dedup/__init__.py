"""Near-duplicates: `blocks` of documents, `candidates` from their signatures, and the `decisions` between them.

`phases` has the phases of `webtext dedup`; `preview` and `drop_rates` are its dry run and its alarm.
"""
