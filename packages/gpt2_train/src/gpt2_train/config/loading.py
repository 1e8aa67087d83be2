"""Loading PyTorch, which takes some seconds, and many on a machine where its modules are not compiled yet."""

from __future__ import annotations

import importlib
import os
import sys

from command_kit.command import print_note
from gpt2_train.config.layout import JOB_FOLDER, is_in_job


def load_torch(then: str = "") -> None:
    """Load PyTorch, and say so before, unless it is there already or another process of the job says so.

    Args:
        then: what takes seconds after that, which is said then.
    """
    if "torch" in sys.modules or JOB_FOLDER in os.environ or (is_in_job() and os.environ["RANK"] != "0"):
        return
    print_note("loading PyTorch")
    importlib.import_module("torch")
    if then:
        print_note(then)
