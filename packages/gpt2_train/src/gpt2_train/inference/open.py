"""Opening a model in as many processes as are asked for: the one function that `generate`, `evaluate` and `serve` use.

One process needs nothing of this. For more, this process becomes the driver of local ones that it starts when the
weights are first needed, or it is one of a torchrun job, of which the first leads and the others follow from here on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, NoReturn

from command_kit.command import print_error, sentence_for
from command_kit.errors import CommandError
from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.config.loading import load_torch
from gpt2_train.inference.model import InferenceModel, open_model

if TYPE_CHECKING:
    from gpt2_train.distributed.device import DeviceKind
    from gpt2_train.distributed.processes import Place
    from gpt2_train.inference.driver import Driver
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
    place = _enter_torchrun(layout, device, threads) if is_torchrun else None
    source = open_model(path, device=device, tokenizer=tokenizer, processes=1 if is_torchrun else layout.size)
    check_division(source.config, tensor_parallel)
    drivers: list[Driver] = []

    def start() -> Driver:
        drivers.append(_start(layout, device, threads, place))
        drivers[-1].load(str(source.folder), tokenizer)
        return drivers[-1]

    try:
        yield dataclasses.replace(source, start=start)
    finally:
        for driver in drivers:
            driver.close()


def _start(layout: Layout, kind: DeviceKind, threads: int | None, place: Place | None) -> Driver:
    """Lead the other processes: those of torchrun's job, or some that are started here where there is no `place`."""
    from gpt2_train.distributed.processes import Place
    from gpt2_train.inference.driver import Driver, WorkerGroup
    from gpt2_train.inference.worker import join

    workers, store = WorkerGroup(), None
    try:
        if place is None:
            store = workers.start(layout, kind, threads)
            place = Place.local(0, layout.size, store.port)
        device = place.take_device(kind, threads)
        with workers.working():
            if store is not None:
                workers.wait_for(store)
            return Driver(workers, join(place, layout, device, store))
    except BaseException:
        workers.end()
        raise


def _enter_torchrun(layout: Layout, kind: DeviceKind, threads: int | None) -> Place:
    """Return on the first process of the job, with its place; follow it on the others, and end there."""
    from gpt2_train.distributed.processes import Place, leave

    place = Place.under_torchrun()
    if place.size != layout.size:
        if place.rank == 0:
            raise Gpt2UsageError(
                f"torchrun started {place.size} processes, and {layout} asks for {layout.size}: make them equal."
            )
        leave(2)
    if place.rank > 0:
        _follow(place, layout, kind, threads)
    return place


def _follow(place: Place, layout: Layout, kind: DeviceKind, threads: int | None) -> NoReturn:
    from gpt2_train.distributed.processes import leave
    from gpt2_train.inference.worker import follow, is_lost_connection

    try:
        follow(place, layout, kind, threads)
    except BaseException as error:
        lost = "the process that leads it has ended, or another one."
        sentence = lost if is_lost_connection(error) else sentence_for(error)
        print_error("gpt2", f"process {place.rank} of {place.size}: {sentence}")
        leave(error.exit_code if isinstance(error, CommandError) else 1)
    leave(0)
