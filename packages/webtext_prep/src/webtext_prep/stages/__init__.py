"""The stages, one file each, found by the command line: add or remove a file, and the command is there or gone."""
