"""`webtext`, also as `python -m webtext_prep`. Scripts often ask for the version: nothing else is imported for that."""

import sys

from command_kit.parsing import version_line
from webtext_prep import DISTRIBUTION, EXTRACTORS


def main() -> int:
    """The command line of this process; returns the exit code."""
    if sys.argv[1:] == ["--version"]:
        print(version_line("webtext", DISTRIBUTION, EXTRACTORS))
        return 0
    from webtext_prep import cli

    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
