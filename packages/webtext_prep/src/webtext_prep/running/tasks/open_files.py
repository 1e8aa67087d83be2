"""How many files a process may have open: more than most systems allow unless asked."""

from __future__ import annotations

import contextlib

OPEN_FILES = (20_000, 10_240)
"""How many files a process may want to have open; macOS refuses more than the second on some machines."""


def allow_open_files() -> None:
    """Raise the limit on open files of this process, and of those that it starts, as far as the system lets it.

    A stage has a few open for each of up to 4,096 shards, a download one for each of up to 10,000 connections; many
    systems allow 1,024, or 256, unless asked.
    """
    with contextlib.suppress(ImportError):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        for wanted in OPEN_FILES:
            most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            if soft == resource.RLIM_INFINITY or soft >= most:
                return
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
                return
