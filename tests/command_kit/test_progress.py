"""Progress says how far, how fast, and how long still."""

import fcntl
import io
import os
import pty
import re
import struct
import termios
import threading

import pytest

from command_kit import Progress, duration, progress
from command_kit.colours import PLAIN, Paint


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    """A terminal that takes commands, whatever the tests run in, and text without colour."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0, "0:00"), (8, "0:08"), (59.6, "1:00"), (750, "12:30"), (11100, "3:05:00")]
)
def test_durations_read_like_a_clock(seconds, shown):
    assert duration(seconds) == shown


def test_a_line_has_count_share_rate_and_time_left():
    progress = Progress("clean", "documents", 31000)
    progress.done = 12400
    assert progress.line(10) == "clean  12,400/31,000 documents  40%  1,240/s  0:15 left"


def test_without_a_total_there_is_a_count_and_a_rate():
    progress = Progress("clean", "documents")
    progress.done = 5
    assert progress.line(10, "1/2 shards") == "clean  5 documents  0.5/s  1/2 shards"


def test_what_an_earlier_run_did_is_no_part_of_the_rate():
    progress = Progress("clean", "documents", 100, done=50)
    progress.done = 60
    assert "1/s  0:40 left" in progress.line(10)


def test_the_first_report_of_a_resumed_run_has_a_time_left(monkeypatch):
    """A resumed run had neither a share nor a time left."""
    clock = iter(range(100))
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    terminal = Terminal()
    Progress("clean", "documents", 100, done=50, stream=terminal).advance()
    assert "51/100 documents  51%  " in terminal.getvalue()
    assert " left" in terminal.getvalue()


def test_nothing_done_yet_is_no_division_by_zero():
    assert Progress("clean", "documents", 10).line(0) == "clean  0/10 documents  0%  0/s"


def test_more_than_expected_is_all_of_it():
    progress = Progress("clean", "documents", 10)
    progress.done = 12
    assert "100%" in progress.line(1)


def test_a_log_file_gets_plain_lines_and_a_terminal_one_line_that_is_cleared():
    log, terminal = io.StringIO(), Terminal()
    for stream in (log, terminal):
        with Progress("clean", "documents", 2, stream=stream, every=0) as progress:
            progress.advance()
            progress.advance()
    assert [line.split("  ")[1] for line in log.getvalue().splitlines()] == ["1/2 documents", "2/2 documents"]
    assert "\x1b" not in log.getvalue()
    assert terminal.getvalue().count("\n") == 0
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_a_short_job_writes_nothing_into_a_log():
    log = io.StringIO()
    with Progress("clean", "documents", 2, stream=log) as progress:
        progress.advance(2)
    assert log.getvalue() == ""


def test_a_log_has_a_line_soon_and_then_few(monkeypatch):
    """A job of 24 s in a pipe said nothing, so that it could not be told from one that hangs."""
    now, log = 0.0, io.StringIO()
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    shown = Progress("clean", "documents", 1000, stream=log)
    for second in range(121):
        now = float(second)
        before = len(log.getvalue())
        shown.update(second)
        assert (len(log.getvalue()) > before) == (second in (4, 8, 12, 16, 20, 24, 28, 32, 62, 92)), second


class Listened(io.StringIO):
    """A log that says when something was written."""

    def __init__(self) -> None:
        super().__init__()
        self.was_written = threading.Event()

    def write(self, text: str) -> int:
        count = super().write(text)
        self.was_written.set()
        return count


def test_a_job_that_reports_nothing_still_shows_a_line(monkeypatch):
    """A job that hung showed nothing at all, and looked like one that works on one thing for long."""
    monkeypatch.setattr(progress, "STALLED_SECONDS", 0)
    log = Listened()
    with Progress("clean", "documents", 2, stream=log, every=0.001):
        assert log.was_written.wait(60)
    assert log.getvalue().startswith("clean  0/2 documents  0%  0/s  nothing new for 0:00\n")


def test_a_log_that_went_away_does_not_end_the_lines_with_a_traceback(capsys):
    tried = threading.Semaphore(0)

    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            tried.release()
            raise BrokenPipeError

    with Progress("clean", "documents", 2, stream=Gone(), every=0.001):
        assert all(tried.acquire(timeout=60) for _ in range(2))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (70, "clean  12,400/31,000 documents  40%  1,240/s  0:15 left  4/10 shards"),
        (60, "clean  12,400/31,000 documents  40%  1,240/s  0:15 left"),
        (50, "clean  12,400/31,000 documents  40%  0:15 left"),
        (40, "12,400/31,000 documents  40%  0:15 left"),
        (20, "40%  0:15 left"),
        (10, "40%  0:15 "),
        (1, "4"),
    ],
)
def test_a_line_that_does_not_fit_leaves_out_what_matters_least(width, line):
    shown = Progress("clean", "documents", 31000)
    shown.done = 12400
    assert shown.line(10, "4/10 shards", width=width) == line
    assert len(line) <= width


def test_a_line_counts_columns_and_not_characters():
    shown = Progress("整理", "文書")
    shown.done = 12400
    assert shown.line(10, width=26) == "整理  12,400 文書  1,240/s"
    assert shown.line(10, width=25) == "整理  12,400 文書"
    assert shown.line(10, width=8) == "12,400 "  # half of a character would be one column too many


def test_a_terminal_without_commands_gets_plain_lines(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    terminal = Terminal()
    with Progress("clean", "documents", 2, stream=terminal, every=0) as progress:
        progress.advance()
    assert terminal.getvalue().startswith("clean  1/2 documents  50%")
    assert terminal.getvalue().endswith("\n")


@pytest.mark.parametrize("width", [100, 60, 50, 40, 20, 10])
def test_colours_take_no_columns(monkeypatch, width):
    monkeypatch.delenv("NO_COLOR")
    shown = Progress("clean", "documents", 31000, stream=Terminal())
    shown.done = 12400
    plain, coloured = (shown._line(paint, 10, "4/10 shards", width) for paint in (PLAIN, Paint(True)))
    assert plain == shown.line(10, "4/10 shards", width=width)
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain
    assert ("\x1b[36m40%\x1b[0m" in coloured) == (width > 10)  # what is cut has no colour


def test_a_narrow_line_without_a_total_is_cut():
    shown = Progress("clean", "documents")
    shown.done = 12400
    assert shown.line(10, width=12) == "12,400 docum"


def test_a_line_fits_the_terminal_also_after_it_was_resized():
    """Under 45 columns the line wrapped, and each redraw left a fragment of it behind."""
    control, terminal = pty.openpty()
    stream = os.fdopen(terminal, "w")
    with Progress("clean", "documents", 1000, stream=stream, every=0) as shown:
        for columns in (44, 20):
            fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
            shown.advance(100, "1/10 shards")
            drawn = os.read(control, 10000).decode().split("\r\x1b[K")
            assert 0 < len(drawn[-1]) < columns
    stream.close()
    os.close(control)


def test_what_is_counted_may_be_done_before_the_job_is():
    """It said "100%  0:00 left" for seconds."""
    progress = Progress("train-tokenizer", "documents", 10, stream=io.StringIO())
    progress.done = 10
    assert progress.line(10) == "train-tokenizer  10/10 documents  100%  1/s  finishing"
