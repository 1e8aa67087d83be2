"""`gpt2 estimate`: published figures, and figures counted on a real model."""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import sys
import tomllib
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from gpt2_train.cli import main
from gpt2_train.config.settings import ModelConfig, TrainSettings
from gpt2_train.distributed.device import default_precision
from gpt2_train.distributed.mesh import World
from gpt2_train.distributed.parallelize import is_compiled, parallelize
from gpt2_train.model.gpt2 import DTYPES, GPT2
from gpt2_train.optim.adamw import make_optimizer
from gpt2_train.training.estimate import RESERVE, EstimateSettings
from gpt2_train.training.memory import (
    GIB,
    block_activations,
    fitting_micro_batch,
    largest_micro_batch,
    memory_per_rank,
    parameters_per_rank,
    size_line,
)

SMALL = ModelConfig(layers=3, hidden=64, heads=4, sequence_length=32, vocabulary_size=300, dropout=0.0)
PRESET = ModelConfig.preset("345M")


@pytest.mark.parametrize(
    ("tensor_parallel", "parameters"), [(1, 354_871_296), (2, 178_100_224 - (50_432 - 50_304) * 1024 // 2)]
)
def test_the_parameters_of_345m_are_the_published_ones(tensor_parallel: int, parameters: int) -> None:
    """Megatron-LM pads the vocabulary for two processes to 50,432 rows, here it has 50,304 in any layout."""
    assert parameters_per_rank(PRESET, tensor_parallel) == parameters


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_state_is_what_a_training_process_holds(kind: Literal["adamw", "muon"]) -> None:
    """Pitfall 34: parameters, gradients and moments, byte by byte."""
    model = GPT2(SMALL).initialise()
    optimizer = make_optimizer(model, TrainSettings(optimizer=kind), torch.device("cpu"))
    model(torch.zeros(1, 8, dtype=torch.int64)).sum().backward()

    def size(tensors: list[Any]) -> int:
        return sum(tensor.untyped_storage().nbytes() for tensor in tensors)

    parameters = list(model.parameters())
    moments = list(optimizer.tensors().values())
    memory = memory_per_rank(SMALL, micro_batch=1, optimizer=kind, on_cpu=True)
    assert memory.parameters == size(parameters)
    assert memory.gradients == size([p.grad for p in parameters])
    assert memory.optimizer == size(moments)


def saved_bytes(config: ModelConfig, batch: int, precision: str, mode: Any, residual: str = "fp32") -> int:
    """Bytes of all tensors, parameters aside, that autograd holds before the backward pass of one micro-batch."""
    model = GPT2(config).initialise().train()
    model.residual = DTYPES[residual] if residual != "fp32" else None
    parallelize(model, World(torch.device("cpu")), activation_checkpointing=mode)
    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    found: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        place = tensor.untyped_storage().data_ptr()
        if place not in parameters:
            found[place] = tensor
        return tensor

    rows = torch.zeros(batch, config.sequence_length + 1, dtype=torch.int64)
    half = torch.autocast("cpu", torch.bfloat16) if precision == "bf16" else contextlib.nullcontext()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        with half:
            logits = model(rows[:, :-1])
        keep(logits)  # The gradient takes their memory.
    # The targets, and the losses, which are read before the pass.
    return sum(tensor.untyped_storage().nbytes() for tensor in found.values()) + rows[:, 1:].numel() * (8 + 4)


@pytest.mark.parametrize(("precision", "residual"), [("fp32", "fp32"), ("bf16", "fp32"), ("bf16", "bf16")])
@pytest.mark.parametrize("mode", ["none", "full"])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_activations_are_what_autograd_saves(precision: str, residual: str, mode: str, dropout: float) -> None:
    """Pitfall 34: activations and logits within half a percent of what a real forward pass keeps."""
    config = ModelConfig(**{**SMALL.as_table(), "dropout": dropout})
    kinds = {"precision": precision, "residual": residual}
    memory = memory_per_rank(config, micro_batch=4, activation_checkpointing=mode, on_cpu=True, **kinds)
    expected = memory.activations + memory.logits
    assert expected == pytest.approx(saved_bytes(config, 4, precision, mode, residual), rel=5e-3)


def test_selective_checkpointing_lies_between_none_and_full() -> None:
    block, _ = block_activations(PRESET, 8, precision="bf16")
    assert block["full"] < block["selective"] < block["none"]
    # The input in float32 and ten numbers of the hidden size in half precision: the products, and attention.
    assert block["selective"] / (8 * 1024 * 1024) == pytest.approx(4 + 2 * 10, rel=0.01)


def test_activations_follow_the_published_formula() -> None:
    """34·b·s·h bytes per block (Korthikanti et al. 2022), 4 more for a residual stream in float32, and no s² term."""
    tokens = 8 * 1024
    block, _ = block_activations(PRESET, 8, precision="fp16")
    assert block["none"] / (tokens * 1024) == pytest.approx(38, rel=0.01)
    halved, _ = block_activations(PRESET, 8, precision="fp16", tensor_parallel=2)
    assert halved["none"] / (tokens * 1024) == pytest.approx(14 + 24 / 2, rel=0.01)


def test_each_kind_of_parallelism_shares_what_it_shares() -> None:
    one = memory_per_rank(PRESET, micro_batch=8, precision="bf16")
    tensor = memory_per_rank(PRESET, micro_batch=8, precision="bf16", tensor_parallel=2)
    data = memory_per_rank(PRESET, micro_batch=8, precision="bf16", data_parallel=4)
    assert tensor.parameters == 4 * parameters_per_rank(PRESET, 2)
    assert tensor.logits == one.logits // 2
    assert (data.parameters, data.optimizer) == (one.parameters // 4, one.optimizer // 4)
    assert (data.gathered, data.activations) == (one.parameters, one.activations)
    assert tensor.peak < data.peak < one.peak
    twice = memory_per_rank(PRESET, micro_batch=8, precision="bf16", accumulation=2)
    assert one.peak < twice.peak <= one.peak + one.gradients


def test_a_small_batch_peaks_at_the_end_of_the_backward_pass() -> None:
    """All four float32 numbers of each parameter are there then: 16 bytes each, and little else."""
    memory = memory_per_rank(ModelConfig.preset("1.5B"), micro_batch=1, activation_checkpointing="full")
    state = memory.parameters + memory.gradients + memory.optimizer
    assert state < memory.peak < 1.1 * state


def test_a_compiled_loss_and_muon_take_less() -> None:
    plain = memory_per_rank(PRESET, micro_batch=8, precision="bf16")
    assert memory_per_rank(PRESET, micro_batch=8, precision="bf16", compiled=True).peak < plain.peak
    muon = memory_per_rank(PRESET, micro_batch=8, precision="bf16", optimizer="muon")
    assert plain.peak - muon.peak == plain.optimizer - muon.optimizer == 4 * 24 * 12 * 1024**2


def test_the_largest_micro_batch_is_the_last_that_fits() -> None:
    limit = 23 * GIB
    largest = largest_micro_batch(PRESET, limit, precision="bf16")
    peaks = [memory_per_rank(PRESET, micro_batch=size, precision="bf16").peak for size in (largest, largest + 1)]
    assert peaks[0] <= limit < peaks[1]
    assert largest_micro_batch(PRESET, GIB) == 0


def test_a_line_says_it_before_a_run() -> None:
    """Pitfall 34: what the run will need, in one line that training can print first."""
    line = size_line(PRESET, memory_per_rank(PRESET, micro_batch=8, precision="bf16"))
    assert "354,871,296 parameters" in line
    assert "5.29 GiB of it for parameters, gradients and optimizer" in line


def test_the_copy_that_checkpoints_are_written_from_is_counted() -> None:
    """12 bytes for each parameter: a part of the peak on CPU, said apart where the peak is a GPU's."""
    layout: dict[str, Any] = {"micro_batch": 8, "data_parallel": 2}
    for on_cpu in (False, True):
        plain = memory_per_rank(PRESET, on_cpu=on_cpu, **layout)
        staged = memory_per_rank(PRESET, on_cpu=on_cpu, stages_checkpoints=True, **layout)
        assert staged.staging == staged.parameters + staged.optimizer
        assert staged.peak - plain.peak == (staged.staging if on_cpu else 0)
        assert ("1.98 GiB on the host to save from" in size_line(PRESET, staged)) != on_cpu


TRAIN_AND_MEASURE = """
import re, sys
from pathlib import Path
from gpt2_train.cli import main
code = main(sys.argv[1:])
print(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
sys.exit(code)
"""


@pytest.mark.exhaustive
@pytest.mark.skipif(sys.platform != "linux", reason="the peak of resident memory is read from /proc")
def test_a_process_on_cpu_takes_what_was_estimated(tmp_path: Path, corpus: str) -> None:
    """A run on CPU took up to three times its estimate, which left out the process itself and what its heap keeps."""
    shape = "--layers 2 --hidden 64 --heads 2 --sequence-length 16 --global-batch-size 64 --micro-batch-size 64"
    rest = "--steps 3 --device cpu --threads 1 --dropout 0 --eval-tokens 1024 --split 1"
    words = ["train", *shape.split(), *rest.split()]
    done = subprocess.run(
        [sys.executable, "-c", TRAIN_AND_MEASURE, *words, "--data", corpus, "--output", str(tmp_path / "run")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    config = ModelConfig(layers=2, hidden=64, heads=2, sequence_length=16, dropout=0.0)
    predicted = memory_per_rank(config, micro_batch=64, on_cpu=True).peak
    measured = int(done.stdout.split()[-1]) * 1024
    # Builds of torch without GPU libraries take a third of a gigabyte less.
    assert 0.45 * predicted < measured < 1.25 * predicted


# --- the command -----------------------------------------------------------------------------------------------------


def report(capsys: pytest.CaptureFixture[str], words: str) -> dict[str, Any]:
    assert main(["estimate", *words.split(), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_guide_shows_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    """The guide showed the estimate in words that the command no longer had."""
    root = Path(__file__).parents[2]
    recipe, page = str(root / "pipelines" / "openwebtext.toml"), root / "docs" / "guide" / "estimate.md"
    assert main(["estimate", "--config", recipe, "--data-parallel", "8", "--memory", "24"]) == 0
    assert f"```text\n{capsys.readouterr().out}```" in page.read_text(encoding="utf-8")


def test_the_time_of_a_run_follows_from_its_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    found = report(capsys, "--model 345M --data-parallel 2 --micro-batch-size 4 --tokens 8_192_000 --tflops 50")
    assert (found["tokens_per_step"], found["steps"]) == (8192, 1000)
    assert found["seconds"] == pytest.approx(8_192_000 * 2.431e9 / 100e12, rel=1e-3)


def test_the_price_of_a_run_follows_from_its_time(capsys: pytest.CaptureFixture[str]) -> None:
    words = (
        "estimate --model 124M --data-parallel 8 --batch-tokens 524288 --tokens 10_000_000_000 --tflops 100 --price 2.5"
    )
    assert main([*words.split(), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["tokens_per_step"] == 524_288
    assert found["price"] == pytest.approx(8 * 2.5 * found["seconds"] / 3600)
    assert main(words.split()) == 0
    assert f", for {found['price']:,.2f}" in capsys.readouterr().out


def test_whether_it_fits_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(capsys, "--model 345M --memory 24")["fits"] is True
    found = report(capsys, "--model 1.5B --memory 24")
    assert (found["fits"], found["largest_micro_batch_size"]) == (False, 0)
    assert main(["estimate", "--model", "1.5B", "--memory", "24"]) == 0
    assert "it does not fit" in capsys.readouterr().out


def test_auto_is_what_a_run_would_take(capsys: pytest.CaptureFixture[str]) -> None:
    words = "--model 124M --dropout 0 --global-batch-size 48 --data-parallel 2 --micro-batch-size auto"
    assert report(capsys, words)["micro_batch_size"] == 8  # nothing is known of the memory
    sizes = [report(capsys, f"{words} --memory {gib}")["micro_batch_size"] for gib in (4, 8, 16, 80)]
    assert sizes == sorted(sizes)
    assert (sizes[0] < sizes[1], sizes[-1]) == (True, 24)
    free = 8 * GIB - RESERVE
    layout: dict[str, Any] = {"data_parallel": 2, "precision": "bf16", "compiled": True}
    assert sizes[1] == fitting_micro_batch(ModelConfig.preset("124M", dropout=0.0), 24, free, **layout)
    assert report(capsys, "--model 124M --memory 80")["micro_batch_size"] == 32
    assert report(capsys, "--model 124M --memory 80 --device cpu")["micro_batch_size"] == 2


def test_it_reads_the_file_of_a_training_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "run.toml"
    config.write_text(
        '[train]\nmodel = "345M"\ndata = ["x"]\nlr = 1e-4\nglobal_batch_size = 24\ntokens = 1000000\n'
        'precision = "fp16"\nactivation_checkpointing = "full"\n[evaluate]\nsplit = "valid"\n'
    )
    found = report(capsys, f"--config {config} --data-parallel 2")
    assert (found["parameters"], found["precision"]) == (354_871_296, "fp16")
    assert (found["micro_batch_size"], found["accumulation"], found["tokens_per_step"]) == (6, 2, 24 * 1024)
    assert found["activation_checkpointing"] == "full"
    config.write_text('[train]\nmodel = "345M"\n')
    found = report(capsys, f"--config {config} --data-parallel 2")
    assert found["tokens_per_step"] == TrainSettings().global_batch_size * 1024
    other = report(capsys, f"--config {config} --layers 2 --hidden 64 --heads 4")
    assert other["model"]["layers"] == 2


@pytest.mark.parametrize("path", sorted((Path(__file__).parents[2] / "pipelines").glob("*.toml")), ids=lambda p: p.name)
def test_it_reads_the_file_of_each_pipeline(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The quickstart's, whose precision is auto, was refused."""
    if "train" in tomllib.loads(path.read_text(encoding="utf-8")):
        assert report(capsys, f"--config {path}")["precision"] == "bf16"
        assert report(capsys, f"--config {path} --device cpu")["precision"] == "fp32"
    else:
        assert main(["estimate", "--config", str(path)]) == 2
        assert "no table [train]" in capsys.readouterr().err


def test_it_knows_what_a_run_may_be_asked_for() -> None:
    """A value that `gpt2 train` takes for a setting was refused for the same setting here."""
    ours, theirs = typing.get_type_hints(EstimateSettings), typing.get_type_hints(TrainSettings)
    for name in ours.keys() & theirs.keys() - {"REMOVED", "data_parallel"}:  # which a run chooses by its machine
        assert ours[name] in (theirs[name], theirs[name] | None), name


def test_apple_s_gpu_is_counted_as_it_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    """bf16 and a compiled loss were counted, where `gpt2 train` computes in fp32 and compiles nothing."""
    found = report(capsys, "--model 124M --device mps")
    device = torch.device("mps")
    assert found["precision"] == default_precision(device) == "fp32"
    assert found["compiled"] == is_compiled(None, device) is False
    assert found["memory_bytes"]["peak"] > report(capsys, "--model 124M")["memory_bytes"]["peak"]


# --- what the recipes take, on the page that says so -----------------------------------------------------------------

ROOT = Path(__file__).parents[2]
CARDS = [("8 GB", 8, 1), ("12 GB", 12, 1), ("16 GB", 16, 1), ("24 GB", 24, 1), ("H100", 80, 1), ("8 × H100", 80, 8)]
EXPECTED = {
    ("RTX 4090", 1): {"124M": 111, "345M": 112},
    ("H100", 1): {"124M": 417, "345M": 452},
    ("8 × H100", 8): {"124M": 417, "345M": 452},
}
"""TFLOP/s: of the RTX 4090 as an account of the kernels expects, of one H100 as measured (`benchmarks/LOG.md`)."""


def of_recipe(capsys: pytest.CaptureFixture[str], size: str, flags: str) -> dict[str, Any]:
    return report(capsys, f"--config {ROOT / 'pipelines' / f'gpt2_{size}.toml'} {flags}")


def cells_of(capsys: pytest.CaptureFixture[str], memory: int, gpus: int) -> Iterator[str]:
    for size, mode in itertools.product(("124M", "345M"), ("none", "selective", "full")):
        flags = f"--memory {memory} --data-parallel {gpus} --activation-checkpointing {mode}"
        found = of_recipe(capsys, size, flags)
        used = found["memory_bytes"]["peak"] / GIB
        yield f"{found['micro_batch_size']} ({used:.1f})" if found["fits"] else "does not fit"


def test_the_page_on_124m_says_what_fits_and_what_it_costs(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "guide" / "train-124m.md").read_text(encoding="utf-8")
    for card, memory, gpus in CARDS:
        assert f"| {card} | {' | '.join(cells_of(capsys, memory, gpus))} |\n" in page
    for (card, gpus), rates in EXPECTED.items():
        cells = [card]
        for size, tflops in rates.items():
            found = of_recipe(capsys, size, f"--data-parallel {gpus} --tflops {tflops} --price 2.5")
            cells += [f"{found['seconds'] / 3600:.1f}", f"{found['price']:.0f}"]
        assert f"| {' | '.join(cells)} |\n" in page


def test_a_length_in_steps_is_one_in_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    found = of_recipe(capsys, "124M", "--tflops 100")
    again = of_recipe(capsys, "124M", f"--tokens {found['tokens']} --tflops 100")
    assert (found["steps"], found["tokens"]) == (10_000, 10_000 * 524_288)
    assert found == again
