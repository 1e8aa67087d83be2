"""Fetching pages: one crawl, its database and its shards; `frontier` (what comes next), `http`, `archives`."""
