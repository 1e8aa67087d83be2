"""Which options of newer recipes help a small GPT-2, each alone and all together, against the recipe of 2019?

    ./uvw run pipelines/run.py quickstart --until dedup          # the documents, once
    ./uvw run benchmarks/recipes.py                              # an hour of one core; the same command resumes

Models of 2 million parameters learn from the quickstart's documents, with a vocabulary of 2,048, on one thread and in
bf16. 15% of the documents are held out. First the learning rates are chosen, for each recipe that could want another
one, to a factor of two, by runs of a seed that is used for nothing else. Then each recipe has a run for each of five
seeds, and of fifteen where five leave it open. Runs of a seed begin with the same weights and, with the same batches,
read the same text in the same order: differences to 2019's recipe are paired by seeds. Every run has a whole schedule
of its own; no loss is read off the middle of one.

Each row has the bits per byte of held-out documents less those of its base, with 95% intervals over seeds (Student's
t), after as many tokens, and after as much CPU time. The latter moves along the slope between runs of half and of all
of the steps: of 2019's recipe, and for everything together of its runs of 45 and 100%. The steps to the same loss
follow from the same slope.
"""

from __future__ import annotations

import argparse
import math
import shutil
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ablate import write
from command_kit import Progress, write_json
from gpt2_train.config.settings import TrainSettings
from gpt2_train.distributed.device import choose_device, keep_freed_memory, use_threads
from gpt2_train.distributed.jobs import StopRequest
from gpt2_train.distributed.mesh import make_world
from gpt2_train.inference.model import open_model
from gpt2_train.inference.scorer import Scorer
from gpt2_train.training.launch import train
from indexed_tokens import IndexedTokens, corpus_tokenizer
from machine import describe, save, write_tables
from quickstart_models import token_files
from webtext_run.ablation.arms import open_arms
from webtext_run.ablation.held_out import HeldOut, held_out_sets
from webtext_run.ablation.runs import LOSSES_FILE, read_losses
from webtext_run.ablation.statistics import over_seeds
from webtext_run.ablation.verdict import Losses

VOCABULARY, HELD_OUT, SCORED = 2048, 0.15, 40_000
STEPS, SEQUENCES = 200, 8
SEEDS, TUNING_SEED = 5, 100

FIXED: dict[str, Any] = {
    "layers": 3, "hidden": 208, "heads": 4, "sequence_length": 128, "precision": "auto", "split": "1,0,0",
    "device": "cpu", "threads": 1, "compile": False, "async_checkpoint": False, "eval_every": 0, "warmup": 0.05,
    "average_tail": 0.1,
}  # fmt: skip
"""What all runs have in common: 2019's warm-up, 1%, would be two steps here, which no optimizer bears. The average is
one more model of each run, and changes nothing in it."""


class Recipe(NamedTuple):
    """One recipe.

    Attributes:
        title: what it is called in the table.
        changes: settings, where they differ from the defaults of `gpt2 train`, which are 2019's.
        rate: whose tuned learning rate it has.
        base: what it is compared with.
        share: of the steps.
        seeds: how many there are, from 1 on.
    """

    title: str
    changes: dict[str, Any]
    rate: str = "2019"
    base: str = "2019"
    share: float = 1.0
    seeds: int = SEEDS


WSD = {"schedule": "wsd", "cooldown": 0.4, "min_lr": 0.0}
MUON = {"optimizer": "muon"}
ALL = {**MUON, **WSD, "dropout": 0.0, "init_residual": "zero", "cautious_decay": True, "weight_decay": 0.1}

RECIPES: dict[str, Recipe] = {
    "2019": Recipe("2019", {}),
    "muon": Recipe("Muon", MUON, rate="muon"),
    "all": Recipe("together", ALL, rate="all", seeds=3 * SEEDS),  # five leave open whether beginning at 0 helps
    "all-45": Recipe("together, 45% of the steps", ALL, rate="all", share=0.45),
    "2019-half": Recipe("2019, half of the steps", {}, share=0.5),
    "wsd": Recipe("wsd", WSD),
    "constant": Recipe("no decay", {"schedule": "constant"}),
    "dropout": Recipe("no dropout", {"dropout": 0.0}),
    "zero": Recipe("residual projections begin at 0", {"init_residual": "zero"}),
    "all-zero": Recipe(
        "together, not begun at 0", {**ALL, "init_residual": "scaled"}, rate="all", base="all", seeds=3 * SEEDS
    ),
    "all-cautious": Recipe("together, all weights decay", {**ALL, "cautious_decay": False}, rate="all", base="all"),
    "aligned": Recipe("sequences begin with a document", {"order": "hashed"}),
    "batch": Recipe("half the batch, twice the steps", {"global_batch_size": SEQUENCES // 2}, rate="batch", share=2.0),
}  # fmt: skip

AVERAGED = ("2019", "wsd", "constant", "all")
"""Recipes of whose runs the average is measured, too."""

FIRST_RATES = {"2019": 1e-3, "batch": 1e-3, "muon": 1e-2, "all": 5e-3}
"""The learning rate that is tried first, then twice of it, and so on until the best has a worse one on each side."""


class Bench:
    """The runs, of which the losses and the CPU time are kept.

    Args:
        work: folder with the token files `train` and `held_out`.
    """

    def __init__(self, work: Path) -> None:
        self.work, self.data = work, str(work / "train")
        arms, tokenizer = open_arms({"train": self.data})
        self.held_out: HeldOut = held_out_sets(
            arms, tokenizer, held_out=str(work / "held_out"), want=(), most=SCORED
        )[0]  # fmt: skip
        self.found: dict[str, Any] = {}
        self.losses = Losses(self.found, self.held_out)

    def run(self, recipe: Recipe, name: str, rate: float, seed: int) -> dict[str, Any]:
        """Make one run, if there is none; what was measured of it."""
        output = self.work / "runs" / name
        kept = read_losses(output / LOSSES_FILE)
        if kept is None:
            shutil.rmtree(output, ignore_errors=True)
            steps = round(STEPS * recipe.share)
            settings = TrainSettings(
                **{**FIXED, "global_batch_size": SEQUENCES, "lr": rate, "min_lr": rate / 15, **recipe.changes},
                data=(self.data,), output=str(output), seed=seed, steps=steps, save_every=steps, log_every=steps,
            )  # fmt: skip
            begin = time.process_time()
            train(settings, make_world(choose_device("cpu"), 1, 1), StopRequest())
            seconds = time.process_time() - begin
            kept = {"cpu_seconds": seconds, "steps": steps, "nats": {}}
            folders = {"last": output} | ({"average": output / "average"} if name.split("-")[0] in AVERAGED else {})
            for of, folder in folders.items():
                losses = Scorer(open_model(folder, device="cpu")).document_losses(self.held_out.documents)
                kept["nats"][of] = losses.tolist()
            shutil.rmtree(output)
            output.mkdir()
            write_json(output / LOSSES_FILE, kept)
        for of, nats in kept["nats"].items():
            planned = name if of == "last" else name.replace("-seed", "-average-seed")
            self.found[planned] = {**kept, "nats": {self.held_out.name: nats}}
        return kept

    def tuned(self) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
        """The best learning rate for each recipe that has its own, and the bits per byte of all that were tried."""
        best: dict[str, float] = {}
        tried: dict[str, dict[str, float]] = {}
        for name, first in FIRST_RATES.items():
            found: dict[float, float] = {}
            waiting = [first, 2 * first]
            while waiting:
                rate = waiting.pop(0)
                arm = f"{name}-rate{rate:g}"
                self.run(RECIPES[name], f"{arm}-seed{TUNING_SEED}", rate, TUNING_SEED)
                found[rate] = self.losses.per_byte(arm, TUNING_SEED)
                print(arm, f"{found[rate]:.4f}", flush=True)
                best[name] = min(found, key=found.__getitem__)
                if not waiting and len(found) > 1 and best[name] in (min(found), max(found)):
                    waiting.append(best[name] * (0.5 if best[name] == min(found) else 2))
            tried[name] = {f"{rate:g}": round(found[rate], 4) for rate in sorted(found)}
        return best, tried

    def make(self, rates: dict[str, float]) -> None:
        """Every run of every seed."""
        most = max(recipe.seeds for recipe in RECIPES.values())
        planned = [(seed, name) for seed in range(1, most + 1) for name in RECIPES if seed <= RECIPES[name].seeds]
        with Progress("recipes", "runs", len(planned)) as progress:
            for seed, name in planned:
                recipe = RECIPES[name]
                self.run(recipe, f"{name}-seed{seed}", rates[recipe.rate], seed)
                progress.advance(note=f"{name}-seed{seed}")

    def bits(self, name: str) -> dict[int, float]:
        """Bits per byte of each seed that there is."""
        seeds = range(1, RECIPES[name.removesuffix("-average")].seeds + 1)
        return {seed: self.losses.per_byte(name, seed) for seed in seeds if f"{name}-seed{seed}" in self.found}

    def cpu_seconds(self, name: str) -> float:
        """CPU time of a run, the median of the seeds."""
        return statistics.median(self.found[f"{name}-seed{seed}"]["cpu_seconds"] for seed in self.bits(name))

    def slopes(self, name: str) -> dict[int, float]:
        """What twice the steps gain, of each seed: of everything together its own, else that of 2019's recipe.

        It is the mean for seeds that have no shorter run.
        """
        less, whole = ("all-45", "all") if name.startswith("all") else ("2019-half", "2019")
        doublings = math.log2(RECIPES[whole].share / RECIPES[less].share)
        longer = self.bits(whole)
        found = {seed: (bits - longer[seed]) / doublings for seed, bits in self.bits(less).items()}
        return dict.fromkeys(self.bits(name), statistics.fmean(found.values())) | found

    def row(self, name: str, base: str, title: str) -> dict[str, Any]:
        """A row of the table."""
        found, theirs, slopes = self.bits(name), self.bits(base), self.slopes(name)
        seeds = sorted(found.keys() & theirs.keys())
        ratio = self.cpu_seconds(name) / self.cpu_seconds(base)
        gains = [theirs[seed] - found[seed] for seed in seeds]
        at_equal_time = [gain - slopes[seed] * math.log2(ratio) for seed, gain in zip(seeds, gains, strict=True)]
        share = RECIPES[name.removesuffix("-average")].share / RECIPES[base].share
        steps = [share * 2.0 ** (-gain / slopes[seed]) for seed, gain in zip(seeds, gains, strict=True)]
        documents = self.losses.compared(base, name, seeds)["documents_interval"]
        return {
            "name": name, "title": title, "base": base, "seeds": len(seeds),
            "bits_per_byte": statistics.fmean(found[seed] for seed in seeds), "cpu_ratio": ratio,
            "gain": over_seeds(gains)._asdict(), "over_documents": [documents["low"], documents["high"]],
            "gain_at_equal_cpu_time": over_seeds(at_equal_time)._asdict(),
            "steps_to_the_same_loss": over_seeds(steps)._asdict(),
        }  # fmt: skip

    def rows(self) -> list[dict[str, Any]]:
        """The table."""
        found = [self.row(name, recipe.base, recipe.title) for name, recipe in RECIPES.items()]
        return found + [
            self.row(f"{name}-average", name, f"{RECIPES[name].title}: mean of its last tenth") for name in AVERAGED
        ]


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as a table."""

    def interval(found: Mapping[str, float]) -> str:
        return f"{found['value']:+.3f} ({found['low']:+.3f}, {found['high']:+.3f})"

    lines = ["| | beside | bits per byte | gain | at equal CPU time | steps |", "|---" * 6 + "|"]
    titles = {name: recipe.title for name, recipe in RECIPES.items()}
    for row in rows:
        if row["name"] == "2019-half":  # for the slope alone
            continue
        if row["name"] == row["base"]:
            lines.append(f"| {row['title']} | | {row['bits_per_byte']:.3f} | | | |")
            continue
        cells = [row["title"], titles[row["base"]], f"{row['bits_per_byte']:.3f}"]
        cells += [
            interval(row["gain"]),
            interval(row["gain_at_equal_cpu_time"]),
            f"{row['steps_to_the_same_loss']['value']:.0%}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def make_data(documents: Path, work: Path) -> None:
    """Token files of what is learned from and of what is held out."""
    corpus = token_files(str(VOCABULARY), documents, work)
    tokenizer = corpus_tokenizer(corpus)
    assert tokenizer is not None
    found = [tokens.astype(np.int64) for tokens in IndexedTokens(corpus)]
    found = [found[at] for at in np.random.default_rng(1).permutation(len(found))]
    count = round(HELD_OUT * len(found))
    write(work / "held_out", found[:count], tokenizer)
    write(work / "train", found[count:], tokenizer)


def main() -> int:
    """Measure, print, and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=Path, default=Path("runs/quickstart/dedup"), help="document shards")
    parser.add_argument("--work", type=Path, default=Path("runs/recipes"), help="folder for token files and runs")
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    if not (given.work / "train.idx").exists():
        make_data(given.documents, given.work)
    use_threads(1)
    keep_freed_memory(choose_device("cpu"))
    bench = Bench(given.work)
    rates, tried = bench.tuned()
    bench.make(rates)
    rows = bench.rows()
    print(markdown(rows))
    write_tables("recipes.py", markdown(rows))
    save("recipes", {"machine": describe("torch"), "steps": STEPS, "seeds": SEEDS, "rates": tried, "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
