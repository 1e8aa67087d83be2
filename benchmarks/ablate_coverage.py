"""How often is `gpt2 ablate` wrong, and does it find what it says that it can see? Simulated; a minute of one core.

    ./uvw run benchmarks/ablate_coverage.py

Differences of seeds and documents are drawn without any true difference, and judged by the functions that judge real
ones. Documents weigh by lengths of a lognormal distribution (sigma 1: the longest of 40 has 9% of all bytes). The
figure's standard deviation over seeds is 1, half of its variance from seeds and documents together; that over documents
is `ratio`. Counted are verdicts of "better" or "worse", all wrong, and the sign at a tenth of the learning rate is let
pass each time: an interval misses the truth as often. Then the true difference is made what the comparison can see by
the variances that were drawn from, and "better" is counted. The draws follow from a seed. The table goes into
docs/guide/ablate.md.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import zlib
from typing import Any

import numpy as np

from machine import describe, save
from pages import write_tables
from webtext_run.ablation.statistics import CONFIDENCE, EffectEstimate, Variance, estimate

SEEDS, DOCUMENTS, RATIOS = (2, 3, 5), (10, 40, 200), (0.0, 0.5, 1.0, 2.0, 100.0)
TOGETHER = 0.5
"""Share of the seeds' variance that is of seeds and documents together."""


def sizes_of(documents: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Bytes of each document: the quantiles of a lognormal distribution, sigma 1, in no order that matters."""
    normal = statistics.NormalDist()
    return np.array([1000 * math.exp(normal.inv_cdf((at + 0.5) / documents)) for at in range(documents)], np.int64)


def simulated(seeds: int, documents: int, ratio: float, trials: int) -> dict[str, float]:
    """How often a comparison without a difference gets a verdict, and how often one is found that it can see."""
    random = np.random.default_rng(zlib.crc32(f"{seeds} {documents} {ratio}".encode()))
    sizes = sizes_of(documents)
    squares = float(((sizes / sizes.sum()) ** 2).sum())
    of_seed = math.sqrt(seeds * (1 - TOGETHER))
    of_document, of_both = ratio / math.sqrt(squares), math.sqrt(seeds * TOGETHER / squares)
    level = 1 - CONFIDENCE
    truth = EffectEstimate(0.0, Variance(1.0, seeds - 1), Variance(ratio**2, 1 / squares - 1))
    sees = truth.can_see(level)
    wrong = found = 0
    for _ in range(trials):
        rates = of_seed * random.standard_normal((seeds, 1)) + of_document * random.standard_normal(documents)
        rates = rates + of_both * random.standard_normal((seeds, documents))
        judged = estimate(rates * sizes, sizes)
        reach = judged.reach(level)
        wrong += abs(judged.value) > reach
        found += judged.value + sees > reach
    return {"wrong": wrong / trials, "found": found / trials}


def table(rows: dict[str, dict[str, dict[str, float]]]) -> str:
    """The rows as Markdown."""
    ratios = " | ".join(f"{ratio:g}" for ratio in RATIOS)
    lines = [f"| seeds, documents | wrong, at {ratios} | found, at {ratios} |", "|" + "---|" * (1 + 2 * len(RATIOS))]
    for name, of_ratios in rows.items():
        shown = [f"{of_ratios[f'{ratio:g}'][key]:.0%}" for key in ("wrong", "found") for ratio in RATIOS]
        lines.append(f"| {name} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


def main() -> int:
    """Simulate, print, and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=4000, help="comparisons of each kind")
    given = parser.parse_args()
    rows = {
        f"{seeds}, {documents}": {
            f"{ratio:g}": simulated(seeds, documents, ratio, given.trials) for ratio in RATIOS
        }
        for seeds in SEEDS
        for documents in DOCUMENTS
    }  # fmt: skip
    print(table(rows))
    write_tables("ablate_coverage.py", table(rows))
    save("ablate_coverage", {"machine": describe("numpy", "scipy"), "trials": given.trials, "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
