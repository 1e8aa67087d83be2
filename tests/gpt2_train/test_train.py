"""`gpt2 train` in one process: what a run leaves, resuming, refusals."""

from __future__ import annotations

import errno
import json
import math
import re
import shutil
import signal
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.gpt2_train import forks
from tests.gpt2_train.conftest import command, in_step, losses, read_until, rows, write_corpus
from tests.gpt2_train.small_models import byte_tokenizer, random_model, save

from gpt2_train.checkpoint.info import load_tokenizer, read_info
from gpt2_train.cli import main
from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.conversion.formats import open_weights
from gpt2_train.training import setup
from gpt2_train.training import trainer as train_module
from gpt2_train.training.recorder import Recorder
from gpt2_train.training.run_folder import lock_folder
from indexed_tokens import Tokenizer, save_corpus_tokenizer, tokenizer_path

Run = Callable[..., int]


def weights(output: Path) -> dict[str, torch.Tensor]:
    model = open_weights(output).load()
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def assert_same_bits(first: Path, second: Path) -> None:
    """Weights, optimizer state and logged losses of two runs are equal to the last bit."""
    files = [sorted(read_info(output).folder.glob("*.safetensors")) for output in (first, second)]
    assert [path.name for path in files[0]] == [path.name for path in files[1]] and len(files[0]) > 1
    assert [path.read_bytes() for path in files[0]] == [path.read_bytes() for path in files[1]]
    assert losses(first) == losses(second)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory, corpus: str) -> Path:
    """20 steps without an interruption, saved every 5."""
    output = tmp_path_factory.mktemp("unbroken") / "run"
    torch.set_num_threads(1)
    assert main(command(output, "--steps", 20, "--save-every", 5, data=corpus)[3:]) == 0
    return output


def test_a_run_learns_and_leaves_its_folder(unbroken: Path) -> None:
    found = losses(unbroken)
    assert list(found) == list(range(1, 21))
    assert found[20] < found[1] - 0.5
    last = rows(unbroken)[-1]
    assert last["step"] == 20 and last["valid_loss"] < found[1]
    first = rows(unbroken)[0]
    expected = {"step", "tokens", "epoch", "loss", "lr", "grad_norm", "skipped", "tokens_per_second", "mfu"}
    assert expected | {"peak_memory_bytes", "data_wait_share", "seconds_left", "seconds"} <= first.keys()
    assert first["tokens"] == 8 * 16 and first["lr"] > 0 and first["mfu"] is None
    settings = tomllib.loads((unbroken / "config.toml").read_text())["train"]
    assert (settings["layers"], settings["precision"], settings["micro_batch_size"]) == (2, "fp32", 2)
    names = [path.name for path in sorted((unbroken / "checkpoints").glob("step-*"))]
    assert names == ["step-0000010", "step-0000015", "step-0000020"]


def test_the_same_settings_give_the_same_bits(tmp_path: Path, gpt2: Run, unbroken: Path) -> None:
    """Pitfall 26: validation always reads the same samples, and training is the same with and without it."""
    assert gpt2(tmp_path, "--steps", 20, "--save-every", 7, "--eval-every", 1) == 0
    left, right = weights(unbroken), weights(tmp_path)
    assert all(torch.equal(left[name], right[name]) for name in left)
    assert losses(tmp_path) == losses(unbroken)
    assert len({row["valid_tokens"] for row in rows(tmp_path) if "valid_loss" in row}) == 1
    assert rows(tmp_path)[-1]["valid_loss"] == rows(unbroken)[-1]["valid_loss"]


def test_the_saved_config_runs_the_same_again(tmp_path: Path, unbroken: Path, corpus: str) -> None:
    output = tmp_path / "again"
    assert main(["train", "--config", str(unbroken / "config.toml"), "--output", str(output)]) == 0
    assert_same_bits(unbroken, output)


def test_another_seed_gives_other_weights_and_another_order(tmp_path: Path, gpt2: Run, unbroken: Path) -> None:
    """Pitfall 19: --seed did not change sampling."""
    assert gpt2(tmp_path, "--steps", 1, "--seed", 5) == 0
    assert losses(tmp_path)[1] != losses(unbroken)[1]


def test_a_longer_run_goes_on_where_the_shorter_one_ended(tmp_path: Path, gpt2: Run) -> None:
    """Pitfalls 22 and 26: the data continues, at a constant rate the weights are those of one long run."""
    flat = ("--schedule", "constant", "--warmup", 0)
    for name, steps in (("parts", 2), ("parts", 5), ("whole", 5)):
        assert gpt2(tmp_path / name, "--steps", steps, *flat) == 0
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    assert_same_bits(tmp_path / "parts", tmp_path / "whole")


def test_a_run_shorter_than_the_save_interval_is_saved(tmp_path: Path, gpt2: Run) -> None:
    """Pitfall 21: nothing was saved at the end."""
    assert gpt2(tmp_path, "--steps", 2, "--save-every", 1000) == 0
    assert read_info(tmp_path).step == 2


def test_a_signal_before_the_first_step_says_that_there_is_nothing_to_save(
    tmp_path: Path, gpt2: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It said "all saved", with no checkpoint in the folder."""

    def interrupt(self: Recorder) -> None:
        self.state.stop_signal = signal.SIGTERM

    monkeypatch.setattr(Recorder, "observe", interrupt)
    assert gpt2(tmp_path, "--steps", 5) == 128 + signal.SIGTERM
    said = capsys.readouterr().err
    assert "stopped by SIGTERM at step 0 of 5, nothing to save yet" in said and "all saved" not in said
    assert not (tmp_path / "checkpoints").exists()


def test_a_finished_run_says_so_and_changes_nothing(
    tmp_path: Path, gpt2: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gpt2(tmp_path, "--steps", 2) == 0
    before = (tmp_path / "metrics.jsonl").read_bytes()
    capsys.readouterr()
    assert gpt2(tmp_path, "--steps", 2, "--json") == 0
    out, err = capsys.readouterr()
    assert "already" in err and json.loads(out)["step"] == 2
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


def test_epochs_roll_over_and_the_log_says_so(tmp_path: Path, gpt2: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """Pitfall 18: data ran out before the iterations did."""
    data = write_corpus(tmp_path / "small", 12, longest=20)
    assert gpt2(tmp_path / "run", "--epochs", 2.5, "--split", 1, data=data) == 0
    err = capsys.readouterr().err
    assert f"epoch 1 of {data} ended" in err and f"epoch 2 of {data} ended" in err
    assert rows(tmp_path / "run")[-1]["epoch"] == pytest.approx(2.5, abs=1)
    # Those that end between two lines are one line.
    assert gpt2(tmp_path / "few", "--epochs", 2.5, "--split", 1, "--log-every", 1000, data=data) == 0
    assert f"epochs 1 to 2 of {data} ended; the next one is shuffled again" in capsys.readouterr().err


def test_one_document_is_enough_to_train_on(tmp_path: Path, gpt2: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """Pitfall 17: with few documents there is nothing to validate on, which is said once."""
    data = write_corpus(tmp_path / "one", 1)
    assert gpt2(tmp_path / "run", "--steps", 2, "--eval-every", 1, data=data) == 0
    assert capsys.readouterr().err.count("no documents for the valid split") == 1


def test_several_corpora_are_blended_by_their_weights(tmp_path: Path, gpt2: Run, corpus: str) -> None:
    other = corpus_of(tmp_path / "other", byte_tokenizer(), seed=9)
    words = command(tmp_path / "run", "--steps", 3, data=[f"0.7:{corpus}", f"0.3:{other}"])[3:]
    assert main(words) == 0
    assert [entry["weight"] for entry in read_info(tmp_path / "run").data] == [0.7, 0.3]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--lr", "2e-2"), "lr was 0.01, now 0.02"),
        (("--seed", 7, "--global-batch-size", 4), "seed was 1234, now 7"),
        (("--precision", "bf16"), "precision was 'fp32', now 'bf16'"),
    ],
)
def test_other_settings_on_a_run_are_refused_by_name(
    unbroken: Path, gpt2: Run, capsys: pytest.CaptureFixture[str], flags: tuple[Any, ...], message: str
) -> None:
    """Pitfalls 23 and 25: nothing is silently replaced by the checkpoint's value, nothing is ignored."""
    before = (unbroken / "metrics.jsonl").read_bytes()
    assert gpt2(unbroken, "--steps", 30, *flags) == 2
    assert message in capsys.readouterr().err
    assert (unbroken / "metrics.jsonl").read_bytes() == before


def test_changed_data_under_a_run_is_refused(tmp_path: Path, gpt2: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """Pitfall 20."""
    data = write_corpus(tmp_path / "data", 30)
    assert gpt2(tmp_path / "run", "--steps", 2, data=data) == 0
    write_corpus(tmp_path / "data", 30, seed=1)
    assert gpt2(tmp_path / "run", "--steps", 4, data=data) == 2
    assert "has changed since the run" in capsys.readouterr().err
    write_corpus(tmp_path / "data", 30)  # the same bytes, written later, are the same data
    assert gpt2(tmp_path / "run", "--steps", 4, data=data) == 0


def test_dropout_recomputation_and_micro_batches_change_nothing_else(tmp_path: Path, gpt2: Run) -> None:
    """Activation checkpointing recomputes the same dropout: full and selective give the losses of `none`."""
    for mode in ("none", "full", "selective"):
        assert gpt2(tmp_path / mode, "--steps", 4, "--activation-checkpointing", mode) == 0
    assert losses(tmp_path / "none") == losses(tmp_path / "full") == losses(tmp_path / "selective")
    for size in (1, 8):
        assert gpt2(tmp_path / f"m{size}", "--steps", 4, "--micro-batch-size", size, "--dropout", 0) == 0
    left, right = losses(tmp_path / "m1"), losses(tmp_path / "m8")
    assert all(left[step] == pytest.approx(right[step], abs=1e-5) for step in left)


@pytest.mark.parametrize(("precision", "residual"), [("bf16", "fp32"), ("bf16", "bf16"), ("fp16", "fp32")])
def test_lower_precision_follows_fp32(tmp_path: Path, gpt2: Run, unbroken: Path, precision: str, residual: str) -> None:
    assert gpt2(tmp_path, "--steps", 20, "--precision", precision, "--residual", residual) == 0
    low, full = losses(tmp_path), losses(unbroken)
    assert all(low[step] == pytest.approx(full[step], abs=0.05) for step in full)
    row = next(row for row in rows(tmp_path) if row["step"] == 20)
    assert row["skipped"] == 0
    assert row.get("loss_scale") == (65536.0 if precision == "fp16" else None)


def test_a_residual_stream_in_bf16_needs_products_in_bf16(
    tmp_path: Path, gpt2: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """The CPU's default is fp32."""
    assert gpt2(tmp_path, "--steps", 20, "--residual", "bf16") == 2
    assert "--residual bf16 in a run in fp32: give --precision bf16, too." in capsys.readouterr().err


def test_a_skipped_step_is_no_iteration(tmp_path: Path, gpt2: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pitfall 24: overflows counted as iterations. The step is done again, with the same data, at half the scale."""
    assert gpt2(tmp_path / "plain", "--steps", 6, "--precision", "fp16", "--save-every", 3) == 0
    plain, calls = train_module.gradient_norm, []

    def overflowing(parameters: Any) -> torch.Tensor:
        calls.append(1)
        return torch.tensor(math.inf) if len(calls) in (2, 3) else plain(parameters)

    monkeypatch.setattr(train_module, "gradient_norm", overflowing)
    assert gpt2(tmp_path / "skipping", "--steps", 6, "--precision", "fp16") == 0
    assert len(calls) == 8
    assert list(losses(tmp_path / "skipping")) == [1, 2, 3, 4, 5, 6]
    last = next(row for row in rows(tmp_path / "skipping") if row["step"] == 6)
    assert (last["skipped"], last["loss_scale"]) == (2, 2.0**14)
    left, right = losses(tmp_path / "plain"), losses(tmp_path / "skipping")
    assert all(left[step] == pytest.approx(right[step], abs=1e-2) for step in left)


def test_a_diverged_run_ends_in_a_sentence_and_keeps_its_checkpoint(
    tmp_path: Path, gpt2: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The advice was to resume with a lower --lr in another --output, which is refused, or begins at step 1."""
    with monkeypatch.context() as patch:
        patch.setattr(train_module, "gradient_norm", lambda parameters: torch.tensor(math.nan))
        assert gpt2(tmp_path / "none", "--steps", 4) == 1
    assert "nothing was saved before; begin again with a lower --lr" in capsys.readouterr().err
    assert gpt2(tmp_path / "run", "--steps", 2) == 0
    with monkeypatch.context() as patch:
        patch.setattr(train_module, "gradient_norm", lambda parameters: torch.tensor(math.nan))
        assert gpt2(tmp_path / "run", "--steps", 4) == 1
    assert read_info(tmp_path / "run").step == 2
    advised = re.search(r"diverged; begin another run, .* by --init-from (\S+)\.\n", capsys.readouterr().err)
    assert advised is not None
    assert gpt2(tmp_path / "again", "--steps", 1, "--lr", 2e-3, "--init-from", advised[1]) == 0


def test_a_loss_in_the_log_is_that_of_its_step_however_often_it_is_logged(tmp_path: Path, gpt2: Run) -> None:
    """It was the mean since the last row: 2.83, 2.92, 3.02 and 3.67 for the same weights."""
    assert gpt2(tmp_path / "each", "--steps", 6) == 0
    assert gpt2(tmp_path / "third", "--steps", 6, "--log-every", 3) == 0
    each, third = losses(tmp_path / "each"), losses(tmp_path / "third")
    assert list(third) == [1, 3, 6]
    assert third == {step: each[step] for step in third}


def test_the_validation_loss_is_of_the_same_text_whatever_the_batch(tmp_path: Path, gpt2: Run) -> None:
    """--eval-batches counted global batches: 0.97 to 1.02 for the same weights."""
    found = set()
    for batch in (1, 2, 6):
        flags = ("--steps", 1, "--lr", 1e-12, "--min-lr", 0, "--dropout", 0, "--eval-tokens", 100)
        assert gpt2(tmp_path / str(batch), *flags, "--global-batch-size", batch, "--micro-batch-size", 1) == 0
        found |= {(round(row["valid_loss"], 6), row["valid_tokens"]) for row in rows(tmp_path / str(batch))[-1:]}
    assert len(found) == 1
    assert {tokens for _, tokens in found} == {96}  # whole sequences of 16


@pytest.mark.parametrize(("schedule", "is_said"), [("cosine", True), ("constant", False)])
def test_a_finished_run_that_is_made_longer_says_where_its_rate_goes_on(
    tmp_path: Path, gpt2: Run, capsys: pytest.CaptureFixture[str], schedule: str, is_said: bool
) -> None:
    """It jumped from 1e-5 to 4.9e-3 without a word."""
    flags = ("--schedule", schedule, "--warmup", 1)
    assert gpt2(tmp_path, "--steps", 4, *flags) == 0
    capsys.readouterr()
    assert gpt2(tmp_path, "--steps", 8, *flags) == 0
    rate = next(row["lr"] for row in rows(tmp_path) if row["step"] == 5)
    said = f"the learning rate goes on at {rate:.3g}, where it was 0.001 at step 4: as a run of 8 steps has it there"
    assert (said in capsys.readouterr().err) == is_said
    assert gpt2(tmp_path, "--steps", 8, *flags) == 0
    assert "the learning rate goes on" not in capsys.readouterr().err


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "stage.json").write_text("{}")
    with pytest.raises(Gpt2UsageError, match=r"holds other files \(stage.json\)"), lock_folder(tmp_path):
        pass
    assert [entry.name for entry in tmp_path.iterdir()] == ["stage.json"]


def test_two_runs_never_share_a_folder(tmp_path: Path) -> None:
    with (
        lock_folder(tmp_path),
        pytest.raises(Gpt2UsageError, match="another gpt2 train"),
        lock_folder(tmp_path, patience=0),
    ):
        raise AssertionError("the second one got the lock")


def test_a_failed_first_run_leaves_nothing_behind(
    tmp_path: Path, gpt2: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run whose data were missing left --output with a lock file in it."""
    assert gpt2(tmp_path / "run", data=str(tmp_path / "nothing")) == 2
    assert "nothing.idx" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    (tmp_path / "mine").mkdir()
    assert gpt2(tmp_path / "mine", data=str(tmp_path / "nothing")) == 2
    assert list((tmp_path / "mine").iterdir()) == []


def test_a_lock_that_its_holder_removed_is_taken_on_the_new_file(tmp_path: Path) -> None:
    """Two runs would otherwise hold two files of one name."""
    folder = tmp_path / "run"
    with lock_folder(folder):
        first = (folder / ".lock").stat().st_ino
        waiting = (folder / ".lock").open("ab")
    assert not folder.exists()
    with waiting, lock_folder(folder, patience=0):
        assert (folder / ".lock").stat().st_nlink == 1 and first
        with pytest.raises(Gpt2UsageError, match="another gpt2 train"), lock_folder(folder, patience=0):
            pass


def test_a_file_system_without_locks_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lustre without -o flock and NFS without a lock daemon refuse locks, which ended the run."""

    def refused(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refused)
    said: list[str] = []
    with lock_folder(tmp_path / "run", say=said.append):
        assert (tmp_path / "run").is_dir()
    assert len(said) == 1 and "can't lock files (No locks available)" in said[0]


def test_a_run_without_saving_leaves_no_checkpoint(tmp_path: Path, gpt2: Run) -> None:
    """A benchmark of the largest model kept 19 GB for each of its cases."""
    assert gpt2(tmp_path / "run", "--steps", 2, "--save-every", 1, "--no-save") == 0
    assert list(losses(tmp_path / "run")) == [1, 2]
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_token_files_that_differ_from_machine_to_machine_are_refused(
    tmp_path: Path, gpt2: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each process read the files of its own machine, and no one noticed that they were others."""
    plain = setup.from_first_rank

    def from_another(work: Callable[[], Any]) -> Any:
        found = plain(work)
        return [entry | {"bin_bytes": 7} for entry in found] if isinstance(found, list) else found

    monkeypatch.setattr(setup, "from_first_rank", from_another)
    assert gpt2(tmp_path / "run", "--steps", 1) == 2
    assert "is another file than the one that process 0 reads: copy the same" in capsys.readouterr().err


# --- tokenizers ------------------------------------------------------------------------------------------------------


def corpus_of(prefix: Path, tokenizer: Tokenizer | None, seed: int = 0) -> str:
    data = write_corpus(prefix, 30, seed=seed)
    tokenizer_path(prefix).unlink()
    if tokenizer is not None:
        save_corpus_tokenizer(prefix, tokenizer)
    return data


def other_tokenizer() -> Tokenizer:
    return Tokenizer({**byte_tokenizer()._vocabulary, "ab": 257}, [("a", "b")])


def test_the_tokenizer_beside_the_data_goes_into_the_checkpoint(tmp_path: Path, gpt2: Run) -> None:
    """Training took GPT-2's for any data, and made a model that evaluation refused and that wrote word salad."""
    data = corpus_of(tmp_path / "data", byte_tokenizer())
    assert gpt2(tmp_path / "run", "--steps", 1, data=data) == 0
    assert load_tokenizer(tmp_path / "run").fingerprint == byte_tokenizer().fingerprint


def test_a_tokenizer_that_did_not_make_the_data_is_refused(
    tmp_path: Path, gpt2: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    data = corpus_of(tmp_path / "data", byte_tokenizer())
    assert gpt2(tmp_path / "run", "--steps", 1, "--tokenizer", "gpt2", data=data) == 2
    assert "was made with another tokenizer than --tokenizer gpt2" in capsys.readouterr().err


def test_corpora_of_different_tokenizers_are_not_blended(
    tmp_path: Path, gpt2: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    first = corpus_of(tmp_path / "first", byte_tokenizer())
    same = corpus_of(tmp_path / "same", byte_tokenizer(), seed=1)
    other = corpus_of(tmp_path / "other", other_tokenizer(), seed=2)
    unknown = corpus_of(tmp_path / "unknown", None, seed=3)

    def blended(second: str, *flags: str) -> int:
        words = command(tmp_path / "run", "--steps", 1, *flags, data=[first, second])[3:]
        return main(words)

    assert blended(other) == 2
    assert f"{other} was made with another tokenizer than {first}.tokenizer.json" in capsys.readouterr().err
    assert blended(unknown) == 2
    assert f"{unknown} names no tokenizer, where {first} has its own next to it" in capsys.readouterr().err
    assert blended(unknown, "--tokenizer", f"{first}.tokenizer.json") == 0
    shutil.rmtree(tmp_path / "run")
    assert blended(same) == 0


def test_a_run_resumes_with_its_tokenizer_only(tmp_path: Path, gpt2: Run, capsys: pytest.CaptureFixture[str]) -> None:
    data = corpus_of(tmp_path / "data", byte_tokenizer())
    assert gpt2(tmp_path / "run", "--steps", 1, data=data) == 0
    save_corpus_tokenizer(data, other_tokenizer())
    assert gpt2(tmp_path / "run", "--steps", 2, data=data) == 2
    assert "holds a run with another tokenizer" in capsys.readouterr().err


def test_the_record_of_an_older_corpus_is_heeded(tmp_path: Path, gpt2: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """Token files of a tokenizer that was only recorded by its fingerprint were taken for GPT-2's."""
    data = corpus_of(tmp_path / "data", None)
    Path(f"{data}.json").write_text(json.dumps({"facts": {"tokenizer": byte_tokenizer().fingerprint}}))
    assert gpt2(tmp_path / "run", "--steps", 1, data=data) == 2
    assert "give the --tokenizer that made it" in capsys.readouterr().err
    byte_tokenizer().save_json(tmp_path / "tokenizer.json")
    assert gpt2(tmp_path / "run", "--steps", 1, "--tokenizer", tmp_path / "tokenizer.json", data=data) == 0


# --- killed runs -----------------------------------------------------------------------------------------------------


def test_a_run_killed_at_any_step_resumes_to_the_same_bits(
    tmp_path: Path, gpt2: Run, corpus: str, unbroken: Path
) -> None:
    """Pitfall 26: with kill -9, so that nothing can be tidied up."""
    flags = ("--steps", 20, "--save-every", 5)
    process = forks.Started(command(tmp_path, *flags, data=corpus))
    read_until(process, "step-0000005")
    process.kill()
    process.communicate()
    assert read_info(tmp_path).step in (5, 10, 15)
    assert gpt2(tmp_path, *flags) == 0
    assert_same_bits(unbroken, tmp_path)


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        *(pytest.param(number, marks=pytest.mark.exhaustive) for number in (signal.SIGINT, signal.SIGUSR1)),
    ],
)
def test_a_signal_saves_and_the_same_command_goes_on(
    tmp_path: Path, gpt2: Run, unbroken: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """The step is finished, saved, and the exit code is the signal's; raised in the middle of step 7."""
    in_step(monkeypatch, 7, lambda: signal.raise_signal(number))
    flags = ("--steps", 20, "--save-every", 5)
    assert gpt2(tmp_path, *flags) == 128 + number
    assert read_info(tmp_path).step == 7
    assert gpt2(tmp_path, *flags) == 0
    assert_same_bits(unbroken, tmp_path)


# Beginning with another model's weights


def test_a_run_can_begin_with_the_weights_of_any_known_format(tmp_path: Path, gpt2: Run, unbroken: Path) -> None:
    assert main(["convert", str(unbroken), str(tmp_path / "hf")]) == 0
    flat = ("--steps", 2, "--lr", 1e-9, "--min-lr", 0, "--dropout", 0)
    for name, source in (("ours", unbroken), ("theirs", tmp_path / "hf")):
        assert gpt2(tmp_path / name, "--init-from", source, *flat) == 0
    assert_same_bits(tmp_path / "ours", tmp_path / "theirs")
    assert losses(tmp_path / "ours")[1] < losses(unbroken)[1] - 0.5
    left, right = weights(tmp_path / "ours"), weights(unbroken)
    vocabulary = slice(0, 100)  # further rows of the embedding are padding
    assert all(torch.allclose(left[name][vocabulary], right[name][vocabulary], atol=1e-5) for name in left)


def test_a_model_of_few_positions_is_trained_further_in_sequences_as_long(
    tmp_path: Path, corpus: str, unbroken: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was refused until its own number of positions was given, though its shape is said to be taken."""
    source, flags = tmp_path / "source", ["--device", "cpu", "--threads", "1", "--split", "8,1,1"]
    assert main(["convert", str(unbroken), str(source)]) == 0
    words = ["train", "--data", corpus, "--output", str(tmp_path / "run"), "--init-from", str(source), *flags]
    assert main([*words, "--steps", "1"]) == 0
    assert "sequences of 16:" in capsys.readouterr().err
    assert tomllib.loads((tmp_path / "run" / "config.toml").read_text())["train"]["sequence_length"] == 16
    assert read_info(tmp_path / "run").tokens == 8 * 16
    assert main([*words, "--steps", "2"]) == 0
    shutil.rmtree(source)  # no longer needed
    assert main([*words, "--steps", "3"]) == 0
    assert read_info(tmp_path / "run").step == 3


def test_the_model_that_a_run_began_with_is_part_of_what_it_is(
    tmp_path: Path, gpt2: Run, unbroken: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "source"
    assert main(["convert", str(unbroken), str(source)]) == 0
    assert gpt2(tmp_path / "run", "--init-from", source, "--steps", 2) == 0
    assert main(["convert", str(tmp_path / "run"), str(tmp_path / "other")]) == 0
    assert gpt2(tmp_path / "run", "--init-from", tmp_path / "other", "--steps", 3) == 2
    assert "init_from was" in capsys.readouterr().err
    assert gpt2(tmp_path / "run", "--steps", 3) == 2
    assert "init_from was" in capsys.readouterr().err
    shutil.rmtree(source)  # no longer needed
    assert gpt2(tmp_path / "run", "--init-from", source, "--steps", 3) == 0
    assert read_info(tmp_path / "run").step == 3


def test_a_model_to_begin_with_that_does_not_fit_is_refused(
    tmp_path: Path, corpus: str, unbroken: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refusal(*flags: object) -> str:
        words = ["train", "--data", corpus, "--output", str(tmp_path / "run"), "--init-from", str(unbroken)]
        assert main([*words, "--device", "cpu", "--steps", "1", *map(str, flags)]) == 2
        return capsys.readouterr().err

    assert "has 16 positions, and --sequence-length is 8: leave it out" in refusal("--sequence-length", 8)
    assert "2 layers, width 32 and 4 heads" in refusal("--sequence-length", 16, "--model", "124M")
    assert "no checkpoint" in refusal("--sequence-length", 16, "--init-from", tmp_path / "absent")
    other = save(tmp_path / "other", random_model(), other_tokenizer())
    assert "trained with another tokenizer" in refusal("--sequence-length", 16, "--init-from", other)
    assert not (tmp_path / "run").exists()
