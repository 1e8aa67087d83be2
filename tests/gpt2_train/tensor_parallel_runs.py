"""What `test_tensor_parallel.py` runs in each of several processes over gloo."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from gpt2_train.config.settings import ModelConfig
from gpt2_train.distributed.mesh import World, make_world, seed_micro_step
from gpt2_train.distributed.parallelize import parallelize
from gpt2_train.model.attention import PACKED, find_documents
from gpt2_train.model.gpt2 import GPT2
from gpt2_train.model.loss import backward_root, losses_and_gradient
from gpt2_train.optim.gradients import gradient_norm

CPU = torch.device("cpu")
SHAPE = {"layers": 2, "hidden": 32, "heads": 4, "sequence_length": 16, "vocabulary_size": 100}
END = 7
CASES: list[tuple[float, Literal["none", "full", "selective"]]] = [(0.0, "none"), (0.1, "none"), (0.1, "selective")]
"""Of compilation: dropout, activation checkpointing."""


class Collectives(TorchDispatchMode):
    """Records what tensors are exchanged as: (operation, dtype, elements in this process)."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, str, int]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        space, _, name = function._schema.name.partition("::")
        if space in ("c10d", "_c10d_functional") and name != "wait_tensor":
            tensor = args[0]
            while isinstance(tensor, list | tuple):
                tensor = tensor[0]
            self.calls.append((name, str(tensor.dtype).removeprefix("torch."), tensor.numel()))
        return function(*args, **(kwargs or {}))


class Run:
    """A model in one layout, and what it computes."""

    def __init__(
        self,
        world: World,
        *,
        dropout: float = 0.0,
        mode: Literal["none", "full", "selective"] = "none",
        compiled: bool = False,
    ) -> None:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        self.world = world
        config = ModelConfig(**SHAPE, dropout=dropout)
        self.model = GPT2(config).initialise(torch.Generator().manual_seed(1))
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.mul_(4)
        for block in self.model.blocks:
            # Its random numbers are the device's, of which a graph takes others.
            block.attention.dropout = 0.0  # type: ignore[union-attr]
        parallelize(self.model.train(), world, activation_checkpointing=mode, compiled=compiled)
        self.parameters: list[Tensor] = list(self.model.parameters())

    def step(self, *, separate: bool = False, half: bool = False) -> dict[str, Any]:
        """Loss and gradients of a step of two micro-batches of four sequences each, which the processes share."""
        loss = 0.0
        self.model.zero_grad()
        for micro in range(2):
            rows = torch.randint(0, 20, (4, 17), generator=torch.Generator().manual_seed(micro))
            rows = rows.chunk(self.world.dp_size)[self.world.dp_rank]
            inputs, targets = rows[:, :-1], rows[:, 1:]
            documents = find_documents(inputs.numpy(), END, "mask").with_mask() if separate else PACKED
            seed_micro_step(self.model, 1, 2, micro, self.world)
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                logits = self.model(inputs, documents)
            gradient, weights = logits.detach(), torch.full(targets.shape, 1 / targets.numel())
            root = backward_root(logits, gradient)
            losses = losses_and_gradient(gradient, targets, weights, self.world.tp_group, vocabulary=100)
            root.backward()
            loss += losses.mean().item()
        norm = float(gradient_norm(self.parameters))
        return {"loss": loss, "norm": norm, "gradients": self.gradients()}

    def gradients(self) -> dict[str, Tensor]:
        """Whole gradients by name."""
        return {
            name: gradient.full_tensor() if isinstance(gradient := parameter.grad, DTensor) else gradient.clone()
            for name, parameter in self.model.named_parameters()
        }


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    torch.testing.assert_close(found["norm"], expected["norm"], rtol=1e-4, atol=0.0)
    for name, gradient in expected["gradients"].items():
        torch.testing.assert_close(found["gradients"][name], gradient, rtol=1e-3, atol=2e-5, msg=name)


@contextlib.contextmanager
def without_code_generation() -> Iterator[None]:
    """All of inductor's steps but the generation of code."""
    plain: Any = torch.compile
    torch.compile = lambda function, **options: plain(function, backend="aot_eager_decomp_partition", **options)  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.compile = plain


def graphs(world: World) -> None:
    """First block, other blocks and output are a graph each, whatever the seed, and compute what others do."""
    for dropout, mode in CASES:
        expected = Run(world, dropout=dropout).step()
        run = Run(world, dropout=dropout, mode=mode, compiled=True)
        assert_same(run.step(), expected)
        counters = torch._dynamo.utils.counters
        stats = dict(counters["stats"])
        # The second of two micro-batches, with other seeds, was none of its own.
        assert stats["unique_graphs"] == 3, (dropout, mode, stats)
        assert not counters["graph_break"], dict(counters["graph_break"])


def layouts(world: World) -> None:
    """Tensor parallelism computes what one process does, and recomputed activations drop the same elements again."""
    for separate in (False, True):
        assert_same(Run(world).step(separate=separate), Run(World(CPU)).step(separate=separate))
    dropped = Run(world, dropout=0.3).step()
    for mode in ("full", "selective"):
        assert_same(Run(world, dropout=0.3, mode=mode).step(), dropped)


def collectives(world: World) -> dict[str, Any]:
    """What a micro-batch exchanges, forward and backward; in bf16 and in float32."""
    found = {}
    for half in (False, True):
        run = Run(world)
        with Collectives() as recorded:
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                logits = run.model(torch.arange(64).view(4, 16))
            forward = len(recorded.calls)
            logits.float().square().sum().backward()
        found["bf16" if half else "fp32"] = {"forward": recorded.calls[:forward], "backward": recorded.calls[forward:]}
    return found


def run_tasks(*tasks: str) -> dict[str, Any] | None:
    """What to do as `layouts:2`, with the tensor-parallel size; returns what was exchanged, if that was asked."""
    found = None
    for task in tasks:
        name, _, tensor_parallel = task.partition(":")
        world = make_world(CPU, int(tensor_parallel))
        if name == "collectives":
            found = collectives(world)
        elif name == "graphs":
            with without_code_generation():
                graphs(world)
        else:
            layouts(world)
    return found
