"""Texts: `repair`, `hashes`, `fingerprints`, `quality` rules, `languages`, `contamination`; `compiled` functions."""
