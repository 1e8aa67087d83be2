"""Main text by a learned choice among a page's blocks: blocks, their features, forests, and what they decide."""

from importlib import resources

PARAMETERS = resources.files(__package__) / "parameters.json"
"""What was learned: forests, the features that they read, and the names of the kinds of pages."""
