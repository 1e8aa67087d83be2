"""What a user meets when a command fails: one sentence on standard error, the right exit code, no traceback."""

import errno
import os
import subprocess
import sys

import pytest

from command_kit import CommandError, UsageError, run_command


def fail(error: BaseException):
    def body() -> None:
        raise error

    return body


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (CommandError("the oven is cold."), 1, "bake: error: the oven is cold."),
        (UsageError("no such oven."), 2, "bake: error: no such oven."),
        (OSError(errno.ENOSPC, "No space", "/x"), 1, "bake: error: the disk is full while writing /x: free some space"),
        (OSError(errno.EDQUOT, "Quota"), 1, "bake: error: the disk is full: free some space"),
        (PermissionError(errno.EACCES, "no", "/x"), 2, "bake: error: no permission for /x: choose another path"),
        (IsADirectoryError(errno.EISDIR, "", "/x"), 2, "bake: error: /x is a folder, where a file belongs: choose"),
        (OSError(errno.EROFS, "", "/x"), 2, "bake: error: /x is on a read-only disk: choose another path."),
        (NotADirectoryError(errno.ENOTDIR, "", "/x/y"), 2, "bake: error: /x/y lies below a file: choose another path."),
        (OSError(errno.ENAMETOOLONG, "", "/x"), 2, "bake: error: /x has too long a name: choose another path."),
        (OSError(errno.EIO, "Input/output error"), 1, "bake: error: Input/output error."),
        (MemoryError(), 1, "bake: error: out of memory: use fewer --workers"),
        (KeyError("x"), 1, "bake: error: internal error: KeyError: 'x' (run again with --debug for the traceback)."),
        (KeyboardInterrupt(), 130, "bake: interrupted; the same command resumes from here."),
    ],
)
def test_an_error_is_one_sentence_and_an_exit_code(capsys, error, code, sentence):
    """A read-only disk and a path below a file had no remedy, and the exit code of a failure."""
    assert run_command("bake", fail(error)) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(sentence)
    assert err.count("\n") == 1


def test_debug_adds_the_traceback(capsys):
    assert run_command("bake", fail(CommandError("cold.")), debug=True) == 1
    err = capsys.readouterr().err
    assert err.startswith("Traceback")
    assert err.endswith("bake: error: cold.\n")


def test_success_is_silent_and_zero(capsys):
    assert run_command("bake", lambda: None) == 0
    assert run_command("bake", lambda: 3) == 3
    assert capsys.readouterr() == ("", "")


def test_a_file_name_that_is_not_utf8_can_be_printed():
    """The last line of a command, which names its output, was an internal error for such a name."""
    code = "import command_kit; command_kit.run_command('bake', lambda: print('caf\\udce9'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"caf\\udce9\n", b"")


def test_a_reader_that_goes_away_makes_no_noise():
    """`webtext inspect ... | head -1`."""
    script = "import sys, command_kit; sys.exit(command_kit.run_command('bake', lambda: print('x' * 9)))"
    # What is printed has to wait in a buffer, as it does for users.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    )
    process.stdout.close()
    with process:
        assert process.stderr.read() == b""
        assert process.wait() == 141


def test_what_starts_over_does_not_promise_to_go_on(capsys):
    def interrupted():
        raise KeyboardInterrupt

    assert run_command("bake", interrupted, resumes=False) == 130
    assert capsys.readouterr().err == "bake: interrupted.\n"
