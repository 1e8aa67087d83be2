"""Opening a model in as many processes as are asked for: the one function that `generate`, `evaluate` and `serve` use.

One process needs nothing of this. For more, this process becomes the leader of local ones that it starts when the
weights are first needed, or it is one of a torchrun job, of which the first leads and the others follow from here on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from command_kit.command import print_error, sentence_for
from command_kit.errors import CommandError
from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.config.loading import load_torch
from gpt2_train.inference.model import InferenceModel, open_model

if TYPE_CHECKING:
    import torch

    from gpt2_train.distributed.device import DeviceKind
    from gpt2_train.inference.driver import Leader
    from gpt2_train.inference.worker import Layout


TENSOR_PARALLEL_HELP = "processes, each with a GPU where there are some, that divide the model among them"


@contextlib.contextmanager
def open_shared_model(
    path: str,
    *,
    device: DeviceKind = "auto",
    tokenizer: str | None = None,
    tensor_parallel: int = 1,
    data_parallel: int = 1,
    threads: int | None = None,
) -> Iterator[InferenceModel]:
    """The model that `path` names, in `tensor_parallel` times `data_parallel` processes; they end with the block.

    `gpt2 generate`, `evaluate` and `serve` all open their model with it, before they read anything else: under
    torchrun it returns on the first process only, and the others do what that one says until they end.

    Args:
        path: as `open_model` has it.
        device: where to compute; each process gets a GPU of its own.
        tokenizer: a folder or file to take the tokenizer from, instead of the model's own.
        tensor_parallel: processes that divide the model; a divisor of its heads.
        data_parallel: processes, or groups of them, that score one batch each at the same time.
        threads: CPU threads of each process; for several processes the cores divided among them without it.

    The processes start when `runner` is first asked for. Raises as `open_model` does, and Gpt2UsageError if model,
    GPUs or torchrun's processes don't fit the numbers.
    """
    load_torch()
    is_torchrun = "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1
    if tensor_parallel * data_parallel == 1 and not is_torchrun:
        yield open_model(path, device=device, tokenizer=tokenizer)
        return
    from gpt2_train.inference.tensor_parallel import check_division
    from gpt2_train.inference.worker import Layout

    layout = Layout(tensor_parallel, data_parallel)
    if is_torchrun:
        _enter_torchrun(layout, device, threads)
    source = open_model(path, device=device, tokenizer=tokenizer, processes=1 if is_torchrun else layout.size)
    check_division(source.config, tensor_parallel)
    leaders: list[Leader] = []

    def start() -> Leader:
        join = _join_torchrun if is_torchrun else _start_children
        leaders.append(join(layout, device, threads))
        leaders[-1].load(str(source.folder), tokenizer)
        return leaders[-1]

    try:
        yield dataclasses.replace(source, start=start)
    finally:
        for leader in leaders:
            leader.close()


def _start_children(layout: Layout, kind: DeviceKind, threads: int | None) -> Leader:
    """Lead followers that are started here."""
    import torch.distributed as dist

    from gpt2_train.distributed.device import choose_device, use_threads
    from gpt2_train.distributed.processes import join_group, threads_of_each
    from gpt2_train.inference.driver import Leader, Team
    from gpt2_train.inference.worker import PATIENCE, ModelProcess, config_for

    device = choose_device(kind, local_size=layout.size)
    use_threads(threads, layout.size)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    team = Team()
    try:
        configs = [config_for(rank, layout, store.port, kind, threads) for rank in range(1, layout.size)]
        team.start("gpt2_train.inference.worker", configs, threads=threads_of_each(threads, layout.size))
        with team.working():
            team.wait_for(store)
            join_group(device, store=store, rank=0, world_size=layout.size, timeout=PATIENCE)
            return Leader(team, ModelProcess(layout, device))
    except BaseException:
        team.end()
        raise


def _join_torchrun(layout: Layout, kind: DeviceKind, threads: int | None) -> Leader:
    """Lead the other processes of the job."""
    from gpt2_train.inference.driver import Leader, Team
    from gpt2_train.inference.worker import ModelProcess

    team = Team()
    with team.working():
        return Leader(team, ModelProcess(layout, _join_environment(kind, threads)))


def _join_environment(kind: DeviceKind, threads: int | None) -> torch.device:
    """Join the group of torchrun's job; returns this process's device."""
    from gpt2_train.distributed.device import choose_device, use_threads
    from gpt2_train.distributed.processes import join_group
    from gpt2_train.inference.worker import PATIENCE

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local_rank = int(os.environ.get("LOCAL_RANK", rank))
    local_size = int(os.environ.get("LOCAL_WORLD_SIZE", size))
    use_threads(threads, local_size)
    device = choose_device(kind, local_rank=local_rank, local_size=local_size, sees_own_only=True)
    if device.type == "cpu" and sys.platform == "linux" and local_size == size:
        # All are on this machine; the default asks for the address of the host's name, which may have none.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    join_group(device, timeout=PATIENCE)
    return device


def _enter_torchrun(layout: Layout, kind: DeviceKind, threads: int | None) -> None:
    """Return on the first process of the job; follow it on the others, and end there."""
    from gpt2_train.config.errors import explained_out_of_memory
    from gpt2_train.distributed.processes import close_group, leave
    from gpt2_train.inference.worker import ModelProcess, follow, is_lost_connection, out_of_memory_advice

    is_first, size = os.environ["RANK"] == "0", int(os.environ["WORLD_SIZE"])
    if size != layout.size:
        if is_first:
            raise Gpt2UsageError(
                f"torchrun started {size} processes, and {layout} asks for {layout.size}: make them equal."
            )
        leave(2)
    if is_first:
        return
    try:
        with explained_out_of_memory(out_of_memory_advice(layout)):
            follow(ModelProcess(layout, _join_environment(kind, threads)))
            close_group()
    except BaseException as error:
        lost = "the process that leads it has ended, or another one."
        sentence = lost if is_lost_connection(error) else sentence_for(error)
        print_error("gpt2", f"process {os.environ['RANK']} of {size}: {sentence}")
        leave(error.exit_code if isinstance(error, CommandError) else 1)
    leave(0)
