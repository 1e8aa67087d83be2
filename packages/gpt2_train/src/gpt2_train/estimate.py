"""`gpt2 estimate`: parameters, FLOPs and memory of a run before it starts; no GPU and no torch are needed.

Every figure is counted from what the training loop holds, not fitted: float32 parameters, gradients and Adam's two
moments, the tensors that autograd saves in each block, the logits with their gradient, and the loss's own workspace.
Memory has its peak either at the start of the backward pass, when all activations are there and the gradients not yet,
or at its end, when it is the other way round; both are worked out and the larger one counts. What PyTorch's allocator
cannot reuse and what the CUDA driver takes for itself (about 1 GiB together) come on top. On CPU, where every tensor
can be followed, the true peak was between 9% below and 1% above the figure given here, with each mode of activation
checkpointing and on either axis of parallelism; what torch.compile fuses saves a few percent more.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from typing import Any, Literal

from command_kit import add_flags, duration, setting, settings_from
from gpt2_train.config import (
    ModelConfig,
    ModelSettings,
    TrainSettings,
    check_tensor_parallel,
    overridden_keys,
    plan_batches,
)
from gpt2_train.errors import Gpt2UsageError
from gpt2_train.loss_pieces import piece_elements

EXAMPLE = """\
example:
  gpt2 estimate --model 345M --micro-batch-size 8 --memory 24
  gpt2 estimate --config pipelines/openwebtext.toml --data-parallel 8
"""

GIB = 2**30
RESERVE = GIB
"""What a process takes on a GPU beside its tensors: the driver's context, workspaces of libraries, gaps."""

_LAYOUT, _MACHINE = "layout and batch", "machine and length"


@dataclasses.dataclass(frozen=True)
class EstimateSettings(ModelSettings):
    """The settings of `gpt2 estimate`: those of `gpt2 train` that decide memory and time, and the machine's.

    Raises Gpt2UsageError where one is out of range or two don't fit together.
    """

    tensor_parallel: int = setting(1, "processes that share each matrix", group=_LAYOUT)
    data_parallel: int = setting(1, "processes that share each batch", group=_LAYOUT)
    global_batch_size: int | None = setting(
        None, "sequences in one optimizer step; one micro-batch a process without it", group=_LAYOUT
    )
    micro_batch_size: int | None = setting(
        None, "sequences that one process takes at once; the largest that fits the batch, up to 8, without it",
        group=_LAYOUT,
    )  # fmt: skip
    activation_checkpointing: Literal["none", "full", "selective"] = setting(
        "none", "recompute activations in the backward pass", group=_LAYOUT
    )
    precision: Literal["fp32", "bf16", "fp16"] | None = setting(
        None, "arithmetic of matrix products; bf16 on a GPU and fp32 on CPU without it", group=_LAYOUT
    )
    device: Literal["auto", "cpu", "cuda", "mps"] = setting(
        "auto", "where the run will be: a GPU unless it is cpu", group=_MACHINE
    )
    memory: float | None = setting(
        None,
        "GiB of memory of each GPU (1 is set aside for its driver): says whether the run fits",
        metavar="GIB",
        group=_MACHINE,
    )
    tokens: int | None = setting(None, "tokens to train on: says FLOPs and steps", group=_MACHINE)
    tflops: float | None = setting(
        None, "TFLOP a second that each process really reaches: with --tokens, says how long it takes", group=_MACHINE
    )

    def __post_init__(self) -> None:
        for name in ("tensor_parallel", "data_parallel", "global_batch_size", "micro_batch_size", "tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise Gpt2UsageError(f"--{name.replace('_', '-')} is {value}: it should be at least 1.")
        for name in ("memory", "tflops"):
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise Gpt2UsageError(f"--{name} is {value}: it should be above 0.")
        if self.tflops is not None and self.tokens is None:
            raise Gpt2UsageError("--tflops says how long a number of tokens takes: give --tokens, too.")
        self.check_model()
        self.model_config()
        self.batches()

    def batches(self) -> tuple[int, int]:
        """(micro-batch, accumulation): sequences that a process takes at once, and how often in one step.

        Raises Gpt2UsageError where the global batch can't be divided so.
        """
        on_cpu = self.device == "cpu"
        if self.global_batch_size is None:
            return self.micro_batch_size or (2 if on_cpu else 8), 1
        return plan_batches(self.global_batch_size, self.micro_batch_size, self.data_parallel, on_cpu=on_cpu)


SETTINGS = EstimateSettings


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes in one process of a run.

    Attributes:
        parameters, gradients, optimizer: this process's share of each, all float32.
        gathered: copies of all parameters (and of gradients, if they accumulate) that data parallelism makes.
        activations: what is saved for the backward pass, the logits aside.
        logits: logits and their gradient.
        peak: the most that is held at one moment, with what comes and goes at it; not the sum of the others, since
            gradients come as activations go.
    """

    parameters: int
    gradients: int
    optimizer: int
    gathered: int
    activations: int
    logits: int
    peak: int


def parameters_per_rank(config: ModelConfig, tensor_parallel: int = 1, vocabulary: int | None = None) -> int:
    """Parameters in one tensor-parallel process: l·((7h²+7h)/t + 5h²/t + 6h) + 2h + V·h/t + s·h.

    Rows of qkv and up are shared with their biases, columns of out and down without (their biases, and the norms, are
    whole), the embedding by vocabulary; `vocabulary` is V, the padded one without it.
    """
    h, t = config.hidden, tensor_parallel
    rows = config.padded_vocabulary if vocabulary is None else vocabulary
    block = (7 * h * h + 7 * h) // t + 5 * h * h // t + 6 * h
    return config.layers * block + 2 * h + rows * h // t + config.sequence_length * h


def _block_parameters(config: ModelConfig, t: int) -> int:
    h = config.hidden
    return (12 * h * h + 7 * h) // t + 6 * h


@dataclasses.dataclass(frozen=True)
class BlockActivations:
    """Bytes that one block of the model saves, by mode of activation checkpointing.

    Counted tensor by tensor for a block as `model.py` has it, with a fused attention kernel: it saves its inputs,
    its output and one float32 a row and head, not the attention matrix. That kernel has no dropout on CPU, where the
    matrix is kept three times over.

    Attributes:
        none: everything that the backward pass needs.
        selective: the block's input, and the outputs of matrix products and attention.
        full: the block's input alone.
        casts: half-precision copies of the matrices, saved with `none`.
    """

    none: int
    selective: int
    full: int
    casts: int


def block_activations(
    config: ModelConfig, micro_batch: int, *, tensor_parallel: int = 1, precision: str = "fp32", on_cpu: bool = False
) -> BlockActivations:
    """What each block saves for a micro-batch of `micro_batch` whole sequences."""
    h, t, length = config.hidden, tensor_parallel, config.sequence_length
    tokens, size = micro_batch * length, 4 if precision == "fp32" else 2
    residual = 4 * h  # The residual stream is float32 in any precision.
    norms = 2 * (residual + size * h + 8)  # Input and output of both, and mean and deviation of each row.
    attention = (3 * size * h + size * h) // t + 4 * config.heads // t
    feed_forward = 8 * size * h // t  # Before and after the GELU.
    dropped = 0
    if config.dropout > 0:
        dropped = 2 * h * (size if on_cpu else 1)  # A mask is a factor on CPU, a byte elsewhere.
        if on_cpu:
            attention += (12 * length - 4) * config.heads // t + (3 * size * h // t if size == 2 else 0)
    products = size * (2 * h + 8 * h // t) + 4 * config.heads // t  # qkv, attention, out, up, down.
    return BlockActivations(
        none=tokens * (norms + attention + feed_forward + dropped),
        selective=tokens * (residual + products),
        full=tokens * residual,
        casts=2 * 12 * h * h // t if size == 2 else 0,
    )


def memory_per_rank(
    config: ModelConfig,
    *,
    micro_batch: int,
    tensor_parallel: int = 1,
    data_parallel: int = 1,
    accumulation: int = 1,
    precision: str = "fp32",
    activation_checkpointing: str = "none",
    on_cpu: bool = False,
) -> Memory:
    """What one process of a training run holds, in bytes.

    Args:
        config: the model.
        micro_batch: sequences that a process takes at once.
        tensor_parallel, data_parallel: processes on each axis.
        accumulation: micro-batches of a process in one step; gradients are then there from the start of the last.
        precision: `fp32`, or `bf16` or `fp16` by autocast.
        activation_checkpointing: `none`, `selective` or `full`.
        on_cpu: whether the run is on CPU, whose kernels save more under dropout.

    Raises Gpt2UsageError if the model can't be shared among `tensor_parallel` processes.
    """
    check_tensor_parallel(config, tensor_parallel)
    h, t = config.hidden, tensor_parallel
    half = 0 if precision == "fp32" else 2  # Bytes of the copy that autocast makes of a weight, or of its gradient.
    size = half or 4
    tokens, vocabulary = micro_batch * config.sequence_length, config.padded_vocabulary // t
    is_shared, accumulates = data_parallel > 1, accumulation > 1

    whole = parameters_per_rank(config, t)
    share = math.ceil(whole / data_parallel)
    in_block, around = _block_parameters(config, t), whole - config.layers * _block_parameters(config, t)
    gathered = 4 * whole * (2 if accumulates else 1) if is_shared else 0

    block = block_activations(config, micro_batch, tensor_parallel=t, precision=precision, on_cpu=on_cpu)
    kept = {"none": block.none + block.casts, "selective": block.selective, "full": block.full}
    # Around the blocks: the final norm (input, output, mean and deviation), the output matrix in half precision, the
    # mask of the embeddings, and the ids and numbers of the loss.
    mask = 0 if config.dropout == 0 else 4 * h if on_cpu else h
    activations = config.layers * kept[activation_checkpointing] + half * vocabulary * h
    activations += tokens * (4 * h + size * h + 8 + mask + 29)
    logits = tokens * vocabulary * size

    # What comes and goes: float32 pieces of logits in the loss, two or three at a time; the gradients of a matrix (in
    # half precision first) and of its input; in a block, those of the wide activations and of the residual stream,
    # and all activations of one block where they are computed again.
    piece = min(piece_elements("cpu" if on_cpu else "cuda"), tokens * vocabulary)
    loss_work = piece * 4 * (3 if half else 2)
    output_work = vocabulary * h * (4 + half) + tokens * h * (4 + size)
    block_work = tokens * h * (8 + 8 * size // t) + 4 * h * h // t * (4 + half)
    block_work += block.none + block.casts - kept[activation_checkpointing]
    # The gradient of a block before and after it is sent, and of the embeddings, whose parameters are whole to the end.
    sending = 8 * in_block if is_shared else 0
    sending_last = 12 * around + sending if is_shared else 0

    forward = activations + logits + (0 if activation_checkpointing == "none" else config.layers * block.casts)
    loss = activations + 2 * logits + max(loss_work, output_work)
    last_block = activations + logits + block_work + sending + (0 if accumulates else 4 * vocabulary * h)
    at_start = 12 * share + gathered + (4 * share if accumulates and not is_shared else 0)
    at_start += max(forward, loss, last_block)
    at_end = 16 * share + logits + block_work + sending_last
    return Memory(
        parameters=4 * share,
        gradients=4 * share,
        optimizer=8 * share,
        gathered=gathered,
        activations=activations,
        logits=2 * logits,
        peak=max(at_start, at_end),
    )


def largest_micro_batch(config: ModelConfig, limit: float, **layout: Any) -> int:
    """The largest micro-batch whose peak is at most `limit` bytes (0 if none is); `layout` is for `memory_per_rank`."""
    fits, over = 0, 1
    while over < 1 << 20 and memory_per_rank(config, micro_batch=over, **layout).peak <= limit:
        fits, over = over, over * 2
    while over - fits > 1:
        middle = (fits + over) // 2
        if memory_per_rank(config, micro_batch=middle, **layout).peak <= limit:
            fits = middle
        else:
            over = middle
    return fits


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `gpt2 estimate` to `parser`."""
    parser.epilog = EXAMPLE
    parser.add_argument(
        "--config", metavar="FILE.toml", help="read the settings of a run from the file of its `gpt2 train`"
    )
    parser.add_argument("--json", action="store_true", help="print the estimate as one JSON object")
    add_flags(parser, EstimateSettings)


def run(arguments: argparse.Namespace) -> int:
    """Print the estimate that the flags ask for; return the exit code. Raises Gpt2UsageError."""
    own = {field.name for field in dataclasses.fields(EstimateSettings)}
    others = {field.name for field in dataclasses.fields(TrainSettings)} - own
    given = {name for name, value in vars(arguments).items() if isinstance(value, int | float | str)}
    ignored = others | overridden_keys(given)
    settings = settings_from(EstimateSettings, arguments, command="train", config=arguments.config, ignore=ignored)
    if arguments.config is not None and settings.global_batch_size is None:
        # A run whose file does not say takes this.
        settings = dataclasses.replace(settings, global_batch_size=TrainSettings().global_batch_size)
    result = estimate(settings)
    print(json.dumps(result) if arguments.json else described(result))
    return 0


def estimate(settings: EstimateSettings) -> dict[str, Any]:
    """What `--json` prints. Raises Gpt2UsageError if the model can't be shared as asked."""
    config = settings.model_config()
    micro_batch, accumulation = settings.batches()
    on_cpu = settings.device == "cpu"
    layout: dict[str, Any] = {
        "tensor_parallel": settings.tensor_parallel,
        "data_parallel": settings.data_parallel,
        "accumulation": accumulation,
        "precision": settings.precision or ("fp32" if on_cpu else "bf16"),
        "activation_checkpointing": settings.activation_checkpointing,
    }
    memory = memory_per_rank(config, micro_batch=micro_batch, on_cpu=on_cpu, **layout)
    processes = settings.tensor_parallel * settings.data_parallel
    tokens_per_step = micro_batch * accumulation * settings.data_parallel * config.sequence_length
    result: dict[str, Any] = {
        "model": config.as_table(),
        "parameters": config.parameters,
        "parameters_per_process": parameters_per_rank(config, settings.tensor_parallel),
        "flops_per_token": config.flops_per_token,
        "processes": processes,
        "micro_batch_size": micro_batch,
        **layout,
        "tokens_per_step": tokens_per_step,
        "memory_bytes": dataclasses.asdict(memory),
    }
    if settings.memory is not None:
        room = settings.memory * GIB - (0 if on_cpu else RESERVE)
        result["fits"] = memory.peak <= room
        result["largest_micro_batch_size"] = largest_micro_batch(config, room, on_cpu=on_cpu, **layout)
    if settings.tokens is not None:
        flops = settings.tokens * config.flops_per_token
        result |= {"tokens": settings.tokens, "steps": math.ceil(settings.tokens / tokens_per_step), "flops": flops}
        if settings.tflops is not None:
            result["seconds"] = flops / (settings.tflops * 1e12 * processes)
    return result


def size_line(config: ModelConfig, memory: Memory) -> str:
    """One line on a run before it starts: the model's shape, its parameters, and what a process will hold."""
    state = memory.parameters + memory.gradients + memory.optimizer + memory.gathered
    return (
        f"model: {config.layers} layers, hidden {config.hidden}, {config.heads} heads, sequences of "
        f"{config.sequence_length:,}: {config.parameters:,} parameters; at most {memory.peak / GIB:.2f} GiB in each "
        f"process, {state / GIB:.2f} GiB of it for parameters, gradients and optimizer"
    )


def described(result: dict[str, Any]) -> str:
    """The estimate as a person reads it."""
    model, memory = result["model"], result["memory_bytes"]
    rows = [
        ("parameters", memory["parameters"], ""),
        ("gradients", memory["gradients"], ""),
        ("optimizer", memory["optimizer"], "two moments of Adam"),
        ("gathered", memory["gathered"], "whole copies during a step"),
        ("activations", memory["activations"], f"checkpointing: {result['activation_checkpointing']}"),
        ("logits", memory["logits"], "and their gradient"),
        ("peak", memory["peak"], "not the sum: gradients come as activations go"),
    ]
    lines = [
        f"{model['layers']} layers, hidden {model['hidden']}, {model['heads']} heads, sequences of "
        f"{model['sequence_length']:,}, {model['vocabulary_size']:,} token ids",
        f"{result['parameters']:,} parameters, {result['parameters_per_process']:,} in each tensor-parallel process; "
        f"{result['flops_per_token'] / 1e9:.3f} GFLOP a token, forward and backward",
        f"{result['processes']} process{'es' if result['processes'] > 1 else ''} (tensor parallel "
        f"{result['tensor_parallel']}, data parallel {result['data_parallel']}), {result['micro_batch_size']} × "
        f"{result['accumulation']} sequences each, {result['precision']}: {result['tokens_per_step']:,} tokens a step",
        "memory of each process, in GiB:",
        *(f"  {name:<12}{value / GIB:>8.2f}  {note}".rstrip() for name, value, note in rows if value),
    ]
    if "fits" in result:
        largest = result["largest_micro_batch_size"]
        advice = f"the largest --micro-batch-size that fits is {largest}" if largest else (
            "no micro-batch fits: give --activation-checkpointing full, or more --tensor-parallel"
        )  # fmt: skip
        lines.append(f"{'it fits' if result['fits'] else 'it does not fit'}; {advice}")
    if "flops" in result:
        time = f", {duration(result['seconds'])} in all" if "seconds" in result else ""
        lines.append(f"{result['tokens']:,} tokens: {result['steps']:,} steps, {result['flops']:.3g} FLOP{time}")
    return "\n".join(lines)
