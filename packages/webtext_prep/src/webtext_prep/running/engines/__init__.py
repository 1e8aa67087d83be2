"""Where tasks run, one kind of place a module: adding a module with an `Engine` here makes it a value of `--engine`."""
