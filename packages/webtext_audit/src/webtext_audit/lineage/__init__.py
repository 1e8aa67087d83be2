"""A finished output and what it was made from: its `tables`, and how to `rebuild` it without some documents."""
