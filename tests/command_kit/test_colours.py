"""Colour where a terminal has it, and nowhere else; columns that align whatever is in them."""

import contextlib
import io
import os
import pty
import re
import subprocess
import sys

import pytest

from command_kit import CommandError, machine, run_command
from command_kit.colours import (
    BOLD,
    GREEN,
    RED,
    Paint,
    aligned,
    cut,
    display_width,
    has_colours,
    is_terminal,
    padded,
    wrapped,
)


@contextlib.contextmanager
def open_terminal():
    """A pseudo-terminal: what is written to, and what then can be read."""
    control, terminal = pty.openpty()
    with os.fdopen(terminal, "w") as stream, os.fdopen(control, "rb", buffering=0) as screen:

        def shown():
            stream.flush()
            found = screen.read(100_000)
            while not found.endswith(b"\n"):  # a terminal may give the end of a line later
                found += screen.read(100_000)
            return found.decode()

        yield stream, shown


@pytest.mark.parametrize(
    ("environment", "on_terminal", "in_file"),
    [
        ({}, True, False),
        ({"NO_COLOR": "1"}, False, False),
        ({"NO_COLOR": ""}, True, False),  # as if it were not set
        ({"FORCE_COLOR": "1"}, True, True),
        ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, False, False),
        ({"TERM": "dumb"}, False, False),
        ({"TERM": "dumb", "FORCE_COLOR": "1"}, True, True),
    ],
)
def test_who_has_colours(monkeypatch, environment, on_terminal, in_file):
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in ({"TERM": "xterm"} | environment).items():
        monkeypatch.setenv(name, value)
    with open_terminal() as (stream, _):
        assert has_colours(stream) == on_terminal
        assert is_terminal(stream) == (environment.get("TERM") != "dumb")
    assert has_colours(io.StringIO()) == in_file
    assert not is_terminal(io.StringIO())


def fail():
    raise CommandError("the oven at http://me:secret@oven is cold.")


def test_an_error_is_red_on_a_terminal_and_plain_in_a_file(monkeypatch, capsys):
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    with open_terminal() as (stream, shown), monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", stream)
        assert run_command("bake", fail) == 1
        assert shown() == "\r\x1b[Kbake: \x1b[31;1merror:\x1b[0m the oven at http://oven is cold.\r\n"
    run_command("bake", fail)
    assert capsys.readouterr().err == "bake: error: the oven at http://oven is cold.\n"


def test_a_summary_has_colours_on_a_terminal_alone(tmp_path):
    """`webtext` from end to end: its progress and its closing table on a pseudo-terminal, its result in a pipe."""
    (tmp_path / "urls.txt").write_text("http://a.org/\nhttp://a.org/\n")
    command = [sys.executable, "-m", "webtext_prep", "blacklist", "--json", "--workers", "1"]
    command += ["--input", str(tmp_path / "urls.txt"), "--output", str(tmp_path / "out")]
    environment = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    with open_terminal() as (stream, shown):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=stream, env=environment | {"TERM": "xterm"})
        screen = shown()
    assert done.returncode == 0
    assert b"\x1b" not in done.stdout
    assert "\x1b[1mblacklist\x1b[0m  " in screen
    assert re.search(r"\n  \x1b\[32mout +1    50.0%\x1b\[0m\r\n", screen)
    assert "  \x1b[2m  dropped: duplicate" in screen
    done = subprocess.run(command, capture_output=True, env=environment | {"TERM": "xterm"})
    assert b"\x1b" not in done.stderr
    assert re.search(rb"\n  out +1    50.0%\n", done.stderr)


def test_paint_leaves_alone_what_is_plain_or_empty():
    assert Paint(False)("word", RED) == "word"
    assert Paint(True)("", RED) == ""
    assert Paint(True)("word") == "word"
    assert Paint(True)("word", GREEN, BOLD) == "\x1b[32;1mword\x1b[0m"


@pytest.mark.parametrize(
    ("text", "width"),
    [("", 0), ("abc", 3), ("日本語", 6), ("ｗｉｄｅ", 8), ("e\u0301", 1), ("👍", 2), ("a\tb\x00", 2), ("\u200bx", 1)],
)
def test_columns_of_a_terminal(text, width):
    assert display_width(text) == width
    assert display_width(Paint(True)(text, RED)) == width
    assert display_width(padded(text, 9)) == display_width(padded(text, 9, ">")) == 9


def test_what_is_too_wide_is_cut_between_characters():
    assert [cut("日本語", width) for width in (0, 1, 2, 3, 6, 7)] == ["", "", "日", "日", "日本語", "日本語"]
    assert cut("e\u0301e", 1) == "e\u0301"


def test_columns_align_whatever_is_in_them():
    rows = [["名前", "1", "x"], [Paint(True)("ab", RED), "1,000"], ["longest", "20", "y"]]
    lines = aligned(rows, "<><")
    assert lines == ["名前         1  x", "\x1b[31mab\x1b[0m       1,000", "longest     20  y"]
    assert aligned([], "<>") == []


def test_checks_of_doctor_align(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    checks = [machine.Check("cores", "2"), machine.Check("disk space", "1 GB", "work elsewhere")]
    assert machine.shown(checks) == "ok  cores       2\n!   disk space  1 GB; work elsewhere"


def test_a_sentence_is_wrapped_between_words_on_a_terminal_alone(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    words = "one " * 30 + "a-name-that-is-never-broken-" * 5
    assert wrapped(words, io.StringIO()) == words
    with open_terminal() as (stream, _):
        first, *_, last = wrapped(words, stream).splitlines()
        assert len(first) <= 80 and first.endswith("one")
        assert last.strip() == words.split()[-1]
        assert wrapped("short\nlines", stream) == "short\nlines"
