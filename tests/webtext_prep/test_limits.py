"""The limits of a system that a stage must do with."""

import resource
from pathlib import Path

import pytest

from webtext_prep.running import job


@pytest.mark.parametrize(
    ("stage", "shards", "settings"),
    [
        ("blacklist", 1, ["--shards", "120"]),
        ("merge", 1, ["--shards", "120"]),
        ("dedup", 60, []),
        ("dedup-passages", 60, []),
        ("tokenize", 60, []),
    ],
)
def test_the_number_of_open_files_does_not_grow_with_the_shards(
    write_shards, webtext, tmp_path, monkeypatch, stage, shards, settings
):
    monkeypatch.setattr(job, "allow_open_files", lambda: None)
    folder = write_shards([[f"text {number}"] for number in range(shards)])
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(file.name) for file in Path("/dev/fd").iterdir())  # earlier tests may have left files open
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 25, before[1]))
    try:
        done = webtext(stage, "--input", folder, "--output", tmp_path / "out", *settings, "--workers", 1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert done.code == 0, done.err
