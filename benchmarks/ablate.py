"""Does `gpt2 ablate` see what is there, and nothing that is not? Hundreds of small runs, and how often they mislead.

    ./uvw run pipelines/run.py quickstart --until dedup          # the documents, once
    ./uvw run benchmarks/ablate.py                               # the same command resumes

Models of 1 layer and width 64 learn from some of the quickstart's documents, with a vocabulary of 1,024. Measured are

- 40 comparisons of the corpus with itself, each of five seeds of its own: the same initial weights, and 20% of the
  samples in other batches. No run is in two comparisons. At most 5% may say "better" or "worse". Runs at a tenth of the
  learning rate, whose sign a verdict needs, are made for those alone that would say so without them.
- corpora with 20% of the documents replaced, by their words shuffled, by copies of a few others, and by menus: in how
  many of three comparisons of five seeds each is found worse. These have 200 steps, the ones above 60.
- what pairing gains: the standard deviation over seeds of the difference to the corpus, if the runs of a pair have
  nothing in common, the same initial weights, these and a shuffle by position, or these and the order by hashes.

Some 540 runs, of two or five seconds of CPU time each. `--minutes-run FOLDER` adds what a `gpt2 ablate` in that folder
could see.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from command_kit import Progress, available_cores
from gpt2_train.config.settings import TrainSettings
from indexed_tokens import IndexedTokens, IndexedTokensWriter, Tokenizer, corpus_tokenizer, save_corpus_tokenizer
from machine import describe, save
from webtext_run.ablation.arms import open_arms
from webtext_run.ablation.held_out import held_out_sets
from webtext_run.ablation.plan import AGAIN, FULL, LOW, LOW_RATE, AblationPlan, PlannedRun, half_of, recipe_of
from webtext_run.ablation.runs import TrainingJob, Workers, read_losses
from webtext_run.ablation.settings import AblateSettings
from webtext_run.ablation.statistics import Interval, over_seeds
from webtext_run.ablation.verdict import NO_DIFFERENCE, Losses, verdict_of

PLAIN, HALF_OF_IT = "plain", "random-71%"
WORSE_ARMS = ("shuffled-words", "copies", "menus")
PAIRED_ARMS = (HALF_OF_IT, WORSE_ARMS[0])
REPLACED, KEPT_AT_RANDOM = 0.2, 0.71
COPIED = 10
"""Documents whose copies stand for others."""
TRAIN_TOKENS, HELD_OUT = 90_000, 0.15
VOCABULARY = 1024
ITSELF, ITSELF_SEEDS = 40, 5
"""Comparisons of the corpus with itself, and seeds of each;"""
WORSE, WORSE_SEEDS = 3, 5
"""and of those with each worse corpus."""
PAIRED_SEEDS = 12
MODEL = {"layers": 1, "hidden": 64, "heads": 2, "sequence_length": 64, "global_batch_size": 8, "precision": "fp32"}
STEPS, ITSELF_STEPS = 200, 60

SHUFFLED, LOW_AGAIN = "shuffled", "again-low-rate"
"""Kinds of runs beside those of `gpt2 ablate`."""

Tokens = npt.NDArray[np.int64]


def token_files(documents: Path, work: Path) -> Path:
    """Token files of the documents in a vocabulary of their own, made once; their prefix."""
    tokenizer, corpus = work / f"tokenizer-{VOCABULARY}", work / f"corpus-{VOCABULARY}"
    size = str(VOCABULARY)
    for words in (
        ["train-tokenizer", "--input", documents, "--output", tokenizer, "--vocabulary-size", size],
        ["tokenize", "--input", documents, "--output", corpus, "--tokenizer", tokenizer],
    ):
        subprocess.run([sys.executable, "-m", "webtext_prep", *map(str, words)], check=True)
    return Path(f"{corpus}_text_document")


def make_arms(corpus: Path, work: Path) -> None:
    """Token files of every arm and of what is held out, in `work`, from those of all documents."""
    tokenizer = corpus_tokenizer(corpus)
    assert tokenizer is not None
    random = np.random.default_rng(1)
    documents = [tokens.astype(np.int64) for tokens in IndexedTokens(corpus)]
    documents = [documents[at] for at in random.permutation(len(documents))]
    count = round(HELD_OUT * len(documents))
    held_out, rest = documents[:count], documents[count:]
    ends = np.cumsum([len(tokens) for tokens in rest])
    plain = rest[: int(np.searchsorted(ends, TRAIN_TOKENS))]
    spare = rest[len(plain) :]
    write(work / "held_out", held_out, tokenizer)
    write(work / PLAIN, plain, tokenizer)
    write(work / HALF_OF_IT, [tokens for tokens in plain if random.random() < KEPT_AT_RANDOM], tokenizer)
    replaced = random.random(len(plain)) < REPLACED
    for arm in WORSE_ARMS:
        others = [replacement(arm, tokens, plain, spare, tokenizer, random) for tokens in plain]
        mixture = [other if changed else tokens
                   for tokens, other, changed in zip(plain, others, replaced, strict=True)]  # fmt: skip
        write(work / arm, mixture, tokenizer)


def replacement(
    arm: str, tokens: Tokens, plain: Sequence[Tokens], spare: Sequence[Tokens], tokenizer: Tokenizer, random: Any
) -> Tokens:
    """What stands for a document in an arm, about as long."""
    if arm == "copies":
        return plain[int(random.integers(COPIED))]
    end = tokenizer.end_of_text
    if arm == "shuffled-words":
        words = tokenizer.decode(tokens[tokens != end].tolist()).split()
        text = " ".join(words[at] for at in random.permutation(len(words)))
    else:
        text = ""
        while len(text) < 4 * len(tokens):
            other = spare[int(random.integers(len(spare)))]
            title = tokenizer.decode(other[other != end][:24].tolist()).split("\n")[0]
            text += " | ".join([" ".join(title.split()[:3]), ""])
    return np.array([*tokenizer.encode(text)[: len(tokens)], end], np.int64)


def write(prefix: Path, documents: Sequence[Tokens], tokenizer: Tokenizer) -> None:
    """Token files with their tokenizer."""
    with IndexedTokensWriter(prefix) as writer:
        for tokens in documents:
            writer.add(tokens)
    save_corpus_tokenizer(prefix, tokenizer)


def seeds_of(comparison: int, count: int) -> list[int]:
    """The seeds of one comparison of `count` seeds."""
    return list(range(comparison * count + 1, (comparison + 1) * count + 1))


def runs_of_worse() -> Iterator[PlannedRun]:
    """Every run of the worse corpora, and of what pairing gains."""
    comparisons = [seeds_of(number, WORSE_SEEDS) for number in range(WORSE)]
    low = [seed for seeds in comparisons for seed in half_of(seeds)]
    for seed in range(1, comparisons[-1][-1] + 1):
        yield from (PlannedRun(arm, seed) for arm in arms_of_all())
        if seed in low:
            yield from (PlannedRun(arm, seed, LOW) for arm in arms_of_all())
        if seed <= PAIRED_SEEDS:
            yield PlannedRun(HALF_OF_IT, seed)
            yield from (PlannedRun(arm, seed, SHUFFLED) for arm in (PLAIN, *PAIRED_ARMS))


def runs_of_itself() -> Iterator[PlannedRun]:
    """Every pair of the corpus with itself."""
    for seed in range(1, ITSELF * ITSELF_SEEDS + 1):
        yield PlannedRun(PLAIN, seed)
        yield PlannedRun(PLAIN, seed, AGAIN)


def arms_of_all() -> list[str]:
    """The corpus, and what is worse."""
    return [PLAIN, *WORSE_ARMS]


class Bench:
    """The runs, which are made when they are asked for, and the losses of those that there are.

    Args:
        work: folder of the arms' token files.
        runs: folder of the runs.
        steps: of a run.
        processes: runs at a time.
    """

    def __init__(self, work: Path, runs: Path, steps: int, processes: int) -> None:
        self.work, self.runs, self.processes = work, runs, processes
        self.arms, tokenizer = open_arms({name: str(work / name) for name in (*arms_of_all(), HALF_OF_IT)})
        self.sets = held_out_sets(self.arms, tokenizer, held_out=str(work / "held_out"), want=(), most=40_000)
        recipe = recipe_of(AblateSettings(), (1, 64, 2), "cpu") | MODEL
        self.plan = AblationPlan({}, recipe, steps, 0, [], REPLACED)
        self.found: dict[str, dict[str, Any]] = {}
        self.losses = Losses(self.found, self.sets[0])

    def settings_of(self, run: PlannedRun) -> TrainSettings:
        """Of a run of any kind."""
        kind = {SHUFFLED: FULL, LOW_AGAIN: AGAIN}.get(run.kind, run.kind)
        found = self.plan.settings_of(dataclasses.replace(run, kind=kind), str(self.work / run.arm), self.work)
        changes: dict[str, Any] = {SHUFFLED: {"order": "shuffled"}, LOW_AGAIN: {"lr": found.lr * LOW_RATE}}.get(
            run.kind, {}
        )
        return dataclasses.replace(found, **changes, output=str(self.runs / run.name))

    def make(self, runs: Iterable[PlannedRun]) -> None:
        """Make those that there are not; only the losses of each are kept."""
        jobs = [TrainingJob(run.name, self.settings_of(run)) for run in runs]
        self.found |= {job.name: kept for job in jobs if (kept := read_losses(job.losses)) is not None}
        todo = [job for job in jobs if job.name not in self.found]
        done = len(jobs) - len(todo)
        workers, progress = Workers(self.processes, self.sets, ()), Progress("ablate", "runs", len(jobs), done=done)
        with workers, progress:
            for job, result in workers.carry_out(todo):
                self.found[job.name] = result
                for name in ("checkpoints", "cache"):
                    shutil.rmtree(Path(job.settings.output) / name)
                progress.advance(note=job.name)

    def judged(self, arm: str, seeds: Sequence[int], kind: str) -> dict[str, Any]:
        """One comparison, with the corpus or with the arm itself in another order: its intervals and its verdict."""
        base, low_kind = (PLAIN, LOW) if kind == FULL else (arm, LOW_AGAIN)
        found = self.losses.compared(base, arm, seeds, kind)
        interval, low = Interval(**found["interval"]), [found["mean"]]
        verdict = verdict_of(interval.value, interval.p, low)
        without_low = verdict
        if kind == FULL or verdict != NO_DIFFERENCE:
            some = half_of(seeds)
            self.make([PlannedRun(name, seed, of) for seed in some for name, of in ((base, LOW), (arm, low_kind))])
            low = [self.losses.per_byte(base, seed, LOW) - self.losses.per_byte(arm, seed, low_kind) for seed in some]
            verdict = verdict_of(interval.value, interval.p, low)
        return {
            "arm": arm,
            "verdict": verdict,
            "without_low_rate": without_low,
            "mean": round(found["mean"], 5),
            "interval": [round(interval.low, 5), round(interval.high, 5)],
            "over_seeds_alone": over_seeds(found["differences"]).excludes_zero,
            "low_rate": [round(value, 5) for value in low],
        }


def pairing(losses: Losses, arm: str) -> dict[str, float]:
    """Standard deviations over seeds of the difference to the corpus, by what the runs of a pair share."""
    seeds = range(1, PAIRED_SEEDS + 1)
    plain_by_position = [PlannedRun(PLAIN, seed, SHUFFLED) for seed in seeds]
    by_position = [PlannedRun(arm, seed, SHUFFLED) for seed in seeds]
    plain_by_hash, by_hash = ([PlannedRun(name, seed) for seed in seeds] for name in (PLAIN, arm))
    by = {
        "nothing": (plain_by_hash, by_hash[1:] + by_hash[:1]),
        "initial weights": (plain_by_position, by_hash),
        "initial weights, order by position": (plain_by_position, by_position),
        "initial weights, order by hash": (plain_by_hash, by_hash),
    }
    return {
        name: statistics.stdev(
            losses.per_byte(one.arm, one.seed, one.kind) - losses.per_byte(other.arm, other.seed, other.kind)
            for one, other in zip(*pairs, strict=True)
        )
        for name, pairs in by.items()
    }


def minutes_run(folder: Path) -> dict[str, Any]:
    """What an ablation by time could see."""
    found = json.loads((folder / "ablation.json").read_text(encoding="utf-8"))
    keys = ("steps", "seeds", "slope", "arms", "against_itself")
    return {key: found[key] for key in keys} | {"can_see": found["comparisons"][0]["can_see"]}


def main() -> int:
    """Measure, print, and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=Path, default=Path("runs/quickstart/dedup"), help="document shards")
    parser.add_argument("--work", type=Path, default=Path("runs/ablate"), help="folder for token files and runs")
    parser.add_argument("--processes", type=int, default=available_cores(), help="runs at a time")
    parser.add_argument("--minutes-run", type=Path, help="folder of a `gpt2 ablate`, whose figures are added")
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    if not (given.work / "menus.idx").exists():
        make_arms(token_files(given.documents, given.work), given.work)
    bench = Bench(given.work, given.work / "runs", STEPS, given.processes)
    bench.make(runs_of_worse())
    worse = {
        arm: [bench.judged(arm, seeds_of(number, WORSE_SEEDS), FULL) for number in range(WORSE)] for arm in WORSE_ARMS
    }
    pairs = {arm: pairing(bench.losses, arm) for arm in PAIRED_ARMS}
    short = Bench(given.work, given.work / "runs_of_itself", ITSELF_STEPS, given.processes)
    short.make(runs_of_itself())
    itself = [short.judged(PLAIN, seeds_of(number, ITSELF_SEEDS), AGAIN) for number in range(ITSELF)]
    wrong = sum(entry["verdict"] in ("better", "worse") for entry in itself)
    print(f"the corpus against itself: {wrong} of {len(itself)} comparisons say better or worse")
    print(f"  intervals over seeds alone: {sum(entry['over_seeds_alone'] for entry in itself)} exclude 0")
    for arm, found in worse.items():
        share = statistics.fmean(entry["verdict"] == "worse" for entry in found)
        print(f"{arm}: worse by {-statistics.fmean(entry['mean'] for entry in found):.4f}, found in {share:.0%}")
    for arm, by in pairs.items():
        print(f"standard deviation of {arm}: " + ", ".join(f"{name} {value:.5f}" for name, value in by.items()))
    epochs = {arm.name: bench.found[PlannedRun(arm.name, 1).name]["epochs"] for arm in bench.arms}
    content = {
        "machine": describe("torch"), "steps": {"itself": ITSELF_STEPS, "worse": STEPS}, "model": MODEL,
        "seeds": {"itself": ITSELF_SEEDS, "worse": WORSE_SEEDS}, "epochs": epochs,
        "held_out_documents": len(bench.sets[0].documents), "itself": itself, "worse": worse, "pairing": pairs,
    }  # fmt: skip
    if given.minutes_run is not None:
        content["minutes_run"] = minutes_run(given.minutes_run)
        print(f"20 minutes on two cores see {content['minutes_run']['can_see']:.4f} bits per byte")
    save("ablate", content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
