"""indexed_tokens."""
