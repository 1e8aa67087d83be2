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
_ZERO = "00000101000000"
_EPOCH = re.compile(r"[3-9]\d{8}|1[0-8]\d{8}", re.ASCII)
"""Seconds since 1970, from 1979 to 2030: other numbers begin with a year."""

Found = TypeVar("Found")


def timestamp(date: str) -> str:
    """A date as archives write it, with 14 digits; "" if it is none.

    >>> timestamp("2019-03-01"), timestamp("2019-03-01T12:00:00Z"), timestamp("201903"), timestamp("1551441600")
    ('20190301000000', '20190301120000', '20190301000000', '20190301120000')
    """
    date = date.strip()
    if _EPOCH.fullmatch(date):
        return datetime.datetime.fromtimestamp(int(date), datetime.UTC).strftime(_TIME)
    digits = "".join(sign for sign in date.partition("+")[0] if sign.isascii() and sign.isdigit())[:14]
    if len(digits) < 4:
        return ""
    padded = digits + _ZERO[len(digits) :]
    return padded if math.isfinite(seconds_of(padded)) else ""


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
