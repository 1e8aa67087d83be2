"""A page as a tree: what of it a reader sees, its code and formulas, and its text with and without markup."""
