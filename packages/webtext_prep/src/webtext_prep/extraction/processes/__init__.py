"""Processes that extract, in which a page may crash: their pool, and their results in order."""
