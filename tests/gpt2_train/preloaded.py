"""What processes of the tests have loaded when they begin, as they are forks of one that has: see `forks`."""

import gc

import pytest  # noqa: F401
import torch._dynamo  # noqa: F401 - the compiler is loaded by the first model on the meta device, in seconds
from tests.gpt2_train import forks  # noqa: F401

import gpt2_train.cli
import gpt2_train.inference.divided
import gpt2_train.training.trainer  # noqa: F401
import webtext_run.command  # noqa: F401
from indexed_tokens import Tokenizer

Tokenizer.gpt2()

# None of that is garbage, and each process would copy it by looking.
gc.collect()
gc.freeze()
gc.freeze = gc.unfreeze = lambda: None  # type: ignore[assignment]
