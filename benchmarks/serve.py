"""Tokens per second of `gpt2 serve` for 1 to 200 clients, written together and one after another.

A server in a process of its own, with new weights, is asked by clients in this one over HTTP; each asks for one text.
Rates are per second of the server's CPU time, so that they hold on a busy machine (Linux only); the time to the first
token is by the clock, and does not. "One after another" is the same server with `--batch-size 1`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gpt2_train.checkpoint.save import Checkpointer, model_tensors
from gpt2_train.config.settings import ModelConfig
from gpt2_train.inference.engine import GenerationRequest
from gpt2_train.inference.generator import TextGenerator
from gpt2_train.inference.model import open_model
from gpt2_train.model.gpt2 import GPT2
from indexed_tokens import Tokenizer
from machine import describe, save
from pages import RESULTS

if TYPE_CHECKING:
    import httpx2

PROMPT = "The history of the city begins with"


@dataclasses.dataclass(frozen=True)
class Case:
    """A model, and what is asked of it."""

    name: str
    config: ModelConfig
    tokens: int
    clients: tuple[int, ...]
    alone: int
    """Requests for "one after another"."""


CASES = (
    Case("4 layers x 128", ModelConfig(layers=4, hidden=128, heads=4, sequence_length=256), 64, (1, 8, 32, 200), 8),
    Case("124M", ModelConfig(layers=12, hidden=768, heads=12), 16, (1, 8, 32), 2),
)


def make_checkpoint(folder: Path, config: ModelConfig) -> Path:
    """New weights with GPT-2's tokenizer."""
    model = GPT2(config).initialise(torch.Generator().manual_seed(1))
    checkpointer = Checkpointer(folder / "checkpoints", config=config, tokenizer=Tokenizer.gpt2())
    checkpointer.save(model_tensors(model), step=0, samples=0)
    return folder


@contextlib.contextmanager
def server(checkpoint: Path, rows: int, device: str = "cpu") -> Iterator[tuple[str, int]]:
    """`gpt2 serve` with one thread; gives its address and process id."""
    flags = ["--checkpoint", str(checkpoint), "--port", "0", "--batch-size", str(rows), "--threads", "1"]
    words = [sys.executable, "-m", "gpt2_train", "serve", *flags, "--device", device, "--name", "model"]
    with tempfile.TemporaryFile("w+") as rest, subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        found = None
        while found is None:
            line = process.stderr.readline()
            assert line, "the server ended"
            found = re.search(r" at (http://\S+)/ ", line)
        drain = subprocess.Popen(["cat"], stdin=process.stderr, stdout=rest)
        try:
            yield found[1], process.pid
        finally:
            process.terminate()
            process.wait()
            drain.wait()


def cpu_seconds(process: int) -> float:
    """CPU time that a process has taken."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def ask(client: httpx2.AsyncClient, url: str, tokens: int, number: int) -> float:
    """Read one streamed text; returns the seconds to its first token."""
    body = {"prompt": PROMPT, "max_tokens": tokens, "seed": number, "stream": True, "ignore_eos": True}
    start, first = time.monotonic(), 0.0
    async with client.stream("POST", f"{url}/v1/completions", json=body) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: {") and not first:
                first = time.monotonic() - start
    return first


async def ask_all(url: str, tokens: int, clients: int, each: int) -> list[float]:
    """`clients` at once, each asking `each` times."""
    import httpx2  # only who asks a server needs it

    limits = httpx2.Limits(max_connections=clients)
    async with httpx2.AsyncClient(limits=limits, timeout=600) as client:

        async def one(number: int) -> list[float]:
            return [await ask(client, url, tokens, number * each + turn) for turn in range(each)]

        return [first for found in await asyncio.gather(*(one(number) for number in range(clients))) for first in found]


def measure(url: str, process: int, tokens: int, clients: int, each: int) -> dict[str, Any]:
    """A row of the table."""
    asyncio.run(ask_all(url, 4, 1, 1))
    cpu, wall = cpu_seconds(process), time.monotonic()
    firsts = asyncio.run(ask_all(url, tokens, clients, each))
    cpu, wall = cpu_seconds(process) - cpu, time.monotonic() - wall
    written = clients * each * tokens
    return {
        "texts": clients * each,
        "tokens_per_cpu_second": round(written / cpu, 1),
        "tokens_per_second": round(written / wall, 1),
        "first_token_ms": round(1000 * statistics.median(firsts)),
    }


def measure_direct(checkpoint: Path, tokens: int, texts: int, rows: int) -> dict[str, Any]:
    """The same texts without a server."""
    torch.set_num_threads(1)
    generator = TextGenerator(open_model(checkpoint, device="cpu"), rows)
    requests = [GenerationRequest(PROMPT, seed=number, tokens=tokens, ignore_end=True) for number in range(texts)]
    generator.generate([dataclasses.replace(request, tokens=2) for request in requests])
    start = time.process_time()
    generator.generate(requests)
    rate = texts * tokens / (time.process_time() - start)
    return {"texts": texts, "tokens_per_cpu_second": round(rate, 1)}


def run(case: Case) -> list[dict[str, Any]]:
    """All rows of one model."""
    rows: list[dict[str, Any]] = []

    def add(what: str, found: dict[str, Any]) -> None:
        rows.append({"model": case.name, "what": what, **found})
        shown = "  ".join(f"{name} {value:,}" for name, value in found.items())
        print(f"  {case.name:<16} {what:<44} {shown}", flush=True)

    with tempfile.TemporaryDirectory() as place:
        checkpoint = make_checkpoint(Path(place) / "run", case.config)
        with server(checkpoint, 1) as (url, process):
            add(
                f"{case.alone} clients, one after another (--batch-size 1)",
                measure(url, process, case.tokens, case.alone, 1),
            )
        with server(checkpoint, 16) as (url, process):
            for clients in case.clients:
                each = max(1, 2 // clients)
                add(f"{clients} clients, 16 texts at once", measure(url, process, case.tokens, clients, each))
        add("32 texts, no server, 16 at once", measure_direct(checkpoint, case.tokens, 32, 16))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=[case.name for case in CASES], help="one of the models")
    only = parser.parse_args().only
    path = RESULTS / "serve.json"
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    for case in CASES:
        if only in (None, case.name):
            rows = [row for row in rows if row["model"] != case.name] + run(case)
    save("serve", {"machine": describe("torch", "starlette", "hypercorn"), "rows": rows})


if __name__ == "__main__":
    main()
