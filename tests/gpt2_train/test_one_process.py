"""What works on its own: evaluation and generation take part in no exchange between processes."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
from tests.gpt2_train import forks
from tests.gpt2_train.small_models import BYTES, random_model, save

import gpt2_train
from indexed_tokens import IndexedTokensWriter

FORBIDDEN = re.compile(r"^(import|from) torch\.distributed", re.MULTILINE)
"""torch itself imports torch.distributed."""

TRAINING = re.compile(
    r"gpt2_train\.(training\.|optim\.|metrics\.log|distributed\.(parallelize|collectives|processes)"
    r"|checkpoint\.save)"
)
"""Modules of training, and of many processes."""

WITHOUT_PROCESS_GROUPS = """
import json, sys
import torch.distributed as dist

def refused(*arguments, **options):
    raise AssertionError("a call that needs other processes")

for name in ("init_process_group", "get_rank", "get_world_size", "all_reduce", "all_gather", "all_gather_object",
             "broadcast", "broadcast_object_list", "gather_object", "scatter_object_list", "barrier"):
    setattr(dist, name, refused)

for name in [name for name in sys.modules if name.startswith("gpt2_train")]:
    del sys.modules[name]  # what a fork has loaded before
from gpt2_train.cli import main
for words in json.loads(sys.argv[1]):
    assert main(words) == 0, words
    print("\\n" + " ".join(name for name in sys.modules if name.startswith("gpt2_train.")))
"""


def modules_used_by(*commands: tuple[str, ...]) -> list[list[str]]:
    """The modules of this package that are imported after each of some commands; they may talk to no other process."""
    given = json.dumps([[*words, "--device", "cpu", "--threads", "1"] for words in commands])
    code = [sys.executable, "-c", WITHOUT_PROCESS_GROUPS, given]
    done = forks.run(code)
    assert done.returncode == 0, done.stderr
    return [line.split() for line in done.stdout.splitlines() if line.startswith("gpt2_train.")]


def source_of(module: str) -> str:
    path = Path(gpt2_train.__file__).parent.joinpath(*module.split(".")[1:])
    return (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8")


def test_evaluation_and_generation_need_no_process_group(tmp_path: Path) -> None:
    """Reading data, loading a model and the loss all went through modules that run collective operations, or train."""
    run = save(tmp_path / "run", random_model(BYTES))
    with IndexedTokensWriter(tmp_path / "data") as writer:
        for seed in range(20):
            writer.add(np.random.default_rng(seed).integers(0, 256, 40))
    commands = (
        ("evaluate", "held-out-loss", str(tmp_path / "data"), "--checkpoint", str(run)),
        ("generate", "--checkpoint", str(run), "--prompt", "a", "--tokens", "3"),
    )
    found = modules_used_by(*commands)
    assert len(found) == len(commands)
    for used in found:
        assert "gpt2_train.checkpoint.load" in used
        assert [module for module in used if FORBIDDEN.search(source_of(module))] == []
        assert [module for module in used if TRAINING.match(module)] == []
