"""`gpt2 estimate`: parameters, FLOPs and memory of a run before it starts; no GPU and no torch are needed.

Memory is worked out in `memory.py`; FLOPs per token are 6 for each parameter and 12·l·h·s for attention (Chowdhery et
al. 2022, appendix B). The settings are the ones of `gpt2 train` that decide either, so that the file of a run can be
given as it is.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from command_kit import add_flags, duration, setting, settings_from
from command_kit.settings import Removed
from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.config.layout import check_replicas, check_tensor_parallel, most_sequences, plan_batches
from gpt2_train.config.settings import ModelSettings, TrainSettings, sequences_of
from gpt2_train.training.command import overridden_keys
from gpt2_train.training.memory import (
    GIB,
    RESERVE,
    fitting_micro_batch,
    largest_micro_batch,
    layout_of,
    memory_per_rank,
    parameters_per_rank,
)

EXAMPLE = """\
example:
  gpt2 estimate --model 345M --micro-batch-size 8 --memory 24
  gpt2 estimate --config pipelines/openwebtext.toml --data-parallel 8
"""

_machine = functools.partial(setting, group="machine and length")


def _of_train(name: str, **changes: Any) -> Any:
    """The setting `name` of `gpt2 train`, with `changes` to its default, help and group."""
    field = TrainSettings.__dataclass_fields__[name]
    default = changes.pop("default", field.default)
    metadata = {**field.metadata, "group": "layout and batch", "identity": True, **changes}
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True)
class EstimateSettings(ModelSettings):
    """The settings of `gpt2 estimate`: the ones of `gpt2 train` that decide memory and time, and the machine's.

    Raises Gpt2UsageError where two don't fit together.
    """

    REMOVED: ClassVar[Mapping[str, Removed]] = TrainSettings.REMOVED

    tensor_parallel: int = _of_train("tensor_parallel")
    data_parallel: int = _of_train(
        "data_parallel", default=1, help="data-parallel size: processes that share each batch"
    )
    data_parallel_replicate: int = _of_train("data_parallel_replicate")
    reshard: bool = _of_train("reshard")
    global_batch_size: int | None = _of_train(
        "global_batch_size",
        default=None,
        help="sequences in one optimizer step; one micro-batch per process without it",
    )
    batch_tokens: int | None = _of_train("batch_tokens")
    micro_batch_size: int | Literal["auto"] = _of_train(
        "micro_batch_size",
        help="sequences that one process takes at once; auto is what `gpt2 train` takes on GPUs with --memory, and "
        "without it the largest that fits the batch, up to 8",
    )
    activation_checkpointing: Literal["none", "full", "selective"] = _of_train("activation_checkpointing")
    optimizer: Literal["adamw", "muon"] = _of_train("optimizer")
    precision: Literal["fp32", "bf16", "fp16", "auto"] | None = _of_train(
        "precision",
        help="autocast precision of matrix products; bf16 on a GPU and fp32 on CPU and MPS without it, and with auto, "
        "which takes less on CPUs that are faster in bf16",
    )
    residual: Literal["fp32", "bf16"] = _of_train("residual")
    device: Literal["auto", "cpu", "cuda", "mps"] = _machine(
        "auto", "where the run will be: a GPU of CUDA unless it is cpu or mps"
    )
    memory: float | None = _machine(
        None,
        "GiB of memory for each process (on a GPU 1 is set aside for its driver): says whether the run fits",
        gt=0,
        metavar="GIB",
    )
    tokens: int | None = _machine(None, "tokens to train on: says FLOPs and steps", ge=1)
    steps: int | None = _machine(None, "optimizer steps to train for, instead of --tokens", ge=1)
    tflops: float | None = _machine(
        None, "TFLOP per second that each process really reaches: with --tokens or --steps, says the time", gt=0
    )
    price: float | None = _machine(
        None, "price of a process an hour, in any currency: with --tflops, says what the run costs", gt=0
    )

    def __post_init__(self) -> None:
        if self.tokens is not None and self.steps is not None:
            raise Gpt2UsageError("the run's length is given twice: give one of --tokens and --steps.")
        if self.tflops is not None and self.tokens is None and self.steps is None:
            raise Gpt2UsageError("--tflops says how long a number of tokens takes: give --tokens or --steps, too.")
        if self.price is not None and self.tflops is None:
            raise Gpt2UsageError("--price is for an hour: give --tflops, and --tokens or --steps, too.")
        self.check_model()
        check_tensor_parallel(self.model_config(), self.tensor_parallel)
        check_replicas(self.data_parallel, self.data_parallel_replicate)
        self.batches()

    def batches(self) -> tuple[int, int]:
        """(micro-batch, accumulation): sequences that a process takes at once, and how often in one step.

        Raises Gpt2UsageError where the global batch can't be divided so.
        """
        on_cpu, asked, batch = self.device == "cpu", self.micro_batch_size, sequences_of(self)
        if asked == "auto" and self.memory is not None and self.device in ("auto", "cuda"):
            share = None if batch is None else batch // self.data_parallel
            asked = fitting_micro_batch(self.model_config(), share, self.room(), **self.layout())
        if batch is None:
            return most_sequences(self.sequence_length, on_cpu=on_cpu) if asked == "auto" else asked, 1
        length = self.sequence_length
        return plan_batches(batch, asked, self.data_parallel, on_cpu=on_cpu, sequence_length=length)

    def room(self) -> float:
        """Bytes that --memory leaves a process for the counted parts."""
        return (self.memory or 0.0) * GIB - (0 if self.device == "cpu" else RESERVE)

    def layout(self) -> dict[str, Any]:
        """The arguments of `memory_per_rank` for the run, but for the batches."""
        # What `gpt2 train` does without being asked: it computes in bf16 and compiles on CUDA alone.
        on_cuda = self.device in ("auto", "cuda")
        asked = None if self.precision == "auto" else self.precision
        precision = asked or ("bf16" if on_cuda else "fp32")
        return layout_of(self, self.data_parallel, self.tensor_parallel, precision, compiled=on_cuda)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `gpt2 estimate` to `parser`."""
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
    if arguments.config is not None and sequences_of(settings) is None:
        # A run whose file does not say takes this.
        settings = dataclasses.replace(settings, global_batch_size=TrainSettings().global_batch_size)
    result = estimate(settings)
    print(json.dumps(result) if arguments.json else described(result))
    return 0


def estimate(settings: EstimateSettings) -> dict[str, Any]:
    """The object that `--json` prints."""
    config = settings.model_config()
    micro_batch, accumulation = settings.batches()
    layout = settings.layout() | {"accumulation": accumulation}
    counted = layout | {"on_cpu": settings.device == "cpu", "stages_checkpoints": True}
    memory = memory_per_rank(config, micro_batch=micro_batch, **counted)
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
        room = settings.room()
        result["fits"] = memory.peak <= room
        result["largest_micro_batch_size"] = largest_micro_batch(config, room, **counted)
    tokens = settings.tokens if settings.steps is None else settings.steps * tokens_per_step
    if tokens is not None:
        flops = tokens * config.flops_per_token
        result |= {"tokens": tokens, "steps": math.ceil(tokens / tokens_per_step), "flops": flops}
        if settings.tflops is not None:
            result["seconds"] = flops / (settings.tflops * 1e12 * processes)
        if settings.price is not None:
            result["price"] = result["seconds"] / 3600 * processes * settings.price
    return result


def described(result: dict[str, Any]) -> str:
    """The estimate as a person reads it."""
    model, memory, data_parallel = result["model"], result["memory_bytes"], str(result["data_parallel"])
    if result["data_parallel_replicate"] > 1:
        data_parallel += f" with {result['data_parallel_replicate']} copies"
    moments = (
        "two moments of Adam" if result["optimizer"] == "adamw" else "one moment of Muon, two of Adam for the rest"
    )
    rows = [
        ("parameters", memory["parameters"], ""),
        ("gradients", memory["gradients"], ""),
        ("optimizer", memory["optimizer"], moments),
        ("gathered", memory["gathered"], "whole copies during a step"),
        ("activations", memory["activations"], f"checkpointing: {result['activation_checkpointing']}"),
        ("logits", memory["logits"], "and then their gradient, in the same place"),
        ("process", memory["process"], "Python, torch, and what the allocator can't reuse"),
        ("staging", memory["staging"], "on the host: the copy that checkpoints are written from"),
        ("peak", memory["peak"], "not the sum: gradients come as activations go"),
    ]
    lines = [
        f"{model['layers']} layers, hidden {model['hidden']}, {model['heads']} heads, sequences of "
        f"{model['sequence_length']:,}, {model['vocabulary_size']:,} token ids",
        f"{result['parameters']:,} parameters, {result['parameters_per_process']:,} in each tensor-parallel process; "
        f"{result['flops_per_token'] / 1e9:.3f} GFLOP per token, forward and backward",
        f"{result['processes']} process{'es' if result['processes'] > 1 else ''} (tensor parallel "
        f"{result['tensor_parallel']}, data parallel {data_parallel}), {result['micro_batch_size']} × "
        f"{result['accumulation']} sequences each, {result['precision']}: {result['tokens_per_step']:,} tokens per "
        "step",
        "memory of each process, in GiB:",
        *(f"  {name:<12}{value / GIB:>8.2f}  {note}".rstrip() for name, value, note in rows if value),
    ]
    if "fits" in result:
        largest = result["largest_micro_batch_size"]
        advice = f"the largest --micro-batch-size that fits is {largest}" if largest else (
            "no micro-batch fits: give --activation-checkpointing full, --reshard, or more --tensor-parallel"
        )  # fmt: skip
        lines.append(f"{'it fits' if result['fits'] else 'it does not fit'}; {advice}")
    if "flops" in result:
        time = f", {duration(result['seconds'])} in all" if "seconds" in result else ""
        price = f", for {result['price']:,.2f}" if "price" in result else ""
        lines.append(f"{result['tokens']:,} tokens: {result['steps']:,} steps, {result['flops']:.3g} FLOP{time}{price}")
    return "\n".join(lines)
