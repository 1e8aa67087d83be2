"""One process of several that take steps of a narrow model: CPU seconds of each part, printed by the first as JSON.

What a step costs beside arithmetic: 24 layers of width 64 have as many parameters, and as many operations, as 345M.
Arguments: rank, processes, port of the store, tensor-parallel size.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from gpt2_train.config.settings import ModelConfig, TrainSettings
from gpt2_train.distributed.mesh import make_world
from gpt2_train.distributed.parallelize import parallelize
from gpt2_train.model.gpt2 import GPT2
from gpt2_train.optim.adamw import make_optimizer
from gpt2_train.optim.gradients import gradient_norm

Result = TypeVar("Result")
STEPS = 6


def measured(size: int, tensor_parallel: int) -> dict[str, float]:
    """CPU seconds of the first of `size` processes, part by part, the best of several steps."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    children = [
        subprocess.Popen(
            [sys.executable, __file__, str(rank), str(size), str(store.port), str(tensor_parallel)],
            stdout=subprocess.PIPE, text=True,
        )
        for rank in range(size)
    ]  # fmt: skip
    outputs = [child.communicate()[0] for child in children]
    if any(child.returncode for child in children):
        raise SystemExit("a process of the parallel step failed")
    found: dict[str, float] = json.loads(outputs[0])
    return found


def main() -> None:
    """Take the steps of one process."""
    rank, size, port, tensor_parallel = map(int, sys.argv[1:5])
    torch.set_num_threads(1)
    if size > 1:
        store = dist.TCPStore("127.0.0.1", port, is_master=False)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    world = make_world(torch.device("cpu"), tensor_parallel)
    model = GPT2(ModelConfig(24, 64, 4, 16, 512, dropout=0.0)).initialise(torch.Generator().manual_seed(1))
    parallelize(model.train(), world)
    parameters: list[Tensor] = list(model.parameters())
    optimizer = make_optimizer(model, TrainSettings(), world.device)
    tokens = torch.arange(64).view(4, 16)
    best: dict[str, float] = {}

    def timed(part: str, work: Callable[[], Result]) -> Result:
        started = time.process_time()
        result = work()
        best[part] = min(best.get(part, float("inf")), time.process_time() - started)
        return result

    for _ in range(STEPS):
        logits = timed("forward", lambda: model(tokens))
        loss = logits.square().mean()
        timed("backward", loss.backward)
        norm = timed("norm", lambda: gradient_norm(parameters))
        factor, is_finite = (1 / (norm + 1e-6)).clamp(max=1.0), torch.isfinite(norm)
        timed("optimizer", functools.partial(optimizer.step, 1e-4, factor, is_finite))
        timed("clearing gradients", model.zero_grad)
    if rank == 0:
        print(json.dumps(best))
    if size > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
