"""lm-evaluation-harness (EleutherAI) with our models: this module, run, is its `lm_eval` with one model more.

    python -m gpt2_train.evaluation.lm_harness \\
        --model gpt2_train --model_args checkpoint=runs/quickstart/model --tasks lambada_openai

The harness is an optional extra, `webtext-gpt2[lm-eval]`; it brings the tasks, we bring log-probabilities and texts.
"""

from __future__ import annotations

import sys

from command_kit import run_command
from gpt2_train.config.errors import Gpt2UsageError


def main() -> int:
    """Run the harness with the command line's arguments; returns the exit code."""
    return run_command("lm_harness", _run, resumes=False)


def _run() -> None:
    try:
        from lm_eval.__main__ import cli_evaluate
    except ImportError as error:
        raise Gpt2UsageError(
            f'lm-evaluation-harness is not installed ({error}): pip install "webtext-gpt2[lm-eval]".'
        ) from None
    import gpt2_train.evaluation.lm_harness_model  # noqa: F401  its model registers itself

    cli_evaluate()


if __name__ == "__main__":
    sys.exit(main())
