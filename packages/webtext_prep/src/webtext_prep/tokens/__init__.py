"""From documents to token files: `runs` and their order, and suffixes sorted."""
