"""torch.compile: of each block, all of which share one graph, or of the whole model as one.

`blocks` compiles one block, whatever the number of layers: all of them run the same code on tensors of the same shape,
and torch guards what it has compiled by nothing else. `model` is one graph, in which work is fused across the edges of
blocks, embedding and output, and which takes longer to compile with each layer. In both a graph belongs to the shapes
that it was made for: training has one, and validation, without gradients and dropout, another.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sysconfig
from pathlib import Path
from typing import Literal

import torch

from gpt2_train.errors import Gpt2UsageError
from gpt2_train.model import GPT2

Compilation = Literal["blocks", "model"]


def missing_for_compilation(device: torch.device) -> str:
    """What `torch.compile` needs for a device and this machine lacks, as the end of a sentence; "" if nothing.

    On CUDA kernels are written in Triton, which compiles a launcher in C for each. Slim images have no compiler.
    """
    if device.type == "cuda":
        if importlib.util.find_spec("triton") is None:
            return "Triton is not installed"
        if not (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
            return "there is no C compiler (gcc, clang, or what CC names)"
        if not (Path(sysconfig.get_paths()["include"]) / "Python.h").is_file():
            return "Python's headers are missing (python3-dev)"
    return ""


def choose_compilation(asked: Compilation | bool | None, device: torch.device, processes: int) -> Compilation | None:
    """What is compiled: as asked, where True means each block; on CUDA each block if nothing was asked for.

    Raises Gpt2UsageError for the whole model in several processes, and for what this machine can't compile.
    """
    if asked == "model" and processes > 1:
        raise Gpt2UsageError(
            f"--compile model is for a single process, and there are {processes}, whose messages to each other would "
            "break the graph: give --compile blocks."
        )
    missing = missing_for_compilation(device)
    if asked is None:
        return "blocks" if device.type == "cuda" and not missing else None
    if asked and missing:
        raise Gpt2UsageError(f"--compile: {missing}; install it, or give --no-compile.")
    return "blocks" if asked is True else asked or None


def apply_compile(model: GPT2, compilation: Compilation = "blocks") -> None:
    """Compile each block, or the model, whole or not at all: a break in a graph would silently leave most uncompiled.

    The forward method is compiled, since the hooks around it (FSDP's) can't be.
    """
    for module in model.blocks if compilation == "blocks" else [model]:
        module.forward = torch.compile(module.forward, dynamic=False, fullgraph=True)
