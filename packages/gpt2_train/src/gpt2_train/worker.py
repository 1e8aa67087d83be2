"""What every process of a group does at its beginning and its end, whoever started it."""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from gpt2_train.absence import Attendance
from gpt2_train.config import TrainSettings
from gpt2_train.errors import Gpt2UsageError
from gpt2_train.world import World, make_world


def join_group(device: torch.device, **meeting_point: Any) -> None:
    """Join the process group: of the environment, or of the store, rank and size in `meeting_point`.

    Objects and barriers go over gloo, tensors of a GPU over nccl, which is given its GPU at once: it would otherwise
    guess it from the rank. Raises Gpt2UsageError if two processes were given one GPU.
    """
    is_gpu = device.type == "cuda"
    try:
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if is_gpu else "gloo", device_id=device if is_gpu else None, **meeting_point
        )
    except RuntimeError as error:
        if "Duplicate GPU" in str(error):
            raise Gpt2UsageError(
                "two processes of the job were given the same GPU: start one process for each GPU."
            ) from error
        raise


def arrange(
    attendance: Attendance, settings: TrainSettings, device: torch.device, end: Callable[[BaseException], object]
) -> World:
    """The world of this process, whose groups wait as long as the settings say, and `end` it if NCCL gives up."""
    world = make_world(device, settings.tensor_parallel, settings.data_parallel_replicate)
    assert world.mesh is not None
    groups = {
        group.group_name: group for group in (dist.group.WORLD, *world.mesh.get_all_groups()) if group is not None
    }
    attendance.be_patient(groups.values(), settings.distributed_timeout)
    if device.type == "cuda":
        attendance.watch(groups.values(), end)
    return world


def close_group() -> None:
    """Synchronise and destroy the process group, after all work is done."""
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


def leave(status: int) -> NoReturn:
    """End a process of a group at once: gloo's threads can abort an interpreter that shuts down the usual way."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def exit_code(summary: dict[str, Any], settings: TrainSettings) -> int:
    """0 for a run that ended; for one that a signal stopped 128 plus its number, unless --exit-zero-on-stop."""
    stopped_by = summary["stopped_by"]
    return 128 + signal.Signals[stopped_by] if stopped_by and not settings.exit_zero_on_stop else 0


def finish(summary: dict[str, Any], settings: TrainSettings, *, as_json: bool) -> int:
    """Print the summary if that was asked for; return the exit code."""
    if as_json:
        print(json.dumps(summary), flush=True)
    return exit_code(summary, settings)
