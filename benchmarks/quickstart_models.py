"""Which small model writes best after the minutes of the quickstart? Vocabularies and sizes, by bits per byte.

    ./uvw run pipelines/run.py quickstart --until dedup          # the documents, once
    ./uvw run benchmarks/quickstart_models.py                    # --only NAME ... --minutes 2.5

Every candidate learns from the same documents for the same time, with the threads that are fastest, and is measured on
the same held-out documents. On a machine that others use, too, `--cpu-time` gives each the same CPU time on one thread
instead, whatever it has to wait for. Some 17 minutes on an idle machine: for each candidate the time and some seconds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from machine import describe, save

ADAMW = "--sequence-length 128 --lr 4e-3 --min-lr 4e-4 --beta2 0.95"
MUON = (
    "--sequence-length 64 --global-batch-size 32 --lr 2e-2 --min-lr 0 --schedule linear --optimizer muon "
    "--weight-decay 0.05 --beta2 0.98 --precision auto"
)
CANDIDATES: dict[str, str] = {
    "gpt2 4x128 adamw": f"--layers 4 --hidden 128 --heads 4 --global-batch-size 4 {ADAMW}",
    "4096 4x192 adamw": f"--layers 4 --hidden 192 --heads 6 --global-batch-size 8 {ADAMW}",
    "gpt2 3x128 muon": f"--layers 3 --hidden 128 --heads 4 {MUON}",
    "4096 3x128 muon": f"--layers 3 --hidden 128 --heads 4 {MUON}",
    "8192 3x128 muon": f"--layers 3 --hidden 128 --heads 4 {MUON}",
    "8192 4x192 muon": f"--layers 4 --hidden 192 --heads 6 {MUON}",
}
"""The vocabulary (gpt2, or a size to train) and the model of each, with what else suits it."""

SAME = """--warmup 0.03 --dropout 0 --split 90,10,0 --log-every 50 --save-every 0 --eval-every 0
    --device cpu"""


def command(program: str, *words: object) -> dict[str, Any]:
    """The JSON summary of `webtext` or `gpt2` with these words."""
    package = {"webtext": "webtext_prep", "gpt2": "gpt2_train"}[program]
    done = subprocess.run(
        [sys.executable, "-m", package, *map(str, words), "--json"], check=True, stdout=subprocess.PIPE
    )
    return dict(json.loads(done.stdout.decode().splitlines()[-1]))


def token_files(vocabulary: str, documents: Path, work: Path) -> Path:
    """Token files of the documents in a vocabulary, made once; their prefix."""
    corpus = work / f"corpus-{vocabulary}"
    tokenizer: list[object] = []
    if vocabulary != "gpt2":
        folder = work / f"tokenizer-{vocabulary}"
        command("webtext", "train-tokenizer", "--input", documents, "--output", folder, "--vocabulary-size", vocabulary)
        tokenizer = ["--tokenizer", folder]
    command("webtext", "tokenize", "--input", documents, "--output", corpus, *tokenizer)
    return Path(f"{corpus}_text_document")


def measure(name: str, documents: Path, work: Path, minutes: float, *, cpu_time: bool) -> dict[str, Any]:
    """Train one candidate, if it is not trained yet, and measure it."""
    data = token_files(name.split()[0], documents, work)
    model = work / name.replace(" ", "-")
    flags = ["--data", data, "--output", model, "--minutes", minutes, *SAME.split(), *CANDIDATES[name].split()]
    flags += ["--threads", 1] if cpu_time else []
    this = [sys.executable, __file__, "--train", *(["--cpu-time"] if cpu_time else []), "--"]
    done = subprocess.run([*this, *map(str, flags)], check=True, stdout=subprocess.PIPE)
    trained = json.loads(done.stdout.decode().splitlines()[-1])
    found = command("gpt2", "evaluate", "--checkpoint", model, "--data", data, "--split", "valid", "--device", "cpu")
    keys = ("loss", "bits_per_byte", "bytes", "unigram_loss")
    return {
        "name": name,
        "settings": CANDIDATES[name],
        **{key: trained[key] for key in ("parameters", "steps", "tokens", "epochs", "seconds")},
        **{key: found.get(key) for key in keys},
    }


def train(flags: list[str], *, cpu_time: bool) -> int:
    """`gpt2 train`, whose minutes are CPU time if asked for."""
    from gpt2_train.cli import main as gpt2
    from gpt2_train.training import plan

    if cpu_time:
        plan.clock = time.process_time
    return gpt2(["train", *flags, "--json"])


def main() -> int:
    """Measure the candidates and print their table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=Path, default=Path("runs/quickstart/dedup"), help="document shards")
    parser.add_argument("--work", type=Path, default=Path("runs/quickstart_models"), help="folder for models")
    parser.add_argument("--minutes", type=float, default=2.5, help="of training, for each candidate")
    parser.add_argument("--cpu-time", action="store_true", help="count CPU time, on one thread")
    parser.add_argument("--only", nargs="+", default=list(CANDIDATES), metavar="NAME", help="some of the candidates")
    parser.add_argument("--train", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("flags", nargs="*", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.train:
        return train(given.flags, cpu_time=given.cpu_time)
    given.work.mkdir(parents=True, exist_ok=True)
    rows = []
    print(f"{'candidate':<18} {'parameters':>11} {'tokens':>11} {'epochs':>7} {'bits/byte':>10}")
    for name in given.only:
        row = measure(name, given.documents, given.work, given.minutes, cpu_time=given.cpu_time)
        rows.append(row)
        print(
            f"{name:<18} {row['parameters']:>11,} {row['tokens']:>11,} {row['epochs']:>7.2f} "
            f"{row['bits_per_byte']:>10.3f}",
            flush=True,
        )
    length = {"minutes": given.minutes, "cpu_time": given.cpu_time}
    save("quickstart_models", {"machine": describe("torch"), **length, "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
