"""Subcommands of `webtext` that make no documents, one file each, announced as entry points `webtext.commands`.."""
