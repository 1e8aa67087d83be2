"""Memory of a training run, worked out before it starts: bytes in each process, part by part. Needs no torch.

Every figure is counted from what the training loop holds, not fitted: float32 parameters, gradients and moments (two
of Adam, one of Muon), the tensors that autograd saves in each block, the logits, whose place their gradient takes, and
the loss's own workspace.
Each part is there at some of four moments of a step, from the forward pass, when all activations are there and the
gradients not yet, to the end of the backward pass, when it is the other way round. The largest sum is the peak. With
every tensor followed on CPU, the true peak of tensors was between 9% below and 1% above the figure, with each mode of
activation checkpointing and on either axis of parallelism. The peak of PyTorch's allocator for CUDA, on which no kernel
ran (tests/cuda), was within 4% of it for 124M to 1.5B on 1 to 64 GPUs, compiled or not. On an H100, with real kernels,
it was between .1% above the figure (124M, not compiled) and 9% below it (1.5B; 3% for 124M, 4% for 345M, from which
the 3 to 4% that compiled blocks do not keep had not been taken).

On CPU the tensors are not all: Python and torch themselves come on top, and what the C library's heap holds but cannot
reuse (`process_memory`). The resident memory of whole runs was between 4% below and 15% above the peak given. On
a GPU the driver and gaps between what PyTorch's allocator holds take about 1 GiB in addition to the peak.

`--micro-batch-size auto` is the largest micro-batch that divides a process's share of the batch and fits its GPU.
Larger ones keep a GPU busier, up to a point, after which they only take memory: 32,768 tokens, which with GPT-2's
vocabulary are also the last power of two whose logits can be counted in 32 bits, in which kernels are faster. What fits
is worked out and not tried, so that all processes and `gpt2 estimate` come to the same. Where the estimate was wrong,
running out of memory lowers it: immediately in a run of one process; in one of several, of which none knows how far the
others are, when the run is started again.
"""

from __future__ import annotations

import bisect
import dataclasses
import math
from pathlib import Path
from typing import Any

from command_kit import UsageError
from command_kit.settings import as_table, read_toml
from gpt2_train.config.layout import MUON_STACK, PIECE_ELEMENTS
from gpt2_train.config.settings import ModelConfig, TrainSettings

GIB = 2**30

RESERVE = GIB
"""Memory of a process on a GPU in addition to its tensors: the driver's context, workspaces of libraries, gaps."""

CPU_PROCESS = 640 << 20
"""Bytes of a CPU process before it has a tensor: Python, torch's libraries (half of it files mapped into memory)."""

CPU_KERNELS = 96 << 20
"""Bytes that the matrix kernels of a CPU pack their operands into, and the heap's small gaps."""

GPU_WORKSPACES = 2 * 32 << 20
"""Bytes in which cuBLAS works: torch gives it 32 MiB on Hopper (8 on older GPUs) in each thread that multiplies, of the
forward pass and of the backward pass. They stay for good."""

GPU_MICRO_BATCH_TOKENS = 32_768
"""Tokens that keep a GPU busy; more at once cost memory and gain nothing."""

MARGIN = 0.05
"""The part of a GPU's free memory that is left where a peak is above its figure: 4% at most were seen (see above)."""

_LAYOUT = ("data_parallel_replicate", "reshard", "activation_checkpointing", "optimizer", "residual")
_SIZES = ("layers", "hidden", "heads", "sequence_length", "vocabulary_size", "global_batch_size")
_DECIDE_MEMORY = (*_SIZES, *_LAYOUT, "tensor_parallel", "data_parallel", "documents", "device")


FORWARD, LOSS, LAST_BLOCK, END = range(4)
"""Moments of a step: all activations and logits are there; their gradient is made; the last block has its gradients;
all gradients are there, and the optimizer moves."""


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes in one process of a run.

    Attributes:
        parameters, gradients, optimizer: this process's share of each, all float32.
        gathered: copies of parameters (and of gradients, if they accumulate) that data parallelism makes: of all, or,
            with --reshard, of parameters around the blocks and of the blocks that are computed and fetched.
        activations: saved for the backward pass, the logits aside.
        logits: logits, and then their gradient in the same place.
        staging: host memory for the copy that checkpoints are written from; on CPU a part of the peak.
        process: on CPU, what the process takes in addition to its tensors.
        peak: the most that is held at one moment, with what comes and goes at it; not the sum of the others, since
            gradients come as activations go.
    """

    parameters: int
    gradients: int
    optimizer: int
    gathered: int
    activations: int
    logits: int
    staging: int
    process: int
    peak: int


def parameters_per_rank(config: ModelConfig, tensor_parallel: int = 1) -> int:
    """Parameters in one tensor-parallel process: l·((12h²+7h)/t + 6h) + 2h + V·h/t + s·h, V the padded vocabulary."""
    h, t = config.hidden, tensor_parallel
    around = 2 * h + config.padded_vocabulary * h // t + config.sequence_length * h
    return config.layers * _block_parameters(config, t) + around


def _block_parameters(config: ModelConfig, t: int) -> int:
    """Of one block: rows of qkv and up are shared with their biases, columns of out and down without (their biases, and
    the norms, are whole)."""
    h = config.hidden
    return (12 * h * h + 7 * h) // t + 6 * h


def _optimizer_memory(
    config: ModelConfig, optimizer: str, t: int, data_parallel: int, shards: int, *, on_cpu: bool
) -> tuple[int, int]:
    """(state, work) of an optimizer in one process: bytes that it keeps, and that its step takes in addition.

    Muon keeps one moment of the blocks' matrices instead of Adam's two. Of as many of them as it takes together it
    holds almost four copies of its own share, or, of as many as there are processes, the whole update and the step made
    of it; and works on one: its copy, and two products of it.
    """
    state = 8 * math.ceil(parameters_per_rank(config, t) / shards)
    if optimizer != "muon":
        return state, 0
    h = config.hidden
    saved, matrix = 4 * config.layers * 12 * h * h // (t * shards), 4 * 4 * h * h
    together = 15 * min(saved // 4, MUON_STACK["cpu" if on_cpu else "cuda"] // (t * shards))
    return state - saved, max(together, matrix * (2 * t * data_parallel + 3))


def block_activations(
    config: ModelConfig,
    micro_batch: int,
    *,
    tensor_parallel: int = 1,
    precision: str = "fp32",
    stream: int = 4,
    on_cpu: bool = False,
) -> tuple[dict[str, int], int]:
    """Bytes that each block saves for a micro-batch of `micro_batch` whole sequences; and what `none` saves besides.

    By mode of activation checkpointing: `none` all that the backward pass needs, `selective` the block's input and the
    outputs of matrix products and attention, `full` its input alone. With `none` half-precision copies of the matrices
    are saved, too. A number of the residual stream has `stream` bytes.

    Counted tensor by tensor for a block as `gpt2.py` has it, with a fused attention kernel: it saves its inputs,
    its output and one float32 a row and head, not the attention matrix. That kernel has no dropout on CPU, where the
    matrix is kept three times over.
    """
    h, t, length = config.hidden, tensor_parallel, config.sequence_length
    tokens, size = micro_batch * length, 4 if precision == "fp32" else 2
    norms = 2 * (stream * h + size * h + 8)  # Input and output of both, and mean and deviation of each row.
    attention = (3 * size * h + size * h) // t + 4 * config.heads // t
    feed_forward = 8 * size * h // t  # Before and after the GELU.
    dropped = 0
    if config.dropout > 0:
        dropped = 2 * h * (size if on_cpu else 1)  # A mask is a factor on CPU, a byte elsewhere.
        if on_cpu:
            attention += (12 * length - 4) * config.heads // t + (3 * size * h // t if size == 2 else 0)
    products = size * (2 * h + 8 * h // t) + 4 * config.heads // t  # qkv, attention, out, up, down.
    saved = {
        "none": tokens * (norms + dropped + attention + feed_forward),
        "selective": tokens * (stream * h + products),
        "full": tokens * stream * h,
    }
    return saved, 2 * 12 * h * h // t if size == 2 else 0


def process_memory(logits: int) -> int:
    """Bytes that a CPU process takes in addition to its tensors.

    `gpt2 train` keeps freed memory for the next step instead of having the system clear it again. Smaller tensors
    settle in the space that the logits, `logits` bytes, left free, so that the heap grows by about one more copy.
    """
    return CPU_PROCESS + CPU_KERNELS + logits


def memory_per_rank(
    config: ModelConfig,
    *,
    micro_batch: int,
    tensor_parallel: int = 1,
    data_parallel: int = 1,
    data_parallel_replicate: int = 1,
    reshard: bool = False,
    accumulation: int = 1,
    precision: str = "fp32",
    residual: str = "fp32",
    activation_checkpointing: str = "none",
    optimizer: str = "adamw",
    compiled: bool = False,
    on_cpu: bool = False,
    stages_checkpoints: bool = False,
) -> Memory:
    """The memory of one process of a training run, in bytes.

    Args:
        config: the model.
        micro_batch: sequences that a process takes at once.
        tensor_parallel, data_parallel: processes on each axis.
        data_parallel_replicate: copies of parameters, gradients and optimizer among the data-parallel processes.
        reshard: whether blocks are gathered one at a time.
        accumulation: micro-batches of a process in one step; gradients are then there from the start of the last.
        precision: `fp32`, or `bf16` or `fp16` by autocast.
        residual: of the residual stream, `fp32` or `bf16`. Not compiled, norms on GPUs keep float32 of it.
        activation_checkpointing: `none`, `selective` or `full`.
        optimizer: `adamw` or `muon`.
        compiled: whether torch.compile is used, whose loss needs no workspace.
        on_cpu: whether the run is on CPU, where kernels save more under dropout and the process itself counts.
        stages_checkpoints: whether checkpoints are written in the background.

    The model can be shared so (`check_tensor_parallel`, `check_replicas`).
    """
    h, t = config.hidden, tensor_parallel
    half = 0 if precision == "fp32" else 2  # Bytes of the copy that autocast makes of a weight, or of its gradient.
    size = half or 4
    stream = 2 if residual == "bf16" and (compiled or on_cpu) else 4
    tokens, vocabulary = micro_batch * config.sequence_length, config.padded_vocabulary // t
    is_shared, accumulates = data_parallel > 1, accumulation > 1
    reshard = reshard and is_shared

    whole = parameters_per_rank(config, t)
    share = math.ceil(whole * data_parallel_replicate / data_parallel)
    in_block, around = _block_parameters(config, t), whole - config.layers * _block_parameters(config, t)
    gathered = at_output = 4 * whole * (2 if accumulates else 1) if is_shared else 0
    if reshard:
        # One block is computed, and the next arrives. At the output no block is there.
        gathered, at_output = 4 * (around + min(2, config.layers) * in_block), 4 * around
    shards = data_parallel // data_parallel_replicate
    state, step_work = _optimizer_memory(config, optimizer, t, data_parallel, shards, on_cpu=on_cpu)

    saved, copies = block_activations(
        config, micro_batch, tensor_parallel=t, precision=precision, stream=stream, on_cpu=on_cpu
    )
    if compiled:
        # After attention a block keeps what that adds, in the type of products, in place of the sum.
        saved["none"] -= tokens * (stream - size) * h
    saved["none"] += copies
    kept = saved[activation_checkpointing]
    # Autocast's copies of weights are kept to the end of the forward pass, where parameters are.
    casts = config.layers * copies if activation_checkpointing != "none" and not reshard else 0
    # Around the blocks: the final norm (input, output, mean and deviation), the mask of the embeddings, and the ids and
    # numbers of the loss.
    mask = 0 if config.dropout == 0 else stream * h if on_cpu else h
    activations = config.layers * kept + tokens * (stream * h + size * h + 8 + mask + 28)
    output_copy, logits = half * vocabulary * h, tokens * vocabulary * size

    # What comes and goes: float32 pieces of logits in the loss, one or two at a time; the gradients of a matrix (in
    # half precision first) and of its input; in a block, gradients of the wide activations and of the residual stream,
    # and all activations of one block where they are computed again.
    piece = min(PIECE_ELEMENTS["cpu" if on_cpu else "cuda"], tokens * vocabulary)
    loss_work = 0 if compiled else piece * 4 * (2 if half else 1)
    # Logits have gone before a gradient in half precision becomes one in float32.
    output_work = vocabulary * h * size + tokens * h * size
    block_work = tokens * h * (2 * stream + 8 * size // t) + 4 * h * h // t * (4 + half)
    block_work += saved["none"] - kept
    # The gradient of a block before and after it is sent; while a block is computed, what is sent of the one before.
    # At the end the same of the embeddings, whose parameters are whole until then.
    sending = 8 * in_block if is_shared else 0
    # The gradient of the token embedding as input has come, and is not yet added to that as output.
    last_work = max(block_work, sending // 2, 0 if is_shared else 4 * vocabulary * h)
    process = process_memory(logits) if on_cpu else 0
    staging = 4 * share + state if stages_checkpoints else 0

    always = (FORWARD, LOSS, LAST_BLOCK, END)
    parts = [
        ("parameters", 4 * share, always),
        ("optimizer", state, always),
        ("process", process or GPU_WORKSPACES, always),
        ("staging", staging if on_cpu else 0, always),
        # Of earlier micro-batches; where parameters are gathered for a step, whole, among what is gathered.
        ("gradients", 4 * share, always if accumulates and (reshard or not is_shared) else (END,)),
        ("gathered", at_output, (FORWARD, LOSS)),
        ("gathered", gathered, (LAST_BLOCK,)),
        ("activations", activations, (FORWARD, LOSS, LAST_BLOCK)),
        ("output matrix in half precision", output_copy, (FORWARD, LOSS)),
        ("other matrices in half precision", casts, (FORWARD,)),
        ("logits", logits, (FORWARD, LOSS)),
        ("loss", max(loss_work, output_work), (LOSS,)),
        ("gradient of the output matrix", 0 if accumulates and not reshard else 4 * vocabulary * h, (LAST_BLOCK,)),
        ("a block backward", max(block_work + sending // 2, sending), (LAST_BLOCK,)),
        ("the last gradients, or a step", max(last_work + (12 * around if is_shared else 0), step_work), (END,)),
    ]
    return Memory(
        parameters=4 * share,
        gradients=4 * share,
        optimizer=state,
        gathered=gathered,
        activations=activations + output_copy,
        logits=logits,
        staging=staging,
        process=process,
        peak=max(sum(size for _, size, moments in parts if moment in moments) for moment in always),
    )


def largest_micro_batch(config: ModelConfig, limit: float, **layout: Any) -> int:
    """The largest micro-batch whose peak is at most `limit` bytes (0 if none is); `layout` is for `memory_per_rank`."""
    sizes = range(1, 1 << 20)
    return bisect.bisect_right(sizes, limit, key=lambda n: memory_per_rank(config, micro_batch=n, **layout).peak)


def layout_of(
    settings: Any, data_parallel: int, tensor_parallel: int, precision: str, *, compiled: bool
) -> dict[str, Any]:
    """The arguments of `memory_per_rank` for a run, or an estimate, without the batches: as asked, as known."""
    asked = {name: getattr(settings, name) for name in _LAYOUT}
    known = {"tensor_parallel": tensor_parallel, "data_parallel": data_parallel}
    return asked | known | {"precision": precision, "compiled": compiled}


def fitting_micro_batch(config: ModelConfig, share: int | None, free: float, **layout: Any) -> int:
    """The largest micro-batch that divides `share` sequences, has at most 32,768 tokens and fits `free` bytes.

    1 if none does. Without a `share` the micro-batch is all of it. `layout` is for `memory_per_rank`.
    """
    most = min(share or 1 << 31, GPU_MICRO_BATCH_TOKENS // config.sequence_length)
    sizes = (size for size in range(most, 1, -1) if (share or size) % size == 0)
    return next((size for size in sizes if _fits(config, size, share or size, free, layout)), 1)


def _fits(config: ModelConfig, size: int, share: int, free: float, layout: dict[str, Any]) -> bool:
    memory = memory_per_rank(config, micro_batch=size, accumulation=share // size, **layout)
    return memory.peak <= free * (1 - MARGIN)


def choose_micro_batch(
    settings: TrainSettings, config: ModelConfig, free: float, recorded_in: Path, device: str, **layout: Any
) -> int:
    """The micro-batch of a run whose processes have `free` bytes each: the largest that fits.

    One that began keeps its own, recorded in its `config.toml` (at `recorded_in`), while that fits: results of a run
    that resumes do not change for other roundings. `device` is the kind of device, `layout` that of `layout_of`.
    """
    data_parallel = layout["data_parallel"]
    share = settings.global_batch_size // data_parallel
    # As far as it is resolved. What else decides memory is the same in any run that resumes.
    now = as_table(settings) | config.as_table() | {"data_parallel": data_parallel, "device": device}
    try:
        recorded = {"residual": "fp32"} | read_toml(recorded_in).get("train", {})
    except UsageError:
        recorded = {}
    size = recorded.get("micro_batch_size")
    is_same = all(recorded.get(name) == now[name] for name in _DECIDE_MEMORY)
    is_usable = is_same and isinstance(size, int) and size > 0 and share % size == 0
    if is_usable and _fits(config, size, share, free, layout):
        return int(size)
    return fitting_micro_batch(config, share, free, **layout)


def size_line(config: ModelConfig, memory: Memory) -> str:
    """One line on a run before it starts: the model's shape, its parameters, and what a process will hold."""
    state = memory.parameters + memory.gradients + memory.optimizer + memory.gathered
    # On CPU it is a part of the peak.
    staging = (
        f"; {memory.staging / GIB:.2f} GiB on the host to save from" if memory.staging and not memory.process else ""
    )
    return (
        f"model: {config.layers} layers, hidden {config.hidden}, {config.heads} heads, sequences of "
        f"{config.sequence_length:,}: {config.parameters:,} parameters; at most {memory.peak / GIB:.2f} GiB in each "
        f"process, {state / GIB:.2f} GiB of it for parameters, gradients and optimizer{staging}"
    )
