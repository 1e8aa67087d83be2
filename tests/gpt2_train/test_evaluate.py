"""`gpt2 evaluate`: the loss of each token once, its parts, the unigram baseline, and the command."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.documented import example
from tests.gpt2_train.small_models import BYTES, END, byte_tokenizer, constant_model, in_memory, random_model, save

from gpt2_train.checkpoint.save import Checkpointer, model_tensors
from gpt2_train.cli import main
from gpt2_train.config.errors import Gpt2Error
from gpt2_train.config.settings import ModelConfig
from gpt2_train.data.corpus import Corpus, split_ranges
from gpt2_train.evaluation import tasks
from gpt2_train.evaluation.tasks import held_out_loss
from gpt2_train.evaluation.tasks.held_out_loss import split_pieces, text_bytes, unigram_loss
from gpt2_train.inference.scorer import Scorer, windows
from indexed_tokens import IndexedTokens, IndexedTokensWriter, Tokenizer, save_corpus_tokenizer

TEXTS = [f"document {number}: " + "é, a line of text. " * (number % 5) for number in range(20)]


def write_texts(prefix: Path, texts: list[str] = TEXTS) -> str:
    with IndexedTokensWriter(prefix) as writer:
        for text in texts:
            writer.add([*text.encode(), END])
    return str(prefix)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_texts(tmp_path_factory.mktemp("data") / "texts")


def tokens_of(data: str, begin: int = 0, end: int | None = None) -> list[int]:
    """The tokens of some documents, one after the other."""
    return [int(token) for document in list(IndexedTokens(data))[begin:end] for token in document]


@torch.no_grad()
def naive_loss(tokens: list[int], config: ModelConfig = BYTES) -> float:
    """Each token by itself, behind what its window holds before it."""
    model, length, losses = random_model(config), config.sequence_length, []
    for place in range(1, len(tokens)):
        begin = (place - 1) // length * length
        logits = model(torch.tensor([tokens[begin:place]]))[0, -1, : config.vocabulary_size].double()
        losses.append(float(logits.logsumexp(0) - logits[tokens[place]]))
    return math.fsum(losses) / len(losses)


def report(capsys: pytest.CaptureFixture[str], *flags: object) -> dict[str, Any]:
    assert main(["evaluate", *map(str, flags), "--device", "cpu", "--threads", "1", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


# --- the parts of scoring --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 7, 16, 17, 33, 500])
@pytest.mark.parametrize("batch", [1, 3])
def test_every_token_but_the_first_is_a_target_once(size: int, batch: int) -> None:
    """However the tokens come in pieces, the windows are the same: full ones first, in order, then the rest."""
    tokens = np.arange(size * 3)
    found = [row for rows in windows(iter(np.split(tokens, 3)), 16, batch) for row in rows]
    assert [int(token) for row in found for token in row[1:]] == list(range(1, size * 3))
    assert all(row[0] == 16 * number for number, row in enumerate(found))
    assert {len(row) for row in found[:-1]} <= {17}
    assert max(len(rows) for rows in windows([tokens], 16, batch)) <= batch


def test_the_loss_does_not_depend_on_the_batch(data: str) -> None:
    corpus = Corpus(data, [1.0, 0.0, 0.0])
    found = [
        Scorer(in_memory(random_model()), batch_size=batch).text_loss(split_pieces(corpus, "all", size=size))
        for batch, size in ((1, 1), (2, 100), (64, 1 << 20))
    ]
    for total, tokens in found:
        assert tokens == corpus.tokens.total_tokens - 1
        assert total == pytest.approx(found[0][0], rel=1e-6)


@torch.no_grad()
def test_the_log_probability_of_a_continuation_is_that_of_its_tokens() -> None:
    """Behind a context, whatever its length: the model sees what fits, and a long continuation is scored in pieces."""
    model = random_model()
    scorer = Scorer(in_memory(model))
    random = np.random.default_rng(3)
    for sizes in ((1, 1), (5, 4), (1, 16), (14, 3), (40, 16), (3, 17), (50, 50)):
        context, continuation = (random.integers(0, 256, size).tolist() for size in sizes)
        found = scorer.logprobs(context, continuation)
        ids, step = context + continuation, len(continuation) if len(continuation) <= 16 else 8
        for place, logprob in enumerate(found.logprobs, len(context)):
            end = min(len(ids), len(context) + ((place - len(context)) // step + 1) * step)
            seen = ids[max(0, end - 17) : place]
            expected = model(torch.tensor([seen]))[0, -1, :257].double().log_softmax(0)[ids[place]]
            assert logprob == pytest.approx(float(expected), rel=1e-4)
        assert found.total == pytest.approx(float(found.logprobs.sum()))


def test_a_greedy_continuation_is_told_from_others() -> None:
    scorer = Scorer(in_memory(constant_model({97: 0.0})))
    assert scorer.logprobs([5], [97, 97]).is_greedy
    assert not scorer.logprobs([5], [97, 98]).is_greedy
    assert not scorer.logprobs([5], [98] + [97] * 40).is_greedy
    padded = Scorer(in_memory(constant_model({97: 0.0, 300: 5.0})))
    assert padded.logprobs([5], [97]).is_greedy
    with pytest.raises(Gpt2Error, match="a context of at least one token"):
        scorer.logprobs([], [97])


def test_a_unigram_model_counts_and_adds_one() -> None:
    targets, fitted = np.array([2, 1, 1, 0]), np.array([6, 0, 1, 1])
    naive = -(2 * math.log(7 / 12) + math.log(1 / 12) + math.log(2 / 12)) / 4
    assert unigram_loss(targets, fitted) == pytest.approx(naive)
    assert unigram_loss(targets) == pytest.approx(1.5 * math.log(2))


def test_bytes_are_those_of_the_text() -> None:
    counts = np.bincount([*"né".encode(), END], minlength=300)
    assert text_bytes(counts, byte_tokenizer(), END) == 3
    counts[280] = 1
    assert text_bytes(counts, byte_tokenizer(), END) is None


# --- the command -----------------------------------------------------------------------------------------------------


def test_the_loss_is_that_of_a_naive_computation(
    run_folder: Path, data: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = report(capsys, "held-out-loss", data, "--checkpoint", run_folder, "--split", "all")
    tokens = tokens_of(data)
    assert (found["split"], found["documents"], found["tokens"]) == ("all", 20, len(tokens) - 1)
    assert found["loss"] == pytest.approx(naive_loss(tokens), rel=1e-5)
    assert found["perplexity"] == pytest.approx(math.exp(found["loss"]))
    size = len("".join(TEXTS).encode()) - 1  # The first byte has no prediction.
    assert found["bytes"] == size
    assert found["bits_per_byte"] == pytest.approx(found["loss"] * found["tokens"] / math.log(2) / size)


def test_a_model_that_knows_nothing_has_the_logarithm_of_the_vocabulary(
    tmp_path: Path, data: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The padding of the embedding, 127 rows here, has no part in it."""
    save(tmp_path, constant_model({}, others=0.0))
    found = report(capsys, "held-out-loss", data, "--checkpoint", tmp_path)
    assert found["loss"] == pytest.approx(math.log(257), rel=1e-6)
    assert found["perplexity"] == pytest.approx(257, rel=1e-5)


def test_parts_are_those_that_training_holds_out(
    run_folder: Path, data: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pitfall 17: each document is in one part, by the rule of training."""
    ranges = split_ranges(IndexedTokens(data).document_index, [70, 20, 10])
    assert ranges == [(0, 14), (14, 18), (18, 20)]
    for split, (begin, end) in zip(("train", "valid", "test"), ranges, strict=True):
        found = report(
            capsys, "held-out-loss", data, "--checkpoint", run_folder, "--split", split, "--split-weights", "70,20,10"
        )
        tokens = tokens_of(data, begin, end)
        assert (found["documents"], found["tokens"]) == (end - begin, len(tokens) - 1)
        assert found["loss"] == pytest.approx(naive_loss(tokens), rel=1e-5)


def test_the_baseline_of_a_held_out_part_learned_from_the_training_part(
    run_folder: Path, data: str, capsys: pytest.CaptureFixture[str]
) -> None:
    base = ["held-out-loss", data, "--checkpoint", run_folder, "--split-weights", "70,20,10"]
    learned, targets = Counter(tokens_of(data, 0, 14)), tokens_of(data, 14, 18)[1:]
    naive = [-math.log((learned[token] + 1) / (learned.total() + 257)) for token in targets]
    found = report(capsys, *base, "--split", "valid")
    assert found["unigram_loss"] == pytest.approx(math.fsum(naive) / len(naive))
    assert found["unigram"] == "fitted on the train split, add-one smoothing"
    everything = Counter(tokens_of(data)[1:])
    entropy = -math.fsum(n / everything.total() * math.log(n / everything.total()) for n in everything.values())
    found = report(capsys, *base, "--split", "all")
    assert found["unigram_loss"] == pytest.approx(entropy)
    assert found["unigram"] == "entropy of the scored text itself"


def test_the_baseline_reads_a_bounded_part_of_the_training_split(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every token of the training split was read for the baseline, 9 billion of them for 1,000 tokens to score."""
    random = np.random.default_rng(5)
    with IndexedTokensWriter(tmp_path / "large") as writer:
        for _ in range(40):
            writer.add(random.integers(0, 256, 20_000))
    monkeypatch.setattr(held_out_loss, "BASELINE_TOKENS", 1 << 17)
    read: list[int] = []
    sampled = Corpus.sampled_pieces

    def counted(corpus: Corpus, split: str, most: int) -> Any:
        for piece in sampled(corpus, split, most):
            read.append(len(piece))
            yield piece

    monkeypatch.setattr(Corpus, "sampled_pieces", counted)
    base = ["held-out-loss", tmp_path / "large", "--checkpoint", run_folder, "--split-weights", "95,5"]
    found = report(capsys, *base, "--split", "valid", "--max-tokens", 100)
    assert sum(read) == 1 << 17
    assert found["unigram"] == "fitted on 131,072 evenly spaced tokens of the train split, add-one smoothing"
    assert found["unigram_loss"] == pytest.approx(math.log(256), abs=0.01)


def test_text_shorter_than_a_sequence_is_scored(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = write_texts(tmp_path / "short", ["ab", ""])
    found = report(capsys, "held-out-loss", short, "--checkpoint", run_folder, "--split", "all")
    assert found["tokens"] == 3
    assert found["loss"] == pytest.approx(naive_loss([97, 98, END, END]), rel=1e-5)


def test_the_first_tokens_only(run_folder: Path, data: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = report(capsys, "held-out-loss", data, "--checkpoint", run_folder, "--split", "all", "--max-tokens", 50)
    tokens = tokens_of(data)[:51]
    assert (found["tokens"], found["of_tokens"]) == (50, len(tokens_of(data)))
    assert found["loss"] == pytest.approx(naive_loss(tokens), rel=1e-5)
    more = report(capsys, "held-out-loss", data, "--checkpoint", run_folder, "--split", "all", "--max-tokens", 10**9)
    assert more["tokens"] == more["of_tokens"] - 1


def save_trained(folder: Path, data: str, split: str) -> Path:
    """A checkpoint that records `data` as its training data."""
    model = random_model()
    checkpointer = Checkpointer(
        folder / "checkpoints", config=model.config, tokenizer=byte_tokenizer(), settings={"split": split},
        data=[Corpus(data, [1.0, 0.0, 0.0]).identity()],
    )  # fmt: skip
    checkpointer.save(model_tensors(model), step=7, samples=0)
    return folder


def test_the_split_of_the_training_run_is_kept(tmp_path: Path, data: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Without --split and --split-weights: what that run held out of its own data, everything of other data."""
    folder = save_trained(tmp_path / "run", data, "60,30,10")
    found = report(capsys, "held-out-loss", data, "--checkpoint", folder)
    assert (found["split"], found["split_weights"], found["documents"]) == ("valid", "60,30,10", 6)
    other = write_texts(tmp_path / "other", TEXTS[:5])
    assert report(capsys, "held-out-loss", other, "--checkpoint", folder)["split"] == "all"


def test_text_that_the_model_was_trained_on_is_pointed_out(
    tmp_path: Path, data: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = save_trained(tmp_path / "run", data, "60,30,10")
    words = ["evaluate", "held-out-loss", data, "--checkpoint", str(folder), "--device", "cpu"]
    assert main([*words, "--split", "valid"]) == 0
    out, err = capsys.readouterr()
    assert "gpt2:" not in err
    assert "unigram loss" in out
    assert "(all but the first)" in out
    assert main([*words, "--split", "all"]) == 0
    assert "this is not a held-out loss" in capsys.readouterr().err
    assert main([*words, "--split-weights", "50,50"]) == 0
    assert "was trained on" in capsys.readouterr().err


def test_a_copy_of_the_data_is_the_same_data(tmp_path: Path, data: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = save_trained(tmp_path / "run", data, "60,30,10")
    for ending in (".bin", ".idx"):
        shutil.copy(data + ending, tmp_path / f"copy{ending}")
    assert report(capsys, "held-out-loss", tmp_path / "copy.idx", "--checkpoint", folder)["split"] == "valid"


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (
            ["--split", "test", "--split-weights", "90,10"],
            "the test split of {data} holds 0 tokens (20 documents, --split-weights 90,10)",
        ),
        (["--split-weights", "a,b"], "--split-weights 'a,b' should be"),
        (["--split", "vlaid"], "--split vlaid should be one of all, train, valid, test"),
        (["--batch-size", "0"], "--batch-size is 0"),
        (["--threads", "0"], "--threads is 0"),
        (["--max-tokens", "0"], "--max-tokens is 0"),
    ],
)
def test_what_cannot_be_measured_is_said_in_a_sentence(
    flags: list[str], sentence: str, run_folder: Path, data: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", "held-out-loss", data, "--checkpoint", str(run_folder), *flags]) == 2
    out, err = capsys.readouterr()
    assert sentence.format(data=data) in err
    assert (out, err.count("\n")) == ("", 1)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["held-out-loss", "/nonexistent/x"], "no token file /nonexistent/x"),
        (["held-out-loss"], "gpt2 evaluate held-out-loss needs PREFIX"),
        (["--data", "x"], "--data is gone: give the token files after the task, `gpt2 evaluate held-out-loss PREFIX`"),
        (["--text=x"], "--text is gone: give the text after the task, `gpt2 evaluate text-loss FILE`"),
        (["--task", "lambada", "--input", "x"], "--task is gone: the task comes first, `gpt2 evaluate TASK FILE`"),
        (["lambada", "--input", "x"], "--input is gone: give the file after the task"),
    ],
)
def test_the_task_and_its_file_stand_first(
    words: list[str], sentence: str, run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(["evaluate", *words, "--checkpoint", str(run_folder)])
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    assert sentence in capsys.readouterr().err


def test_a_vocabulary_that_does_not_match_is_said(
    run_folder: Path, data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ids beyond the model's are refused, padding rows or not; so is text made by another tokenizer."""
    with IndexedTokensWriter(tmp_path / "wide") as writer:
        writer.add([5, 300, 7])
    assert main(["evaluate", "held-out-loss", str(tmp_path / "wide"), "--checkpoint", str(run_folder)]) == 2
    assert "holds the token id 300, but the model's vocabulary has 257 ids" in capsys.readouterr().err
    other = write_texts(tmp_path / "other")
    record = tmp_path / "other.json"
    record.write_text('{"facts": {"tokenizer": "0123"}}')
    assert main(["evaluate", "held-out-loss", other, "--checkpoint", str(run_folder)]) == 2
    assert "was made with another tokenizer" in capsys.readouterr().err
    record.write_text(json.dumps({"facts": {"tokenizer": byte_tokenizer().fingerprint}}))
    assert main(["evaluate", "held-out-loss", other, "--checkpoint", str(run_folder), "--device", "cpu"]) == 0


def test_data_of_another_tokenizer_is_refused(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The tokenizer next to the token files decides, and --tokenizer replaces the checkpoint's."""
    data = write_texts(tmp_path / "texts")
    save_corpus_tokenizer(data, byte_tokenizer())
    words = ["evaluate", "held-out-loss", data, "--checkpoint", str(run_folder), "--device", "cpu"]
    assert main(words) == 0
    letters = byte_tokenizer()._vocabulary
    swapped = Tokenizer({**letters, "a": letters["b"], "b": letters["a"]}, [])
    save_corpus_tokenizer(data, swapped)
    capsys.readouterr()
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert "was made with another tokenizer than the model's" in err
    assert (out, err.count("\n")) == ("", 1)
    swapped.save(tmp_path / "swapped")
    assert main([*words, "--tokenizer", str(tmp_path / "swapped")]) == 0
    assert "is not the one that" in capsys.readouterr().err


def test_a_checkpoint_without_a_tokenizer_gets_bytes_from_one_that_is_given(
    tmp_path: Path, data: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model = random_model()
    checkpointer = Checkpointer(tmp_path / "run" / "checkpoints", config=model.config)
    checkpointer.save(model_tensors(model), step=7, samples=0)
    base = ["held-out-loss", data, "--checkpoint", tmp_path / "run"]
    assert report(capsys, *base)["bits_per_byte"] is None
    byte_tokenizer().save(tmp_path / "bytes")
    assert report(capsys, *base, "--tokenizer", tmp_path / "bytes")["bits_per_byte"] > 0


def test_a_loss_that_is_not_finite_is_an_error(data: str) -> None:
    model = random_model()
    with torch.no_grad():
        model.final_norm.bias[0] = torch.nan
    with pytest.raises(Gpt2Error, match="not finite"):
        Scorer(in_memory(model)).text_loss(split_pieces(Corpus(data, [1.0, 0.0, 0.0]), "all"))


def test_the_padded_vocabulary_of_training_loads(
    run_folder: Path, data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pitfall 30: the checkpoint's 384 rows of embedding load as they are; settings may come from a file."""
    config = tmp_path / "pipeline.toml"
    config.write_text(
        f'[evaluate]\ncheckpoint = "{run_folder}"\ndata = "{data}"\nsplit = "valid"\nsplit_weights = "8,1,1"\n'
    )
    assert report(capsys, "held-out-loss", "--config", config)["documents"] == 2


# --- tasks -----------------------------------------------------------------------------------------------------------

LAST_WORD = example("LastWord")


@pytest.fixture
def last_word(plugin: Callable[..., None]) -> None:
    """A task in a file of its own, in another folder."""
    plugin(tasks, "last_word", LAST_WORD)


def test_a_task_is_added_by_one_file(last_word: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its settings are flags, keys of [evaluate] and part of --help; its result is printed with the rest."""
    save(tmp_path / "run", constant_model({32: 0.0, 97: 0.0}))
    (tmp_path / "lines.txt").write_text("one  \ntwo a\nthree  \n")
    base = ["last-word", tmp_path / "lines.txt", "--checkpoint", tmp_path / "run"]
    found = report(capsys, *base)
    assert (found["task"], found["lines"], found["guessed"], found["step"]) == ("last-word", 3, 2, 7)
    config = tmp_path / "x.toml"
    config.write_text(f'[evaluate]\ntask = "last-word"\nlines = "{tmp_path / "lines.txt"}"\n')
    assert report(capsys, "last-word", "--checkpoint", tmp_path / "run", "--config", config)["guessed"] == 2
    assert main(["evaluate", *map(str, base)]) == 0
    assert "guessed" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["evaluate", "--help"])
    shown = capsys.readouterr().out
    assert re.search(r"^    last-word +last words guessed$", shown, re.MULTILINE)
    assert all(re.search(rf"^    {name}\b", shown, re.MULTILINE) for name in tasks.tasks())


def test_a_setting_of_another_task_is_refused(
    last_word: None, run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["evaluate", "last-word", "x", "--checkpoint", str(run_folder), "--max-tokens", "5"])
    assert ended.value.code == 2
    assert "unrecognized arguments: --max-tokens 5" in capsys.readouterr().err


def test_two_tasks_of_one_name_are_refused(
    last_word: None, plugin: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    plugin(tasks, "again", LAST_WORD)
    with pytest.raises(Gpt2Error, match="two evaluation tasks are called last-word"):
        tasks.tasks()


def test_half_precision_that_a_cpu_lacks_is_pointed_out(
    run_folder: Path, data: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """--precision bf16 ran 20 times slower than fp32 on a CPU without the instructions for it, and nothing said so."""
    words = [
        "evaluate",
        "held-out-loss",
        data,
        "--checkpoint",
        str(run_folder),
        "--device",
        "cpu",
        "--precision",
        "bf16",
    ]
    for capabilities, is_said in (({"avx2": True}, True), ({"avx2": True, "amx_bf16": True}, False)):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda found=capabilities: found)
        assert main(words) == 0
        assert ("no instructions for bf16" in capsys.readouterr().err) is is_said
