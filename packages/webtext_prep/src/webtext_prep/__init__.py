"""webtext_prep."""
