"""Layouts of data parallelism: copies and shards, resharding, and the same run in all of them."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.gpt2_train import forks, layout_runs
from tests.gpt2_train.conftest import command, losses, rows
from tests.gpt2_train.test_train import assert_same_bits

from command_kit import settings_from
from command_kit.settings import as_table
from gpt2_train.checkpoint.info import read_info
from gpt2_train.checkpoint.load import shapes_of
from gpt2_train.checkpoint.optimizer_state import stored_boxes
from gpt2_train.cli import make_parser
from gpt2_train.config.layout import check_layout, choose_data_parallel
from gpt2_train.config.settings import ModelConfig, TrainSettings
from gpt2_train.conversion.formats import open_weights
from gpt2_train.distributed.mesh import mixed_seed
from gpt2_train.model.gpt2 import GPT2
from gpt2_train.training.memory import memory_per_rank

CONFIG = ModelConfig(2, 32, 4, 16, 100, dropout=0.0)
STEPS = 8
LONG = 16
EPOCH = 114
"""Samples of the training split."""
RUN = (
    "--dropout", 0, "--micro-batch-size", 1, "--keep-checkpoints", 0, "--save-every", 4, "--steps", STEPS,
    "--eval-tokens", 256,
)  # fmt: skip
CHANGING = (*RUN, "--schedule", "constant", "--warmup", 0)
RECIPE = (
    "--optimizer", "muon", "--weight-decay", 0.5, "--schedule", "wsd", "--order", "hashed",
    "--dropout", 0.1,
)  # fmt: skip
COPIES = ("--data-parallel", 4, "--data-parallel-replicate", 2)
SAMPLES = ("--sample-every", 4, "--sample-prompt", "!", "--sample-tokens", 2)
RUNS: list[tuple[str, int, tuple[object, ...]]] = [
    ("one", 1, (*RUN, *SAMPLES)),
    ("shards", 4, (*RUN, "--data-parallel", 4)),
    ("copies", 4, (*RUN, *COPIES, *SAMPLES)),
    ("copies resharded", 4, (*RUN, *COPIES, "--reshard", "--activation-checkpointing", "full")),
    ("copies of halves", 4, (*RUN, "--data-parallel", 2, "--data-parallel-replicate", 2, "--tensor-parallel", 2)),
    ("unbroken", 1, (*CHANGING, "--steps", LONG)),
    ("changing 3", 1, (*CHANGING, "--steps", 3)),
    ("changing 6", 2, (*CHANGING, "--steps", 6, "--data-parallel", 2)),
    ("changing 10", 4, (*CHANGING, "--steps", 10, *COPIES)),
    ("changing 16", 1, (*CHANGING, "--steps", LONG)),
    ("second", 4, (*RUN, "--data-parallel", 2, "--tensor-parallel", 2, "--steps", 1, "--init-from", "one")),
]
"""Name (without a number at its end that of the folder), processes, flags."""
PARTS = [name for name, *_ in RUNS if name.startswith("changing")]
ORDINARY = {"one", "shards", "copies of halves"}
"""What tests that are not exhaustive look at."""
EXHAUSTIVE = pytest.mark.exhaustive


def folder_of(name: str) -> str:
    """The folder of a run; those that differ in a number go on in one folder."""
    return name.rpartition(" ")[0] if name[-1].isdigit() else name


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, corpus: str, request: pytest.FixtureRequest) -> Path:
    """All runs, or the ordinary ones where no exhaustive test asks for more."""
    folder = tmp_path_factory.mktemp("layouts")
    asking = [item for item in request.session.items if item.path == request.path]
    takes_all = any(item.get_closest_marker("exhaustive") for item in asking)
    for name, size, flags in RUNS:
        if not takes_all and name not in ORDINARY:
            continue
        flags = tuple(folder / "one" if flag == "one" else flag for flag in flags)
        train_in_group(folder, name, size, flags, corpus)
    return folder


def train_in_group(folder: Path, name: str, size: int, flags: tuple[object, ...], corpus: str) -> None:
    """Train a run with `size` processes."""
    arguments = make_parser("train").parse_args(command(folder / folder_of(name), *flags, data=corpus)[3:])
    settings = as_table(settings_from(TrainSettings, arguments, command="train"))
    forks.in_group(size, layout_runs.work, folder, {"id": name, "settings": settings})


def seen(runs: Path, name: str) -> list[dict[str, Any]]:
    """What each process saw of a run."""
    size = next(size for other, size, *_ in RUNS if other == name)
    return [json.loads((runs / f"{name}.{rank}.json").read_text()) for rank in range(size)]


# --- the same course -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "shards",
        "copies of halves",
        pytest.param("copies", marks=EXHAUSTIVE),
        pytest.param("copies resharded", marks=EXHAUSTIVE),
    ],
)
def test_every_layout_takes_the_same_course(runs: Path, name: str) -> None:
    ours, theirs = losses(runs / name), losses(runs / "one")
    assert list(ours) == list(range(1, STEPS + 1))
    assert ours == pytest.approx(theirs, abs=1e-4)
    norms = [[row["grad_norm"] for row in rows(runs / run) if "grad_norm" in row] for run in (name, "one")]
    assert norms[0] == pytest.approx(norms[1], rel=1e-3)
    valid = [[row["valid_loss"] for row in rows(runs / run) if "valid_loss" in row] for run in (name, "one")]
    assert valid[0] == pytest.approx(valid[1], abs=1e-4) and len(valid[0]) == 1


@pytest.mark.exhaustive
@pytest.mark.parametrize("layout", [("--data-parallel", 2, "--tensor-parallel", 2), (*COPIES, "--reshard")])
def test_a_run_with_every_option_resumes_to_the_same_bits(
    tmp_path: Path, corpus: str, layout: tuple[object, ...]
) -> None:
    """Interrupted inside the decay of wsd."""
    flags = (*RUN, *layout, *RECIPE, "--save-every", 3)
    train_in_group(tmp_path, "unbroken", 4, flags, corpus)
    shutil.copytree(tmp_path / "unbroken", tmp_path / "broken")
    shutil.rmtree(tmp_path / f"broken/checkpoints/step-{STEPS:07}")
    (tmp_path / "broken/checkpoints/latest").write_text("step-0000006\n")
    train_in_group(tmp_path, "broken", 4, flags, corpus)
    assert_same_bits(tmp_path / "unbroken", tmp_path / "broken")


@pytest.mark.exhaustive
def test_copies_write_samples_like_one_process(runs: Path) -> None:
    texts = {run: [row["text"] for row in rows(runs / run) if row.get("kind") == "sample"] for run in ("one", "copies")}
    assert len(texts["one"]) == 3 and len(set(texts["one"])) > 1
    assert texts["copies"] == texts["one"]


@pytest.mark.exhaustive
def test_what_copies_have_alike_is_saved_once(runs: Path) -> None:
    """Boxes that fill each tensor once, and nothing else; each of the processes writes some of them."""
    for name in ("shards", "copies resharded"):
        info = read_info(runs / name)
        names = info.names(of_optimizer=True)
        assert len(names) == 4 and sum(info.files[file]["bytes"] for file in names) > 2 * 4 * CONFIG.parameters
        stored = [part.values for boxes in stored_boxes(info).values() for part in boxes]
        assert sum(math.prod(values.shape) for values in stored) == 2 * sum(map(math.prod, shapes_of(CONFIG).values()))
        assert all(info.files[file]["bytes"] > CONFIG.parameters for file in names)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("shards", 4),
        pytest.param("copies", 2, marks=EXHAUSTIVE),
        pytest.param("copies resharded", 2, marks=EXHAUSTIVE),
    ],
)
def test_shares_are_those_of_the_shards(runs: Path, name: str, parts: int) -> None:
    whole = 4 * CONFIG.parameters
    assert [part["share"] for part in seen(runs, "one")] == [whole]
    shares = [part["share"] for part in seen(runs, name)]
    assert sum(shares) == whole * 4 // parts
    assert max(shares) <= whole // parts + 4 * 32 * 20


# --- exchanges -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # Two blocks and what is around them, and two micro-batches in each step.
        ("shards", {"allgather_base": 3, "reduce_scatter_base": 3}),
        pytest.param("copies", {"allgather_base": 3, "reduce_scatter_base": 3, "allreduce": 3}, marks=EXHAUSTIVE),
        # A block is gathered for each pass, the rest once in a micro-step; copies exchange gradients once.
        pytest.param(
            "copies resharded", {"allgather_base": 10, "reduce_scatter_base": 6, "allreduce": 3}, marks=EXHAUSTIVE
        ),
    ],
)
def test_a_step_exchanges_what_its_layout_asks_for(runs: Path, name: str, expected: dict[str, int]) -> None:
    assert [part["collectives"] for part in seen(runs, name)] == [expected] * 4


@pytest.mark.parametrize(
    ("name", "is_sharded"),
    [
        ("shards", False),
        pytest.param("copies", False, marks=EXHAUSTIVE),
        pytest.param("copies resharded", True, marks=EXHAUSTIVE),
    ],
)
def test_only_resharding_drops_parameters_after_the_forward_pass(runs: Path, name: str, is_sharded: bool) -> None:
    assert all(part["sharded_after_forward"] == [is_sharded] * 2 for part in seen(runs, name))


# --- initial weights -------------------------------------------------------------------------------------------------


def weights_of(model: GPT2) -> dict[str, str]:
    """SHA-256 of each parameter."""
    return {name: layout_runs.digest(parameter) for name, parameter in model.named_parameters()}


@pytest.mark.parametrize(
    "name",
    [
        "one",
        "shards",
        "copies of halves",
        pytest.param("copies", marks=EXHAUSTIVE),
    ],
)
def test_initial_weights_are_the_same_bits_in_every_layout(runs: Path, name: str) -> None:
    generator = torch.Generator().manual_seed(mixed_seed(TrainSettings().seed))
    expected = weights_of(GPT2(CONFIG).initialise(generator))
    assert all(part["weights"] == expected for part in seen(runs, name))


@pytest.mark.exhaustive
def test_weights_of_another_model_are_the_same_bits_in_every_layout(runs: Path) -> None:
    expected = weights_of(open_weights(runs / "one").load())
    # What is stored as padding is not taken over.
    del expected["token_embedding.weight"]
    for part in seen(runs, "second"):
        assert expected.items() <= part["weights"].items()


@pytest.mark.parametrize(
    "name",
    [
        "shards",
        "copies of halves",
        pytest.param("second", marks=EXHAUSTIVE),
        pytest.param("copies", marks=EXHAUSTIVE),
    ],
)
def test_no_process_ever_holds_the_whole_model(runs: Path, name: str) -> None:
    """It was built whole on each device, then shared out: at most a share and, on the host, one matrix are held now."""
    matrix = 4 * CONFIG.padded_vocabulary * CONFIG.hidden
    for part in seen(runs, name):
        # FSDP2 pads shares to equal sizes.
        assert part["share"] <= part["build_peak"] < 1.1 * part["share"] + 2.1 * matrix
        assert part["build_peak"] < 4 * CONFIG.parameters


# --- each sample once ------------------------------------------------------------------------------------------------


def samples_by_step(runs: Path, name: str) -> dict[int, list[str]]:
    """What was read for each step of a run, by SHA-256: the rows of all data-parallel processes in their order."""
    found: dict[int, list[str]] = {}
    for part in seen(runs, name):
        for step, samples in enumerate(part["samples"], part["first_step"]):
            found.setdefault(step, []).extend(samples)
    return found


@pytest.mark.exhaustive
def test_each_sample_is_read_once_while_the_number_of_processes_changes(runs: Path) -> None:
    """In the middle of an epoch from one process to two, to two copies of two shards, to one."""
    unbroken = samples_by_step(runs, "unbroken")
    assert list(unbroken) == list(range(1, LONG + 1))
    changing: dict[int, list[str]] = {}
    for name in PARTS:
        part = samples_by_step(runs, name)
        assert not part.keys() & changing.keys()
        changing |= part
    assert changing == unbroken
    read = [sample for step in range(1, LONG + 1) for sample in changing[step]]
    assert len(set(read[:EPOCH])) == EPOCH and 10 * 8 < EPOCH < LONG * 8
    assert losses(runs / "changing") == pytest.approx(losses(runs / "unbroken"), abs=1e-4)


# --- what is asked for -----------------------------------------------------------------------------------------------


def test_copies_decide_how_many_gpus_are_used() -> None:
    settings = TrainSettings(global_batch_size=12, data_parallel_replicate=2)
    assert choose_data_parallel(settings, 8) == 6
    assert choose_data_parallel(dataclasses.replace(settings, data_parallel_replicate=4), 8) == 4
    assert check_layout(settings, 7) == 6


# --- memory ----------------------------------------------------------------------------------------------------------


def test_copies_and_resharding_are_estimated() -> None:
    preset = ModelConfig.preset("1.5B", dropout=0.0)
    layouts: list[dict[str, Any]] = [
        {"data_parallel_replicate": replicas, "reshard": reshard} for replicas, reshard in
        itertools.product((1, 2, 8), (False, True))
    ]  # fmt: skip
    found = [
        memory_per_rank(preset, micro_batch=1, data_parallel=8, precision="bf16", accumulation=2, **layout)
        for layout in layouts
    ]
    assert [memory.parameters for memory in found] == [
        4 * math.ceil(preset.parameters * replicas / 8) for replicas in (1, 1, 2, 2, 8, 8)
    ]
    for kept, resharded in zip(found[::2], found[1::2], strict=True):
        assert kept.gathered == 2 * 4 * preset.parameters
        assert resharded.gathered < kept.gathered / 10
        assert resharded.peak < kept.peak - 2 * preset.parameters
    # Alone there is nothing to gather.
    alone = [memory_per_rank(preset, micro_batch=1, reshard=reshard) for reshard in (False, True)]
    assert alone[0] == alone[1]
