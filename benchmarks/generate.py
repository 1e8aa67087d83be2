"""How fast does GPT-2 124M write on this machine's CPU, next to transformers with the same weights?

    ./uvw run benchmarks/generate.py [--batch 1 8] [--tokens 128] [--threads 1] [--rounds 2]

Weights are random, prompts of 16 tokens, choices greedy; every way of writing has its turn in each round, and its best
round counts. Rates are per second of CPU time, so that they hold on a busy machine, with the wall-clock ones beside.
Beside it stands in how many of the texts the tokens are those of transformers' dynamic cache.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from gpt2_train.config.settings import ModelConfig
from gpt2_train.distributed.device import DeviceKind
from gpt2_train.inference.engine import Engine, GenerationRequest
from gpt2_train.inference.kv_cache import CachedModel, arrange_weights
from gpt2_train.inference.model import open_model
from gpt2_train.inference.sampling import Sampling
from machine import describe, save

Write = Callable[[list[list[int]], int], list[list[int]]]
"""(prompts, tokens of each) to what follows each."""

CHOICES = {"greedy": Sampling(temperature=0), "top-k 40": Sampling(top_k=40), "top-p 0.9": Sampling(top_p=0.9)}


@dataclasses.dataclass
class Row:
    """One way of writing, in one size of batch.

    Attributes:
        what: which.
        batch: texts at once.
        cpu_rate, wall_rate: tokens per second of CPU time, and of time.
        same: share of the texts that are those of transformers.
    """

    what: str
    batch: int
    cpu_rate: float = 0.0
    wall_rate: float = 0.0
    same: float = 0.0


def transformers_model(config: ModelConfig) -> Any:
    """Their GPT-2 of that shape, with weights large enough that the choice of a token is not a matter of rounding."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(1)
    shape = GPT2Config(
        n_layer=config.layers, n_embd=config.hidden, n_head=config.heads, n_positions=config.sequence_length,
        vocab_size=config.vocabulary_size, initializer_range=0.1,
    )  # fmt: skip
    return GPT2LMHeadModel(shape).eval()


def theirs(model: Any, cache: str | None) -> Write:
    """Writing with `model.generate`."""

    def write(prompts: list[list[int]], tokens: int) -> list[list[int]]:
        ids = torch.tensor(prompts)
        found = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, min_new_tokens=tokens, max_new_tokens=tokens,
            pad_token_id=0, eos_token_id=None, cache_implementation=cache,
        )  # fmt: skip
        return [row[len(prompt) :] for row, prompt in zip(found.tolist(), prompts, strict=True)]

    return write


def ours(
    folder: str,
    precision: str,
    batch: int,
    sampling: Sampling,
    device: DeviceKind = "cpu",
    *,
    static: bool | None = None,
) -> Write:
    """Writing with an `Engine` over the weights in `folder`, arranged for the batch; `static` as for `CachedModel`."""
    source = open_model(folder, device=device, precision=precision)
    model = arrange_weights(source.read_model(), source.precision, batch)

    def write(prompts: list[list[int]], tokens: int) -> list[list[int]]:
        cached = CachedModel(model, batch, len(prompts[0]) + tokens, precision=precision, static=static)
        engine = Engine(cached, vocabulary_size=source.stored.vocabulary_size)
        found: dict[int, list[int]] = {}
        for prompt in prompts:
            request = GenerationRequest("", tokens=tokens, sampling=sampling, prompt_tokens=tuple(prompt))
            found[engine.add(request)] = []
        while engine.writing or engine.waiting:
            for sequence, new in engine.step():
                found[sequence.number].append(new.token)
        return list(found.values())

    return write


def measure(ways: dict[str, Write], batch: int, tokens: int, rounds: int, *, vocabulary: int = 50257) -> list[Row]:
    """Each way of writing `batch` texts of `tokens` tokens, the best of `rounds`."""
    prompts = np.random.default_rng(2).integers(0, vocabulary, (batch, 16)).tolist()
    rows = {name: Row(name, batch) for name in ways}
    expected: list[list[int]] = []
    for write in ways.values():
        write(prompts, 2)
    for _ in range(rounds):
        for name, write in ways.items():
            cpu, wall = time.process_time(), time.perf_counter()
            found = write(prompts, tokens)
            row = rows[name]
            row.cpu_rate = max(row.cpu_rate, batch * tokens / (time.process_time() - cpu))
            row.wall_rate = max(row.wall_rate, batch * tokens / (time.perf_counter() - wall))
            expected = expected or found
            row.same = sum(map(list.__eq__, found, expected)) / batch
    return list(rows.values())


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--sampling", choices=CHOICES, default="greedy", help="of ours; transformers is greedy")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    config = ModelConfig.preset("124M")
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        model = transformers_model(config)
        model.save_pretrained(folder)
        for batch in options.batch:
            ways = {
                "transformers, dynamic cache": theirs(model, None),
                "transformers, static cache": theirs(model, "static"),
                "ours, fp32": ours(folder, "fp32", batch, CHOICES[options.sampling]),
                "ours, bf16": ours(folder, "bf16", batch, CHOICES[options.sampling]),
            }
            with torch.inference_mode():
                rows += measure(ways, batch, options.tokens, options.rounds)
    print("                             batch  tokens/s of CPU time  tokens/s  same texts")
    for row in rows:
        print(f"{row.what:<28} {row.batch:>5} {row.cpu_rate:>21,.1f} {row.wall_rate:>9,.1f} {row.same:>11.0%}")
    content = {"machine": describe("torch", "transformers"), "settings": vars(options)}
    save("generate", content | {"results": [dataclasses.asdict(row) for row in rows]})


if __name__ == "__main__":
    main()
