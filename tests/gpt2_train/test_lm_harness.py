"""lm-evaluation-harness with our models; its tests need the extra lm-eval of gpt2-train."""

from __future__ import annotations

import importlib.util
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.gpt2_train.small_models import END, constant_model, random_model, save

from gpt2_train.evaluation import lm_harness

needs_harness = pytest.mark.skipif(
    importlib.util.find_spec("lm_eval") is None, reason='needs the extra: pip install "webtext-gpt2[lm-eval]"'
)

TASKS = {
    "choice": """
task: our_choice
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
metric_list: [{metric: acc}]
""",
    "rolling": """
task: our_rolling
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{question}}"
metric_list: [{metric: bits_per_byte}]
""",
    "writing": """
task: our_writing
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{written}}"
generation_kwargs: {until: ["\\n"], max_gen_toks: 5}
metric_list: [{metric: exact_match}]
""",
}
DATASET = "dataset_path: json\ndataset_kwargs: {data_files: {test: FILE}}\ntest_split: test\nnum_fewshot: 0\n"
QUESTION = "a question much longer than the sixteen positions of the model"


@needs_harness
def test_the_harness_measures_what_we_measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task of each kind, from local files, by the harness' own command."""
    model = random_model()
    rows = [
        {"question": QUESTION, "choices": [" yes", " no", " maybe"], "answer": 1, "written": "zzzzz"},
        {"question": "a short one", "choices": [" x", " y"], "answer": 0, "written": "zzzzz"},
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, text in TASKS.items():
        (tmp_path / f"{name}.yaml").write_text(DATASET.replace("FILE", str(tmp_path / "rows.jsonl")) + text)
    words = ["--model", "gpt2_train", "--model_args", f"checkpoint={save(tmp_path / 'run', model)},threads=1"]
    words += ["--device", "cpu", "--tasks", "our_choice,our_rolling,our_writing", "--include_path", str(tmp_path)]
    environment = {"HF_HOME": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    done = subprocess.run(
        [sys.executable, "-m", "gpt2_train.evaluation.lm_harness", *words, "--output_path", str(tmp_path / "out")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    (file,) = (tmp_path / "out").rglob("results*.json")
    found = json.loads(file.read_text())["results"]

    expected_accuracy = sum(
        max(range(len(row["choices"])), key=lambda number: likelihood(model, row, number)) == row["answer"]
        for row in rows
    ) / len(rows)
    assert found["our_choice"]["acc,none"] == expected_accuracy
    nats = -sum(rolling(model, list(row["question"].encode())) for row in rows)
    size = sum(len(row["question"].encode()) for row in rows)
    assert found["our_rolling"]["bits_per_byte,none"] == pytest.approx(nats / math.log(2) / size, rel=1e-5)


@torch.no_grad()
def logprobs(model: torch.nn.Module, tokens: list[int], new: int) -> float:
    """The log-probability of the last `new` of `tokens`, of which 17 are read."""
    seen = tokens[-17:]
    found = model(torch.tensor([seen[:-1]]))[0, :, :257].double().log_softmax(1)
    return float(sum(found[place - 1, seen[place]] for place in range(len(seen) - new, len(seen))))


def likelihood(model: torch.nn.Module, row: dict, number: int) -> float:
    choice = list(row["choices"][number].encode())
    return logprobs(model, list(row["question"].encode()) + choice, len(choice))


def rolling(model: torch.nn.Module, text: list[int]) -> float:
    """Windows of 16 targets; the last one is whole, too, and scores what is left."""
    total = logprobs(model, [END, *text[:16]], len(text[:16]))
    for begin in range(16, len(text), 16):
        end = min(begin + 16, len(text))
        total += logprobs(model, text[:end] if end - 17 >= 0 else [END, *text[:end]], end - begin)
    return total


@needs_harness
def test_what_the_model_writes_ends_at_a_stop_string(tmp_path: Path) -> None:
    from lm_eval.api.instance import Instance

    from gpt2_train.evaluation.lm_harness_model import HarnessModel

    folder = save(tmp_path, constant_model({122: 0.0}))
    model = HarnessModel(str(folder), device="cpu", threads=1, batch_size=1)
    settings = [{"until": ["\n"], "max_gen_toks": 5}, {"until": "zzz", "max_gen_toks": 5}, {"until": None}]
    requests = [Instance("generate_until", {}, ("a", setting), 0) for setting in settings]
    assert model.generate_until(requests) == ["zzzzz", "", "z" * 256]
    assert model.loglikelihood([Instance("loglikelihood", {}, ("", "zz"), 0)])[0][1]
    # The blanks belong to the continuation; before it nothing is left.
    blanks, none = model.loglikelihood([Instance("loglikelihood", {}, pair, 0) for pair in ((" ", "z"), ("", " z"))])
    assert blanks == none


@needs_harness
def test_texts_are_written_in_the_precision_asked_for(tmp_path: Path) -> None:
    from gpt2_train.evaluation.lm_harness_model import HarnessModel

    model = HarnessModel(str(save(tmp_path, random_model())), device="cpu", threads=1, precision="bf16")
    assert model.scorer.source.precision == model.generator.source.precision == "bf16"
    assert model.generator.source.read_model() is model.scorer.source.read_model()


def test_a_missing_harness_is_one_sentence(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    monkeypatch.setitem(sys.modules, "lm_eval.__main__", None)
    assert lm_harness.main() == 2
    assert 'pip install "webtext-gpt2[lm-eval]"' in capsys.readouterr().err
