"""Times as archives write them, `timestamp`s of 14 digits: `20190301120000`."""

from __future__ import annotations

import contextlib
import datetime
import math
import re
from collections.abc import Iterable
from typing import TypeVar

READABLE = "%Y-%m-%dT%H:%M:%SZ"
_TIME = "%Y%m%d%H%M%S"
_DIGITS = re.compile(r"\d{14}", re.ASCII)
_UNIX = re.compile(r"\d{9,10}", re.ASCII)
_YEAR = re.compile(r"\d{4}(-\d\d)?", re.ASCII)

Found = TypeVar("Found")


def timestamp(date: str) -> str:
    """A date as archives write it, with 14 digits: of ISO 8601, also a year or a month, or in seconds of Unix time.

    A time without a zone is of UTC. Raises ValueError for anything else.

    >>> timestamp("2019-03"), timestamp("2019-03-01T13:00:00+01:00"), timestamp("1551441600")
    ('20190301000000', '20190301120000', '20190301120000')
    """
    date = date.strip()
    if _UNIX.fullmatch(date):
        return datetime.datetime.fromtimestamp(int(date), datetime.UTC).strftime(_TIME)
    year = _YEAR.fullmatch(date)
    time = datetime.datetime.fromisoformat(date if year is None else f"{date}{'-01' * (1 if year[1] else 2)}")
    if time.tzinfo is not None:
        with contextlib.suppress(OverflowError):  # of the first or last day that there is
            time = time.astimezone(datetime.UTC)
    return f"{time.year:04}{time.strftime(_TIME[2:])}"


def seconds_of(time: str) -> float:
    """A `timestamp` in seconds since 1970; infinite if it is none."""
    if _DIGITS.fullmatch(time):
        with contextlib.suppress(ValueError):
            return datetime.datetime.strptime(time, _TIME).replace(tzinfo=datetime.UTC).timestamp()
    return math.inf


def readable_time(time: str) -> str:
    """A `timestamp` as `2019-03-01T12:00:00Z`."""
    return f"{time[:4]}-{time[4:6]}-{time[6:8]}T{time[8:10]}:{time[10:12]}:{time[12:]}Z"


def nearest(found: Iterable[tuple[str, Found]], date: str) -> list[tuple[str, Found]]:
    """What has a `timestamp`, the nearest to `date` first, or the newest if that is empty; others are left out."""
    timed = [(seconds_of(time), (time, each)) for time, each in found]
    timed = [(seconds, each) for seconds, each in timed if math.isfinite(seconds)]
    wanted = seconds_of(date) if date else math.inf
    timed.sort(key=lambda entry: (abs(entry[0] - wanted) if date else -entry[0], entry[0]))
    return [each for _, each in timed]
