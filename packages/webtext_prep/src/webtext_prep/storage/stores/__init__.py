"""Storage systems, one per module: adding a module with a `Store` here makes its protocol known."""
