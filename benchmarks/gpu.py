"""A training step of GPT-2 on this machine's GPU: milliseconds, tokens per second, peak memory, next to transformers.

Ours is measured as a user would run it, by `gpt2 train` on random tokens, from the run's own metrics; transformers'
GPT-2 in a plain loop with the same shapes, precision and fused AdamW. Without a GPU a tiny model shows that it works.

    python benchmarks/gpu.py [--model 345M] [--batch 8] [--steps 30]
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gpt2_train.config import ModelConfig
from indexed_tokens import IndexedTokensWriter
from machine import describe, save

TINY = {"layers": 2, "hidden": 64, "heads": 4, "sequence_length": 64}


def write_tokens(prefix: Path, tokens: int = 4_000_000) -> None:
    """Random tokens in documents of a thousand."""
    random = np.random.default_rng(0)
    with IndexedTokensWriter(prefix) as writer:
        for _ in range(tokens // 1000):
            writer.add(random.integers(0, 50257, 1000))


def ours(config: ModelConfig, data: Path, folder: Path, options: argparse.Namespace, **flags: str) -> dict[str, Any]:
    """Metrics of the last logged steps of `gpt2 train`."""
    shape = {
        "layers": config.layers,
        "hidden": config.hidden,
        "heads": config.heads,
        "sequence-length": config.sequence_length,
        "global-batch-size": options.batch,
        "micro-batch-size": options.batch,
        "steps": options.steps,
        "log-every": max(1, options.steps // 3),
        "eval-every": 0,
        "split": "1,0,0",
    }
    arguments = itertools.chain.from_iterable((f"--{name}", str(value)) for name, value in (shape | flags).items())
    command = [sys.executable, "-m", "gpt2_train", "train", "--data", str(data), "--output", str(folder), *arguments]
    # A checkpoint of the largest model is 19 GB, and there is one run for each case.
    command.append("--no-save")
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-1]}
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    last = [row for row in rows if "loss" in row][-1]
    return {
        "ms_per_step": round(1000 * options.batch * config.sequence_length / last["tokens_per_second"], 1),
        "tokens_per_second": round(last["tokens_per_second"]),
        "mfu": last["mfu"],
        "peak_memory_MB": round((last["peak_memory_bytes"] or 0) / 1e6),
    }


def transformers_step(config: ModelConfig, options: argparse.Namespace, device: str) -> dict[str, Any]:
    """The same with transformers' GPT2LMHeadModel, bf16 autocast on a GPU, fused AdamW."""
    try:
        from transformers import GPT2Config, GPT2LMHeadModel
    except ImportError:
        return {"failed": "transformers is not installed"}
    shape = GPT2Config(
        n_layer=config.layers, n_embd=config.hidden, n_head=config.heads, n_positions=config.sequence_length
    )
    model = GPT2LMHeadModel(shape).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    batch = torch.randint(0, 50257, (options.batch, config.sequence_length), device=device)
    start = 0.0
    for step in range(options.steps):
        if step == options.steps // 3:
            if device == "cuda":
                torch.cuda.synchronize()
            start = time.perf_counter()
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = model(batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    if device == "cuda":
        torch.cuda.synchronize()
    seconds = (time.perf_counter() - start) / (options.steps - options.steps // 3)
    return {
        "ms_per_step": round(1000 * seconds, 1),
        "tokens_per_second": round(options.batch * config.sequence_length / seconds),
        "peak_memory_MB": round(torch.cuda.max_memory_allocated() / 1e6) if device == "cuda" else 0,
    }


def main() -> None:
    """Measure and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="345M")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = ModelConfig.preset(options.model) if device == "cuda" else ModelConfig(**TINY)
    cases: dict[str, dict[str, str]] = {"fp32": {"precision": "fp32"}}
    if device == "cuda":
        cases = {
            f"{precision}, checkpointing {mode}": {"precision": precision, "activation-checkpointing": mode}
            for precision, mode in itertools.product(("bf16", "fp16"), ("none", "selective", "full"))
        }
    results = []
    with tempfile.TemporaryDirectory() as name:
        data = Path(name) / "tokens"
        write_tokens(data)
        for number, (case, flags) in enumerate(cases.items()):
            results.append(
                {"what": f"gpt2 train, {case}", **ours(config, data, Path(name) / str(number), options, **flags)}
            )
            print(results[-1], flush=True)
    results.append({"what": "transformers, bf16 autocast", **transformers_step(config, options, device)})
    print(results[-1])
    described = describe("torch", "transformers")
    save(f"{device}-{options.model if device == 'cuda' else 'tiny'}", {"machine": described, "results": results})


if __name__ == "__main__":
    main()
