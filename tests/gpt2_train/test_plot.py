"""`gpt2 plot`: what is read of runs, what is drawn, and what the files hold."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.webtext_prep.support.browser import Browser, find_chromium

from gpt2_train.cli import main
from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.metrics.plots import View, loss_curve, page, panels_of
from gpt2_train.metrics.records import read_run, read_runs, short_names, task_name

HOSTILE = '</script><script>window.ran = 1</script><b title="x">'
NAME = "</script><b>wide"


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
    return [(place.step, value) for place, value in read_run(folder, "x").values["loss"]]


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
    assert run.last.step == 3 and run.last.tokens == 300


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
    assert all(run.folder == tmp_path / "a=b" for run in named)


# --- what is drawn ---------------------------------------------------------------------------------------------------


def test_losses_of_one_run_share_a_chart_and_those_of_two_do_not(first: Path, second: Path) -> None:
    one = panels_of(read_runs((str(first),)), View())
    assert [panel.title for panel in one] == [
        "Loss", "Learning rate", "Throughput", "Gradient norm", "lambada (x): last word accuracy",
    ]  # fmt: skip
    assert [curve.name for curve in one[0].curves] == ["training loss", "validation loss"]
    two = panels_of(read_runs((str(first), str(second))), View())
    assert [panel.title for panel in two[:2]] == ["Training loss", "Validation loss"]
    assert [(curve.name, curve.look) for curve in two[0].curves] == [("first", 0), ("second", 1)]


def test_a_run_without_validation_keeps_its_look_among_others(first: Path, tmp_path: Path) -> None:
    bare = write(tmp_path / "bare", [step_row(1, 2.0), step_row(2, 1.0)])
    panels = panels_of(read_runs((str(bare), str(first))), View(only=("validation",)))
    assert [(curve.name, curve.look) for curve in panels[0].curves] == [("first", 1)]


@pytest.mark.parametrize(
    ("across", "ends", "note"),
    [
        ("steps", 200, "by step"),
        ("tokens", 20_000, "by tokens seen"),
        ("time", 20.0, "by seconds of training"),
    ],
)
def test_charts_go_by_steps_tokens_or_time(first: Path, across: Any, ends: float, note: str) -> None:
    panel = panels_of(read_runs((str(first),)), View(across=across))[0]
    assert panel.curves[0].points[-1][0] == panel.axes.across.high == ends
    assert note in panel.note


def test_long_runs_are_shown_in_hours(tmp_path: Path) -> None:
    rows = [step_row(1, 2.0, seconds=1800.0), step_row(2, 1.0, seconds=9000.0)]
    panel = panels_of([read_run(write(tmp_path, rows), "x")], View(across="time"))[0]
    assert [x for x, _ in panel.curves[0].points] == [0.5, 2.5] and "hours" in panel.note


def test_only_noisy_curves_are_smoothed_and_the_note_says_by_how_much(first: Path) -> None:
    runs = read_runs((str(first),))
    panels = {panel.title: panel for panel in panels_of(runs, View())}
    assert panels["Loss"].windows == [5, 1] and panels["Loss"].curves[0].faint
    assert panels["Learning rate"].windows == [1]
    assert "means of 5 logged rows" in page.html(list(panels.values()), runs, "x")
    plain = panels_of(runs, View(smooth=1))
    assert plain[0].curves[0].points[3] == (4, pytest.approx(2 + 8 / 4 + 0.1))
    assert "means of" not in page.html(plain, runs, "x")


def test_a_log_axis_leaves_out_what_has_no_logarithm(tmp_path: Path) -> None:
    folder = write(tmp_path, [step_row(1, 4.0), step_row(2, 0.0), step_row(3, 1.0)])
    (panel,) = panels_of(read_runs((str(folder),)), View(only=("loss",), log=("loss",)))
    assert panel.axes.up.log and [x for x, _ in panel.curves[0].points] == [1, 3]
    assert "log axis" in panel.note


# --- files -----------------------------------------------------------------------------------------------------------


def test_a_page_is_written_the_same_each_time(first: Path, second: Path, tmp_path: Path, capsys: Any) -> None:
    output = tmp_path / "out" / "both.html"
    words_given = ["plot", f"wide={first}", str(second), "--output", str(output), "--title", "Two runs"]
    assert main(words_given) == 0
    assert capsys.readouterr().out == f"plot: {output}\n"
    before = output.read_bytes()
    found = set(re.findall(r">([^<>]+)<", before.decode()))
    assert {"Two runs", "wide", "second", "Training loss", "Validation loss", "Throughput"} <= found
    assert main(words_given) == 0
    assert output.read_bytes() == before
    assert [entry.name for entry in output.parent.iterdir()] == ["both.html"]


def test_a_million_steps_make_a_small_page(tmp_path: Path) -> None:
    """Written as logged every ten steps; the one spike stays."""
    rows = [step_row(step, 9.0 if step == 500_001 else 3.0) for step in range(1, 1_000_001, 50)]
    runs = read_runs((str(write(tmp_path, rows)),))
    svg = page.html(panels_of(runs, View(only=("loss",), smooth=1)), runs, "x")
    assert len(svg) < 80_000
    heights = {float(y) for points in re.findall(r'points="([^"]*)"', svg) for y in re.findall(r",([\d.]+)", points)}
    assert len(heights) == 2


def test_a_page_has_final_figures_and_the_settings_that_differ(first: Path, second: Path, tmp_path: Path) -> None:
    assert main(["plot", str(first), str(second), "--output", str(tmp_path / "both.html")]) == 0
    page = (tmp_path / "both.html").read_text()
    rows = [
        [re.sub(r"<[^>]*>", "", cell) for cell in re.findall(r"<td>(.*?)</td>", row)]
        for row in re.findall(r"<tr>(.*?)</tr>", page)
    ]
    assert ["first", "200", "20k", "0:20", "2.2400", "2.0450", "2.0450 at step 200", "1k"] in rows
    assert ["lambada:x/last_word_accuracy", "1", "1"] in rows
    assert ["lr", "0.001", "0.0005"] in rows
    assert not [row for row in rows if row and row[0] in ("layers", "output")]
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "") and "https://" not in page


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


# --- in a browser ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as browser:
        yield browser


@pytest.mark.exhaustive
@pytest.mark.skipif(find_chromium() is None, reason="no Chromium is installed (Debian: apt-get install chromium)")
def test_the_page_shows_values_at_the_pointer_and_runs_nothing_else(browser: Any, tmp_path: Path) -> None:
    one = write(tmp_path / "one", run_rows(), lr=1.0, note=HOSTILE)
    two = write(tmp_path / "two", run_rows(150, best=1.5), lr=2.0, note="x")
    output = tmp_path / "page.html"
    assert main(["plot", f"{NAME}={one}", str(two), "--output", str(output), "--smooth", "1"]) == 0
    browser.open(output)
    assert browser.requests == [output.resolve().as_uri()] and browser.messages == []
    assert browser.evaluate("window.ran") is None
    assert browser.evaluate("document.querySelectorAll('.values:not([hidden])').length") == 0
    box = browser.evaluate("JSON.stringify(document.querySelector('.room').getBoundingClientRect())")
    place = json.loads(box)
    x, y = place["left"] + place["width"] / 2, place["top"] + place["height"] / 2
    browser.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    shown = browser.evaluate("document.querySelector('.values:not([hidden])').innerText").splitlines()
    assert shown[0] == "100"
    assert shown[1:] == [f"{NAME}: 2.18", "two: 1.68"]
    browser.send("Input.dispatchMouseEvent", type="mouseMoved", x=1, y=1)
    assert browser.evaluate("document.querySelectorAll('.values:not([hidden])').length") == 0
    for width in (1200, 360):
        browser.open(output, width=width)
        assert browser.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
