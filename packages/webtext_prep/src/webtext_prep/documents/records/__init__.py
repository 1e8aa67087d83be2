"""Readers of raw files, one kind per module: `webtext merge` reads what any `RecordReader` here can read."""
