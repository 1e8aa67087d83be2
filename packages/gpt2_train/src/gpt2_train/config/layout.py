"""The layout of a model and its batch over processes: checks and defaults that need neither data nor torch."""

from __future__ import annotations

import os
from typing import Literal

from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.config.settings import GPT2_SEQUENCE_LENGTH, ModelConfig, TrainSettings

JOB_FOLDER = "GPT2_JOB_FOLDER"
"""The variable by which a process that a command has started on its own machine knows the folder of the job."""


def is_in_job() -> bool:
    """Whether torchrun, or a command that starts itself several times, has made this one of a job's processes.

    RANK and WORLD_SIZE alone do not: every launcher also says where its processes meet, and these two may be left from
    another program. Raises Gpt2UsageError where they are of several processes, which can't meet.
    """
    if not (os.environ.get("RANK") and os.environ.get("WORLD_SIZE")):
        return False
    if JOB_FOLDER in os.environ or all(os.environ.get(name) for name in ("MASTER_ADDR", "MASTER_PORT")):
        return True
    if os.environ["WORLD_SIZE"] == "1":
        return False
    raise Gpt2UsageError(
        f"RANK={os.environ['RANK']} and WORLD_SIZE={os.environ['WORLD_SIZE']} are in the environment, but not both of "
        "MASTER_ADDR and MASTER_PORT, where a launcher's processes meet: unset RANK and WORLD_SIZE to run alone, or "
        "start with torchrun."
    )


CPU_MICRO_BATCH_TOKENS = 2048
"""Tokens that keep a CPU's cores busy; more at once cost memory and gain nothing."""


def check_layout(settings: TrainSettings, gpus: int = 0) -> int:
    """Check that a batch and a machine's GPUs can be shared as asked; return the data-parallel size.

    Args:
        settings: a run's.
        gpus: GPUs of the machine that are to be used, 0 for a CPU run.

    Raises Gpt2UsageError if batch and layout don't fit together, or the layout needs more GPUs than there are.
    """
    data_parallel = choose_data_parallel(settings, gpus)
    check_replicas(data_parallel, settings.data_parallel_replicate)
    plan_batches(
        settings.global_batch_size,
        settings.micro_batch_size,
        data_parallel,
        on_cpu=gpus == 0,
        sequence_length=settings.sequence_length,
    )
    processes = settings.tensor_parallel * data_parallel
    if processes > gpus > 0:
        raise Gpt2UsageError(
            f"--tensor-parallel {settings.tensor_parallel} times --data-parallel {data_parallel} needs {processes} "
            f"GPUs, and this machine has {gpus}: lower one of them."
        )
    return data_parallel


def choose_data_parallel(settings: TrainSettings, gpus: int) -> int:
    """The data-parallel size on a machine with `gpus` GPUs (0: on CPU): as asked, else the largest that fits.

    That is the largest number of processes for which there are GPUs and which divides the global batch (in whole
    micro-batches, where their size is given) and is a multiple of --data-parallel-replicate. Raises Gpt2UsageError if
    --tensor-parallel alone needs more GPUs.
    """
    if settings.data_parallel is not None:
        return settings.data_parallel
    if gpus == 0:
        return 1
    if settings.tensor_parallel > gpus:
        raise Gpt2UsageError(
            f"--tensor-parallel {settings.tensor_parallel} needs that many GPUs, and this machine has {gpus}: lower it."
        )
    unit = 1 if settings.micro_batch_size == "auto" else settings.micro_batch_size
    most = gpus // settings.tensor_parallel
    sizes = range(settings.data_parallel_replicate, most + 1, settings.data_parallel_replicate)
    return max((size for size in sizes if settings.global_batch_size % (size * unit) == 0), default=1)


def check_replicas(data_parallel: int, replicas: int) -> None:
    """Raise Gpt2UsageError if `data_parallel` processes can't be divided into groups of equal size."""
    if data_parallel % replicas:
        raise Gpt2UsageError(
            f"--data-parallel-replicate {replicas} does not divide the {data_parallel} data-parallel "
            f"process{'es' if data_parallel > 1 else ''}: choose a divisor, or give --data-parallel a multiple of it."
        )


def check_tensor_parallel(config: ModelConfig, size: int, *, in_training: bool = True) -> None:
    """Raise Gpt2UsageError if heads, or `in_training` ids, can't be shared among `size` processes."""
    shared = {"heads": config.heads} | ({"padded vocabulary": config.padded_vocabulary} if in_training else {})
    for what, value in shared.items():
        if value % size:
            divided = " and ".join(f"{number:,}" for number in shared.values())
            raise Gpt2UsageError(
                f"--tensor-parallel {size} does not divide the model's {what} ({value:,}): choose a divisor of "
                f"{divided}."
            )


def plan_batches(
    global_batch_size: int,
    micro_batch_size: int | Literal["auto"],
    data_parallel: int,
    *,
    on_cpu: bool,
    sequence_length: int = GPT2_SEQUENCE_LENGTH,
) -> tuple[int, int]:
    """(micro-batch, accumulation) of a process: sequences that it takes at once, and how often in one step.

    With `auto`, the largest that divides the process's share, up to 8 (on CPU up to 2048 tokens, 2 at least): where the
    memory of a GPU is known, `training/memory.py` has chosen before.
    Raises Gpt2UsageError where the global batch can't be divided so.
    """
    if global_batch_size % data_parallel:
        raise Gpt2UsageError(
            f"--global-batch-size {global_batch_size} can't be shared among {data_parallel} data-parallel processes: "
            f"choose a multiple of {data_parallel}."
        )
    share = global_batch_size // data_parallel
    if micro_batch_size == "auto":
        most = min(share, most_sequences(sequence_length, on_cpu=on_cpu))
        micro = max(size for size in range(1, most + 1) if share % size == 0)
        return micro, share // micro
    if share % micro_batch_size:
        raise Gpt2UsageError(
            f"--global-batch-size {global_batch_size} is not a multiple of --micro-batch-size {micro_batch_size} times "
            f"{data_parallel} data-parallel process{'es' if data_parallel > 1 else ''}: "
            f"choose a micro-batch that divides {share}."
        )
    return micro_batch_size, share // micro_batch_size


def most_sequences(sequence_length: int, *, on_cpu: bool) -> int:
    """The largest micro-batch that is taken without being asked for."""
    return max(2, CPU_MICRO_BATCH_TOKENS // sequence_length) if on_cpu else 8


PIECE_ELEMENTS = {"cpu": 1 << 21, "cuda": 1 << 26, "mps": 1 << 26}
"""Logits that the loss turns into float32 at a time, by kind of device: on CPU what stays in its cache (three times as
fast there as passes over all logits at once), elsewhere enough to keep a GPU busy. The loss works by it and `estimate`
counts with it."""

MUON_STACK = {"cpu": 0, "cuda": 1 << 27, "mps": 0}
"""Numbers of the matrices that Muon moves together, by kind of device: a GPU's kernels are then few and large. On CPUs
it takes no more at a time than there are processes: it would gain nothing, and take 12 bytes for each."""
