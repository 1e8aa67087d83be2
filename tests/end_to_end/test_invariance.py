"""The command that proves that engines make the same bytes: `benchmarks/invariance.py`, on a few documents."""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import clusters  # noqa: E402
import comparing  # noqa: E402
import invariance  # noqa: E402


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, BENCHMARKS / "invariance.py", *arguments]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True)


@pytest.mark.exhaustive
def test_killed_workers_nodes_and_commands_change_no_byte_on_any_engine():
    """A worker, a node and the command itself are killed on local processes and a Ray of two nodes."""
    pytest.importorskip("ray")
    # By this seed all kills come early in the 48 tasks of the stage, so that there is time left for them.
    done = run("--stages", "dedup", "--documents", 40, "--workers", 2, "--seed", 299, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["files"] > 5
    assert found["engines"].keys() == {"local", "ray"}
    for engine in found["engines"].values():
        assert engine["difference"] is None
        assert engine["killed"] == {"workers": 1, "node": 1, "command": 1}


class Unfaithful(clusters.ThisMachine):
    """One byte of what the last stage makes is another one."""

    def close(self):
        """Called when the stages have been run."""
        path = Path(self.output) / "local" / "merge" / "part-00001.jsonl.zst"
        data = bytearray(path.read_bytes())
        data[7] ^= 1
        path.write_bytes(data)


def test_a_byte_that_differs_is_named_and_its_files_stay(tmp_path, monkeypatch, capsys):
    made = []

    def machines(engine, flags, workers, *, ours):
        made.append(Unfaithful(engine, ["--workers", "1"]))
        made[-1].output = tmp_path / "out"
        return made[-1]

    monkeypatch.setattr(clusters, "machines_for", machines)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    arguments = ["--engine", "local", "--kill", "--stages", "merge", "--documents", "20", "--output"]
    assert invariance.main([*arguments, str(tmp_path / "out"), "--json"]) == 1
    said = capsys.readouterr()
    there = tmp_path / "out" / "local" / "merge" / "part-00001.jsonl.zst"
    assert f"error: engine local: merge/part-00001.jsonl.zst differs from byte 7 on: compare {there}" in said.err
    assert "differs from byte 7" in json.loads(said.out)["engines"]["local"]["difference"]
    assert invariance.main([*arguments, str(tmp_path / "out")]) == 2
    assert "has files of an earlier run, in reference: give another --output" in capsys.readouterr().err
    assert not list((tmp_path / "temporary").iterdir())


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda there: (there / "deep/b").unlink(), "deep/b is missing in"),
        (lambda there: (there / "c").write_bytes(b""), "c is in .* and not in"),
        (lambda there: (there / "deep/b").write_bytes(b"many bytes more"), "deep/b differs from byte 10 on"),
        (lambda there: (there / "a").write_bytes(b""), "a differs from byte 0 on"),
    ],
)
def test_the_first_difference_of_two_folders(tmp_path, change, sentence, monkeypatch):
    monkeypatch.setattr(comparing, "CHUNK", 4)
    for name in ("here", "there"):
        (tmp_path / name / "deep").mkdir(parents=True)
        (tmp_path / name / "a").write_bytes(b"bytes")
        (tmp_path / name / "deep/b").write_bytes(b"many bytes")
    here, there = tmp_path / "here", tmp_path / "there"
    assert comparing.first_difference(here, there) is None
    change(there)
    assert re.search(sentence, comparing.first_difference(here, there) or "")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--engine", "ray", "--ray-address", "auto"], "--engine ray is a cluster: give an --output that all its"),
        (["--engine", "ray", "--ray-address", "auto", "--output", "x", "--kill", "node"], "--kill command, or"),
        (["--input", "absent", "--engine", "local"], "reference: merge ended with exit code 2: .* absent"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(arguments, sentence, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert invariance.main(arguments) in (1, 2)
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("invariance.py: error: ")
    assert re.search(sentence, said)


def test_kills_are_the_same_for_the_same_seed():
    def chosen(seed):
        return invariance.choose_kills(list(clusters.KINDS), [5, 9, 1], invariance.random.Random(seed))

    assert chosen(1) == chosen(1)
    assert len({str(chosen(seed)) for seed in range(9)}) > 1
    assert [kill.kind for kill in chosen(1)] == ["workers", "workers", "workers", "node", "command"]
    assert all(kill.after < [5, 9, 1][kill.stage] for seed in range(9) for kill in chosen(seed))
