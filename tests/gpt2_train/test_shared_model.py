"""Models shared by real processes over gloo: texts, logits and scores of one process, and none left behind."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.gpt2_train import forks
from tests.gpt2_train.small_models import END, random_model, save
from tests.gpt2_train.test_processes import children_of

from gpt2_train.checkpoint.names import EMBEDDING
from gpt2_train.cli import main
from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.config.settings import ModelConfig
from gpt2_train.conversion.formats import open_weights
from gpt2_train.distributed.collectives import is_shared
from gpt2_train.distributed.jobs import is_lost_connection
from gpt2_train.evaluation.tasks import tasks
from gpt2_train.inference.divided import divide
from gpt2_train.inference.engine import GenerationRequest
from gpt2_train.inference.generator import TextGenerator
from gpt2_train.inference.kv_cache import CachedModel
from gpt2_train.inference.model import InferenceSettings, open_model
from gpt2_train.inference.sampling import Sampling
from gpt2_train.inference.scorer import Scorer
from indexed_tokens import IndexedTokensWriter

PROMPTS = ["hello", "a prompt that is longer than all positions of the model", "x"]
FED = [([0, 2], [[1, 2, 3], [4]]), ([0, 1, 2], [[5], [6, 7, 8, 9], [10]]), ([1], [[11]])]
"""Calls of `CachedModel.feed`: rows that join at different times, and get different numbers of tokens."""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text, passages whose last word is to be guessed, and token files."""
    folder = tmp_path_factory.mktemp("inputs")
    (folder / "letter.txt").write_text("Dear reader, this is a letter. " * 9)
    passages = [{"text": "the cat sat on the " + "very " * (number % 4) + "mat"} for number in range(9)]
    (folder / "lambada.jsonl").write_text("".join(json.dumps(row) + "\n" for row in passages))
    with IndexedTokensWriter(folder / "texts") as writer:
        for number in range(20):
            writer.add([*f"document {number}".encode(), END])
    return folder


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "gpt2_train", *map(str, words), "--device", "cpu", "--threads", "1"]


# --- the same results ------------------------------------------------------------------------------------------------


def measured(scorer: Scorer, inputs: Path) -> dict[str, dict[str, Any]]:
    """The results of three tasks in batches of 3 windows."""
    known = tasks()
    found = {
        "lambada": known["lambada"](input=str(inputs / "lambada.jsonl")),
        "text-loss": known["text-loss"](text=str(inputs / "letter.txt")),
        "held-out-loss": known["held-out-loss"](data=str(inputs / "texts"), split="all"),
    }
    return {name: task.run(scorer) for name, task in found.items()}


@dataclasses.dataclass
class Report:
    """What a process of a job found."""

    tasks: dict[str, dict[str, Any]]
    texts: list[str]
    logits: list[list[list[float]]]
    parameters: int


def share(folder: str, inputs: str, tensor_parallel: int, data_parallel: int) -> dict[str, Any]:
    """What one of so many processes finds: the fields of `Report`."""
    with InferenceSettings(folder, None, tensor_parallel, "cpu", threads=1).opened(data_parallel) as source:
        found: dict[str, Any] = {"tasks": measured(Scorer(source, batch_size=3), Path(inputs))}
        found["parameters"] = sum(parameter.numel() for parameter in source.read_model().parameters())
        cached = CachedModel(source.read_model(), 3, group=source.group)
        found["logits"] = [cached.feed(*fed).tolist() for fed in FED]
        cached.copy(0, 2)
        found["logits"].append(cached.feed([2], [[12]]).tolist())
        greedy = Sampling(temperature=0)
        requests = [GenerationRequest(prompt, tokens=30, sampling=greedy, ignore_end=True) for prompt in PROMPTS]
        found["texts"] = [text.text for text in TextGenerator(source, rows=2).generate(requests)]
    return found


@pytest.fixture(scope="module", params=[(1, 2), pytest.param((2, 2), marks=pytest.mark.exhaustive)], ids=str)
def layout(request: pytest.FixtureRequest) -> tuple[int, int]:
    return request.param


@pytest.fixture(scope="module")
def shared(layout: tuple[int, int], run_folder: Path, inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Report:
    """What all of (tensor parallel times data parallel) processes found."""
    size, meeting = layout[0] * layout[1], tmp_path_factory.mktemp("job")
    first, *others = forks.in_job(size, meeting, share, run_folder, inputs, *layout)
    assert all(other == first for other in others)
    return Report(**first)


def test_tasks_measure_the_same_in_all_layouts(
    shared: Report, layout: tuple[int, int], run_folder: Path, inputs: Path
) -> None:
    """Data parallel to the last digit: the batches and the order of the sums are those of one process."""
    alone = measured(Scorer(open_model(run_folder, device="cpu"), batch_size=3), inputs)
    if layout[0] == 1:
        assert shared.tasks == alone
    for name, result in alone.items():
        assert shared.tasks[name].keys() == result.keys()
        for key, value in result.items():
            expected = pytest.approx(value, rel=1e-5) if isinstance(value, float) else value
            assert shared.tasks[name][key] == expected, (name, key)


def test_logits_and_texts_are_the_same_in_all_layouts(
    shared: Report, run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also with prompts longer than the model's sequence."""
    cached = CachedModel(open_model(run_folder, device="cpu").read_model(), 3)
    alone = [cached.feed(*fed) for fed in FED]
    cached.copy(0, 2)
    alone.append(cached.feed([2], [[12]]))
    for logits, expected in zip(shared.logits, alone, strict=True):
        torch.testing.assert_close(torch.tensor(logits), expected, atol=1e-5, rtol=1e-5)
    words = ["generate", "--checkpoint", run_folder, "--tokens", "30", "--greedy", "--ignore-end", "--json"]
    words += [word for prompt in PROMPTS for word in ("--prompt", prompt)]
    assert main([*command(*words)[3:]]) == 0
    assert shared.texts == [sample["text"] for sample in json.loads(capsys.readouterr().out)["samples"]]


def test_each_process_holds_its_share(shared: Report, layout: tuple[int, int], run_folder: Path) -> None:
    """Matrices and embedding are divided; norms, positions and the biases behind the sums are whole everywhere."""
    model = open_model(run_folder, device="cpu").read_model()
    whole = sum(
        parameter.numel()
        for name, parameter in model.named_parameters()
        if "norm" in name or "position" in name or name.endswith(("out.bias", "down.bias"))
    )
    total = sum(parameter.numel() for parameter in model.parameters())
    assert shared.parameters == whole + (total - whole) // layout[0]


@pytest.mark.exhaustive
def test_the_commands_work_in_two_processes_with_a_model_of_hugging_face(
    run_folder: Path, inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only the first reads standard input and prints."""
    assert main(["convert", str(run_folder), str(tmp_path / "hf")]) == 0
    capsys.readouterr()
    words = command("generate", "--checkpoint", tmp_path / "hf", "--prompt", "hello", "--tokens", 20, "--greedy")
    assert main(words[3:]) == 0
    expected = capsys.readouterr().out
    done = subprocess.run(
        [*command("generate", "--checkpoint", tmp_path / "hf", "--tokens", 20, "--greedy", "--tensor-parallel", 2)],
        input=b"hello\n", capture_output=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode() == expected
    assert done.stderr == b"loading PyTorch\n"

    words = command("evaluate", "text-loss", inputs / "letter.txt", "--checkpoint", tmp_path / "hf")
    assert main(words[3:]) == 0
    expected = capsys.readouterr().out
    done = forks.run([*words, "--data-parallel", "2"])
    assert (done.returncode, done.stdout) == (0, expected), done.stderr


class Neighbour:
    """A process group as far as its numbers go."""

    group_name = "neighbours"

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_the_parts_make_the_whole(size: int, tmp_path: Path) -> None:
    """Also where the padded vocabulary can't be divided equally: 384 rows among 5."""
    config = ModelConfig(layers=1, hidden=60, heads=30, sequence_length=8, vocabulary_size=257)
    weights = open_weights(save(tmp_path, random_model(config)))
    neighbours = [functools.partial(divide, group=Neighbour(rank, size)) for rank in range(size)]
    models = [weights.load(divide=part, rank=rank) for rank, part in enumerate(neighbours)]
    parts = [dict(model.named_parameters()) for model in models]
    for name, whole in weights.items():
        found = [part[name] for part in parts]
        if found[0].shape == whole.shape and name != EMBEDDING:
            assert all(torch.equal(part, whole) for part in found)
            assert size == 1 or (name.split(".")[-2] not in ("qkv", "up") and not name.endswith(".out.weight"))
        elif name == EMBEDDING:
            assert len({tuple(part.shape) for part in found}) == 1
            assert torch.equal(torch.cat(found)[:257], whole)
        else:
            assert torch.equal(torch.cat(found, dim=0 if "qkv" in name or "up" in name else 1), whole)


# --- what goes wrong -------------------------------------------------------------------------------------------------


def test_heads_that_can_not_be_divided_are_told_at_once(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--checkpoint", str(run_folder), "--device", "cpu", "--tensor-parallel"]
    for name, flags in (("generate", ["--prompt", "x"]), ("evaluate", ["text-loss", "none.txt"])):
        assert main([name, *flags, *words, "3"]) == 2
        said = capsys.readouterr().err
        assert "--tensor-parallel 3 does not divide the model's heads (4): choose a divisor of 4." in said
        assert main([name, *flags, *words, "0"]) == 2
        assert "--tensor-parallel is 0: it should be at least 1." in capsys.readouterr().err


def test_another_number_of_processes_than_torchruns_is_told(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "29500")
    with (
        pytest.raises(
            Gpt2UsageError, match="the launcher started 4 processes, and --tensor-parallel 2 asks for 2"
        ) as raised,
        InferenceSettings(str(run_folder), tensor_parallel=2).opened(),
    ):
        pass
    assert is_shared(raised.value), "all processes said it"


def test_damaged_weights_are_one_sentence(run_folder: Path, tmp_path: Path) -> None:
    """The files are checked by both processes, each a part of them; whoever finds it, the user reads it once."""
    folder = save(tmp_path, random_model())
    for file in folder.rglob("model.safetensors"):
        data = bytearray(file.read_bytes())
        data[-100] ^= 1
        file.write_bytes(data)
    done = forks.run(command("generate", "--checkpoint", folder, "--prompt", "x", "--tensor-parallel", 2))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("error:") == 1 and "is not what was written" in done.stderr


def test_an_interrupt_ends_all_processes_in_order(run_folder: Path) -> None:
    words = command("generate", "--checkpoint", run_folder, "--prompt", "x", "--tokens", 10**6, "--ignore-end")
    process = forks.Started([*words, "--tensor-parallel", "2"])
    assert len(process.stdout.read(20)) == 20
    handles = [os.pidfd_open(child) for child in children_of(process.pid)]
    assert len(handles) == 2
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert (process.returncode, said) == (130, "gpt2: interrupted.\n")
    for handle in handles:
        assert select.select([handle], [], [], 60)[0], "a process outlived its command"
        os.close(handle)


def test_only_errors_of_communication_are_a_lost_connection() -> None:
    assert is_lost_connection(RuntimeError("[gloo/transport/tcp/pair.cc] Connection closed by peer"))
    assert not is_lost_connection(FileNotFoundError("no file models/gloom-gloo"))


@pytest.mark.exhaustive
def test_a_job_of_torchrun_shares_a_model(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = command("generate", "--checkpoint", run_folder, "--prompt", "hello", "--tokens", 20, "--greedy")
    assert main(words[3:]) == 0
    expected = capsys.readouterr().out
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = [*torchrun, *words[1:], "--tensor-parallel", "2"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stdout) == (0, expected), done.stderr
