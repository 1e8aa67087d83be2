"""The command `webtext` with the practice stages among its stages."""

import sys

import practice_stages

from webtext_prep import cli

known = cli.find_stages()


def with_practice_stages():
    ours = (
        practice_stages.Shout,
        practice_stages.Whisper,
        practice_stages.SmallTokenize,
        practice_stages.SmallIndexTokens,
    )
    return {**known, **{stage.name: stage for stage in ours}}


if __name__ == "__main__":
    cli.find_stages = with_practice_stages
    sys.exit(cli.main())
