"""The page that `webtext report` writes: what a corpus holds, where it came from, and what was dropped on the way."""
