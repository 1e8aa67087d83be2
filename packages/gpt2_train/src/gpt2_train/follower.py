"""A process that repeats the calls of the one that leads it; `python -m gpt2_train.follower` is started by that one."""

from __future__ import annotations

import time
from typing import Any, NoReturn

import torch.distributed as dist

from gpt2_train.child_processes import end_with_parent, failure, read_config, send_report
from gpt2_train.device import choose_device, use_threads
from gpt2_train.errors import explained_out_of_memory
from gpt2_train.model_process import (
    GRACE_SECONDS,
    PATIENCE,
    Layout,
    ModelProcess,
    follow,
    is_lost_connection,
    out_of_memory_advice,
)
from gpt2_train.worker import close_group, join_group, leave


def _child() -> NoReturn:
    config = read_config()
    rank, layout = config["rank"], Layout(*config["layout"])
    end_with_parent(f"gpt2: process {rank} of {layout.size} ends, since the one that leads it has ended.")
    try:
        use_threads(config["threads"], layout.size)
        device = choose_device(config["device"], local_rank=rank, local_size=layout.size)
        store = dist.TCPStore("127.0.0.1", config["port"], is_master=False)
        store.set(f"here {rank}", "")
        with explained_out_of_memory(out_of_memory_advice(layout)):
            join_group(device, store=store, rank=rank, world_size=layout.size, timeout=PATIENCE)
            follow(ModelProcess(layout, device))
            close_group()
    except BaseException as error:
        if is_lost_connection(error):
            # The leader ends this process, or has ended itself, which the thread that watches for it says.
            time.sleep(GRACE_SECONDS)
        send_report(config["report"], failure(error))
        leave(1)
    leave(0)


def config_for(rank: int, layout: Layout, port: int, device: str, threads: int | None) -> dict[str, Any]:
    """What a follower is started with."""
    sizes = [layout.tensor_parallel, layout.data_parallel]
    return {"rank": rank, "layout": sizes, "port": port, "device": device, "threads": threads}


if __name__ == "__main__":
    _child()
