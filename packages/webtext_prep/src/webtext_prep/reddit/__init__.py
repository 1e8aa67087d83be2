"""Dumps of Reddit submissions: reading their rows, choosing among them, and the page that each one links to."""
