"""Devices: which one is chosen, and what it is asked to do. No GPU is needed; what runs on one: tests/cuda."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
import torch.distributed as dist
from tests.gpt2_train.small_models import SMALL

from command_kit.machine import physical_cores
from gpt2_train.config.errors import Gpt2UsageError
from gpt2_train.distributed import jobs, parallelize
from gpt2_train.distributed.device import (
    choose_device,
    choose_precision,
    default_precision,
    is_emulated,
    is_fast_in_bf16,
    unkept_random_state,
    use_threads,
)
from gpt2_train.distributed.mesh import World
from gpt2_train.metrics.log import peak_flops_of
from gpt2_train.model.gpt2 import GPT2
from gpt2_train.optim.gradients import gradient_norm


@pytest.mark.parametrize("mode", ["full", "selective"])
def test_recomputation_repeats_dropout_where_torch_does_not_keep_the_generator(
    monkeypatch: pytest.MonkeyPatch, mode: Literal["full", "selective"]
) -> None:
    """On Apple's GPUs recomputation dropped other elements than the loss was computed with: a wrong gradient."""
    # As on such a GPU: torch keeps no state, and without the contexts the gradients of the two differ.
    unkept = functools.partial(torch.utils.checkpoint.checkpoint, preserve_rng_state=False)
    monkeypatch.setattr(parallelize, "checkpoint", unkept)
    monkeypatch.setattr(parallelize, "unkept_random_state", lambda _: torch)
    tokens = torch.arange(34).view(2, 17)

    def gradients(mode: Literal["none", "full", "selective"]) -> tuple[list[torch.Tensor], torch.Tensor]:
        model = GPT2(SMALL).initialise(torch.Generator().manual_seed(1)).train()
        parallelize.apply_activation_checkpointing(model, mode)
        torch.manual_seed(5)
        model(tokens[:, :-1]).logsumexp(-1).sum().backward()
        return [p.grad for p in model.parameters() if p.grad is not None], torch.get_rng_state()

    (expected, state), (found, state_after) = gradients("none"), gradients(mode)
    for left, right in zip(expected, found, strict=True):
        torch.testing.assert_close(left, right)
    assert torch.equal(state, state_after)


def test_only_apples_gpus_need_their_generator_kept() -> None:
    assert unkept_random_state(torch.device("cpu")) is unkept_random_state(torch.device("cuda")) is None
    assert unkept_random_state(torch.device("mps")) is torch.mps
    # Once torch keeps it itself, this part of the package is superfluous.
    assert not hasattr(torch.mps, "_initialized")


def test_a_gpu_that_only_emulates_bf16_computes_in_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    """A T4 or V100 took bf16 by default, which it emulates more slowly than it computes in fp32."""
    for has_it, emulates, expected in ((True, True, "bf16"), (False, True, "fp32"), (False, False, "fp32")):

        def supported(including_emulation: bool = True, has_it: bool = has_it, emulates: bool = emulates) -> bool:
            return has_it or (including_emulation and emulates)

        monkeypatch.setattr(torch.cuda, "is_bf16_supported", supported)
        assert default_precision(torch.device("cuda")) == expected
    assert default_precision(torch.device("cpu")) == default_precision(torch.device("mps")) == "fp32"


@pytest.mark.parametrize(
    ("capabilities", "bf16", "fp16"),
    [
        ({"avx2": True, "avx512_bf16": False, "avx512_fp16": False}, True, True),
        ({"avx512_bf16": True, "avx512_fp16": False}, False, True),
        ({"neon": True, "bf16": True, "fp16_arith": True}, False, False),
        ({}, False, False),
    ],
)
def test_a_cpu_without_half_precision_is_known(
    monkeypatch: pytest.MonkeyPatch, capabilities: dict[str, bool], bf16: bool, fp16: bool
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    cpu = torch.device("cpu")
    assert (is_emulated(cpu, "bf16"), is_emulated(cpu, "fp16"), is_emulated(cpu, "fp32")) == (bf16, fp16, False)
    assert not is_emulated(torch.device("cuda"), "bf16")
    has_it = capabilities.get("avx512_bf16", False)
    assert is_fast_in_bf16(cpu) == has_it
    assert choose_precision("auto", None, cpu) == ("bf16" if has_it else "fp32")


@pytest.mark.parametrize(
    ("name", "has_amx", "is_fast"),
    [("Intel Xeon", False, False), ("Intel Xeon", True, True), ("AMD EPYC", False, True), (None, False, True)],
)
def test_intels_bf16_is_fast_with_amx_alone(
    monkeypatch: pytest.MonkeyPatch, name: str | None, has_amx: bool, is_fast: bool
) -> None:
    """On Intel's cores whose AMX a virtual machine hid, `auto` chose the slower of two."""
    capabilities = {"avx512_bf16": True, "amx_bf16": has_amx, **({} if name is None else {"cpu_name": name})}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    assert is_fast_in_bf16(torch.device("cpu")) is is_fast


def test_a_run_keeps_its_precision() -> None:
    cpu = torch.device("cpu")
    assert choose_precision(None, None, cpu) == "fp32"
    assert choose_precision("auto", "fp16", cpu) == choose_precision(None, "fp16", cpu) == "fp16"
    assert choose_precision("bf16", "fp16", cpu) == "bf16"


def two_gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> list[int]:
    """Pretend that torch sees `count` GPUs; returns the list of those that are set."""
    chosen: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    return chosen


def test_a_process_that_sees_its_own_gpu_alone_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm's --gpus-per-task=1 shows each of 8 processes one GPU; they were refused as too many for it."""
    chosen = two_gpus(monkeypatch, 1)
    assert choose_device("auto", local_rank=5, local_size=8, sees_own_only=True) == torch.device("cuda", 0)
    assert chosen == [0]
    with pytest.raises(Gpt2UsageError, match="8 processes asked of 1 GPUs"):
        choose_device("auto", local_rank=5, local_size=8)


def test_a_process_takes_the_gpu_of_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    assert two_gpus(monkeypatch, 4) == []
    assert choose_device("cuda", local_rank=3, local_size=4) == torch.device("cuda", 3)


def test_the_process_group_is_told_its_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL was left to guess each process's GPU from its rank, which is another one where ranks span machines."""
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **more: calls.append({"backend": backend, **more}))
    gpu = torch.device("cuda", 3)
    store = dist.HashStore()
    monkeypatch.setattr(jobs, "meet_in_job", lambda *_: store)
    jobs.join(World(gpu, 11, 16, 3, 8))
    jobs.join(World(torch.device("cpu"), folder=Path("job")))
    common = {"store": store, "timeout": None}
    assert calls == [
        {"backend": "cpu:gloo,cuda:nccl", "device_id": gpu, "rank": 11, "world_size": 16, **common},
        {"backend": "gloo", "device_id": None, "rank": 0, "world_size": 1, **common},
    ]


def test_two_processes_on_one_gpu_are_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(backend: str, **more: Any) -> None:
        raise RuntimeError("Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000")

    monkeypatch.setattr(dist, "init_process_group", refused)
    monkeypatch.setattr(jobs, "meet_in_job", lambda *_: dist.HashStore())
    with pytest.raises(Gpt2UsageError, match="start one process for each GPU"):
        jobs.join(World(torch.device("cuda", 0), 0, 2, folder=Path("job")))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NVIDIA L40", 181e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA RTX A4000", None),
        ("NVIDIA A40", 150e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA GeForce RTX 4090", 165e12),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("Tesla T4", 65e12),
        ("Some other GPU", None),
    ],
)
def test_a_gpu_is_known_by_whole_words_of_its_name(name: str, expected: float | None) -> None:
    """An L40 was taken for an L4 and an RTX A4000 for an A40, whose peaks then made up the MFU."""
    assert peak_flops_of(name) == expected


def test_the_norm_of_a_large_gradient_is_exact() -> None:
    """One float32 sum over a whole matrix was wrong in the third digit, and clipping with it."""
    parameter = torch.zeros(24_000_000, requires_grad=True)
    parameter.grad = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    exact = float(parameter.grad.double().square().sum().sqrt())
    assert gradient_norm([parameter]) == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize(
    ("siblings", "expected"),
    [
        ({0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}, 2),
        ({0: "0", 1: "1", 2: "2", 3: "3"}, 4),
        ({}, 4),  # a system that does not say
    ],
)
def test_a_core_that_runs_two_threads_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, siblings: dict[int, str], expected: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(4)), raising=False)
    for number, line in siblings.items():
        topology = tmp_path / f"sys/devices/system/cpu/cpu{number}/topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{line}\n")
    assert physical_cores(tmp_path) == expected


def test_processes_of_a_machine_share_its_cores_for_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch 2.13 starts up to 32 compilers in each process, whatever the others do."""
    monkeypatch.setattr("gpt2_train.distributed.device.available_cores", lambda: 64)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    for size, expected in ((1, "32"), (8, "8"), (100, "1")):
        monkeypatch.delenv("TORCHINDUCTOR_COMPILE_THREADS")
        use_threads(None, size)
        assert os.environ["TORCHINDUCTOR_COMPILE_THREADS"] == expected
