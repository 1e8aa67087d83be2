"""Training GPT-2 on this machine's GPU: speed, memory, time by part, saving, and the parallel paths.

    python benchmarks/gpu.py                  124M, 345M and 1.5B at 1,024 tokens in bf16; about half an hour
    python benchmarks/gpu.py --smoke          124M only, few steps: two minutes
    python benchmarks/gpu.py --model 345M     one size

For each size the largest micro-batches are tried, ours with its blocks compiled, as a whole, and not at all, and the
fastest is kept; so it is done for transformers' GPT-2 with `scaled_dot_product_attention` and for a minimal one,
compiled as a whole and not, in the same process. What compiling takes is said with each.
Ours is the step of `gpt2 train` itself, with reading and bookkeeping. Then: where the GPU's time goes (the kernels
that take most), what output matrix and loss cost in several ways, what saving costs, and one step with tensor
parallelism and FSDP2 put on in a group of one process over NCCL, whose loss must be that of the plain model. Without
a GPU a tiny model shows that everything runs.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from gpt2_train.config import ModelConfig
from gpt2_train.device import autocast
from gpt2_train.loss import token_losses
from gpt2_train.memory import GIB, memory_per_rank
from gpt2_train.metrics import peak_flops
from gpt2_train.model import GPT2
from gpt2_train.parallel import apply_data_parallel
from gpt2_train.tensor_parallel import apply_tensor_parallel
from gpt2_train.world import World
from machine import describe, save
from output_losses import steps
from training_steps import Case, Step, minimal_step, our_trainer, transformers_step

Mode = Literal["blocks", "model"] | None
"""What is compiled: each block, the whole model, nothing."""

MICRO_BATCHES = (4, 8, 16, 32, 64)
TINY = ModelConfig(2, 64, 4, 64, 500, dropout=0.0)
GOALS = {"124M": 0.42, "345M": 0.46}
"""Shares of the peak FLOPs (MFU) that are wanted on an H100 or H200."""


class Bench:
    """What is measured, and on what.

    Args:
        smoke: few steps and batches.
    """

    def __init__(self, *, smoke: bool) -> None:
        self.on_gpu = torch.cuda.is_available()
        self.device = "cuda" if self.on_gpu else "cpu"
        self.precision = "bf16" if self.on_gpu else "fp32"
        self.peak = peak_flops(torch.device(self.device), self.precision)
        self.warmup, self.turns = (4, 10) if self.on_gpu and not smoke else (2, 3)
        self.batches = MICRO_BATCHES if self.on_gpu and not smoke else (8,) if self.on_gpu else (2,)
        self.modes: tuple[Mode, ...] = ("blocks", "model", None) if self.on_gpu else (None,)
        """What is compiled, one after the other."""
        if smoke and self.on_gpu:
            self.modes = ("blocks", None)  # the whole model takes longer to compile than all the rest
        self.warmup_seconds = 0.0
        """What the first steps took, with compiling; of the last measurement."""

    def wait(self) -> None:
        """Wait for the GPU to finish what it was given."""
        if self.on_gpu:
            torch.cuda.synchronize()

    def seconds(self, step: Step) -> float:
        """The median of some turns of `step`, after those that compile and allocate."""
        started = time.perf_counter()
        for _ in range(self.warmup):
            step()
        self.wait()
        self.warmup_seconds = time.perf_counter() - started
        found = []
        for _ in range(self.turns):
            started = time.perf_counter()
            step()
            self.wait()
            found.append(time.perf_counter() - started)
        return statistics.median(found)

    def case(self, name: str, config: ModelConfig, batch: int) -> Case:
        """A model and a batch in this machine's precision."""
        return Case(name, config, batch, self.precision)

    def row(self, case: Case, program: str, compiled: Mode, seconds: float) -> dict[str, Any]:
        """What is known of a way to train: speed, share of the peak FLOPs, memory."""
        tokens = case.batch * case.config.sequence_length / seconds
        return {
            "what": program,
            "compiled": compiled,
            "micro_batch": case.batch,
            "ms_per_step": round(1000 * seconds, 2),
            "warmup_seconds": round(self.warmup_seconds, 1),
            "tokens_per_second": round(tokens),
            "mfu": round(tokens * case.config.flops_per_token / self.peak, 4) if self.peak else None,
            "peak_memory_GiB": round(torch.cuda.max_memory_allocated() / GIB, 2) if self.on_gpu else None,
        }


@contextlib.contextmanager
def cleared() -> Iterator[None]:
    """Give back what was allocated before and after, so that each way to train has the whole GPU."""
    torch.compiler.reset()
    for _ in range(2):
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
    try:
        yield
    finally:
        gc.collect()


def ours(bench: Bench, case: Case, *, compiled: Mode) -> dict[str, Any]:
    """The step of `gpt2 train`."""
    with tempfile.TemporaryDirectory() as name:
        steps = bench.warmup + bench.turns + 1
        trainer = our_trainer(case, Path(name), steps, bench.device, compile=compiled or False)
        try:
            seconds = bench.seconds(trainer.train_step)
        finally:
            trainer.reader.close()
    row = bench.row(case, "gpt2 train", compiled, seconds)
    expected = memory_per_rank(
        case.config,
        micro_batch=case.batch,
        precision=case.precision,
        compiled=compiled is not None,
        on_cpu=not bench.on_gpu,
    )
    return row | {"estimated_memory_GiB": round(expected.peak / GIB, 2)}


def theirs(make: Callable[..., Step], name: str) -> Callable[..., dict[str, Any]]:
    """A measurement of a plain loop, like `ours`."""

    def measure(bench: Bench, case: Case, *, compiled: Mode) -> dict[str, Any]:
        seconds = bench.seconds(make(case, bench.device, compiled=compiled is not None))
        return bench.row(case, name, compiled, seconds)

    return measure


def fastest(
    bench: Bench, name: str, config: ModelConfig, measure: Callable[..., dict[str, Any]], modes: Iterable[Mode]
) -> dict[str, Any]:
    """The fastest of all micro-batches, and of what `modes` compile; with what the others reached."""
    rows: list[dict[str, Any]] = []
    for compiled in modes:
        for batch in bench.batches:
            try:
                with cleared():
                    rows.append(measure(bench, bench.case(name, config, batch), compiled=compiled))
            except torch.OutOfMemoryError:
                break  # no larger one fits
            except Exception as error:
                what = f"failed: {type(error).__name__}: {error}"[:300]
                rows.append({"what": what, "compiled": compiled, "micro_batch": batch})
                break
            print(f"  {rows[-1]}", flush=True)
    done = [row for row in rows if "tokens_per_second" in row]
    best = max(done, key=lambda row: row["tokens_per_second"]) if done else {"what": "failed"}
    return best | {"tried": [row for row in rows if row is not best]}


def kernels(bench: Bench, case: Case, *, compiled: Mode) -> list[dict[str, Any]]:
    """The kernels (on CPU the operations) that take most of three of our steps, as shares of all."""
    with tempfile.TemporaryDirectory() as name, cleared():
        trainer = our_trainer(case, Path(name), bench.warmup + 4, bench.device, compile=compiled or False)
        for _ in range(bench.warmup):
            trainer.train_step()
        activities = [torch.profiler.ProfilerActivity.CPU]
        if bench.on_gpu:
            activities = [torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as profile:
            for _ in range(3):
                trainer.train_step()
            bench.wait()
        trainer.reader.close()

    def time_of(event: Any) -> float:
        return float(event.self_device_time_total if bench.on_gpu else event.self_cpu_time_total)

    events = sorted(profile.key_averages(), key=time_of, reverse=True)
    whole = sum(map(time_of, events)) or 1.0
    return [
        {"kernel": event.key[:100], "share": round(time_of(event) / whole, 4), "calls": event.count // 3}
        for event in events[:20]
    ]


def ways_of_the_loss(bench: Bench, case: Case) -> list[dict[str, Any]]:
    """Time and memory of the output matrix with its loss, ours and torch's, on a micro-batch; and each one's loss."""
    rows = []
    with cleared():
        ways = steps(case.config, case.batch, bench.device, case.precision)
    for name, step in ways.items():
        if "compiled" in name and not bench.on_gpu:
            continue  # seconds of C++ for nothing
        with cleared():
            try:
                loss = step()
                if bench.on_gpu:
                    torch.cuda.reset_peak_memory_stats()  # without what compiling took
                row = {
                    "ms": round(1000 * bench.seconds(step), 2),
                    "loss": loss / (case.batch * case.config.sequence_length),
                }
            except torch.OutOfMemoryError:
                row = {"failed": "out of memory"}
            if bench.on_gpu:
                row["peak_memory_GiB"] = round(torch.cuda.max_memory_allocated() / GIB, 2)
            rows.append({"way": name, **row})
    return rows


def saving(bench: Bench, case: Case, *, compiled: Mode) -> dict[str, Any]:
    """How much longer the steps around a save take than others, and how long it is until all is on the disk."""
    with tempfile.TemporaryDirectory() as name, cleared():
        steps = bench.warmup + 3 * bench.turns + 1
        # Saves in the background are made ready for where a run saves before its end.
        settings = {"compile": compiled or False, "save": True, "save_every": 1}
        trainer = our_trainer(case, Path(name), steps, bench.device, **settings)
        usual = bench.seconds(trainer.train_step)

        def saves_and_steps() -> None:
            trainer.save()
            for _ in range(bench.turns):
                trainer.train_step()
            bench.wait()

        started = time.perf_counter()
        saves_and_steps()
        with_save = time.perf_counter() - started
        trainer.finish_saving()
        until_written = time.perf_counter() - started
        trainer.reader.close()
        size = sum(file.stat().st_size for file in Path(name, "run").rglob("*") if file.is_file())
    return {
        "what": "saving",
        "stall_seconds": round(max(0.0, with_save - bench.turns * usual), 3),
        "seconds_until_written": round(until_written, 3),
        "ms_per_step": round(1000 * usual, 2),
        "written_GB": round(size / 1e9, 2),
    }


PATHS = {
    "plain": (),
    "tensor parallel": (apply_tensor_parallel,),
    "FSDP2": (apply_data_parallel,),
    "tensor parallel and FSDP2": (apply_tensor_parallel, apply_data_parallel),
}
"""What is put on a model, in this order."""


def group_of_one(bench: Bench, config: ModelConfig) -> dict[str, Any]:
    """Steps with tensor parallelism and FSDP2 put on in a group of one process, beside those of the plain model."""
    dist.init_process_group("nccl" if bench.on_gpu else "gloo", store=dist.HashStore(), rank=0, world_size=1)
    mesh = init_device_mesh(bench.device, (1, 1), mesh_dim_names=("dp_shard", "tp"))
    world = World(torch.device(bench.device), mesh=mesh)
    case = bench.case("group", config, bench.batches[0])
    shape = (case.batch, config.sequence_length + 1)
    batch = torch.randint(0, 500, shape, generator=torch.Generator().manual_seed(0)).to(bench.device)
    losses: dict[str, list[float]] = {}
    times: dict[str, float] = {}
    for path, put_on in PATHS.items():
        with cleared():
            model = GPT2(config).to(bench.device).initialise(torch.Generator().manual_seed(0))
            for put in put_on:
                put(model, world)
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

            def step(model: GPT2 = model, optimizer: torch.optim.Optimizer = optimizer) -> torch.Tensor:
                with autocast(world.device, case.precision):
                    logits = model(batch[:, :-1])
                loss = token_losses(logits, batch[:, 1:]).mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                return loss.detach()

            losses[path] = [float(step()) for _ in range(3)]
            times[path] = round(1000 * bench.seconds(step), 2)
    dist.destroy_process_group()
    return {
        "what": "a group of one process",
        "losses": losses,
        "largest_difference": max(
            abs(one - plain) for path in losses.values() for one, plain in zip(path, losses["plain"], strict=True)
        ),
        "ms_per_step": times,
    }


def size_results(bench: Bench, name: str, config: ModelConfig, *, smoke: bool) -> dict[str, Any]:
    """All that is measured of one size."""
    print(name, flush=True)
    found: dict[str, Any] = {"model": name, "goal_mfu": GOALS.get(name)}
    whole: tuple[Mode, ...] = ("model", None) if bench.on_gpu else (None,)
    ways = {
        "ours": (ours, bench.modes),
        "transformers": (theirs(transformers_step, "transformers"), whole),
        "minimal": (theirs(minimal_step, "minimal"), whole),
    }
    found["fastest"] = {way: fastest(bench, name, config, *measured) for way, measured in ways.items()}
    best = found["fastest"]["ours"]
    if "micro_batch" in best:
        case, compiled = bench.case(name, config, best["micro_batch"]), best["compiled"]
        found["kernels"] = kernels(bench, case, compiled=compiled)
        found["losses"] = ways_of_the_loss(bench, case)
        if not smoke:
            found["saving"] = saving(bench, case, compiled=compiled)
    return found


def main() -> None:
    """Measure, print, and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", help="124M, 345M, 774M or 1.5B; several times for several")
    parser.add_argument("--smoke", action="store_true", help="124M, one micro-batch, few steps: two minutes")
    options = parser.parse_args()
    bench = Bench(smoke=options.smoke)
    models = options.model or (["124M"] if options.smoke else ["124M", "345M", "1.5B"])
    sizes = {name: ModelConfig.preset(name, dropout=0.0) for name in models} if bench.on_gpu else {"tiny": TINY}
    content: dict[str, Any] = {"machine": describe("torch", "transformers"), "results": []}
    name = f"gpu{'-smoke' if options.smoke else ''}" if bench.on_gpu else None
    for size, config in sizes.items():
        content["results"].append(size_results(bench, size, config, smoke=options.smoke))
        if name:
            save(name, content)  # what was measured is kept if a later size fails
    content["results"].append(group_of_one(bench, next(iter(sizes.values()))))
    print(content["results"][-1])
    if name:
        save(name, content)


if __name__ == "__main__":
    main()
