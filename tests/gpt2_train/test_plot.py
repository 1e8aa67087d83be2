"""`gpt2 plot`: what is read of runs, and what is drawn of it in the terminal."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from gpt2_train.cli import main
from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.metrics.curves import loss_curve
from gpt2_train.metrics.records import read_run, read_runs, short_names, task_name


def step_row(step: int, loss: float, **more: Any) -> dict[str, Any]:
    return {
        "step": step, "tokens": 100 * step, "loss": loss, "lr": 1e-3 / step, "grad_norm": 0.5, "skipped": 0,
        "tokens_per_second": 1000.0, "mfu": None, "seconds": step / 10, **more,
    }  # fmt: skip


def valid_row(step: int, loss: float) -> dict[str, Any]:
    return {"step": step, "tokens": 100 * step, "valid_loss": loss, "valid_tokens": 50, "seconds": step / 10}


def task_row(step: int, accuracy: float) -> dict[str, Any]:
    result = {"input": "x.jsonl", "passages": 7, "last_word_accuracy": accuracy}
    row = {"step": step, "kind": "task", "task": "lambada", "settings": {"input": "texts/x.jsonl"}, "result": result}
    return row | {"tokens": 100 * step, "seconds": step / 10}


def write(folder: Path, rows: list[dict[str, Any]], end: str = "", **settings: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + end)
    lines = "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())
    (folder / "config.toml").write_text(f"[train]\n{lines}")
    return folder


def run_rows(steps: int = 200, best: float = 2.0) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for step in range(1, steps + 1):
        rows.append(step_row(step, best + 8 / step + 0.1 * (step % 3)))
        if step % 50 == 0:
            rows += [valid_row(step, best + 9 / step), task_row(step, step / steps)]
    return rows


@pytest.fixture
def first(tmp_path: Path) -> Path:
    return write(tmp_path / "first", run_rows(), lr=1e-3, layers=2, output="a")


@pytest.fixture
def second(tmp_path: Path) -> Path:
    return write(tmp_path / "second", run_rows(150, best=1.5), lr=5e-4, layers=2, output="b")


def losses(folder: Path) -> list[tuple[int, float]]:
    return [*read_run(folder, "x").values["loss"]]


# --- reading ---------------------------------------------------------------------------------------------------------


def test_a_line_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    rows = [step_row(1, 3.0), step_row(2, 2.0)]
    assert losses(write(tmp_path, rows, end='{"step": 3, "los')) == [(1, 3.0), (2, 2.0)]


def test_steps_that_were_done_twice_appear_once_as_done_later(tmp_path: Path) -> None:
    """A run that fell back to step 2 and has got to step 3 again knows nothing of its first steps 3 to 5."""
    rows = [step_row(step, 10.0 - step) for step in range(1, 6)] + [valid_row(5, 1.0), step_row(3, 6.5)]
    run = read_run(write(tmp_path, rows), "x")
    assert losses(tmp_path) == [(1, 9.0), (2, 8.0), (3, 6.5)]
    assert "valid_loss" not in run.values
    assert run.last_step == 3


def test_a_row_of_the_same_step_replaces_the_one_before(tmp_path: Path) -> None:
    assert losses(write(tmp_path, [step_row(1, 3.0), step_row(1, 2.5)])) == [(1, 2.5)]


def test_scores_of_tasks_are_read_and_counts_are_not(first: Path) -> None:
    values = read_run(first, "x").values
    assert [value for _, value in values["lambada:x/last_word_accuracy"]] == [0.25, 0.5, 0.75, 1.0]
    assert not [name for name in values if "passages" in name]
    assert task_name({"task": "wikitext", "settings": {"input": "a/b.txt", "overlap": 32}}) == "wikitext:b,overlap=32"


def test_runs_are_named_by_as_much_of_their_folders_as_tells_them_apart(tmp_path: Path) -> None:
    assert short_names([Path("/runs/a/model"), Path("/runs/b/model")]) == ["a/model", "b/model"]
    assert short_names([Path("/runs/a"), Path("/runs/b")]) == ["a", "b"]
    assert short_names([Path("/x"), Path("/x")]) == ["/x", "/x"]
    write(tmp_path / "a=b", run_rows(3))
    named = read_runs((f"wide={tmp_path / 'a=b'}", str(tmp_path / "a=b"), str(tmp_path / "a=b" / "metrics.jsonl")))
    assert named[0].name == "wide"
    assert all(run.values == named[0].values for run in named)


# --- terminal --------------------------------------------------------------------------------------------------------


def test_without_output_the_losses_are_drawn_in_the_terminal(first: Path, second: Path, capsys: Any) -> None:
    assert main(["plot", str(first), f"b={second}"]) == 0
    one, two = capsys.readouterr().out.split("\n\n")
    assert one.startswith("first: training loss 2.2400 (line), validation loss 2.0450 (o), step 200\n")
    assert two.startswith("b: training loss")
    lines = one.splitlines()
    assert len(lines) == 10 and max(map(len, lines)) <= 80
    assert sum(line.count("o") for line in lines[1:8]) == 4
    assert "⠤" in one or "⣀" in one or "⠒" in one


def test_a_terminal_without_these_characters_gets_plain_ones(first: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    assert main(["plot", str(first)]) == 0
    stream.flush()
    assert b"|." in stream.buffer.getvalue()  # type: ignore[attr-defined]


def test_a_run_with_one_row_is_a_line_without_a_curve(tmp_path: Path) -> None:
    run = read_run(write(tmp_path, [step_row(1, 2.0)]), "x")
    assert loss_curve(run, 80) == ["x: training loss 2.0000 (line), step 1"]


def test_a_name_that_is_asked_for_twice_is_an_error_only_where_a_folder_is_missing(tmp_path: Path) -> None:
    with pytest.raises(Gpt2UsageError, match="holds no"):
        read_runs((f"a={tmp_path / 'nothing'}",))


def test_a_flag_of_the_page_is_answered_with_what_draws_one(first: Path, capsys: Any) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["plot", str(first), "--output", "losses.html"])
    assert "--output is gone: `webtext report --run RUN` draws" in capsys.readouterr().err
