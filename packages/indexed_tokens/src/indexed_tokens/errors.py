"""The errors of this package: all of them mean that a file given by the user is not what it should be."""

from command_kit import UsageError


class IndexedTokensError(UsageError):
    """A token file or a vocabulary is missing, damaged, or of another kind."""
