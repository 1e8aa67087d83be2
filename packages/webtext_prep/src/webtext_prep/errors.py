"""The errors of text preparation. A message says what was found, where, and what to do."""

import errno

from command_kit import CommandError, UsageError


class WebtextError(CommandError):
    """A stage could not do its work (exit code 1)."""


class RetryableError(WebtextError):
    """A task failed at something that may succeed if it is tried again: a store that is busy, a cut connection."""


class InputError(WebtextError, UsageError):
    """What the user gave, a path, a file or a setting, has to change first (exit code 2)."""


class DamagedFileError(InputError):
    """A file is cut off, or is not what was written: some of it may be whole."""


class StorageError(WebtextError, OSError):
    """A storage system refused or failed: no bucket of that name, credentials that are missing or have expired.

    It has an `errno`, as errors of the system do; errors of readers of formats (a damaged .bz2 file) have none.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.errno = errno.EIO


class StorageBusyError(StorageError, RetryableError):
    """A storage system that was asked several times is throttled, out of order, or not to be reached."""
