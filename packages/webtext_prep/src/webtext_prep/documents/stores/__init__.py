"""Where files lie, one kind of storage a file: adding a module with a `Store` here makes its protocol known."""
