"""A program: steps of the first process of runs on 1 to 1,024 GPUs that are not there, and what they cost.

    python rank_zero.py DATA FOLDER LAYOUTS

LAYOUTS is a JSON list of objects: `model` (a preset), `micro` (its sequences), `accumulation`, and settings of `gpt2
train`. The other processes are torch's fake process group: FSDP2, DTensor and autograd do what they would, and nothing
is sent. Prints a JSON list; see `take_steps`.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gpt2_train.config.settings import TrainSettings
from gpt2_train.distributed.jobs import StopRequest
from gpt2_train.distributed.mesh import make_world
from gpt2_train.training import setup
from gpt2_train.training.memory import memory_per_rank
from gpt2_train.training.setup import set_up
from gpt2_train.training.trainer import Trainer

WARM_UP, COUNTED = 2, 2
"""Steps that are taken first, and those that are counted."""


class Messages(TorchDispatchMode):
    """Counts collectives by kind, and the bytes of the largest tensor of each: of what is gathered or reduced."""

    KINDS = ("all_gather", "all_reduce", "reduce_scatter")

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, list[int]] = {}

    supports_higher_order_operators = True  # those of what is compiled

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __torch_dispatch__(self, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        space, _, name = str(function).partition(".")
        name, _, _ = name.partition(".")
        if space in ("c10d", "_c10d_functional") and name != "wait_tensor":
            plain = name.replace("_", "")
            kind = next((kind for kind in self.KINDS if plain.startswith(kind.replace("_", ""))), name)
            row = self.found.setdefault(kind, [0, 0])
            tensors = [leaf for leaf in tree_leaves((args, result)) if isinstance(leaf, Tensor)]
            row[0] += 1
            row[1] += max(tensor.numel() * tensor.element_size() for tensor in tensors)
        return result


def same_everywhere(outcomes: list[Any], own: Any, group: Any = None) -> None:
    """`all_gather_object`, where all processes have the same to say."""
    outcomes[:] = [own] * len(outcomes)


def settings_of(layout: dict[str, Any], data: str, folder: Path) -> TrainSettings:
    """The settings of a run in a layout."""
    layout = {"tensor_parallel": 1, "data_parallel": 1, "accumulation": 1, **layout}
    micro, accumulation = layout.pop("micro"), layout.pop("accumulation")
    attention = "efficient" if layout.get("precision") == "fp32" else "flash"
    batch = micro * accumulation * layout["data_parallel"]
    sizes = {"steps": WARM_UP + COUNTED, "micro_batch_size": micro, "global_batch_size": batch}
    plain = {"data": (data,), "output": str(folder), "save": False, "split": "1,0,0", "device": "cuda"}
    return TrainSettings(**plain, **sizes, **{"dropout": 0.0, "compile": False, "attention": attention, **layout})


def take_steps(layout: dict[str, Any], data: str, folder: Path) -> dict[str, Any]:
    """What a process does in COUNTED steps and holds in the last of them: its counts, messages of one step, peak and
    estimate in bytes."""
    null = ctypes.CDLL("libcuda.so.1")
    settings = settings_of(layout, data, folder)
    processes = settings.tensor_parallel * settings.data_parallel
    with contextlib.ExitStack() as stack:
        # What the parameters are does not matter here.
        stack.enter_context(mock.patch.object(setup, "fill", lambda *_: None))
        if processes > 1:
            dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=processes)
            stack.callback(dist.destroy_process_group)
            stack.enter_context(mock.patch.object(dist, "all_gather_object", same_everywhere))
        world = make_world(torch.device("cuda", 0), settings.tensor_parallel, settings.data_parallel_replicate)
        run = set_up(settings, world, folder)
        trainer = Trainer(run, StopRequest())
        stack.callback(trainer.close)
        for _ in range(WARM_UP - 1):
            trainer.train_step()
        with Messages() as messages:
            trainer.train_step()
        torch.cuda.reset_peak_memory_stats()
        null.null_cuda_reset()
        for _ in range(COUNTED):
            trainer.train_step()
        report = folder.with_suffix(".json")
        null.null_cuda_report(str(report).encode())
        peak = torch.cuda.max_memory_allocated()
        del trainer
    expected = memory_per_rank(
        run.config,
        micro_batch=run.plan.micro_batch,
        accumulation=run.plan.accumulation,
        compiled=run.plan.compiled,
        precision=run.plan.precision,
        **{name: getattr(settings, name) for name in (
            "tensor_parallel", "data_parallel", "data_parallel_replicate", "reshard",
            "activation_checkpointing", "optimizer",
        )},
    )  # fmt: skip
    return {
        "counts": json.loads(report.read_bytes())["counts"],
        "messages": messages.found,
        "peak": peak,
        "estimate": expected.peak,
    }


def main(data: str, folder: str, layouts: str) -> None:
    rows = []
    for number, layout in enumerate(json.loads(layouts)):
        rows.append(take_steps(layout, data, Path(folder) / f"layout-{number}"))
        gc.collect()
        torch.cuda.empty_cache()
    print(json.dumps(rows))


if __name__ == "__main__":
    main(*sys.argv[1:])
