"""Near-duplicates: `blocks` of documents, `candidates` from their signatures, and the `decisions` between them.

`phases` are those of `webtext dedup`; `preview` and `drop_rates` are its dry run and its alarm.
"""
