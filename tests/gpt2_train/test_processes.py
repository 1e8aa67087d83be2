"""`gpt2 train` on several real processes over gloo: the same numbers, and no process left behind."""

from __future__ import annotations

import itertools
import json
import os
import select
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.gpt2_train.conftest import command, losses, rows, run_command_line, start_until

from gpt2_train.checkpoint import load_model, read_info
from gpt2_train.cli import main
from gpt2_train.config import ModelConfig, check_tensor_parallel
from gpt2_train.errors import Gpt2UsageError
from gpt2_train.model import GPT2, AttentionCore
from gpt2_train.parallel import SharedDropout, World, _mixed_bits, seed_micro_step, share_dropout

EXACT = ("--steps", 20, "--dropout", 0, "--save-every", 10)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory, corpus: str) -> Path:
    """20 steps in one process."""
    output = tmp_path_factory.mktemp("one") / "run"
    assert main(command(output, *EXACT, data=corpus)[3:]) == 0
    return output


@pytest.fixture(scope="module")
def tensor_parallel(tmp_path_factory: pytest.TempPathFactory, corpus: str) -> Path:
    """The same on two processes that share each matrix."""
    output = tmp_path_factory.mktemp("tp") / "run"
    done = run_command_line(output, *EXACT, "--tensor-parallel", 2, "--json", data=corpus)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["step"] == 20
    return output


@pytest.fixture(scope="module")
def data_parallel(tmp_path_factory: pytest.TempPathFactory, corpus: str) -> Path:
    """The same on two processes that share each batch, with dropout off."""
    output = tmp_path_factory.mktemp("dp") / "run"
    done = run_command_line(output, *EXACT, "--data-parallel", 2, data=corpus)
    assert done.returncode == 0, done.stderr
    return output


def assert_same_course(first: Path, second: Path) -> None:
    left, right = losses(first), losses(second)
    assert list(left) == list(right) == list(range(1, 21))
    assert all(left[step] == pytest.approx(right[step], abs=1e-4) for step in left)
    norms = [[row["grad_norm"] for row in rows(output) if "grad_norm" in row] for output in (first, second)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-3)
    assert rows(first)[-1]["valid_loss"] == pytest.approx(rows(second)[-1]["valid_loss"], abs=1e-4)


def test_tensor_parallel_training_matches_one_process(one: Path, tensor_parallel: Path) -> None:
    assert_same_course(one, tensor_parallel)


def test_data_parallel_training_matches_one_process(one: Path, data_parallel: Path) -> None:
    """Pitfall 22: the number of processes changes nothing about what is learned."""
    assert_same_course(one, data_parallel)


def test_a_tensor_parallel_checkpoint_loads_in_one_process(one: Path, tensor_parallel: Path) -> None:
    """Pitfall 31: a model trained on two processes could not be loaded on one."""
    model, config, _ = load_model(tensor_parallel)
    single, same_config, _ = load_model(one)
    assert config == same_config and model.is_tied
    tokens = torch.randint(0, 100, (2, 16), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(model(tokens), single(tokens), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("source", ["tensor_parallel", "data_parallel"])
def test_a_run_goes_on_in_another_layout(
    tmp_path: Path, corpus: str, one: Path, request: pytest.FixtureRequest, source: str
) -> None:
    """Pitfalls 26 and 31: from two processes to one, optimizer state included."""
    shutil.copytree(request.getfixturevalue(source), tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-0000020")
    assert main(command(tmp_path / "run", *EXACT, data=corpus)[3:]) == 0
    assert_same_course(one, tmp_path / "run")


def test_a_run_of_one_process_goes_on_with_four(tmp_path: Path, corpus: str, one: Path) -> None:
    """Both kinds of parallelism at once, from a checkpoint of a single process."""
    shutil.copytree(one, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-0000020")
    flags = (*EXACT, "--tensor-parallel", 2, "--data-parallel", 2)
    done = run_command_line(tmp_path / "run", *flags, data=corpus)
    assert done.returncode == 0, done.stderr
    assert_same_course(one, tmp_path / "run")


def children_of(parent: int) -> list[int]:
    """The processes that `parent` started and that still run."""
    return [int(child) for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def test_a_killed_parent_takes_its_children_along_and_the_run_resumes_to_the_same_bits(
    tmp_path: Path, corpus: str, data_parallel: Path
) -> None:
    """Pitfalls 26 and 32: kill -9 of the parent leaves no process hanging; then SIGTERM; then to the end."""
    flags = (*EXACT, "--data-parallel", 2)
    words = command(tmp_path, *flags, data=corpus)
    process, _ = start_until(words, "step 12/20")
    children = children_of(process.pid)
    assert len(children) == 2
    handles = [os.pidfd_open(child) for child in children]
    process.kill()
    for handle in handles:
        assert select.select([handle], [], [], 60)[0], "a child outlived its parent"
        os.close(handle)
    process.communicate()
    assert read_info(tmp_path).step in (10, 20)

    process, _ = start_until(words, "resuming")
    process.send_signal(signal.SIGTERM)
    _, rest = process.communicate()
    assert process.returncode == 128 + signal.SIGTERM, rest
    assert "stopped by SIGTERM" in rest

    done = run_command_line(tmp_path, *flags, data=corpus)
    assert done.returncode == 0, done.stderr
    assert losses(tmp_path) == losses(data_parallel)
    left, right = load_model(tmp_path)[0].state_dict(), load_model(data_parallel)[0].state_dict()
    assert all(torch.equal(left[name], right[name]) for name in left)


def test_a_process_that_was_killed_is_named_with_the_likely_cause(tmp_path: Path, corpus: str) -> None:
    words = command(tmp_path, "--steps", 100_000, "--data-parallel", 2, data=corpus)
    process, _ = start_until(words, "step 10/")
    os.kill(children_of(process.pid)[1], signal.SIGKILL)
    _, rest = process.communicate()
    assert process.returncode == 1
    assert "process 1 of 2 was killed by SIGKILL (was there too little memory?)" in rest
    assert rest.count("error:") == 1


def test_a_failure_of_the_processes_is_one_sentence(tmp_path: Path, corpus: str) -> None:
    flags = ("--steps", 3, "--data-parallel", 2, "--vocabulary-size", 50)
    done = run_command_line(tmp_path, *flags, data=corpus)
    assert done.returncode == 2
    assert done.stderr.count("error:") == 1 and "doesn't match" in done.stderr
    assert "Traceback" not in done.stderr


def test_heads_that_cannot_be_shared_are_refused() -> None:
    check_tensor_parallel(ModelConfig.preset("1.5B"), 1)
    with pytest.raises(Gpt2UsageError, match=r"--tensor-parallel 2 does not divide the model's heads \(25\)"):
        check_tensor_parallel(ModelConfig.preset("1.5B"), 2)


# --- dropout ---------------------------------------------------------------------------------------------------------


def dropped(core: Callable[..., torch.Tensor], tp_rank: int = 0, tp_size: int = 1, dp_rank: int = 0) -> torch.Tensor:
    """Which attention weights a core drops."""
    world = World(torch.device("cpu"), dp_rank=dp_rank, dp_size=2, tp_rank=tp_rank, tp_size=tp_size)
    seed_micro_step(torch.nn.Identity(), 1, 2, 3, world)
    query = torch.zeros(1, 2, 16, 8)
    value = torch.eye(16)[None, None].expand(1, 2, 16, 16)
    return core(query, torch.zeros(1, 2, 16, 8), value) == 0


def test_data_parallel_ranks_drop_different_weights() -> None:
    """Pitfall 28: all data-parallel ranks shared one dropout seed."""
    core = AttentionCore(0.5).train()
    assert torch.equal(dropped(core, dp_rank=0), dropped(core, dp_rank=0))
    assert not torch.equal(dropped(core, dp_rank=0), dropped(core, dp_rank=1))


def test_tensor_parallel_ranks_drop_differently_in_attention() -> None:
    """Their heads differ."""
    core = AttentionCore(0.5).train()
    assert not torch.equal(dropped(core, 0, 2), dropped(core, 1, 2))


def test_tensor_parallel_ranks_drop_alike_in_the_residual_stream() -> None:
    """It is the same on all of them; each of its places has a mask of its own, and each micro-step other ones."""
    masks = []
    for step, tp_rank in ((1, 0), (1, 1), (2, 0)):
        model = GPT2(ModelConfig(2, 32, 4, 16, 100, dropout=0.3)).train()
        share_dropout(model)
        world = World(torch.device("cpu"), tp_rank=tp_rank, tp_size=2)
        seed_micro_step(model, 7, step, 0, world)
        places = [module for module in model.modules() if isinstance(module, SharedDropout)]
        masks.append([place(torch.ones(50, 100)) for place in places])
    first, other_rank, next_step = masks
    assert len(first) == 5
    assert all(torch.equal(left, right) for left, right in zip(first, other_rank, strict=True))
    assert not any(torch.equal(left, right) for left, right in zip(first, next_step, strict=True))
    assert not any(torch.equal(left, right) for left, right in itertools.combinations(first, 2))
    for mask in first:
        assert float((mask == 0).float().mean()) == pytest.approx(0.3, abs=0.03)
        assert float(mask.mean()) == pytest.approx(1.0, abs=0.05)


def test_shared_dropout_is_off_outside_training_and_leaves_the_generator_alone() -> None:
    module = SharedDropout(0.5, torch.tensor([3, 4]))
    x = torch.rand(4, 8)
    state = torch.get_rng_state()
    assert not torch.equal(module.train()(x), x)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(module.eval()(x), x)


def test_the_bits_of_shared_dropout_are_even() -> None:
    """Each bit is set in half of the numbers, and consecutive numbers share no pattern."""
    bits = _mixed_bits(_mixed_bits(torch.arange(1 << 16) ^ 12345) ^ 67890)
    assert len(bits.unique()) == 1 << 16 and int(bits.max()) < 1 << 32
    for place in range(32):
        share = (bits >> place & 1).float()
        assert float(share.mean()) == pytest.approx(0.5, abs=0.01)
        assert float((share[1:] * share[:-1]).mean()) == pytest.approx(0.25, abs=0.01)
