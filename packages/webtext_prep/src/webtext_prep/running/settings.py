"""The settings that every stage has: what it reads and writes, and where its tasks run."""

from __future__ import annotations

from dataclasses import dataclass

from command_kit import setting
from webtext_prep.documents.folders.shards import known_formats
from webtext_prep.running.engines.choosing import find_engines


@dataclass(frozen=True)
class RunSettings:
    """Settings that every stage has besides its own."""

    input: tuple[str, ...] = setting((), "what to read: files, folders, globs", metavar="PATH", group="run")
    output: str = setting("", "what to write", metavar="PATH", group="run")
    workers: int = setting(0, "tasks at once; 0 means all cores, of a cluster as many as it has", group="run")
    keep_dropped: bool = setting(False, "also write the dropped documents, with their reasons", group="run")
    format: str = setting(
        "",
        "how to write shards (default: jsonl.zst; export: parquet)",
        group="run",
        choices=known_formats,
    )
    engine: str = setting("local", "where tasks run", group="run", choices=find_engines)
    state: str = setting("", "folder of this machine for what resuming needs, if the output is a URL", group="run")
    shared_scratch: str = setting(
        "",
        "a folder in storage, such as s3://bucket/scratch, for files between phases, where the machines of --engine do "
        "not all see the state folder",
        metavar="URL",
        group="run",
    )
    space_check: bool = setting(
        True, "stop before a run that needs more disk or memory than this machine has free", group="run"
    )
