"""Fetching pages: `http`, `archives` in and out, the `state` of a crawl, its `frontier` (what comes next)."""
