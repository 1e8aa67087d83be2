"""What is chosen or ordered by chance, by a hash of what it is: no choice says anything of another one."""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest
import xxhash

from gpt2_train.data import order
from webtext_audit.commands import inspect
from webtext_audit.report import scan
from webtext_prep.dedup import reports
from webtext_prep.documents.document import Document
from webtext_prep.stages import filter as filter_stage
from webtext_prep.stages import train_filter, train_tokenizer
from webtext_prep.tokens.runs import document_key, shuffle_key
from webtext_prep.urls import urls
from webtext_prep.urls.urls import is_held_out

COUNT = 20_000
DOCUMENTS = [Document(f"http://host{n % 97}.org/page/{n}", f"text number {n}") for n in range(COUNT)]
TOKENS = order.mixed(np.arange(1, COUNT + 1, dtype=np.uint64))


def of_documents(key) -> np.ndarray:
    return np.array([key(document) for document in DOCUMENTS], np.uint64)


def held_out(document: Document) -> int:
    """The hash that `is_held_out` compares with a share."""
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        digest = xxhash.xxh3_64_intdigest
        patch.setattr(xxhash, "xxh3_64_intdigest", lambda *given: seen.append(digest(*given)) or seen[-1])
        is_held_out(document.url, 0.5)
    return seen[0]


def one_in(keys: np.ndarray, number: int) -> np.ndarray:
    """Keys of which one in `number` is taken, by the rest of a division."""
    return keys % np.uint64(number)


def uses() -> dict[str, np.ndarray]:
    """Each use of a keyed hash in all packages, with its key for each document: what has low ones is taken, or first.

    Where the rest of a division decides, it is that.
    """
    seeds = {f"tokenize --seed {seed}": of_documents(lambda d, s=seed: shuffle_key(d, s)) for seed in (0, 1, 1234)}
    tokenizer = of_documents(lambda d: train_tokenizer.sample_key(d, 1234))
    texts = of_documents(train_filter.text_key)
    runs = {f"order of a run, seed {seed}": order.document_keys(TOKENS, seed) for seed in (0, 1, 1234)}
    keys = order.sample_keys(runs["order of a run, seed 1234"], np.zeros(COUNT, np.int64))
    of_a_part = order.batches_of_run(keys, COUNT // 4, 1)
    return {
        "--hold-out": of_documents(held_out),
        **seeds,
        "train-tokenizer: the sample": tokenizer,
        "train-tokenizer: held out": one_in(tokenizer, train_tokenizer.HELD_OUT_EVERY),
        "filter --keep-share: equal scores": of_documents(lambda d: document_key(d, filter_stage.TIES)),
        "filter --pareto": of_documents(lambda d: document_key(d, filter_stage.PARETO)),
        "train-filter: the sample": texts,
        "train-filter: held out": one_in(texts, train_filter.HELD_OUT_EVERY),
        "dedup --dry-run: the sample": of_documents(lambda d: reports.sample_hash(d.url.encode())),
        "merge, blacklist: the shard": of_documents(lambda d: urls.bucket_of(urls.url_key(d.url), 20)),
        "report: the sample": of_documents(lambda d: scan.sample_key(d.id)),
        "inspect --compare: the sample": of_documents(lambda d: inspect.keyed_hash(d.id)),
        "ablate: the held-out set": TOKENS,
        **runs,
        "order of a run: of too many samples": keys,
        "order of a run: of a part of the corpus": ~np.isin(np.arange(COUNT), of_a_part),
        **{f"order of a run: times, reading {n}": order.numbered(keys, np.full(COUNT, n)) for n in (0, 1)},
    }


def test_what_one_use_chooses_says_nothing_of_what_another_one_chooses():
    """Equal keys have the correlation 1; of independent ones it is below 5 standard deviations, 1 / sqrt(COUNT)."""
    found = uses()
    names = list(found)
    correlations = np.corrcoef(np.stack([found[name].astype(np.float64) for name in names]))
    related = {
        (names[a], names[b]): round(float(correlations[a, b]), 3)
        for a, b in itertools.combinations(range(len(names)), 2)
        if abs(correlations[a, b]) > 5 / COUNT**0.5
    }
    assert related == {}


IDENTITY = {
    "webtext_prep/crawl/archives/html_files.py": "canonical URLs of files",
    "webtext_prep/crawl/database.py": "the URL of a row",
    "webtext_prep/crawl/archives/warc_writing.py": "checksums",
    "webtext_prep/documents/seen_pages.py": "pages that came before",
    "webtext_prep/documents/formats/arrow_tables.py": "checksums",
    "webtext_prep/documents/folders/partitions.py": "checksums",
    "webtext_prep/reddit/selection.py": "pages that came before",
    "webtext_prep/text/classifiers.py": "n-grams, checksums",
}
"""Modules that hash to tell things apart: no hash of theirs decides by chance."""
CHOICES = {
    "gpt2_train/data/order.py",
    "webtext_audit/commands/inspect.py",
    "webtext_audit/report/scan.py",
    "webtext_prep/dedup/reports.py",
    "webtext_prep/stages/train_filter.py",
    "webtext_prep/tokens/runs.py",
    "webtext_prep/urls/urls.py",
}
"""Modules whose hashes decide by chance: all of them are in `uses`."""


def test_every_use_of_a_hash_is_known():
    packages = Path(__file__).parents[2] / "packages"
    call = re.compile(r"\bxxh(32|64|3)\w*digest\(|\bblake2b\(|\bxxh3_(64|128)\(")
    found = set()
    for source in packages.glob("*/src/**/*.py"):
        if call.search(source.read_text(encoding="utf-8")):
            found.add(source.relative_to(packages).as_posix().split("/src/")[1])
    assert found == IDENTITY.keys() | CHOICES
