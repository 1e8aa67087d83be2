"""CPU seconds that parts of datatrove take for texts, in its own environment; called by the tables (`peers.datatrove`).

Reads `{"texts": [...], "parts": {NAME: N}}` as JSON, and writes for each part the best of three runs over the first N
texts: `signatures`, and each filter of quality, with words cut by spaCy as it does or by `str.split` (`NAME split`).
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from datatrove.data import Document
from datatrove.pipeline.dedup.minhash import MinhashConfig, MinhashDedupSignature
from datatrove.pipeline.filters import fineweb_quality_filter, gopher_quality_filter, gopher_repetition_filter

FILTERS = {
    "GopherRepetitionFilter": gopher_repetition_filter,
    "GopherQualityFilter": gopher_quality_filter,
    "FineWebQualityFilter": fineweb_quality_filter,
}
SPLIT = " split"


def part(name: str) -> Callable[[str], Any]:
    """What does this part of the work for one text."""
    if name == "signatures":
        config = MinhashConfig(n_grams=5, num_buckets=16, hashes_per_bucket=8)
        step = MinhashDedupSignature(tempfile.mkdtemp(), config)
        return lambda text: step.get_signature(step.get_shingles(text))
    module = FILTERS[name.removesuffix(SPLIT)]
    if name.endswith(SPLIT):
        module.split_into_words = lambda text, language: text.split()
    judge = getattr(module, name.removesuffix(SPLIT))().filter
    return lambda text: judge(Document(text=text, id=""))


def seconds(call: Callable[[str], Any], texts: list[str]) -> float:
    """The CPU seconds of all calls, the best of three times, after one that fills caches."""
    best = float("inf")
    for number in range(4):
        start = time.process_time()
        for text in texts:
            call(text)
        if number:
            best = min(best, time.process_time() - start)
    return best


def main() -> None:
    """Measure what standard input asks for."""
    asked = json.load(sys.stdin)
    found = {name: seconds(part(name), asked["texts"][:count]) for name, count in asked["parts"].items()}
    sys.stdout.write(json.dumps(found) + os.linesep)


if __name__ == "__main__":
    main()
