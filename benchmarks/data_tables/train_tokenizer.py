"""Learning a tokenizer: the whole stage beside Hugging Face's trainer, which gives the same merges.

Texts are of made-up words, as often as words of a language are: the n-th most frequent one has a share of about 1/n.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

from measuring import MB, Row, webtext, write_json_lines
from webtext_prep.documents.document import Document
from webtext_prep.stages.train_tokenizer import is_held_out, sample_key

TITLE = "train-tokenizer: texts of made-up words, a million different ones; 50,257 tokens"
PEERS = ("tokenizers", "gigatoken")
WORDS = 1_000_000
SIZE, SEED, SHARDS = 50257, 1234, 8
SECONDS_A_GIGABYTE = 60
"""By the clock, on two cores."""


def rows(quick: bool, folder: Path) -> Iterator[Row]:
    """Both on as much as the other one can take in a minute, then a gigabyte by the command alone."""
    texts = _texts(2_000_000 if quick else 100_000_000)
    yield from _both(texts, folder)
    if not quick:
        yield _stage(_texts(1_000_000_000), folder / "gigabyte", "a gigabyte", SECONDS_A_GIGABYTE)


def _texts(size: int, seed: int = 1) -> list[str]:
    """Texts of 3 kB, of so many bytes in all."""
    source = np.random.default_rng(seed)
    syllables = [a + b for a in ("b", "ch", "d", "f", "gr", "k", "l", "m", "n", "p", "r", "s", "st", "t", "v", "w")
                 for b in ("a", "e", "i", "o", "u", "\u00e4", "ai", "en", "ing", "or")]  # fmt: skip
    lengths = 1 + source.binomial(5, np.linspace(0.1, 0.6, WORDS))
    words = ["".join(syllables[at] for at in source.integers(0, len(syllables), length)) for length in lengths]
    texts, made = list[str](), 0
    while made < size:
        ranks = np.exp(source.random(500) * np.log(WORDS)).astype(np.int64) - 1
        texts.append(" ".join([words[rank] for rank in ranks]) + ".")
        made += len(texts[-1].encode())
    return texts


def _both(texts: list[str], folder: Path) -> Iterator[Row]:
    ours = _stage(texts, folder / "both", f"{sum(map(len, texts)) / MB:,.0f} MB", None)
    learner = Tokenizer(BPE())
    learner.pre_tokenizer = ByteLevel(add_prefix_space=False)
    trainer = BpeTrainer(
        vocab_size=SIZE - 1, min_frequency=2, initial_alphabet=ByteLevel.alphabet(), show_progress=False
    )
    learned = [text for row, text in zip(_rows(texts), texts, strict=True)
               if not is_held_out(sample_key(Document(row["url"], text), SEED))]  # fmt: skip
    wall, cpu = time.monotonic(), time.process_time()
    learner.train_from_iterator(learned, trainer)
    seconds, taken = time.monotonic() - wall, time.process_time() - cpu
    merges = [" ".join(pair) for pair in json.loads(learner.to_str())["model"]["merges"]]
    found = (folder / "both-out" / "merges.txt").read_text(encoding="utf-8").split("\n")[1:-1]
    ours.note += "; the same merges" if found == merges else "; OTHER MERGES"
    yield ours
    size = sum(len(text.encode()) for text in texts)
    yield Row("tokenizers: BpeTrainer", len(texts) / taken, megabytes=size / taken / MB, note=f"{seconds:.0f} s")


def _rows(texts: list[str]) -> list[dict[str, str]]:
    return [{"url": f"https://site.example/{number}", "text": text} for number, text in enumerate(texts)]


def _stage(texts: list[str], place: Path, what: str, seconds: float | None) -> Row:
    """The command on all of the texts, but for one in 32, which it measures with."""
    rows = _rows(texts)
    for number in range(SHARDS):
        write_json_lines(place / f"part-{number:05}.jsonl.zst", rows[number::SHARDS])
    size = sum(len(text.encode()) for text in texts)
    flags = ("--vocabulary-size", str(SIZE), "--sample-bytes", str(2 * size), "--seed", str(SEED))
    used = webtext("train-tokenizer", "--input", place, "--output", place.with_name(f"{place.name}-out"), *flags)
    note = f"{used.wall:.0f} s by the clock, start-up included" + (f"; goal {seconds:.0f}" if seconds else "")
    return Row(f"ours: the whole stage, {what}", len(texts) / used.cpu, megabytes=size / used.cpu / MB,
               peak=used.peak, note=note)  # fmt: skip
