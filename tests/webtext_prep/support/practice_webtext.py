"""The command `webtext` with the practice stages among its stages."""

import sys

import practice_stages

from webtext_prep import cli

known = cli.find_stages()


def with_practice_stages():
    return {**known, "shout": practice_stages.Shout, "whisper": practice_stages.Whisper}


if __name__ == "__main__":
    cli.find_stages = with_practice_stages
    sys.exit(cli.main())
