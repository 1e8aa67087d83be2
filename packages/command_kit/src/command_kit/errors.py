"""Errors that a user can read: one sentence, an exit code, no traceback.

Each package hangs its own tree under `CommandError` (`WebtextError`, `Gpt2Error`, ...), so that a caller can catch
one package's failures, or all of them. A message says what was found, where, and what to do.
"""


class CommandError(Exception):
    """A failure that its message explains; the command prints it and exits with `exit_code`."""

    exit_code = 1


class UsageError(CommandError):
    """Bad usage or bad input: what the user gave has to change before the command can work."""

    exit_code = 2
