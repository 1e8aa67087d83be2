"""The limits of a system that a stage must do with."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("stage", "shards", "settings"),
    [("blacklist", 1, ["--shards", "120"]), ("merge", 1, ["--shards", "120"]), ("dedup", 60, []), ("tokenize", 60, [])],
)
def test_more_shards_than_a_shell_allows_open_files_are_no_trouble(write_shards, tmp_path, stage, shards, settings):
    folder = write_shards([[f"text {number}"] for number in range(shards)])
    command = [sys.executable, "-m", "webtext_prep", stage, "--input", folder, "--output", tmp_path / "out", *settings]
    limited = ["sh", "-c", 'ulimit -Sn 100; exec "$@"', "sh", *map(str, command), "--workers", "1"]
    done = subprocess.run(limited, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
