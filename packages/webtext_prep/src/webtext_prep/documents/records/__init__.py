"""How raw files hold records, one kind a module: adding a module with a `RecordReader` makes `webtext merge` read it."""
