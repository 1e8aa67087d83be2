"""Folders of shards: inputs found, shards named, records of stages, partitions, the lineage of an output."""
