"""What a training step takes on a GPU, worked out and not measured: each kernel's bytes and FLOPs, and the host's work.

    ./uvw run benchmarks/roofline.py             # all; --only "H100, 124M" for some, which writes nothing

The steps of `gpt2 train` run on the null device of tests/cuda, which computes nothing: torch and Inductor launch what
they would launch on the GPU. The bytes of a kernel are those of its arguments (twice where one is read and written),
its FLOPs those of a matrix product or of attention (causal: half). It takes the longer of both, at the data sheet's
peak, or at the share of it that such kernels are assumed to reach (`CARDS`). Layers are alike: two and three of them
are run, and the others follow. Messages are those of one process beside others that torch's fake process group stands
for.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.distributed as dist
from tests.cuda.gpus import LIBRARY, Gpus, missing
from torch.utils._python_dispatch import TorchDispatchMode

from gpt2_train.config.settings import ModelConfig, TrainSettings
from gpt2_train.distributed.jobs import StopRequest
from gpt2_train.distributed.mesh import make_world
from gpt2_train.training import setup
from gpt2_train.training import trainer as training
from gpt2_train.training.memory import fitting_micro_batch
from gpt2_train.training.setup import set_up
from gpt2_train.training.trainer import Trainer
from launched_kernels import CARDS, Card, Kernels, Sums, bytes_of, inductor_kernels, inductors, tensors
from machine import RESULTS, describe, save
from training_steps import write_tokens

GLOBAL_BATCH = 512
"""Sequences of a step: half a million tokens."""
LAUNCH = 3e-6
"""Seconds that the driver takes for a launch on the host, beside what torch does. An assumption."""


MODELS = ("124M", "345M", "1.5B")
WITHOUT = {"half_copies": {}, "compiled_loss": {}, "cudnn": {"attention": "flash"}}
"""Parts of the program that are left out to see what they bring, with other settings where that is how."""

# Bytes a second in one direction that NCCL reaches, and seconds of a message: NVLink 4 has 450 GB/s, and each GPU an
# adapter of 400 Gb/s, as in machines of eight. Assumptions.
LINKS = {"NVLink": (360e9, 20e-6), "network": (45e9, 40e-6)}


@contextlib.contextmanager
def open_trainer(config: ModelConfig, folder: Path, micro: int, gpus: int = 1, **more: Any) -> Iterator[Trainer]:
    """A run on the null device of one micro-batch a step, without values in its weights."""
    prefix = write_tokens(folder / f"tokens{gpus}", config.vocabulary_size, 16 * gpus * micro * 1025)
    settings = TrainSettings(
        data=(prefix,), output=str(folder / "run"), layers=config.layers, hidden=config.hidden, heads=config.heads,
        sequence_length=config.sequence_length, vocabulary_size=config.vocabulary_size, steps=14, dropout=0.0,
        global_batch_size=micro * gpus, micro_batch_size=micro, split="1,0,0", device="cuda", save=False,
        data_parallel=gpus, **({"data_parallel_replicate": gpus // 8} if gpus > 8 else {}), **more,
    )  # fmt: skip
    with mock.patch.object(setup, "fill", lambda *_: None):
        world = make_world(torch.device("cuda", 0), 1, settings.data_parallel_replicate)
        trainer = Trainer(set_up(settings, world, folder / "run"), StopRequest())
    try:
        yield trainer
    finally:
        trainer.close()


def launches(folder: Path) -> int:
    """What the null device has counted since it was asked last."""
    library = ctypes.CDLL(LIBRARY)
    library.null_cuda_report(os.fsencode(folder / "counted"))
    library.null_cuda_reset()
    counts = json.loads((folder / "counted").read_text())["counts"]
    return sum(row[0] for name, row in counts.items() if name.startswith(("launch ", "product ")))


def kernels_of(card: Card, config: ModelConfig, micro: int, folder: Path, without: str, **more: Any) -> dict[str, Sums]:
    """What a step of one micro-batch launches, and what each further micro-batch adds."""
    kernels = Kernels(card)
    found = {}
    with contextlib.ExitStack() as stack:
        stack.enter_context(inductor_kernels(kernels))
        if without == "half_copies":
            stack.enter_context(mock.patch.object(training, "half_copies", lambda *_, **__: None))
        if without == "compiled_loss":
            plain = training.token_losses
            in_pieces = lambda *args, **options: plain(*args, **options | {"compiled": False})  # noqa: E731
            stack.enter_context(mock.patch.object(training, "token_losses", in_pieces))
        trainer = stack.enter_context(open_trainer(config, folder, micro, **more))
        stack.enter_context(kernels)
        for _ in range(2):
            trainer.train_step()
        launches(folder)
        with kernels.counting() as found["step"]:
            trainer.train_step()
        found["step"]["launches"] = [launches(folder) + inductors(found["step"])]
        batches = trainer.reader.take(trainer.state.step + 1).rows
        trainer.forward_backward(batches)
        launches(folder)
        with kernels.counting() as found["micro_batch"]:
            trainer.forward_backward(batches)
        found["micro_batch"]["launches"] = [launches(folder) + inductors(found["micro_batch"])]
    return found


def of_all_layers(two: Sums, three: Sums, layers: int) -> Sums:
    """What `layers` layers take, from what two and three of them do."""
    none = [0.0] * 5
    return {
        name: [a + (layers - 2) * (b - a) for a, b in zip(two.get(name, none), three.get(name, none), strict=True)]
        for name in {**two, **three}
    }


def account(card: Card, model: str, how: str, folder: Path, without: str = "") -> dict[str, Any]:
    """A step of a model on a card."""
    whole = ModelConfig.preset(model, dropout=0.0)
    micro = micro_batch(card, whole, compiled=how != "not compiled")
    if not micro:
        return {"does not fit": True}
    more = {"attention": card.attention, "compile": how != "not compiled" and how} | WITHOUT.get(without, {})
    runs = []
    for layers in (2, 3):
        (place := folder / str(layers)).mkdir()
        runs.append(kernels_of(card, dataclasses.replace(whole, layers=layers), micro, place, without, **more))
    step, each = (of_all_layers(runs[0][part], runs[1][part], whole.layers) for part in ("step", "micro_batch"))
    started, more_started = step.pop("launches")[0], each.pop("launches")[0]
    times = GLOBAL_BATCH // micro
    # In a step of several, a micro-batch beside the first takes what one takes that adds to gradients.
    sums = {
        name: [sum(row[part] for row in rows.values()) for part in range(5)]
        for name, rows in (("step", step), ("each", each))
    }
    total = [a + (times - 1) * b for a, b in zip(sums["step"], sums["each"], strict=True)]
    flops = whole.flops_per_token * GLOBAL_BATCH * whole.sequence_length
    named = sorted(each.items(), key=lambda item: -item[1][4])
    return {
        "micro_batch": micro,
        "launches": round(started),
        "launches_further": round(more_started),
        "GB": round(sums["each"][1] / 1e9, 2),
        "TFLOP": round(sums["each"][2] / 1e12, 2),
        "ms_at_peak": round(1e3 * sums["each"][3], 2),
        "ms": round(1e3 * sums["each"][4], 2),
        "ms_once": round(1e3 * (sums["step"][4] - sums["each"][4]), 2),
        "ms_of_products": round(1e3 * sum(row[4] for name, row in each.items() if name.startswith("product")), 2),
        "ms_of_attention": round(1e3 * sum(row[4] for name, row in each.items() if name.startswith("attention")), 2),
        "tokens_per_second": round(GLOBAL_BATCH * whole.sequence_length / total[4]),
        "share_of_peak": round(flops / total[4] / card.flops, 4),
        "largest": {
            name: {"calls": round(n), "GB": round(size / 1e9, 2), "ms": round(1e3 * seconds, 2)}
            for name, (n, size, _, _, seconds) in named if seconds > 1e-4
        },
    }  # fmt: skip


def micro_batch(card: Card, config: ModelConfig, *, compiled: bool) -> int:
    """The largest power of two that fits the card, as `--micro-batch-size auto` would find it; 0 if none does."""
    free = card.memory * 2**30
    layout = {"tensor_parallel": 1, "data_parallel": 1, "precision": "bf16", "compiled": compiled}
    from gpt2_train.training.memory import memory_per_rank

    if memory_per_rank(config, micro_batch=1, accumulation=GLOBAL_BATCH, **layout).peak > free:
        return 0
    return fitting_micro_batch(config, GLOBAL_BATCH, free, **layout)


def host_time(model: str, how: str, folder: Path) -> dict[str, float]:
    """CPU milliseconds of the host for one micro-batch and once a step, on a device that has its results at once."""
    config = ModelConfig.preset(model, dropout=0.0)
    spent: dict[str, list[float]] = {"step": [], "each": []}
    with open_trainer(config, folder, 1, compile=how != "not compiled" and how, attention="flash") as trainer:
        for turn in range(8):
            began = time.process_time()
            trainer.train_step()
            spent["step"].append(time.process_time() - began)
            if turn < 7:
                continue
            batches = trainer.reader.take(trainer.state.step + 1).rows
            for _ in range(6):
                began = time.process_time()
                trainer.forward_backward(batches)
                spent["each"].append(time.process_time() - began)
    each, step = statistics.median(spent["each"][1:]), statistics.median(spent["step"][3:])
    return {"host_ms": round(1e3 * each, 1), "host_ms_once": round(1e3 * max(0.0, step - each), 1)}


class Messages(TorchDispatchMode):
    """Counts the messages of this process by kind and link, with the bytes that it sends in a ring."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        name = str(function)
        if not name.startswith("c10d.") or not tensors(args):
            return result
        group = next(
            dist.ProcessGroup.unbox(one)
            for one in args
            if isinstance(one, torch.ScriptObject) and "ProcessGroup" in str(one._type())
        )
        size, ranks = max(map(bytes_of, tensors(args))), dist.get_process_group_ranks(group)
        kind = next(kind for kind in ("allreduce", "allgather", "reduce_scatter", "broadcast") if kind in name)
        link = "NVLink" if ranks[0] // 8 == ranks[-1] // 8 else "network"
        self.calls[f"{kind}, {link}"] += 1
        self.bytes[f"{kind}, {link}"] += size * (len(ranks) - 1) / len(ranks) * (2 if kind == "allreduce" else 1)
        return result


def messages(model: str, gpus: int, micro: int, folder: Path) -> dict[str, Any]:
    """The messages of a step in one process of `gpus` that share the state; each machine of 8 has a copy of it."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    def same_everywhere(outcomes: list[Any], own: Any, group: Any = None) -> None:
        outcomes[:] = [own] * len(outcomes)

    whole, runs = ModelConfig.preset(model, dropout=0.0), []
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=gpus)
    with mock.patch.object(dist, "all_gather_object", same_everywhere):
        for layers in (2, 3):
            (place := folder / str(layers)).mkdir()
            config = dataclasses.replace(whole, layers=layers)
            with open_trainer(config, place, micro, gpus, compile=False, attention="flash") as trainer:
                for _ in range(2):
                    trainer.train_step()
                with Messages() as found:
                    trainer.train_step()
            runs.append({name: [float(calls), found.bytes[name], 0, 0, 0] for name, calls in found.calls.items()})
    dist.destroy_process_group()
    rows = of_all_layers(*runs, whole.layers)
    result: dict[str, Any] = {
        "kinds": {name: {"calls": round(n), "GB": round(size / 1e9, 4)} for name, (n, size, *_) in rows.items()}
    }
    for link, (rate, latency) in LINKS.items():
        own = [row for name, row in rows.items() if name.endswith(link)]
        result[f"ms_{link}"] = round(1e3 * sum(max(size / rate, 0) + n * latency for n, size, *_ in own), 2)
    return result


def case(words: list[str]) -> dict[str, Any]:
    """What one case comes to, on the null device that this process has."""
    torch._dynamo.reset()
    with tempfile.TemporaryDirectory() as name:
        kind, *rest = words
        if kind == "kernels":
            card, model, how, *without = rest
            return account(CARDS[card], model, how, Path(name), *without)
        if kind == "host":
            return host_time(*rest, Path(name))
        model, gpus, micro = rest
        return messages(model, int(gpus), int(micro), Path(name))


def together(card: str, words: list[tuple[str, ...]], **more: str) -> Iterator[dict[str, Any]]:
    """`case` of each of `words`, in a process that sees such a card."""
    gpus = Gpus(memory=CARDS[card].memory, capability=CARDS[card].capability, name=card)
    own = os.environ | gpus.environment() | {"PYTORCH_ALLOC_CONF": "expandable_segments:True"} | more
    command = [sys.executable, __file__, "--cases", json.dumps(words)]
    with subprocess.Popen(command, env=own, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in words:
            if not (line := process.stdout.readline()):
                sys.exit(1)  # it has said why
            yield json.loads(line)


def cases() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Part of the results, name and command of each case."""
    for model in MODELS:
        yield "steps", f"H100, {model}, blocks", ("kernels", "H100", model, "blocks")
    yield "steps", "H100, 124M, not compiled", ("kernels", "H100", "124M", "not compiled")
    for without in WITHOUT:
        for model in MODELS if without == "half_copies" else ("124M",):
            yield "steps", f"H100, {model}, blocks, without {without}", ("kernels", "H100", model, "blocks", without)
    for model, how in (("124M", "blocks"), ("345M", "blocks"), ("1.5B", "blocks"), ("124M", "not compiled")):
        yield "host", f"{model}, {how}", ("host", model, how)
    for gpus in (8, 64):
        for model in MODELS:
            yield "messages", f"{model}, {gpus} GPUs", ("messages", model, str(gpus), "8")
    for card in ("A100", "RTX 4090"):
        for model in MODELS:
            yield "steps", f"{card}, {model}, blocks", ("kernels", card, model, "blocks")


def saved() -> dict[str, Any]:
    """What is known, with the assumptions of now."""
    path = RESULTS / "roofline.json"
    results = json.loads(path.read_text()) if path.is_file() else {"steps": {}, "host": {}, "messages": {}}
    cards = {name: dataclasses.asdict(card) for name, card in CARDS.items()}
    known = {"machine": describe("torch", "triton"), "what": "computed, not measured", "links": LINKS, "cards": cards}
    return {**results, **known}


def main() -> None:
    """Work out what is asked for, save each result, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases with this in their name")
    parser.add_argument("--tables", action="store_true", help="print what is saved, for docs/benchmarks.md")
    options = parser.parse_args()
    if not options.tables:
        if reason := missing():
            sys.exit(f"the null device {reason}.")
        kinds: dict[tuple[str, str], dict[str, tuple[str, ...]]] = {}
        for part, name, words in cases():
            if options.only in f"{part}: {name}":
                card = next((card for card in CARDS if name.startswith(card)), "H100")
                kinds.setdefault((part, card), {})[name] = words
        for (part, card), asked in kinds.items():
            quiet = {"NULL_CUDA_QUIET": "1"} if part == "host" else {}
            for name, found in zip(asked, together(card, list(asked.values()), **quiet), strict=True):
                print(name, {key: value for key, value in found.items() if key != "largest"}, flush=True)
                results = saved()
                results[part][name] = found
                save("roofline", results)
    results = saved()
    print(*tables(results), sep="\n")


def tables(results: dict[str, Any]) -> Iterator[str]:
    """Lines of Markdown."""
    yield "| GPU, model, compiled | micro-batch | kernels | GB | TFLOP | at the peak | expected | tokens/s | of peak |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for name, row in results["steps"].items():
        if "ms" not in row:
            yield f"| {name} | does not fit |  |  |  |  |  |  |  |"
            continue
        work = f"{row['launches_further']:,} | {row['GB']:.1f} | {row['TFLOP']:.2f}"
        times = f"{row['ms_at_peak']:.1f} ms | {row['ms']:.1f} ms | {row['tokens_per_second']:,}"
        yield f"| {name} | {row['micro_batch']} | {work} | {times} | {row['share_of_peak']:.1%} |"
    yield "\n| host: model, compiled | a micro-batch | with the driver's launches | once a step |\n|---|---|---|---|"
    for name, row in results["host"].items():
        more = results["steps"].get(f"H100, {name}", {}).get("launches_further", 0) * LAUNCH * 1e3
        yield f"| {name} | {row['host_ms']:.0f} ms | {row['host_ms'] + more:.0f} ms | {row['host_ms_once']:.0f} ms |"
    yield "\n| messages of a step | NVLink | network |\n|---|---|---|"
    for name, row in results["messages"].items():
        cells = []
        for link in LINKS:
            own = [one for kind, one in row["kinds"].items() if kind.endswith(link)]
            calls, size = (sum(one[part] for one in own) for part in ("calls", "GB"))
            cells.append(f"{calls} messages, {size:.2f} GB, {row[f'ms_{link}']:.1f} ms")
        yield f"| {name} | {' | '.join(cells)} |"


if __name__ == "__main__":
    if sys.argv[1:2] == ["--cases"]:
        for one in json.loads(sys.argv[2]):
            print(json.dumps(case(one)), flush=True)
    else:
        main()
