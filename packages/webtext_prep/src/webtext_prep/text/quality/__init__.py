"""Quality rules of published corpora: one module for each, found by looking into this folder (`--rules`)."""
