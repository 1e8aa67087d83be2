"""Stages that only read finished outputs: `export`."""
