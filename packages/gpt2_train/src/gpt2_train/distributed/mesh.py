"""The processes of a run, as one of them sees them: its place among all, the mesh in which they lie, and its shares.

This process's shares of parameters and gradients, as plain tensors, are what optimizers compute with.

All random numbers of a run follow from its seed and from where they are drawn. Each micro-step begins by seeding from
(seed, step, micro-step, data-parallel rank), so that dropout repeats exactly when a run resumes and differs between
data-parallel ranks. Tensor-parallel ranks seed the device's generator each for itself, for the attention weights of
their own heads, and share the seeds of the residual stream's dropout (`tensor_parallel.SharedDropout`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

from command_kit.colours import BOLD, CLEAR, CYAN, GREEN, YELLOW, Paint, columns_of, cut, is_terminal, wrapped
from command_kit.command import in_words
from gpt2_train import torch_private
from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.config.layout import JOB_FOLDER, check_replicas
from gpt2_train.distributed.device import DeviceKind, choose_device, use_threads, widest_float

LINE = re.compile(
    r"(?P<label>step [\d,]+(?:/[\d,]+)?|\w+:)?(?P<gap> *)(?P<loss>(?:valid )?loss \S+)?(?P<rest>.*?)"
    r"(?P<left>[\d:]+ left)?",
    re.DOTALL,
)
"""The parts of a line of a run; a loss, and the time that is left, only where no text of a model can be."""


def painted(line: str, paint: Paint) -> str:
    """A line of a run in a terminal's colours, the same as in a line of progress."""
    found = LINE.fullmatch(line)
    assert found is not None  # all parts may be missing
    label, gap, loss, rest, left = (part or "" for part in found.groups())
    label = paint(label, YELLOW if label == "warning:" else BOLD)
    return f"{label}{gap}{paint(loss, CYAN)}{rest}{paint(left, GREEN)}"


@dataclasses.dataclass(frozen=True)
class World:
    """This process's place among all of them.

    Attributes:
        device: where it computes.
        rank, world_size: its number among all processes; tensor-parallel neighbours have neighbouring numbers.
        local_rank, local_size: the same on its machine, where a job of several processes begins.
        folder: of a job that a command has started on this machine; None under torchrun, and for a process alone.
        dp_rank, dp_size: among the processes that share each batch; neighbours share one copy of the model's state.
        tp_rank, tp_size: on the tensor-parallel axis.
        replicas: copies of the model's state among the data-parallel processes.
        mesh: axes `dp_replicate`, `dp_shard` and `tp`, as far as needed; None in a single process without a group.
    """

    device: torch.device
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_size: int = 1
    folder: Path | None = None
    dp_rank: int = 0
    dp_size: int = 1
    tp_rank: int = 0
    tp_size: int = 1
    replicas: int = 1
    mesh: DeviceMesh | None = None

    @classmethod
    def of_environment(cls) -> World:
        """The place that a command, torchrun, or another launcher has put into the environment, before it is joined.

        Raises Gpt2UsageError where it is none.
        """
        size = _number("WORLD_SIZE", 1)
        rank = _number("RANK", 0, size - 1)
        local_size = _number("LOCAL_WORLD_SIZE", 1, default=size)
        local_rank = _number("LOCAL_RANK", 0, default=rank)
        folder = os.environ.get(JOB_FOLDER)
        where = torch.device("cpu")
        return cls(where, rank, size, local_rank, local_size, Path(folder) if folder else None)

    def take_device(self, kind: DeviceKind, threads: int | None) -> World:
        """The same with this process's device, its share of CPU threads set. Raises as `choose_device` does."""
        use_threads(threads, self.local_size)
        sees_own_only = self.folder is None
        device = choose_device(
            kind, local_rank=self.local_rank, local_size=self.local_size, sees_own_only=sees_own_only
        )
        return dataclasses.replace(self, device=device)

    @property
    def dp_mesh(self) -> DeviceMesh:
        """The mesh that shares parameters out over `dp_shard`, and, if there are several copies, copies them."""
        assert self.mesh is not None
        return self.mesh["dp_replicate", "dp_shard"] if self.replicas > 1 else self.mesh["dp_shard"]

    @property
    def tp_group(self) -> dist.ProcessGroup | None:
        """The group that shares the vocabulary; None where each process has all of it."""
        return self.mesh.get_group("tp") if self.mesh is not None and self.tp_size > 1 else None

    def say(self, line: str) -> None:
        """Show a line on standard error, from the first process only."""
        if self.rank == 0:
            begin = CLEAR if is_terminal(sys.stderr) else ""
            line = wrapped(in_words(line), sys.stderr)
            print(begin + painted(line, Paint.of(sys.stderr)), file=sys.stderr, flush=True)

    def show(self, line: str) -> None:
        """Show where the run is: on a terminal in a line that the next one takes the place of."""
        if not is_terminal(sys.stderr):
            self.say(line)
        elif self.rank == 0:
            fitting = cut(line, max(columns_of(sys.stderr) - 1, 1))
            print(CLEAR + painted(fitting, Paint.of(sys.stderr)), end="", file=sys.stderr, flush=True)

    def shown_by_first(self) -> contextlib.AbstractContextManager[object]:
        """Notes and progress, on standard error, are shown by the first process alone."""
        return contextlib.nullcontext() if self.rank == 0 else contextlib.redirect_stderr(io.StringIO())

    def sum_on_device(self, here: Tensor, values: list[float]) -> Tensor:
        """The sums of `here`, a scalar on the device, and of `values` over all processes: (1 + values,).

        Nothing is waited for: they are on the device.
        """
        kind = widest_float(self.device)
        rest = torch.tensor(values, dtype=kind)
        rest = rest.pin_memory() if self.device.type == "cuda" else rest
        total = torch.cat([here.detach().to(kind)[None], rest.to(self.device, non_blocking=True)])
        if self.world_size > 1:
            dist.all_reduce(total)
        return total

    def sum_over_processes(self, values: list[float]) -> list[float]:
        """The sums of `values` over all processes, in float64 (float32 on MPS)."""
        _, *sums = self.sum_on_device(torch.zeros((), device=self.device), values).tolist()
        return sums


def _number(name: str, least: int, most: int | None = None, *, default: int | None = None) -> int:
    """The whole number that the environment has under `name`. Raises Gpt2UsageError if it has none in these bounds."""
    word = os.environ.get(name, "" if default is None else str(default))
    if word.isascii() and word.isdigit() and least <= int(word) and (most is None or int(word) <= most):
        return int(word)
    bounds = f"from {least} to {most}" if most is not None else f"of at least {least}"
    raise Gpt2UsageError(
        f"{name} is {word!r} in the environment, where the launcher of several processes puts a number {bounds}: unset "
        "RANK and WORLD_SIZE to run alone, or start with torchrun."
    )


def make_world(device: torch.device, tensor_parallel: int, replicas: int = 1) -> World:
    """The world of this process, from the default process group if there is one.

    Processes with neighbouring numbers, which are on one machine, share matrices; their neighbours share one copy of
    the model's state; `replicas` copies are furthest apart.

    Raises Gpt2UsageError if the number of processes is not a multiple of `tensor_parallel`, or what then is the
    data-parallel size not one of `replicas`.
    """
    if not dist.is_initialized():
        if tensor_parallel != 1:
            raise Gpt2UsageError(f"--tensor-parallel {tensor_parallel} needs that many processes: there is one.")
        check_replicas(1, replicas)
        return World(device)
    rank, size = dist.get_rank(), dist.get_world_size()
    if size % tensor_parallel:
        raise Gpt2UsageError(
            f"{size} processes can't be divided by --tensor-parallel {tensor_parallel}: choose a divisor of {size}."
        )
    data_parallel = size // tensor_parallel
    check_replicas(data_parallel, replicas)
    sizes = {"dp_replicate": replicas, "dp_shard": data_parallel // replicas, "tp": tensor_parallel}
    # Each axis costs a communicator.
    axes = [name for name in sizes if sizes[name] > 1 or (name == "dp_shard" and data_parallel > 1)] or ["dp_shard"]
    mesh = init_device_mesh(device.type, tuple(sizes[name] for name in axes), mesh_dim_names=tuple(axes))
    dp_rank, tp_rank = divmod(rank, tensor_parallel)
    return World(
        device, rank, size, dp_rank=dp_rank, dp_size=data_parallel, tp_rank=tp_rank, tp_size=tensor_parallel,
        replicas=replicas, mesh=mesh,
    )  # fmt: skip


def local(tensor: Tensor) -> Tensor:
    """This process's share of `tensor`, as a plain tensor of the same memory."""
    return (torch_private.local_tensor(tensor) if isinstance(tensor, DTensor) else tensor).detach()


def part_of(whole: Tensor, parameter: Tensor) -> Tensor:
    """The part of `whole`, which has the global shape of `parameter`, that is this process's share of it: a view."""
    if not isinstance(parameter, DTensor):
        return whole
    for dimension, (begin, size) in enumerate(zip(*torch_private.own_piece(parameter), strict=True)):
        whole = whole.narrow(dimension, begin if size else 0, size)
    return whole


@torch.no_grad()
def fill(module: nn.Module, values: Iterable[tuple[str, Tensor]]) -> None:
    """Set the parameters of `module`, plain or sharded, from `(name, the whole tensor)`, one at a time.

    Each process takes its own part; nothing is sent.
    """
    parameters = dict(module.named_parameters())
    for name, whole in values:
        local(parameters[name]).copy_(part_of(whole, parameters[name]))


def gradient_of(parameter: Tensor) -> Tensor:
    """The gradient of a parameter that has one."""
    assert parameter.grad is not None
    return parameter.grad


def mixed_seed(*numbers: int) -> int:
    """One well-mixed 63-bit seed from several numbers."""
    return int(np.random.SeedSequence(list(numbers)).generate_state(1, np.uint64)[0] >> np.uint64(1))


def seed_micro_step(model: nn.Module, seed: int, step: int, micro_step: int, world: World) -> None:
    """Make all randomness that follows a function of seed, step, micro-step and this process's place."""
    numbers = (seed, step, micro_step, world.dp_rank)
    # On a CPU `torch.manual_seed` takes 0.2 ms to note, with a stack trace, what a GPU is to do once it is there.
    seed_all = torch.default_generator.manual_seed if world.device.type == "cpu" else torch.manual_seed
    if world.tp_size == 1:
        seed_all(mixed_seed(*numbers))
        return
    seed_all(mixed_seed(*numbers, world.tp_rank))
    shared: Tensor | None = getattr(model, "dropout_seeds", None)
    if shared is not None:
        state = np.random.SeedSequence(list(numbers)).generate_state(shared.numel(), np.uint32)
        seeds = torch.from_numpy(state.astype(np.int64)).view(shared.shape)
        shared.copy_(seeds.pin_memory() if shared.is_cuda else seeds, non_blocking=True)
