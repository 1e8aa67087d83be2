"""Pieces that call the commands as users do: what the machine has, whether results are right, what survives."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from gpu_pieces.training import Parts
from indexed_tokens import IndexedTokensWriter, Tokenizer
from measuring import documents

SMALL = """--layers 3 --hidden 128 --heads 4 --sequence-length 64 --dropout 0 --warmup 10 --schedule constant
    --log-every 1 --eval-every 0 --split 90,10,0""".split()  # noqa: SIM905
RATES = {"adamw": "5e-4", "muon": "5e-3"}
"""Of learning: with four times as much, runs in bf16 part from each other by 0.1 on one CPU, too; here by 0.002."""
WINDOW = 10
"""Steps over which losses are averaged before they are compared."""
PROMPTS = ["The function returns", "A list of", "If the argument is", "This module"]


def gpt2(*words: object, fine: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a command line of `gpt2` to its end, without TF32. Raises RuntimeError if it fails and should not."""
    command = [sys.executable, "-m", "gpt2_train", *map(str, words)]
    environment = os.environ | {"NVIDIA_TF32_OVERRIDE": "0"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if fine and done.returncode:
        raise RuntimeError(f"gpt2 {words[0]} ended with status {done.returncode}: {done.stderr.strip()[-1500:]}")
    return done


def device() -> str:
    """Where the pieces compute."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def write_corpus(prefix: Path, count: int) -> str:
    """Token files of documents in English, the same everywhere with the same Python; returns the prefix."""
    tokenizer = Tokenizer.gpt2()
    with IndexedTokensWriter(prefix) as writer:
        for document in documents(count):
            writer.add([*tokenizer.encode(document["text"]), 50256])
    return str(prefix)


def losses_of(folder: Path) -> list[float]:
    """The loss of each step of a run."""
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [row["loss"] for row in rows if "loss" in row]


def largest_difference(one: list[float], other: list[float]) -> float:
    """The largest difference of two runs' losses, as means over windows of steps."""
    if len(one) != len(other):
        raise RuntimeError(f"one run logged {len(one)} losses and the other {len(other)}")
    windows = [slice(at, at + WINDOW) for at in range(0, len(one), WINDOW)]
    return round(max(abs(statistics.fmean(one[at]) - statistics.fmean(other[at])) for at in windows), 5)


def doctor(*, smoke: bool) -> Parts:
    """What `gpt2 doctor` finds."""
    yield "found", json.loads(gpt2("doctor", "--json").stdout)


def quickstart(*, smoke: bool) -> Parts:
    """A small model on CPU and GPU, in fp32 and bf16, with AdamW and Muon; resumed; its texts and its evaluation."""
    here, steps, batch = (device(), 2, 4) if smoke else (device(), 200, 32)
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        data = write_corpus(work / "tokens", 30 if smoke else 600)

        def train(run: str, optimizer: str, precision: str, where: str, to: int = steps) -> list[float]:
            flags = ["--optimizer", optimizer, "--lr", RATES[optimizer], "--precision", precision, "--device", where]
            flags += ["--global-batch-size", str(batch), *(["--no-compile"] if smoke else [])]
            gpt2("train", "--data", data, "--output", work / run, *SMALL, "--steps", to, *flags)
            return losses_of(work / run)

        on_cpu = {optimizer: train(f"cpu-{optimizer}", optimizer, "fp32", "cpu") for optimizer in RATES}
        found: list[float] = []
        for optimizer, precision in (("adamw", "fp32"), ("muon", "bf16"), ("adamw", "bf16")):
            found = train(f"{optimizer}-{precision}", optimizer, precision, here)
            row = {"largest_difference": largest_difference(found, on_cpu[optimizer])}
            yield f"{optimizer}, {precision}", row | {"last_loss": found[-1], "on_cpu": on_cpu[optimizer][-1]}
        train("resumed", "adamw", "bf16", here, steps // 2)
        resumed = train("resumed", "adamw", "bf16", here)
        yield "resume", {"largest_difference": largest_difference(resumed, found)}
        yield from inference(work / "cpu-adamw", data, here)


def courses(*, smoke: bool) -> Parts:
    """The losses of 124M with the residual stream in fp32 and in bf16, and in fp32 from another seed."""
    here, steps, batch = (device(), 2, 2) if smoke else (device(), 300, 32)
    size = SMALL if smoke else ["--model", "124M", "--dropout", 0, "--log-every", 1, "--eval-every", 0, "--lr", "6e-4"]
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        data = write_corpus(work / "tokens", 30 if smoke else 3000)
        found: dict[str, list[float]] = {}
        for run, flags in (("fp32", []), ("bf16", ["--residual", "bf16"]), ("another seed", ["--seed", 1])):
            words = [
                "--steps",
                steps,
                "--global-batch-size",
                batch,
                "--micro-batch-size",
                batch,
                "--no-save",
                "--precision",
                "bf16",
            ]
            kept = ["--no-compile"] if smoke else []
            gpt2("train", "--data", data, "--output", work / run, *size, *words, "--device", here, *flags, *kept)
            found[run] = losses_of(work / run)
            yield run, {"losses": found[run]}
        for run, losses in found.items():
            yield f"{run}, from fp32", {"largest_difference": largest_difference(losses, found["fp32"])}


def inference(checkpoint: Path, data: str, here: str) -> Parts:
    """The same weights on CPU and GPU, in fp32: held-out loss and greedy texts."""
    same = ["--checkpoint", checkpoint, "--precision", "fp32", "--json"]
    measured = [
        json.loads(gpt2("evaluate", "held-out-loss", data, *same, "--split", "valid", "--device", where).stdout)["loss"]
        for where in ("cpu", here)
    ]
    yield "evaluate", {"largest_difference": round(abs(measured[0] - measured[1]), 6), "losses": measured}
    written = [
        json.loads(gpt2("generate", *same, "--prompt", *PROMPTS, "--tokens", 20, "--greedy", "--device", where).stdout)
        for where in ("cpu", here)
    ]
    texts = [[sample["text"] for sample in one["samples"]] for one in written]
    equal = sum(one == other for one, other in zip(*texts, strict=True))
    yield "generate", {"same_texts": equal / len(PROMPTS), "texts": texts[1]}


def killed(*, smoke: bool) -> Parts:
    """A run that SIGKILL ends after some saves, and the same command again."""
    steps, batch = (20, 4) if smoke else (400, 32)
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        data = write_corpus(work / "tokens", 30)
        words = ["train", "--data", data, "--output", work / "run", *SMALL, "--save-every", 10, "--device", device()]
        words += ["--global-batch-size", batch, "--no-compile"]
        command = [sys.executable, "-m", "gpt2_train", *map(str, words), "--steps", "1000000"]
        with (work / "log").open("w") as log:
            process = subprocess.Popen(command, stderr=log)
            try:
                at = _wait_for_a_save(process, work, steps // 2)
            finally:
                process.send_signal(signal.SIGKILL)
                process.wait()
        # What was saved between the look and the end may be later.
        done = gpt2(*words, "--steps", at + steps)
        yield "resume", {"killed_at": at, "resumed": int("resuming" in done.stderr), "steps": len(_steps(work))}


def _wait_for_a_save(process: subprocess.Popen[bytes], work: Path, least: int) -> int:
    """The step of the first checkpoint seen from step `least` on."""
    latest = work / "run" / "checkpoints" / "latest"
    while process.poll() is None:
        if latest.exists() and (step := int(latest.read_text().strip().removeprefix("step-"))) >= least:
            return step
        time.sleep(0.05)
    raise RuntimeError(f"the run ended before it was killed: {(work / 'log').read_text()[-1500:]}")


def _steps(work: Path) -> list[int]:
    rows = map(json.loads, (work / "run" / "metrics.jsonl").read_text().splitlines())
    return [row["step"] for row in rows if "loss" in row]


def memory(*, smoke: bool) -> Parts:
    """A micro-batch that no GPU has memory for: what a user reads."""
    if device() == "cpu":
        return  # there it would take all that the machine has
    with tempfile.TemporaryDirectory() as name:
        data = write_corpus(Path(name) / "tokens", 300)
        shape = ["--layers", 4, "--hidden", 256, "--heads", 4, "--sequence-length", 1024, "--steps", 1, "--dropout", 0]
        batch = ["--micro-batch-size", 2048, "--global-batch-size", 2048, "--no-save", "--no-compile"]
        words = ["train", "--data", data, "--output", Path(name) / "run", "--device", "cuda", *shape, *batch]
        done = gpt2(*words, fine=False)
    said = [line for line in done.stderr.splitlines() if line.strip()]
    about = [line for line in said if "memory" in line.lower()]
    yield "sentence", {"status": done.returncode, "lines": len(about), "said": said[-3:]}
