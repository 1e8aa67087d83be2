"""How raw files hold records, one kind a module: `webtext merge` reads what any `RecordReader` here can read."""
