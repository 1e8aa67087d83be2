"""What works on its own: evaluation and generation take part in no exchange between processes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
from tests.gpt2_train.small_models import BYTES, random_model, save

import gpt2_train
from indexed_tokens import IndexedTokensWriter

FORBIDDEN = re.compile(r"^(import|from) torch\.distributed(?!\.checkpoint)", re.MULTILINE)
"""torch itself imports torch.distributed; its reader of checkpoint folders lies in there, too."""

WITHOUT_PROCESS_GROUPS = """
import sys
import torch.distributed as dist

def refused(*arguments, **options):
    raise AssertionError("a call that needs other processes")

for name in ("init_process_group", "get_rank", "get_world_size", "all_reduce", "all_gather", "all_gather_object",
             "broadcast", "broadcast_object_list", "gather_object", "scatter_object_list", "barrier"):
    setattr(dist, name, refused)

from gpt2_train.cli import main
status = main(sys.argv[1:])
print("\\n" + " ".join(name for name in sys.modules if name.startswith("gpt2_train.")))
sys.exit(status)
"""


def modules_used_by(*words: str) -> list[str]:
    """The modules of this package that a command imports; it may talk to no other process."""
    code = [sys.executable, "-c", WITHOUT_PROCESS_GROUPS, *words, "--device", "cpu", "--threads", "1"]
    done = subprocess.run(code, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1].split()


def source_of(module: str) -> str:
    path = Path(gpt2_train.__file__).parent.joinpath(*module.split(".")[1:])
    return (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8")


def test_evaluation_and_generation_need_no_process_group(tmp_path: Path) -> None:
    """Reading data, loading a model and the loss all went through modules that run collective operations."""
    run = save(tmp_path / "run", random_model(BYTES))
    with IndexedTokensWriter(tmp_path / "data") as writer:
        for seed in range(20):
            writer.add(np.random.default_rng(seed).integers(0, 256, 40))
    commands = (
        ("evaluate", "--checkpoint", str(run), "--data", str(tmp_path / "data")),
        ("generate", "--checkpoint", str(run), "--prompt", "a", "--tokens", "3"),
    )
    for words in commands:
        used = modules_used_by(*words)
        assert "gpt2_train.checkpoint.reading" in used
        assert "gpt2_train.collectives" not in used
        assert [module for module in used if FORBIDDEN.search(source_of(module))] == []
