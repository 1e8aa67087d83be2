"""`webtext` with the practice stages, whose engine slurm does not wait as long as a cluster would have it wait."""

import sys

import practice_webtext

from webtext_prep import cli
from webtext_prep.running.clusters import slurm


def hurry() -> dict[str, object]:
    """Names in `running.clusters.slurm`, and the values that tests give them."""
    return {"LOOK_SECONDS": (0.02, 0.1), "ASK_SECONDS": (0.1, 0.3), "LATE_SECONDS": 0.1}


if __name__ == "__main__":
    for name, value in hurry().items():
        setattr(slurm, name, value)
    cli.find_stages = practice_webtext.with_practice_stages
    sys.exit(cli.main())
