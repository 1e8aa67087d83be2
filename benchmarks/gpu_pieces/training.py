"""Pieces that train in this process: speed and memory of each size, peers, optimizers, saving, parallel paths."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from gpt2_train.distributed.device import autocast
from gpt2_train.distributed.mesh import World
from gpt2_train.distributed.parallelize import apply_data_parallel
from gpt2_train.distributed.tensor_parallel import apply_tensor_parallel
from gpt2_train.model import loss
from gpt2_train.model.gpt2 import GPT2
from gpt2_train.model.loss import backward_root, losses_and_gradient
from gpt2_train.training.memory import GIB, memory_per_rank
from gpt2_train.training.trainer import Trainer
from gpu_pieces.bench import Bench, Mode, attempt, cleared
from training_steps import Case, Step, minimal_step, our_trainer, transformers_step

Parts = Iterator[tuple[str, dict[str, Any]]]


@contextlib.contextmanager
def run_of(bench: Bench, case: Case, steps: int, **settings: Any) -> Iterator[tuple[Trainer, Path]]:
    """A run of `gpt2 train` with that many steps at most, and its folder."""
    with tempfile.TemporaryDirectory() as name:
        made = our_trainer(case, Path(name), steps, bench.device, **settings)
        try:
            yield made, Path(name, "run")
        finally:
            made.close()


def step_of(bench: Bench, case: Case, compiled: Mode, **settings: Any) -> dict[str, Any]:
    """The step of `gpt2 train`, with reading and bookkeeping, beside what `gpt2 estimate` says of its memory."""
    batch = bench.sequences or case.batch
    told = {"compile": compiled or False, "global_batch_size": batch, **settings}
    with run_of(bench, case, bench.steps + 1, **told) as (run, _):
        row = bench.row(case, bench.seconds(run.train_step))
    expected = memory_per_rank(
        case.config,
        micro_batch=case.batch,
        accumulation=batch // case.batch,
        precision=case.precision,
        compiled=compiled is not None,
        on_cpu=not bench.on_gpu,
        **settings,
    )
    row["estimated_memory_GiB"] = round(expected.peak / GIB, 3)
    if row["peak_memory_GiB"]:
        row["estimate_over_peak"] = round(row["estimated_memory_GiB"] / row["peak_memory_GiB"], 3)
    return row


def recipe_step(size: str, batch: int, *, smoke: bool, is_compiled: bool = True, **settings: Any) -> dict[str, Any]:
    """`step_of` 512 sequences in micro-batches of `batch`, by blocks where there is a GPU."""
    bench = Bench(smoke=smoke, recipe=True)
    compiled: Mode = "blocks" if bench.on_gpu and is_compiled else None
    return attempt(lambda: step_of(bench, bench.case(size, batch), compiled, **settings))


def train_124m(*, smoke: bool) -> Parts:
    """124M at 32 sequences: by blocks, and not compiled."""
    if torch.cuda.is_available():
        yield "blocks", recipe_step("124M", 32, smoke=smoke)
    yield "not compiled", recipe_step("124M", 32, smoke=smoke, is_compiled=False)
    if torch.cuda.is_available():
        with mock.patch.object(loss, "one_pass_of", lambda *_: loss._compiled(loss._one_pass)):
            yield "loss by torch's compiler", recipe_step("124M", 32, smoke=smoke)


def train_345m(*, smoke: bool) -> Parts:
    """345M at 32 sequences, by blocks."""
    yield "blocks", recipe_step("345M", 32, smoke=smoke)


def train_xl(*, smoke: bool) -> Parts:
    """1.5B at 16 sequences by blocks, with selective checkpointing and with nothing recomputed."""
    yield "blocks", recipe_step("1.5B", 16, smoke=smoke, activation_checkpointing="selective")
    yield "nothing recomputed", recipe_step("1.5B", 16, smoke=smoke)


def residual(*, smoke: bool) -> Parts:
    """The three sizes with the residual stream in bf16."""
    kind = "bf16" if torch.cuda.is_available() else "fp32"
    for size, batch in (("124M", 32), ("345M", 32), ("1.5B", 16)):
        yield size, recipe_step(size, batch, smoke=smoke, residual=kind)


def peers(*, smoke: bool) -> Parts:
    """Plain loops with transformers' GPT-2 and a minimal one, compiled as a whole and not."""
    bench = Bench(smoke=smoke, recipe=True)
    ways: dict[str, Callable[..., Step]] = {"minimal": minimal_step, "transformers": transformers_step}
    for name, make in ways.items():
        for compiled in (True, False) if bench.on_gpu else (False,):

            def measure(make: Callable[..., Step] = make, compiled: bool = compiled) -> dict[str, Any]:
                case = bench.case("124M", 32)
                batches = (bench.sequences or case.batch) // case.batch
                return bench.row(case, bench.seconds(make(case, bench.device, compiled=compiled, batches=batches)))

            yield f"{name}{', compiled' if compiled else ''}", attempt(measure)


def muon(*, smoke: bool) -> Parts:
    """124M at 32: a step with Muon and one with AdamW, and how much longer the one takes."""
    bench = Bench(smoke=smoke)
    case = bench.case("124M", 32)
    compiled: Mode = "blocks" if bench.on_gpu and not bench.smoke else None
    rows = {}
    for name in ("adamw", "muon"):
        rows[name] = attempt(lambda name=name: step_of(bench, case, compiled, optimizer=name))  # type: ignore[misc]
        yield name, rows[name]
    if all("ms_per_step" in row for row in rows.values()):
        yield "more", {"ms": round(rows["muon"]["ms_per_step"] - rows["adamw"]["ms_per_step"], 2)}


def saving(*, smoke: bool) -> Parts:
    """How much longer the steps around a save of 345M take than others, and how long it is until all is on the disk."""
    bench = Bench(smoke=smoke)
    case = bench.case("345M", 8)
    # Saves in the background are made ready for where a run saves before its end.
    settings = {"compile": False, "save": True, "save_every": 1}
    with cleared(), run_of(bench, case, bench.steps + bench.turns + 1, **settings) as (run, folder):
        usual = bench.seconds(run.train_step)
        started = time.perf_counter()
        run.recorder.save()
        for _ in range(bench.turns):
            run.train_step()
        bench.wait()
        with_save = time.perf_counter() - started
        run.saver.finish()
        until_written = time.perf_counter() - started
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    yield (
        "save",
        {
            "in_background": run.saver.staging is not None,
            "stall_seconds": round(max(0.0, with_save - bench.turns * usual), 3),
            "seconds_until_written": round(until_written, 3),
            "ms_per_step": round(1000 * usual, 2),
            "written_GB": round(size / 1e9, 2),
        },
    )


PATHS = {
    "plain": (),
    "tensor parallel": (apply_tensor_parallel,),
    "FSDP2": (apply_data_parallel,),
    "tensor parallel and FSDP2": (apply_tensor_parallel, apply_data_parallel),
}
"""What is put on a model, in this order."""


def nccl(*, smoke: bool) -> Parts:
    """Steps with tensor parallelism and FSDP2 put on in a group of one process, beside those of the plain model."""
    bench = Bench(smoke=smoke)
    case = bench.case("124M", 8)
    if bench.on_gpu:
        torch.cuda.set_device(0)
    dist.init_process_group("nccl" if bench.on_gpu else "gloo", store=dist.HashStore(), rank=0, world_size=1)
    mesh = init_device_mesh(bench.device, (1, 1), mesh_dim_names=("dp_shard", "tp"))
    world = World(torch.device(bench.device), mesh=mesh)
    shape = (case.batch, case.config.sequence_length + 1)
    batch = torch.randint(0, 500, shape, generator=torch.Generator().manual_seed(0)).to(bench.device)
    losses: dict[str, list[float]] = {}
    for path, put_on in PATHS.items():
        with cleared():
            model = GPT2(case.config).to(bench.device).initialise(torch.Generator().manual_seed(0))
            for put in put_on:
                put(model, world)
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

            def step(model: GPT2 = model, optimizer: torch.optim.Optimizer = optimizer) -> torch.Tensor:
                with autocast(world.device, case.precision):
                    logits = model(batch[:, :-1])
                gradient, targets = logits.detach(), batch[:, 1:]
                weights = torch.full(targets.shape, 1 / targets.numel(), device=bench.device)
                root = backward_root(logits, gradient)
                loss = losses_and_gradient(gradient, targets, weights).mean()
                root.backward()
                optimizer.step()
                optimizer.zero_grad()
                return loss

            losses[path] = [float(step()) for _ in range(3)]
            yield path, {"losses": losses[path], "ms_per_step": round(1000 * bench.seconds(step), 2)}
    dist.destroy_process_group()
    pairs = [(one, plain) for path in losses.values() for one, plain in zip(path, losses["plain"], strict=True)]
    yield "losses", {"largest_difference": max(abs(one - plain) for one, plain in pairs)}
