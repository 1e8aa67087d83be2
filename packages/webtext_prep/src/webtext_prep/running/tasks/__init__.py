"""A task: its counts (`tally`), its place in a file (`state`), files brought to its machine (`staging`)."""
