"""`gpt2 train --log-to`: what each sink has after runs that end, resume, fall back, are killed, or lose their sink."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.gpt2_train.conftest import rows

from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.metrics.log import MetricsLog
from gpt2_train.metrics.sinks import (
    SINKS,
    Feed,
    Send,
    Sink,
    WatchedRun,
    chosen_sinks,
    split_names,
    tagged,
    text_of,
)


@contextlib.contextmanager
def practice(run: WatchedRun) -> Iterator[Send]:
    """Writes what it is sent to a file."""
    with (run.folder / "practice.txt").open("a") as file:
        file.write(f"open {run.id} {run.first_step} {run.settings['lr']}\n")
        yield lambda step, values, texts: file.write(f"{step} {values}\n")
        file.write("close\n")


def step_row(step: int, loss: float) -> dict[str, Any]:
    return {"step": step, "tokens": 10 * step, "loss": loss, "lr": 0.5, "skipped": 0, "mfu": None}


def valid_row(step: int, loss: float) -> dict[str, Any]:
    return {"step": step, "tokens": 10 * step, "valid_loss": loss, "valid_tokens": 7}


def sample_row(step: int) -> dict[str, Any]:
    return {"step": step, "tokens": 10 * step, "kind": "sample", "prompt": "To be", "sample": 0, "text": " or <b>"}


def task_row(step: int, accuracy: float) -> dict[str, Any]:
    settings = {"input": "texts/test.jsonl"}
    result = {"passages": 9, "last_word_accuracy": accuracy}
    return {"step": step, "kind": "task", "task": "lambada", "settings": settings, "result": result, "tokens": 1}


def process(
    folder: Path, names: tuple[str, ...], found: list[dict[str, Any]], resumed: int | None = None, *, said: Any = print
) -> None:
    """What one process of a run does: cut the rows behind its checkpoint, write its own, close."""
    log = MetricsLog(folder, True, -1 if resumed is None else resumed)
    first_step = 0 if resumed is None else resumed + 1
    log.send_to([Feed(name, folder, {"lr": 0.5}, first_step, said) for name in names])
    for row in found:
        log.write(row)
    log.close()


@pytest.fixture(autouse=True)
def _more_sinks(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setitem(SINKS, "practice", practice)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if name == "practice" else real(name))


def lines(folder: Path) -> list[str]:
    return [line.split(" {")[0] for line in (folder / "practice.txt").read_text().splitlines()]


# --- any sink --------------------------------------------------------------------------------------------------------


def test_a_sink_gets_the_measurements_of_each_row_by_their_names(tmp_path: Path) -> None:
    process(tmp_path, ("practice",), [step_row(1, 3.0), valid_row(1, 4.0)])
    found = (tmp_path / "practice.txt").read_text().splitlines()
    assert found[0].endswith(" 0 0.5") and found[-1] == "close"
    assert "'train/loss': 3.0, 'train/lr': 0.5" in found[1] and "'progress/tokens': 10.0" in found[1]
    assert found[2].startswith("1 {'valid/loss': 4.0")


def test_a_run_that_falls_back_sends_no_step_twice_to_a_sink_that_cannot_forget(tmp_path: Path) -> None:
    process(tmp_path, ("practice",), [step_row(step, 5.0 - step) for step in (1, 2, 3)] + [valid_row(3, 1.0)])
    process(tmp_path, ("practice",), [step_row(2, 9.0), step_row(3, 9.0), valid_row(3, 9.0), step_row(4, 1.0)], 1)
    found = lines(tmp_path)
    identifier = found[0].split()[1]
    assert [line for line in found if line.startswith("open")] == [f"open {identifier} {step} 0.5" for step in (0, 2)]
    assert [line for line in found if line[0].isdigit()] == ["1", "2", "3", "3", "4"]
    assert [row["step"] for row in rows(tmp_path)] == [1, 2, 3, 3, 4]


def test_a_sink_that_is_added_later_gets_what_was_recorded_before(tmp_path: Path) -> None:
    process(tmp_path, (), [step_row(1, 3.0), step_row(2, 2.0), step_row(3, 2.0)])
    process(tmp_path, ("practice",), [step_row(3, 1.0)], 2)
    assert [line for line in lines(tmp_path) if line[0].isdigit()] == ["1", "2", "3"]


def test_rows_that_a_killed_process_had_not_sent_are_sent_by_the_next(tmp_path: Path) -> None:
    process(tmp_path, ("practice",), [step_row(1, 3.0)])
    log = MetricsLog(tmp_path, True, 1)  # its feed is gone with the process
    log.write(step_row(2, 2.0))
    process(tmp_path, ("practice",), [valid_row(2, 9.0), step_row(3, 1.0)], 2)
    assert [line for line in lines(tmp_path) if line[0].isdigit()] == ["1", "2", "2", "3"]


class Broken:
    """A sink that fails at one of its steps."""

    def __init__(self, at: str, error: BaseException) -> None:
        self.at, self.error, self.taken = at, error, 0

    def _do(self, what: str) -> None:
        if what == self.at:
            raise self.error

    def _send(self, *_: Any) -> None:
        self.taken += 1
        self._do("send")

    @contextlib.contextmanager
    def __call__(self, run: WatchedRun) -> Iterator[Send]:
        self._do("open")
        try:
            yield self._send
        finally:
            self._do("close")


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[Feed, list[str]]]:
    """A feed of the given sink, and what it says."""

    def make(sink: Sink) -> tuple[Feed, list[str]]:
        monkeypatch.setitem(SINKS, "broken", sink)
        said: list[str] = []
        return Feed("broken", tmp_path, {}, 0, said.append), said

    return make


@pytest.mark.parametrize("at", ["open", "send", "close"])
@pytest.mark.parametrize("error", [OSError("no network\nat all"), SystemExit(1)])
def test_a_sink_that_fails_is_one_warning_and_stops_nothing(
    tmp_path: Path, at: str, error: BaseException, broken: Callable[..., tuple[Feed, list[str]]]
) -> None:
    sink = Broken(at, error)
    log = MetricsLog(tmp_path, True, -1)
    feed, said = broken(sink)
    log.send_to([feed])
    for step in (1, 2, 3):
        log.write(step_row(step, 1.0))
    log.close()
    words = "no network at all" if isinstance(error, OSError) else "1"
    assert said == [f"warning: --log-to broken: {words}. Nothing more is sent there; metrics.jsonl has everything."]
    assert sink.taken == {"open": 0, "send": 1, "close": 3}[at]
    assert len(rows(tmp_path)) == 3


def test_a_run_keeps_its_id_at_a_sink_from_before_that_begins(
    tmp_path: Path, broken: Callable[..., tuple[Feed, list[str]]]
) -> None:
    """A run killed while W&B started had another id afterwards, and an empty run there."""
    record, ids = tmp_path / "sinks" / "broken.json", set()
    for _ in range(2):
        broken(Broken("open", OSError("killed here")))[0].close()
        ids.add(json.loads(record.read_text())["id"])
    assert len(ids) == 1


def test_a_password_in_an_error_is_not_shown(broken: Callable[..., tuple[Feed, list[str]]]) -> None:
    feed, said = broken(Broken("open", OSError("can't reach http://me:secret@host/x")))
    feed.close()
    assert "secret" not in said[0] and "host" in said[0]


def test_a_sink_that_hangs_does_not_hold_up_the_run(broken: Callable[..., tuple[Feed, list[str]]]) -> None:
    freed = threading.Event()
    feed, said = broken(lambda run: contextlib.nullcontext(lambda *_: freed.wait()))
    feed.put(step_row(1, 1.0))
    feed.close(patience=0.01)
    freed.set()
    assert len(said) == 1 and "has not taken everything after 0 seconds" in said[0]
    feed.put(step_row(2, 1.0))


def test_names_are_read_and_a_missing_package_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    assert split_names(["tensorboard, wandb", "wandb"]) == ["tensorboard", "wandb"]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Gpt2UsageError, match=r"--log-to wandb needs .* pip install 'webtext-gpt2\[wandb\]'"):
        chosen_sinks(["wandb"])


def test_names_of_measurements() -> None:
    assert tagged(task_row(3, 0.5)) == {"tasks/lambada_test/last_word_accuracy": 0.5, "progress/tokens": 1.0}
    assert tagged({"step": 1, "steps": 9, "used_seconds": 1.5, "loss": 2.0}) == {"train/loss": 2.0}  # a plan
    assert tagged(sample_row(1)) == {} and text_of(step_row(1, 1.0)) == {}
    assert text_of(sample_row(1)) == {"samples/To_be": "To be or <b>"}
    assert text_of({"kind": "sample", "prompt": "", "sample": 2, "text": "x"}) == {"samples/no_prompt_2": "x"}


# --- each of them ----------------------------------------------------------------------------------------------------

FIRST = [step_row(1, 5.0), step_row(10, 4.0), valid_row(10, 4.5), task_row(10, 0.25), sample_row(10), step_row(20, 3.0)]
AFTER_FALLING_BACK = [step_row(20, 3.5), valid_row(20, 3.75), step_row(30, 2.0)]


def events(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0, "tensors": 0})
    found.Reload()
    return found


def scalars(folder: Path, tag: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in events(folder).Scalars(tag)]


def test_tensorboard_shows_the_later_value_of_a_step_that_was_done_twice(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs the extra webtext-gpt2[tensorboard]")
    process(tmp_path, ("tensorboard",), FIRST)
    assert scalars(tmp_path, "train/loss") == [(1, 5.0), (10, 4.0), (20, 3.0)]
    process(tmp_path, ("tensorboard",), AFTER_FALLING_BACK, 10)
    assert scalars(tmp_path, "train/loss") == [(1, 5.0), (10, 4.0), (20, 3.5), (30, 2.0)]
    assert scalars(tmp_path, "valid/loss") == [(10, 4.5), (20, 3.75)]
    assert scalars(tmp_path, "tasks/lambada_test/last_word_accuracy") == [(10, 0.25)]
    (text,) = events(tmp_path).Tensors("samples/To_be/text_summary")
    assert text.tensor_proto.string_val[0].decode() == "    To be or <b>"


def test_tensorboard_reads_the_files_of_a_run_in_their_order_whatever_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files are read by name: two of the same second, or on a machine whose clock is behind, doubled the points."""
    pytest.importorskip("tensorboard", reason="needs the extra webtext-gpt2[tensorboard]")
    import tensorboard.summary.writer.event_file_writer as names

    monkeypatch.setattr(time, "time", lambda: now)
    for now, uid in ((1.6e9, 9), (1.6e9, 10), (1.6e9 - 5000, 11)):
        monkeypatch.setattr(names._global_uid, "get", lambda: uid)  # noqa: B023
        process(tmp_path, ("tensorboard",), [step_row(1, now), step_row(2, float(uid))], 0)
        assert scalars(tmp_path, "train/loss") == [(1, pytest.approx(now)), (2, uid)]
    files = sorted((tmp_path / "tensorboard").iterdir())
    assert len(files) == 3 and all("tfevents" in path.name for path in files)


def test_tensorboard_has_once_what_a_killed_process_had_sent_but_not_noted_or_not_sent(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs the extra webtext-gpt2[tensorboard]")
    process(tmp_path, ("tensorboard",), FIRST)
    note = tmp_path / "sinks" / "tensorboard.json"
    note.write_text(json.dumps(json.loads(note.read_text()) | {"step": 10, "rows": 1}))
    MetricsLog(tmp_path, True, 10).write(step_row(15, 3.9))
    process(tmp_path, ("tensorboard",), AFTER_FALLING_BACK, 15)
    assert scalars(tmp_path, "train/loss") == [(1, 5.0), (10, 4.0), (15, pytest.approx(3.9)), (20, 3.5), (30, 2.0)]
    assert scalars(tmp_path, "valid/loss") == [(10, 4.5), (20, 3.75)]


def wandb_records(path: Path) -> Iterator[Any]:
    """The records of a `.wandb` file: LevelDB's log format (blocks of 32 KiB) behind a header of 7 bytes."""
    from wandb.proto import wandb_internal_pb2

    data, at, record = path.read_bytes(), 7, b""
    assert data.startswith(b":W&B")
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        record += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            found = wandb_internal_pb2.Record()
            found.ParseFromString(record)
            yield found
            record = b""


def wandb_history(folder: Path) -> tuple[set[str], dict[str, list[tuple[int, float]]]]:
    """The ids of all runs in a folder, and (step, value) of each quantity in all of them together."""
    ids: set[str] = set()
    values: dict[str, list[tuple[int, float]]] = {}
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        for record in wandb_records(path):
            if record.WhichOneof("record_type") == "run":
                ids.add(record.run.run_id)
            if record.WhichOneof("record_type") == "history":
                for item in record.history.item:
                    name = item.key or "/".join(item.nested_key)
                    if not name.startswith("_"):
                        value = json.loads(item.value_json)
                        values.setdefault(name, []).append((record.history.step.num, value))
    return ids, values


@pytest.mark.exhaustive
def test_wandb_offline_has_each_step_once_in_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file was not complete when the sink said that it was closed: a run that ended then lost its last rows."""
    pytest.importorskip("wandb", reason="needs the extra webtext-gpt2[wandb]")
    monkeypatch.setenv("WANDB_MODE", "offline")
    said: list[str] = []
    process(tmp_path, ("wandb",), FIRST, said=said.append)
    process(tmp_path, ("wandb",), AFTER_FALLING_BACK, 10, said=said.append)
    assert said == []
    ids, values = wandb_history(tmp_path)
    assert ids == {json.loads((tmp_path / "sinks" / "wandb.json").read_text())["id"]}
    assert values["train/loss"] == [(1, 5.0), (10, 4.0), (20, 3.0), (30, 2.0)]
    assert values["valid/loss"] == [(10, 4.5), (20, 3.75)]
    assert values["tasks/lambada_test/last_word_accuracy"] == [(10, 0.25)]
    assert values["samples/To_be/_type"] == [(10, "html-file")]


def test_wandb_without_login_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="needs the extra webtext-gpt2[wandb]")
    for name in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    said: list[str] = []
    process(tmp_path, ("wandb",), FIRST, said=said.append)
    assert len(said) == 1 and "nobody is logged in" in said[0]
    assert len(rows(tmp_path)) == len(FIRST)


# --- in training -----------------------------------------------------------------------------------------------------


def test_training_sends_what_it_records_also_after_it_resumed_and_ends_with_its_losses(
    tmp_path: Path, gpt2: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorboard", reason="needs the extra webtext-gpt2[tensorboard]")
    assert gpt2(tmp_path, "--steps", 2, "--log-every", 1, "--log-to", "tensorboard") == 0
    curve = capsys.readouterr().err.splitlines()[-10:]
    assert curve[0].startswith(f"{tmp_path}: training loss ") and curve[0].endswith(", step 2")
    assert curve[-1].split() == ["1", "2"]
    assert gpt2(tmp_path, "--steps", 4, "--log-every", 1, "--log-to", "tensorboard") == 0
    recorded = [(row["step"], row["loss"]) for row in rows(tmp_path) if "loss" in row]
    assert scalars(tmp_path, "train/loss") == [(step, pytest.approx(loss)) for step, loss in recorded]
    assert [step for step, _ in recorded] == [1, 2, 3, 4]
    validated = [row["step"] for row in rows(tmp_path) if "valid_loss" in row]
    assert [step for step, _ in scalars(tmp_path, "valid/loss")] == validated
