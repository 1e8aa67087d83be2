"""`gpt2 ablate`: its flags; the work is in `comparison`, imported when it begins."""

from __future__ import annotations

import argparse
import json

from command_kit import add_config_flag, add_flags, settings_from
from gpt2_train.config.loading import load_torch
from webtext_run.ablation.settings import AblateSettings

SUMMARY = "say which of several corpora makes the better model, by how much, and how surely"
EXAMPLE = """\
example:
  gpt2 ablate --data plain=work/a_text_document strict=work/b_text_document --want texts_i_like --output work/ablation
  The same command again resumes; `gpt2 plot work/ablation/runs/*` draws the runs.
"""

RESUMES = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `gpt2 ablate` to `parser`."""
    add_config_flag(parser)
    parser.add_argument(
        "--restart", action="store_true", help="discard an earlier ablation in --output, and start again"
    )
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    add_flags(parser, AblateSettings)


def run(arguments: argparse.Namespace) -> int:
    """Compare as the flags ask, print what was found, return the exit code. Raises Gpt2Error."""
    settings = settings_from(AblateSettings, arguments, command="ablate", config=arguments.config)
    return carry_out(settings, restart=arguments.restart, as_json=arguments.json)


def carry_out(settings: AblateSettings, *, restart: bool = False, as_json: bool = False) -> int:
    """Compare as `settings` ask, print what was found, return the exit code. Raises Gpt2Error."""
    settings.check()
    load_torch("reading the token files")
    from webtext_run.ablation.comparison import ablate
    from webtext_run.ablation.words import described

    result = ablate(settings, restart=restart)
    print(json.dumps(result) if as_json else described(result))
    return 0
