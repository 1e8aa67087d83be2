"""Pieces that write texts: with graphs and without, for clients of a server, and beside transformers."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import torch

import serve as server_benchmark
from generate import CHOICES, Write, measure, ours, transformers_model
from gpu_pieces.bench import Bench, attempt
from gpu_pieces.training import Parts


def generate(*, smoke: bool) -> Parts:
    """Greedy texts of 124M, 1, 8 and 32 at once, with captured graphs and without."""
    bench = Bench(smoke=smoke)
    config = bench.case("124M", 1).config
    tokens = 8 if bench.smoke else 128
    with tempfile.TemporaryDirectory() as name:
        folder = str(server_benchmark.make_checkpoint(Path(name) / "run", config))
        for batch in (1, 8, 32):

            def rows(batch: int = batch) -> dict[str, Any]:
                ways = {
                    what: ours(folder, bench.precision, batch, CHOICES["greedy"], bench.device, static=static)
                    for what, static in (("steps one by one", False), ("graphs", True))
                }
                with torch.inference_mode():
                    found = measure(ways, batch, tokens, 1 if bench.smoke else 3, vocabulary=config.vocabulary_size)
                return {row.what: round(row.wall_rate, 1) for row in found} | {"same": found[-1].same}

            yield f"{batch} at once", attempt(rows)


def serve(*, smoke: bool) -> Parts:
    """`gpt2 serve` with 124M under 1 and 32 clients; what comes first captures graphs."""
    bench = Bench(smoke=smoke)
    case = bench.case("124M", 1)
    # Prompts are text, which needs all of GPT-2's vocabulary.
    config = dataclasses.replace(case.config, vocabulary_size=50257)
    tokens, clients = (8, 4) if bench.smoke else (128, 32)
    with tempfile.TemporaryDirectory() as name:
        checkpoint = server_benchmark.make_checkpoint(Path(name) / "run", config)
        with server_benchmark.server(checkpoint, clients, bench.device) as (url, process):
            for what, number in (("first", clients), ("1 client", 1), (f"{clients} clients", clients)):
                yield what, server_benchmark.measure(url, process, tokens, number, 1)


def plainly(model: Any, device: str) -> Write:
    """Greedy texts of transformers' model, each token by a pass over all before it: nothing is remembered."""

    def write(prompts: list[list[int]], tokens: int) -> list[list[int]]:
        ids = torch.tensor(prompts, device=device)
        for _ in range(tokens):
            ids = torch.cat([ids, model(ids).logits[:, -1:].argmax(-1)], 1)
        return [row[len(prompt) :] for row, prompt in zip(ids.tolist(), prompts, strict=True)]

    return write


def parity(*, smoke: bool) -> Parts:
    """Twenty greedy texts in fp32, beside transformers' with the same weights."""
    bench = Bench(smoke=smoke)
    config = bench.case("124M", 1).config
    batch, tokens = (4, 4) if bench.smoke else (20, 64)
    with tempfile.TemporaryDirectory() as folder:
        model = transformers_model(config)
        model.save_pretrained(folder)
        model.to(bench.device)
        ways = {
            "transformers": plainly(model, bench.device),
            "ours": ours(folder, "fp32", batch, CHOICES["greedy"], bench.device),
        }
        torch.set_float32_matmul_precision("highest")  # ours allows TF32, which decides otherwise where two are near
        with torch.inference_mode():
            for row in measure(ways, batch, tokens, 1, vocabulary=config.vocabulary_size):
                yield row.what, {"same": row.same, "tokens_per_second": round(row.wall_rate, 1)}
