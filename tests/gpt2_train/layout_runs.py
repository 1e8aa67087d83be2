"""A process of a training run, which writes what it saw of its run to `ID.RANK.json`."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from command_kit.settings import make_settings
from gpt2_train.config.settings import TrainSettings
from gpt2_train.data.batches import MicroBatch, MicroBatches
from gpt2_train.distributed.jobs import StopRequest
from gpt2_train.distributed.mesh import make_world
from gpt2_train.training.setup import Run, build_model, set_up
from gpt2_train.training.trainer import Trainer

seen: dict[str, Any] = {"samples": []}
"""What this process sees of its run."""


class LiveBytes(TorchDispatchMode):
    """The most bytes that tensors made under it held at one moment, those without memory (meta) aside."""

    def __init__(self) -> None:
        super().__init__()
        self.live, self.peak = WeakIdKeyDictionary(), 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            # A DTensor's own storage is empty; the tensor inside it is seen, too.
            if type(tensor) in (torch.Tensor, torch.nn.Parameter) and not tensor.is_meta:
                self.live[tensor.untyped_storage()] = tensor.untyped_storage().nbytes()
        self.peak = max(self.peak, sum(self.live.values()))
        return result


class Collectives(TorchDispatchMode):
    """Counts exchanges between processes."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function.namespace == "c10d":
            self.counts[function.overloadpacket.__name__.strip("_")] += 1
        return function(*args, **(kwargs or {}))


class WatchedBatches(MicroBatches):
    """Micro-batches whose samples are noted: a list for each step from `seen["first_step"]` on."""

    def on_host(self, rows: Any) -> list[MicroBatch]:
        """The same; validation, which reads one micro-batch at a time, has batches of its own."""
        seen["samples"].append([hashlib.sha256(sample.tobytes()).hexdigest() for sample in rows])
        return super().on_host(rows)


class WatchedTrainer(Trainer):
    """A trainer that notes its samples, its exchanges, and what of the model is shared out."""

    def __init__(self, run: Run) -> None:
        super().__init__(run, StopRequest())
        self.model.register_forward_hook(note_shards)
        seen["first_step"] = self.state.step + 1
        self.reader.batches = WatchedBatches(**vars(run.batches))

    def forward_backward(self, batches: Any) -> torch.Tensor:
        """The step's; counts its exchanges."""
        with Collectives() as collectives:
            total = super().forward_backward(batches)
        seen["collectives"] = collectives.counts
        return total


def note_build(run: Run) -> None:
    """Note the memory that building the model takes, and the weights that a new run begins with."""
    with LiveBytes() as memory:
        model = build_model(run)
    local = [p.to_local() if isinstance(p, DTensor) else p for p in model.parameters()]
    seen["build_peak"], seen["share"] = memory.peak, sum(part.nbytes for part in local)
    if run.resumed is None:
        seen["weights"] = {name: digest(parameter) for name, parameter in model.named_parameters()}


def digest(parameter: torch.Tensor) -> str:
    whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
    return hashlib.sha256(whole.detach().numpy().tobytes()).hexdigest()


def note_shards(model: torch.nn.Module, *_: Any) -> None:
    """After a forward pass: which blocks have their parameters shared out."""
    blocks = [block for block in model.blocks if isinstance(block, FSDPModule)]
    seen["sharded_after_forward"] = [isinstance(block.attention.qkv.weight, DTensor) for block in blocks]


def work(folder: str, run: dict[str, Any]) -> None:
    """One process of a run."""
    settings = make_settings(TrainSettings, run["settings"], run["id"])
    world = make_world(torch.device("cpu"), settings.tensor_parallel, settings.data_parallel_replicate)
    output = Path(settings.output)
    output.mkdir(parents=True, exist_ok=True)
    ready = set_up(settings, world, output)
    note_build(ready)
    WatchedTrainer(ready).fit()
    Path(folder, f"{run['id']}.{world.rank}.json").write_text(json.dumps(seen))
