"""The errors of this package; each message says what was found, where, and what to do."""

from command_kit import CommandError, UsageError


class Gpt2Error(CommandError):
    """A failure of `gpt2` that its message explains (exit code 1)."""


class Gpt2UsageError(Gpt2Error, UsageError):
    """Settings, data or a checkpoint that the user has to change before the command can work (exit code 2)."""

    exit_code = 2
