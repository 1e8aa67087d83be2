"""Standard input as input: kept under the name of its content, and only by the command that holds the output."""

import json
import subprocess
import sys

import pytest

URLS = "".join(f"http://example{number}.com/\n" for number in range(200))


@pytest.fixture
def command(tmp_path):
    """The arguments of a `webtext blacklist` that reads standard input."""
    arguments = ["blacklist", "--input", "-", "--output", str(tmp_path / "out"), "--json", "--workers", "1"]
    return [sys.executable, "-m", "webtext_prep", *arguments]


def test_two_commands_on_one_output_do_not_mix_what_they_read(command, tmp_path):
    """Two commands that read standard input into one output wrote one file, and mixed what they read."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as first:
        first.stdin.write(URLS)
        first.stdin.flush()
        lock = tmp_path / "out" / ".state" / "job.json"
        while not lock.exists():
            assert first.poll() is None, first.communicate()
        second = subprocess.run(
            command, input="http://other.org/\n" * 1000, capture_output=True, text=True, check=False
        )
        assert second.returncode == 2
        assert "another webtext command is at work on" in second.stderr
        out, err = first.communicate()
    assert first.returncode == 0, err
    assert json.loads(out)["in"] == 200


def test_the_same_input_again_is_recognised(command):
    done = [subprocess.run(command, input=URLS, capture_output=True, text=True, check=True) for _ in range(2)]
    assert [json.loads(run.stdout)["resumed"] for run in done] == [False, True]
