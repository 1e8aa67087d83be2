"""The commands that look at what stages made: one file each, found by the command line."""
