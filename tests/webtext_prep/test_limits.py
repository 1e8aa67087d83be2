"""The limits of a system that a stage must do with."""

import resource

import pytest


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
def test_more_shards_than_a_shell_allows_open_files_are_no_trouble(
    write_shards, webtext, tmp_path, stage, shards, settings
):
    folder = write_shards([[f"text {number}"] for number in range(shards)])
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, before[1]))
    try:
        done = webtext(stage, "--input", folder, "--output", tmp_path / "out", *settings, "--workers", 1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert done.code == 0, done.err
