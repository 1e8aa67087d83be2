"""`gpt2 ablate`: its statistics against known values, the pairing of its runs, and whole comparisons of tiny models."""

import json
import math
import multiprocessing
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.gpt2_train import forks
from tests.gpt2_train.small_models import END, byte_tokenizer

from command_kit import processes
from gpt2_train.cli import main
from gpt2_train.data.corpus import Corpus
from gpt2_train.data.index import IndexCache
from gpt2_train.data.order import RunOrder, batches_of_run, document_keys, mixed, occurrences, sample_keys
from gpt2_train.data.streams import Stream
from indexed_tokens import IndexedTokens, IndexedTokensWriter, save_corpus_tokenizer
from webtext_run.ablation import comparison
from webtext_run.ablation.arms import open_arms
from webtext_run.ablation.held_out import HeldOut, held_out_sets
from webtext_run.ablation.plans import AblationPlan, planned_runs, rounds_of, shape_for
from webtext_run.ablation.statistics import (
    EffectEstimate,
    Interval,
    Values,
    Variance,
    estimate,
    holm,
    interval_of,
    over_seeds,
    ratio,
)
from webtext_run.ablation.verdict import BETTER, NO_DIFFERENCE, NO_VERDICT, WORSE, result_of, verdict_of
from webtext_run.ablation.words import described, headlines

# Statistics


def test_the_interval_over_seeds_is_that_of_a_paired_t_test():
    """Student's own example of 1908: hours of sleep gained by ten patients, t = 4.0621, p = 0.00283."""
    found = over_seeds([1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4])
    assert found.value == pytest.approx(1.58)
    assert (found.low, found.high) == pytest.approx((0.7001142, 2.4598858), abs=1e-6)
    assert found.p == pytest.approx(0.002833, abs=1e-6)
    assert over_seeds([0.5, 0.5]) == Interval(0.5, 0.5, 0.5, 0.0)


def test_holm_corrects_for_the_number_of_comparisons():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.6]) == [1.0, 1.0]
    assert holm([]) == []


def drawn(seed: int, seeds: float, documents: float, both: float, shape: tuple[int, int], mean: float = 0.0) -> Values:
    """Differences of seeds and documents, as standard deviations say."""
    random = np.random.default_rng(seed)
    of_seeds, of_documents = random.normal(0, seeds, (shape[0], 1)), random.normal(0, documents, shape[1])
    return mean + of_seeds + of_documents + random.normal(0, both, shape)


def test_the_variances_of_seeds_and_documents_are_told_apart():
    """Documents are 4 times as variable a figure of 50 as of 200; of both together the seeds' part holds all."""
    sizes = np.full(50, 7)
    trials = [estimate(drawn(seed, 0.3, 2.0, 1.0, (4, 50)) * sizes, sizes) for seed in range(300)]
    assert np.mean([found.seeds.value for found in trials]) == pytest.approx(0.09 / 4 + 1 / 200, rel=0.1)
    assert np.mean([found.documents.value for found in trials]) == pytest.approx(4 / 50, rel=0.05)
    assert (trials[0].seeds.degrees, trials[0].documents.degrees) == pytest.approx((3, 49))
    of_one = estimate(np.array([[1.0, 2.0, 3.0], [1.5, 2.5, 3.5]]), np.array([1, 1, 2]))
    assert of_one.value == pytest.approx(6.75 / 4)
    assert of_one.documents.degrees == pytest.approx(16 / 6 - 1)


def test_without_variance_over_documents_the_interval_is_students():
    differences = np.array([0.3, -0.1, 0.4, 0.25])
    sizes = np.arange(1, 11)
    assert interval_of(estimate(np.outer(differences, sizes), sizes)) == pytest.approx(over_seeds(differences.tolist()))


@pytest.mark.parametrize("ratio", [0, 1, 2, 100])
def test_equal_data_are_called_different_in_five_trials_of_a_hundred_at_most(ratio):
    """Before, where documents vary twice as much as seeds, in ten."""
    sizes = (1000 * np.exp(np.random.default_rng(1).normal(0, 1, 40))).astype(np.int64)
    share = math.sqrt(((sizes / sizes.sum()) ** 2).sum())
    trials = (drawn(seed, math.sqrt(5), ratio / share, 0, (5, 40)) * sizes for seed in range(1000))
    wrong = sum(found.reach(0.05) < abs(found.value) for found in (estimate(one, sizes) for one in trials))
    assert 15 <= wrong <= 50 + 2 * 7  # two standard deviations of a count of a thousand


@pytest.mark.parametrize(("seeds", "level"), [(5, 0.05), (5, 0.01), (3, 0.05)])
def test_what_a_comparison_can_see_is_found_four_times_in_five(seeds, level):
    sizes = np.full(30, 11)
    truth = EffectEstimate(0.0, Variance(1.0, seeds - 1), Variance(2.0, 29))
    sees = truth.can_see(level)
    assert sees > truth.reach(level) * 1.2
    found = (estimate(drawn(seed, math.sqrt(seeds), math.sqrt(60), 0, (seeds, 30), sees) * sizes, sizes)
             for seed in range(1000))  # fmt: skip
    assert sum(one.value > one.reach(level) for one in found) == pytest.approx(800, abs=40)
    assert estimate(np.ones((2, 3)), np.ones(3, np.int64)).can_see(0.05) == 0


@pytest.mark.parametrize("level", [0.05, 0.05 / 2000])
@pytest.mark.parametrize("documents", [0, 1e-6, 1, 100])
@pytest.mark.parametrize("seeds", [2, 50])
def test_extremes_have_an_interval_and_something_to_see(seeds, documents, level):
    """Also where one document is nearly all of the set."""
    sizes = np.array([10_000, *[1] * 9])
    found = estimate(drawn(1, 1, documents, 0.1, (seeds, 10)) * sizes, sizes)
    assert found.documents.degrees == 1
    assert 0 < found.reach(level) < found.can_see(level) < 3 * found.reach(level)
    for value in (0.99, 1.01):
        moved = interval_of(found._replace(value=value * found.reach(0.05)))
        assert (moved.p < 0.05) == (moved.low > 0 or moved.high < 0) == (value > 1)


def test_a_ratio_knows_what_difference_and_slope_have_in_common():
    """Of pure noise of the baseline's runs, which are in both with opposite signs: Fieller's own formula for seeds."""
    sizes = np.full(20, 100)
    noise = np.array([0.02, -0.03, 0.01, 0.0, -0.01])
    difference, slope = 0.05 + noise, 0.2 - noise
    found = ratio(np.outer(difference, sizes), np.outer(slope, sizes), sizes)
    t2, n = 2.776445105**2, 5
    a, b, c = (x.mean() * y.mean() - t2 * np.cov(x, y)[0, 1] / n for x, y in
               ((slope, slope), (slope, difference), (difference, difference)))  # fmt: skip
    root = math.sqrt(b**2 - a * c)
    assert found[:3] == pytest.approx((difference.mean() / slope.mean(), (b - root) / a, (b + root) / a))
    independent = ratio(np.outer(difference, sizes), np.outer(0.2 + noise, sizes), sizes)
    assert independent.high - independent.low < 0.8 * (found.high - found.low)


@pytest.mark.parametrize("seeds", [2, 3])
def test_a_ratio_of_few_seeds_holds_or_is_left_out(seeds):
    sizes = np.full(20, 100)
    missed = left_out = 0
    for seed in range(200):
        random = np.random.default_rng(seed)
        base, arm, half = (random.normal(mean, 0.02, (seeds, 1)) * sizes for mean in (2.0, 1.9, 2.2))
        found = ratio(base - arm, half - base, sizes)
        left_out += found is None
        missed += found is not None and not found.low <= 0.5 <= found.high
    assert missed <= 0.05 * (200 - left_out) + 3
    assert left_out < 200


@pytest.mark.parametrize(
    ("difference", "p", "low_rate", "verdict"),
    [
        (0.02, 0.001, [0.01], BETTER),
        (-0.02, 0.001, [-0.01], WORSE),
        (0.02, 0.001, [0.01, -0.02], NO_VERDICT),
        (0.02, 0.06, [0.01], NO_DIFFERENCE),
    ],
)
def test_a_verdict_needs_a_small_probability_and_both_learning_rates(difference, p, low_rate, verdict):
    assert verdict_of(difference, p, low_rate) == verdict


def write_documents(prefix: Path, documents: Iterable[bytes]) -> None:
    """Token files of some texts, one byte a token."""
    with IndexedTokensWriter(prefix) as writer:
        for text in documents:
            writer.add([*text, END])
    save_corpus_tokenizer(prefix, byte_tokenizer())


def results(tmp_path: Path, sets: int, shift: float, seeds: int = 5, documents: float = 0.0) -> dict[str, Any]:
    """What is found of two arms without a run: `b`, which has a copy of a document, is better by `shift` bits per byte,
    give or take over seeds and, by `documents`, over documents."""
    for name, numbers in (("a", (0, 1, 2)), ("b", (0, 1, 2, 2))):
        write_documents(tmp_path / name, [bytes([*b"text", number]) for number in numbers])
    arms, _ = open_arms({name: str(tmp_path / name) for name in "ab"})
    plan = AblationPlan({}, {}, 10, 0, list(range(seeds)))
    held_out = [HeldOut(f"set {at}", [np.zeros(2, np.int64)] * 12, np.full(12, 10), 0) for at in range(sets)]
    measured = {}
    for number, run in enumerate(planned_runs("ab", plan.seeds)):
        random = np.random.default_rng(number)
        level = 3.0 - shift * (run.arm == "b") + 0.2 * (run.kind == "half-length") + random.normal(0, 0.01)
        own = np.random.default_rng(99).normal(0, documents, 12) * (run.arm == "b")
        nats = (10 * (level + own) * math.log(2)).tolist()
        measured[run.name] = {
            "nats": {entry.name: nats for entry in held_out}, "tasks": {}, "tokens": 10, "epochs": 1.0,
        }  # fmt: skip
    result = result_of(plan, arms, held_out, measured)
    return result | {"sentences": headlines(result)}


def test_every_set_that_can_decide_counts_in_the_correction(tmp_path):
    one, four = (results(tmp_path, sets, 0.027) for sets in (1, 4))
    p = one["comparisons"][0]["interval"]["p"]
    assert 0.0125 < p < 0.05
    assert (one["comparisons"][0]["verdict"], one["comparisons"][0]["p"]) == ("better", p)
    assert [entry["p"] for entry in four["comparisons"]] == pytest.approx([4 * p] * 4)
    assert {entry["verdict"] for entry in four["comparisons"]} == {"no difference"}
    assert "not sure enough for one of several comparisons" in four["sentences"][0]
    assert one["sentences"][0].startswith("b against a: better by 0.0")
    assert "b has 100% of the documents and 1 other: 1 epochs instead of 1; this run can see 0.0" in one["sentences"][1]
    assert four["comparisons"][0]["can_see"] > one["comparisons"][0]["can_see"]


def test_what_varies_over_documents_is_in_the_interval_and_in_what_a_run_can_see(tmp_path):
    alike, unlike = (results(tmp_path, 1, 0.1, documents=by)["comparisons"][0] for by in (0.0, 0.3))
    assert alike["verdict"] == "better"
    assert unlike["verdict"] == "no difference"
    assert unlike["standard_errors"]["seeds"] == pytest.approx(alike["standard_errors"]["seeds"])
    assert unlike["interval"]["high"] - unlike["interval"]["low"] > 0.2
    assert unlike["can_see"] > 0.2 > 3 * alike["can_see"] > 0


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_worth_has_an_interval_from_slopes_of_every_seed(tmp_path, seeds):
    result = results(tmp_path, 1, 0.1, seeds)
    assert len(result["slope"]["seeds"]) == seeds
    worth = result["worth"]["b"]
    assert worth is None or worth["low"] < worth["value"] < worth["high"]
    assert worth is not None or seeds == 2


def test_copies_are_not_shared_with_documents_that_are_there_once(tmp_path):
    texts = [f"text number {number:02}" for number in range(10)]
    for name, numbers in (("once", range(10)), ("twice", [*range(10), 0, 1, 2])):
        write_documents(tmp_path / name, [texts[number].encode() for number in numbers])
    (once, twice), _ = open_arms({name: str(tmp_path / name) for name in ("once", "twice")})
    assert (twice.shared_with(once), once.shared_with(twice)) == (10, 10)
    assert twice.share_of(once) == once.share_of(twice) == pytest.approx(10 / 13)


# Pairing


def batches_of(prefix: Path, order: RunOrder, cache: Path, seed: int = 1) -> list[set[bytes]]:
    """The samples of each batch of a run."""
    stream = Stream(Corpus(str(prefix), [1, 0, 0]), "train", 16, seed, IndexCache(cache), order)
    stream.prepare(0, order.steps * order.batch - 1)
    samples = [stream[number].tobytes() for number in range(order.steps * order.batch)]
    return [set(samples[at : at + order.batch]) for at in range(0, len(samples), order.batch)]


def together(one: list[set[bytes]], other: list[set[bytes]]) -> float:
    """The share of samples that are in the batch of the same step."""
    return sum(len(a & b) for a, b in zip(one, other, strict=True)) / sum(map(len, one))


def test_corpora_have_what_they_share_in_the_same_batches(tmp_path):
    """Also where one has 70% of the other's documents, which it reads more often."""
    random = np.random.default_rng(3)
    documents = [random.integers(0, 2**15, int(random.integers(20, 400))) for _ in range(200)]
    for name, chosen in (("all", documents), ("some", [one for one in documents if random.random() < 0.7])):
        with IndexedTokensWriter(tmp_path / name) as writer:
            for tokens in chosen:
                writer.add(tokens)
    order = RunOrder(80, 32)
    everything = batches_of(tmp_path / "all", order, tmp_path / "cache")
    share = sum(IndexedTokens(tmp_path / "some").lengths) / sum(IndexedTokens(tmp_path / "all").lengths)
    assert together(everything, batches_of(tmp_path / "some", order, tmp_path / "cache")) > share - 0.1
    assert together(everything, batches_of(tmp_path / "all", order._replace(moved=0.3), tmp_path / "cache")) > 0.6
    assert together(everything, batches_of(tmp_path / "all", order._replace(moved=1.0), tmp_path / "cache")) < 0.1
    assert together(everything, batches_of(tmp_path / "all", order, tmp_path / "cache", seed=2)) < 0.1


@pytest.mark.parametrize("samples", [7, 60, 64, 200])
def test_a_run_reads_every_sample_as_often_as_the_others(samples):
    keys = mixed(np.arange(samples, dtype=np.uint64))
    found = batches_of_run(keys, 16, 4)
    assert len(found) == 64
    times = np.bincount(found, minlength=samples)
    assert times.max() - times.min() <= 1
    assert not np.array_equal(found, np.sort(found))


def test_a_run_over_a_tenth_of_the_corpus_has_the_same_batches_without_some_documents():
    """Which samples it reads follows from other numbers than when they come: its first steps must not get all."""
    hashes = np.random.default_rng(0).integers(0, 2**64, 4000, np.uint64)
    batches = []
    for chosen in (hashes, hashes[40:]):
        keys = sample_keys(document_keys(chosen, 5), np.zeros(len(chosen), np.int64))
        batches.append(chosen[batches_of_run(keys, 25, 16)].reshape(25, 16).tolist())
    assert sum(len({*first} & {*second}) for first, second in zip(*batches, strict=True)) > 0.92 * 400


def test_samples_begin_with_their_document_and_end_with_it(tmp_path):
    with IndexedTokensWriter(tmp_path / "few") as writer:
        for first, length in ((0, 40), (100, 5), (200, 17)):
            writer.add(np.arange(first, first + length))
    stream = Stream(Corpus(str(tmp_path / "few"), [1, 0, 0]), "train", 16, 1, IndexCache(tmp_path), RunOrder(5, 1))
    stream.prepare(0, 4)
    rows = sorted(stream[number].tolist() for number in range(5))
    assert [row[0] for row in rows] == [0, 16, 23, 100, 200]
    assert rows[2] == list(range(23, 40))
    assert len(rows[3]) == 17
    assert stream.samples_with(np.array([0]), 5).tolist() == [n for n in range(5) if set(stream[n]) & set(range(40))]


def test_seeds_give_other_orders_and_copies_do_not_come_at_once():
    hashes = np.array([7] * 50 + list(range(100, 150)), np.uint64)
    assert occurrences(hashes).tolist() == [*range(50), *[0] * 50]
    keys = document_keys(hashes, 1)
    assert len(set(keys.tolist())) == 100
    order = np.argsort(keys)
    assert not np.array_equal(order, np.argsort(document_keys(hashes, 2)))
    assert np.count_nonzero(np.diff(order < 50)) > 5


# The plan


def test_the_plan_has_pairs_for_every_seed_and_more_for_half_of_them():
    runs = list(planned_runs(["a", "b"], [1, 2, 3, 4, 5]))
    names = [run.name for run in runs]
    assert names[:3] == ["a-seed1", "b-seed1", "a-seed1-again"]
    assert sum(name.endswith("low-rate") for name in names) == 4
    assert sum(name.endswith("half-length") for name in names) == 5
    assert rounds_of(2, 5, 1) == 22 == len(runs) - 2


def test_more_time_gets_a_larger_model():
    flops = {(3, 128, 4): 1e6, (4, 256, 4): 4e6, (6, 384, 6): 12e6}
    assert shape_for(400, 2048, flops) == (3, 128, 4)
    assert shape_for(150_000, 2048, flops) == (4, 256, 4)


# Whole comparisons

WORDS = "the a of tree river stone walks sees under bright old and then from light water".split()  # noqa: SIM905


def write_texts(prefix: Path, count: int, noisy: float, seed: int) -> None:
    """Token files of sentences, a share of them of random letters."""
    random, found = np.random.default_rng(seed), []
    for _ in range(count):
        text = " ".join(map(str, random.choice(WORDS, 12))).encode()
        found.append(bytes(random.integers(97, 123, len(text)).tolist()) if random.random() < noisy else text)
    write_documents(prefix, found)


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    write_texts(folder / "good", 400, 0.0, 1)
    write_texts(folder / "bad", 400, 0.7, 2)
    write_texts(folder / "pool", 40, 0.5, 3)
    (folder / "wanted").mkdir()
    for number in range(20):
        random = np.random.default_rng(100 + number)
        (folder / "wanted" / f"{number}.txt").write_text(" ".join(random.choice(WORDS, 15)))
    return folder


def words_for(texts: Path, output: Path, *more: object) -> list[str]:
    return [
        "ablate", "--data", f"bad={texts / 'bad'}", f"good={texts / 'good'}", "--held-out", str(texts / "pool"),
        "--want", str(texts / "wanted"), "--output", str(output), "--seeds", "2", "--steps", "10",
        "--layers", "1", "--hidden", "16", "--heads", "2", "--sequence-length", "16", "--global-batch-size", "8",
        "--precision", "fp32", "--device", "cpu", "--processes", "2", *map(str, more),
    ]  # fmt: skip


def compare(*words: str) -> None:
    """`gpt2 ablate`, whose workers are forks of this process, which has imported torch."""
    context = multiprocessing.get_context("fork")
    multiprocessing.get_context = lambda _: context  # type: ignore[assignment]
    processes._ensure_server = lambda *_: None  # type: ignore[assignment]
    sys.exit(main([*words]))


@pytest.mark.exhaustive
def test_a_better_corpus_is_found_and_the_same_command_does_nothing_more(texts, tmp_path):
    output = tmp_path / "ablation"
    done = forks.run(forks.program(compare, *words_for(texts, output, "--json")))
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert json.loads((output / "ablation.json").read_text()) == result
    assert [entry["set"] for entry in result["comparisons"]] == ["wanted", "the pool"]
    assert result["comparisons"][0]["mean"] > 0
    assert result["decides"] == "wanted"
    assert result["arms"][1]["of_the_baseline"] == 0
    runs = sorted(path.name for path in (output / "runs").iterdir())
    assert len(runs) == 10
    assert {"bad-seed1", "good-seed2", "bad-seed2-again", "good-seed1-low-rate", "bad-seed1-half-length"} < set(runs)
    assert main(["plot", str(output / "runs" / "good-seed1")]) == 0
    made = (output / "runs" / "good-seed1" / "held_out.json").stat().st_mtime_ns
    again = forks.run(forks.program(compare, *words_for(texts, output)))
    assert again.returncode == 0 and described(result) in again.stdout
    assert (output / "runs" / "good-seed1" / "held_out.json").stat().st_mtime_ns == made
    refused = forks.run(forks.program(compare, *words_for(texts, output, "--lr", "1e-3")))
    assert refused.returncode == 2
    assert "lr was 0.02, now 0.001" in refused.stderr and "--restart" in refused.stderr


@pytest.mark.exhaustive
def test_a_killed_ablation_ends_as_one_that_was_not(texts, tmp_path):
    assert forks.run(forks.program(compare, *words_for(texts, tmp_path / "whole"))).returncode == 0
    output = tmp_path / "killed"
    again = forks.program(compare, *words_for(texts, output))
    for ended in (2, 7):
        process = forks.Started(again)
        while process.returncode is None and len(list(output.glob("runs/*/held_out.json"))) < ended:
            time.sleep(0.05)
        process.kill()
        process.communicate()
    assert forks.run(again).returncode == 0
    assert (output / "ablation.json").read_bytes() == (tmp_path / "whole" / "ablation.json").read_bytes()


# Mistakes


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        (("--data", "again={texts}/bad", "again={texts}/good"), "--data names two arms again"),
        (("--data", "{texts}/bad"), "should be NAME=PREFIX"),
        (("--want", "{texts}/nothing"), "can't read --want"),
        (("--want", "{texts}/wanted/1.txt"), "holds 1 documents to measure on"),
        (("--layers", "2"), "--hidden and --heads missing"),
    ],
)
def test_mistakes_are_told_in_a_sentence(texts, tmp_path, capsys, changed, sentence):
    words = [word.replace("{texts}", str(texts)) for word in changed]
    base = words_for(texts, tmp_path / "output")
    if changed[0] == "--layers":
        base = [
            word for at, word in enumerate(base) if not {"--layers", "--hidden", "--heads"} & set(base[at - 1 : at + 1])
        ]
    assert main([*base, *words]) == 2
    assert sentence in capsys.readouterr().err


def test_one_arm_another_tokenizer_and_nothing_to_measure_on_are_told(texts, tmp_path, capsys):
    one, two = f"one={texts / 'bad'}", f"two={texts / 'good'}"
    assert main(["ablate", "--data", one, "--output", str(tmp_path / "o")]) == 2
    assert "--data gives one arm" in capsys.readouterr().err
    assert main(["ablate", "--data", one, two, "--output", str(tmp_path / "o")]) == 2
    assert "nothing to measure on" in capsys.readouterr().err
    assert main(["ablate", "--data", one, two, "--held-out", str(texts / "good"), "--output", str(tmp_path / "o")]) == 2
    assert "stand in an arm's file" in capsys.readouterr().err
    assert main(["ablate", "--data", one, f"two={texts / 'bad'}", "--output", str(tmp_path / "o")]) == 2
    assert "the arms one and two hold the same documents" in capsys.readouterr().err
    with IndexedTokensWriter(tmp_path / "gpt2") as writer:
        writer.add([1, 2, 3])
        writer.add([50256])
    assert main(["ablate", "--data", one, f"two={tmp_path / 'gpt2'}", "--output", str(tmp_path / "o")]) == 2
    assert "names no tokenizer" in capsys.readouterr().err


@pytest.mark.exhaustive
def test_too_little_time_is_told_with_how_much_is_enough(texts, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(comparison, "CALIBRATION_MINUTES", 0.01)
    words = words_for(texts, tmp_path / "o", "--minutes", "0.1")
    at = words.index("--steps")
    assert main([*words[:at], *words[at + 2 :]]) == 2
    assert "in which nothing is learned: give --minutes" in capsys.readouterr().err


def test_texts_that_an_arm_learned_from_are_left_out_whatever_is_between_their_words_and_in_pieces(tmp_path):
    """A document that shares a sentence with one that an arm has stays: pages have headers in common."""
    random = np.random.default_rng(9)
    trained = [" ".join(f"w{number}" for number in random.integers(0, 10**6, 60)) for _ in range(40)]
    header = trained[0].split(" ")[:20]
    kinds = {
        "newline": [f"{text}\n" for text in trained[:4]],
        "case": [text.upper().replace(" ", ",\r\n") for text in trained[4:8]],
        "piece": [text[25:-50] for text in trained[8:12]],
        "new": [" ".join([*header, *(f"n{number}" for number in random.integers(0, 10**6, 40))]) for _ in range(12)],
    }
    (tmp_path / "wanted").mkdir()
    for kind, texts in kinds.items():
        for number, text in enumerate(texts):
            (tmp_path / "wanted" / f"{kind}{number}.txt").write_text(text, newline="")
    for name, texts in (("a", trained), ("b", trained[:8])):
        write_documents(tmp_path / name, map(str.encode, texts))
    arms, tokenizer = open_arms({name: str(tmp_path / name) for name in "ab"})
    (found,) = held_out_sets(arms, tokenizer, held_out="", want=[str(tmp_path / "wanted")], most=100_000)
    assert (len(found.documents), found.left_out) == (12, 12)
    assert all(b"n" in bytes(tokens[:-1].tolist()) for tokens in found.documents)


def test_what_every_arm_holds_out_is_a_set_of_its_own(tmp_path):
    """And what stands in an arm's file is left out of all sets, of which there is no copy."""
    texts = [f"text number {number} of the pool" for number in range(60)]
    write_documents(tmp_path / "a_text_document", map(str.encode, texts[:10]))
    write_documents(tmp_path / "b_text_document", map(str.encode, texts[:5]))
    write_documents(tmp_path / "a_held_out_text_document", map(str.encode, texts[8:]))
    write_documents(tmp_path / "b_held_out_text_document", map(str.encode, texts[40:]))
    arms, tokenizer = open_arms({name: str(tmp_path / f"{name}_text_document") for name in "ab"})
    pool, kept = held_out_sets(arms, tokenizer, held_out="", want=(), most=100_000)
    assert (pool.name, len(pool.documents), pool.left_out) == ("the pool", 50, 2)
    assert (kept.name, len(kept.documents), kept.left_out) == ("what every arm keeps", 20, 0)
    assert sorted(kept.sizes.tolist()) == sorted(len(texts[number]) for number in range(40, 60))
    assert arms[1].shared_with(arms[0]) == 5
