"""How a stage runs: tasks, engines, completion markers, tallies. Knows documents, and no stage by name."""
