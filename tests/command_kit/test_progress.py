"""Progress says how far, how fast, and how long still."""

import io

import pytest

from command_kit import Progress, duration


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
