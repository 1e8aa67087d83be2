"""Progress says how far, how fast, and how long still."""

import fcntl
import io
import os
import pty
import struct
import termios
import threading

import pytest

from command_kit import Progress, duration, progress


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    """A terminal that takes commands, whatever the tests run in."""
    monkeypatch.setenv("TERM", "xterm")


class Listened(io.StringIO):
    """A log that says when something was written."""

    def __init__(self) -> None:
        super().__init__()
        self.was_written = threading.Event()

    def write(self, text: str) -> int:
        count = super().write(text)
        self.was_written.set()
        return count


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0, "0:00"), (8, "0:08"), (59.6, "1:00"), (750, "12:30"), (11100, "3:05:00")]
)
def test_durations_read_like_a_clock(seconds, shown):
    assert duration(seconds) == shown


@pytest.mark.parametrize(
    ("total", "done", "then", "note", "line"),
    [
        (31000, 0, 12400, "", "clean:  40% 12.4k/31.0k [00:10<00:15, 1.24k documents/s]"),
        (None, 0, 50, "1/2 shards", "clean: 50.0 documents [00:10, 5.00 documents/s, 1/2 shards]"),
        (100, 50, 60, "", "clean:  60% 60.0/100 [00:10<00:40, 1.00 documents/s]"),  # an earlier run did 50
        (10, 0, 0, "", "clean:   0% 0.00/10.0 [00:10<?, ? documents/s]"),
        (10, 0, 12, "", "clean: 12.0 documents [00:10, 1.20 documents/s]"),  # more than expected
    ],
)
def test_a_line_has_count_share_rate_and_time_left(monkeypatch, total, done, then, note, line):
    log = io.StringIO()
    with Progress("clean", "documents", total, done=done, stream=log) as shown:
        monkeypatch.setattr(shown._bar, "_time", lambda: shown._bar.start_t + 10)
        shown.update(then, note)
        shown._draw()
    assert log.getvalue() == f"{line}\n"


def test_a_short_job_writes_nothing_into_a_log():
    log = io.StringIO()
    with Progress("clean", "documents", 2, stream=log) as shown:
        shown.advance(2)
    assert log.getvalue() == ""


def test_a_log_has_a_line_soon_and_then_few(monkeypatch):
    """A job of 24 s in a pipe said nothing, so that it could not be told from one that hangs."""
    now, waits = 0.0, []
    shown = Progress("clean", "documents", 1000, stream=io.StringIO())
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    monkeypatch.setattr(shown, "_draw", lambda: None)

    def wait(seconds: float) -> bool:
        nonlocal now
        now += seconds
        waits.append(now)
        return now > 100

    monkeypatch.setattr(shown._ended, "wait", wait)
    shown._tick()
    assert waits == [4, 8, 12, 16, 20, 24, 28, 32, 62, 92, 122]


def test_a_job_that_reports_nothing_still_shows_a_line(monkeypatch):
    """A job that hung showed nothing at all, and looked like one that works on one thing for long."""
    monkeypatch.setattr(progress, "STALLED_SECONDS", 0)
    monkeypatch.setattr(progress, "EARLY_SECONDS", 0.001)
    log = Listened()
    with Progress("clean", "documents", 2, stream=log):
        assert log.was_written.wait(60)
    assert log.getvalue().startswith("clean:   0% 0.00/2.00 [00:00<?, ? documents/s, nothing new for 0:00]\n")


def test_a_log_has_no_line_twice(monkeypatch):
    """While a first command compiled, a log repeated that 0% are done."""
    now, drawn = 0.0, []
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    shown = Progress("clean", "documents", 1000, stream=io.StringIO())
    monkeypatch.setattr(shown, "_draw", lambda: drawn.append(now))

    def wait(seconds: float) -> bool:
        nonlocal now
        now += seconds
        shown.update(5 if now > 6 else 0)
        return now > 60

    monkeypatch.setattr(shown._ended, "wait", wait)
    shown._tick()
    assert drawn == [8]


def test_a_log_that_went_away_does_not_end_the_lines_with_a_traceback(monkeypatch, capsys):
    monkeypatch.setattr(progress, "EARLY_SECONDS", 0.001)
    monkeypatch.setattr(progress, "STALLED_SECONDS", 0)
    tried = threading.Semaphore(0)

    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            tried.release()
            raise BrokenPipeError

    with Progress("clean", "documents", 2, stream=Gone()):
        assert all(tried.acquire(timeout=60) for _ in range(2))
    assert capsys.readouterr().err == ""


def test_a_terminal_without_commands_gets_plain_lines(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "dumb")
    terminal = Terminal()
    with Progress("clean", "documents", 2, stream=terminal) as shown:
        shown._draw()
    assert terminal.getvalue().startswith("clean:   0%") and terminal.getvalue().endswith("]\n")


def test_a_line_fits_the_terminal_also_after_it_was_resized_and_is_cleared_at_the_end():
    """Under 45 columns the line wrapped, and each redraw left a fragment of it behind."""
    control, terminal = pty.openpty()
    stream = os.fdopen(terminal, "w")
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    with Progress("clean", "documents", 1000, stream=stream) as shown:
        for columns in (44, 20):
            fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
            shown.advance(100, "1/10 shards")
            shown._draw()
            drawn = os.read(control, 10000).decode().split("\r")
            assert 0 < len(drawn[-1].rstrip()) <= columns
    assert os.read(control, 10000).decode().split("\r")[-1].strip() == ""
    stream.close()
    os.close(control)
