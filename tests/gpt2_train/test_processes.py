"""`gpt2 train` on several real processes over gloo: the same numbers, and no process left behind."""

from __future__ import annotations

import itertools
import json
import os
import select
import shutil
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
import torch
from tests.gpt2_train import forks
from tests.gpt2_train.conftest import command, losses, read_until, rows, run_command_line
from tests.gpt2_train.tensor_parallel_runs import without_code_generation
from torch.distributed.tensor import DTensor

from gpt2_train.checkpoint.info import read_info
from gpt2_train.cli import main
from gpt2_train.config.errors import Gpt2Error, Gpt2UsageError
from gpt2_train.config.settings import ModelConfig
from gpt2_train.conversion.formats import open_weights
from gpt2_train.distributed import jobs
from gpt2_train.distributed.local_job import LocalJob, errors_in
from gpt2_train.distributed.mesh import World, make_world, seed_micro_step
from gpt2_train.distributed.parallelize import parallelize
from gpt2_train.distributed.tensor_parallel import SharedDropout, _mixed_bits, share_dropout
from gpt2_train.model.attention import PACKED
from gpt2_train.model.gpt2 import GPT2
from gpt2_train.training import run_folder
from gpt2_train.training.trainer import Trainer

STEPS = 10
EXACT = ("--steps", STEPS, "--dropout", 0, "--save-every", 5)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory, corpus: str) -> Path:
    """A run in one process."""
    output = tmp_path_factory.mktemp("one") / "run"
    assert main(command(output, *EXACT, data=corpus)[3:]) == 0
    return output


@pytest.fixture(scope="module")
def tensor_parallel(tmp_path_factory: pytest.TempPathFactory, corpus: str) -> Path:
    """The same on two processes that share each matrix."""
    output = tmp_path_factory.mktemp("tp") / "run"
    done = run_command_line(output, *EXACT, "--tensor-parallel", 2, "--json", data=corpus)
    assert done.returncode == 0, done.stderr
    assert_nothing_of_torchs_own(done.stderr)
    assert json.loads(done.stdout)["step"] == STEPS
    return output


@pytest.fixture(scope="module")
def data_parallel(tmp_path_factory: pytest.TempPathFactory, corpus: str) -> Path:
    """The same on two processes that share each batch, with dropout off."""
    output = tmp_path_factory.mktemp("dp") / "run"
    done = run_command_line(output, *EXACT, "--data-parallel", 2, data=corpus)
    assert done.returncode == 0, done.stderr
    return output


def assert_nothing_of_torchs_own(said: str) -> None:
    """Notices to developers (a suboptimal order of operations) were shown to users."""
    own = ("loading PyTorch", "preparing", "resuming", "warning: no document", "model:", "data:", "run:", "step ")
    before_the_curve = said.partition(": training loss")[0].rpartition("\n")[0]
    assert len(before_the_curve.splitlines()) > 3
    assert [line for line in before_the_curve.splitlines() if not line.startswith(own)] == []


def assert_same_course(first: Path, second: Path) -> None:
    left, right = losses(first), losses(second)
    assert list(left) == list(right) == list(range(1, STEPS + 1))
    assert all(left[step] == pytest.approx(right[step], abs=1e-4) for step in left)
    norms = [[row["grad_norm"] for row in rows(output) if "grad_norm" in row] for output in (first, second)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-3)
    assert rows(first)[-1]["valid_loss"] == pytest.approx(rows(second)[-1]["valid_loss"], abs=1e-4)


def test_tensor_parallel_training_matches_one_process(one: Path, tensor_parallel: Path) -> None:
    assert_same_course(one, tensor_parallel)


@pytest.fixture(scope="module")
def bf16(tmp_path_factory: pytest.TempPathFactory, corpus: str) -> Path:
    """A run in one process that multiplies in bf16."""
    output = tmp_path_factory.mktemp("bf16") / "run"
    assert main(command(output, *EXACT, "--precision", "bf16", data=corpus)[3:]) == 0
    return output


@pytest.fixture(scope="module")
def bf16_tensor_parallel(tmp_path_factory: pytest.TempPathFactory, corpus: str) -> Path:
    """The same on two processes that share each matrix."""
    output = tmp_path_factory.mktemp("bf16-tp") / "run"
    done = run_command_line(output, *EXACT, "--precision", "bf16", "--tensor-parallel", 2, data=corpus)
    assert done.returncode == 0, done.stderr
    return output


@pytest.mark.parametrize("layout", ["one", "tensor_parallel", "data_parallel", "bf16", "bf16_tensor_parallel"])
def test_transformers_opens_each_step_as_it_is(layout: str, request: pytest.FixtureRequest) -> None:
    """Without a conversion, from any layout and precision, with our logits: alike but for the rounding of float32."""
    from transformers import AutoModelForCausalLM

    info = read_info(request.getfixturevalue(layout))
    assert info.settings["precision"] == ("bf16" if layout.startswith("bf16") else "fp32")
    step = info.folder
    theirs = AutoModelForCausalLM.from_pretrained(step, local_files_only=True).eval()
    assert theirs.lm_head.weight is theirs.transformer.wte.weight
    tokens = torch.randint(0, 100, (2, 16), generator=torch.Generator().manual_seed(1))
    ours = open_weights(step).load()
    with torch.inference_mode():
        torch.testing.assert_close(ours(tokens)[..., :100], theirs(tokens).logits, atol=1e-6, rtol=0)
        exact, logits = ours.double()(tokens)[..., :100], theirs.double()(tokens).logits
    torch.testing.assert_close(exact, logits, atol=1.5e-7, rtol=0)


@pytest.mark.parametrize("source", ["tensor_parallel", "data_parallel"])
def test_a_run_goes_on_in_another_layout(
    tmp_path: Path, corpus: str, one: Path, request: pytest.FixtureRequest, source: str
) -> None:
    """Pitfalls 26 and 31: from two processes to one, optimizer state included."""
    shutil.copytree(request.getfixturevalue(source), tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-0000010")
    assert main(command(tmp_path / "run", *EXACT, data=corpus)[3:]) == 0
    assert_same_course(one, tmp_path / "run")


def children_of(parent: int) -> list[int]:
    """The processes that `parent` started and that still run."""
    return [int(child) for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def train_held_in_step_8(*words: str) -> None:
    """`gpt2 train`, all processes of which wait in step 8 until a signal stops them."""
    take = Trainer.train_step

    def held(self: Trainer) -> bool:
        if self.state.step == 7:
            print("held in step 8", file=sys.stderr, flush=True)
            while not self.recorder.stop.signal:
                time.sleep(0.01)
        return take(self)

    Trainer.train_step = held  # type: ignore[method-assign]
    sys.exit(main(list(words)))


def test_a_killed_parent_takes_its_children_along_and_the_run_resumes_to_the_same_bits(
    tmp_path: Path, corpus: str, data_parallel: Path
) -> None:
    """Pitfalls 26 and 32: kill -9 of the parent leaves no process hanging; then SIGTERM; then to the end."""
    flags = (*EXACT, "--data-parallel", 2)
    held = command(tmp_path, *flags, "--no-async-checkpoint", data=corpus)
    words = forks.program(train_held_in_step_8, *held[3:])
    process = forks.Started(words)
    read_until(process, "held in step 8")
    children = children_of(process.pid)
    assert len(children) == 2
    handles = [os.pidfd_open(child) for child in children]
    process.kill()
    for handle in handles:
        assert select.select([handle], [], [], 60)[0], "a child outlived its parent"
        os.close(handle)
    process.communicate()
    assert read_info(tmp_path).step == 5

    process = forks.Started(words)
    read_until(process, "held in step 8")
    process.send_signal(signal.SIGTERM)
    _, rest = process.communicate()
    assert process.returncode == 128 + signal.SIGTERM, rest
    assert "stopped by SIGTERM" in rest

    done = run_command_line(tmp_path, *flags, data=corpus)
    assert done.returncode == 0, done.stderr
    assert losses(tmp_path) == losses(data_parallel)
    left, right = open_weights(tmp_path).load().state_dict(), open_weights(data_parallel).load().state_dict()
    assert all(torch.equal(left[name], right[name]) for name in left)


def test_a_process_that_was_killed_is_named_with_the_likely_cause(tmp_path: Path, corpus: str) -> None:
    words = command(tmp_path, "--steps", 100_000, "--data-parallel", 2, data=corpus)
    process = forks.Started(words)
    read_until(process, "step 3/")
    os.kill(children_of(process.pid)[1], signal.SIGKILL)
    _, rest = process.communicate()
    assert process.returncode == 1
    assert "process 1 of 2 was killed by SIGKILL (out of memory?)" in rest
    assert rest.count("error:") == 1


def train_with_patience(of_parent: float, for_storage: float, *words: str) -> None:
    """`gpt2 train` that waits so many seconds for other processes to end, and for files of other machines."""
    jobs.GRACE_SECONDS, run_folder.SHARED_STORAGE_PATIENCE = of_parent, for_storage
    sys.exit(main(list(words)))


WATCHDOG = """\
[rank1]:[E1124 00:05:11.1 ProcessGroupNCCL.cpp:685] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(...)
Exception raised from checkTimeout at ProcessGroupNCCL.cpp:700 (most recent call first):
frame #0: c10::Error::Error(c10::SourceLocation) + 0x80 (0x7f in libc10.so)
terminate called after throwing an instance of 'c10::DistBackendError'
  what():  [PG ID 0] Process group watchdog thread terminated with exception
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (WATCHDOG, [WATCHDOG.splitlines()[place] for place in (0, 3, 4)]),
        ("host:7:9 [0] NCCL WARN ibv_create_qp failed\nmore\n", ["host:7:9 [0] NCCL WARN ibv_create_qp failed"]),
        ("free(): invalid pointer\n", ["free(): invalid pointer"]),
        ("", []),
        ("[E1124 a]\n" * 100, ["[E1124 a]"] * 8),
    ],
)
def test_the_last_words_of_libraries_are_their_errors(text: str, expected: list[str]) -> None:
    assert errors_in(text) == expected


@pytest.mark.exhaustive
def test_the_others_end_at_once_when_a_process_was_killed(tmp_path: Path, corpus: str) -> None:
    """They were given time to report errors of their own, which are no more than lost connections."""
    words = command(tmp_path, "--steps", 100_000, "--data-parallel", 2, data=corpus)
    process = forks.Started(forks.program(train_with_patience, 3600, 10, *words[3:]))
    read_until(process, "step 3/")
    first, second = children_of(process.pid)
    os.kill(first, signal.SIGSTOP)
    os.kill(second, signal.SIGKILL)
    _, rest = process.communicate()
    assert "process 1 of 2 was killed by SIGKILL" in rest


def report(error: str, *, is_expected: bool = True, exit_code: int = 1, time: float = 0.0) -> dict[str, Any]:
    more = {"is_expected": is_expected, "time": time, "traceback": "Traceback\n"}
    return {"error": error, "exit_code": exit_code, **more}


CANT_SAVE = report("can't save the checkpoint: gloo/transport/tcp/pair.cc:544 Connection closed by peer")
LOST = report("internal error: RuntimeError: Connection closed by peer", is_expected=False)
WRONG = report("--steps is 0", exit_code=2, time=1.0)
STOPPED, TERMINATED, KILLED, ABORTED = 128 + signal.SIGTERM, -signal.SIGTERM, -signal.SIGKILL, -signal.SIGABRT


@pytest.mark.parametrize(
    ("codes", "first", "reports", "number", "expected"),
    [
        ((0, 0), {}, {}, 0, 0),
        # The other process's error about the checkpoint, with gloo's source path in it, was shown instead.
        ((1, KILLED), {1: KILLED}, {0: CANT_SAVE}, 0, "process 1 of 2 was killed by SIGKILL (out of memory?): again."),
        # One that wrote to the other, which had just been killed.
        (
            (-signal.SIGPIPE, KILLED),
            {0: -signal.SIGPIPE, 1: KILLED},
            {},
            0,
            "process 1 of 2 was killed by SIGKILL (out of memory?): again.",
        ),
        # One that aborted on its way out of an error that it reported is not the cause.
        ((1, ABORTED), {1: ABORTED}, {0: CANT_SAVE}, 0, CANT_SAVE["error"]),
        ((1, ABORTED), {1: ABORTED}, {0: LOST}, 0, "process 1 of 2 was killed by SIGABRT: again."),
        # What the command killed itself, after one had failed, says nothing.
        ((2, KILLED), {0: 2}, {0: WRONG}, 0, WRONG["error"]),
        ((1, 2), {0: 1}, {0: LOST, 1: WRONG}, 0, WRONG["error"]),
        ((1, 1), {0: 1}, {0: LOST, 1: {**LOST, "time": -1.0, "error": "first"}}, 0, "first"),
        ((3, KILLED), {0: 3}, {}, 0, "process 0 of 2 ended with status 3: again."),
        ((STOPPED, STOPPED), {0: STOPPED}, {}, signal.SIGTERM, STOPPED),
        ((0, 0), {}, {}, signal.SIGTERM, 0),
        ((STOPPED, 1), {0: STOPPED}, {1: CANT_SAVE}, signal.SIGTERM, CANT_SAVE["error"]),
        ((TERMINATED, TERMINATED), {0: TERMINATED}, {}, signal.SIGTERM, STOPPED),
        ((130, 130), {0: 130}, {}, signal.SIGINT, 130),
        ((130, 1), {0: 130}, {0: LOST}, signal.SIGINT, KeyboardInterrupt),
    ],
)
def test_what_becomes_of_a_job_follows_from_its_processes(
    tmp_path: Path, codes: tuple[int, int], first: dict[int, int], reports: dict[int, Any], number: int, expected: Any
) -> None:
    job = LocalJob([], [], 2, resumes="again")
    job.ended_first, job.signal = first, number
    table = dict(enumerate(codes))
    if isinstance(expected, int):
        assert job.judge(table, reports, tmp_path) == expected
    elif isinstance(expected, str):
        with pytest.raises(Gpt2Error) as raised:
            job.judge(table, reports, tmp_path)
        assert str(raised.value) == expected
        assert isinstance(raised.value, Gpt2UsageError) == (expected == WRONG["error"])
    else:
        with pytest.raises(expected):
            job.judge(table, reports, tmp_path)


def test_last_words_of_the_one_that_failed_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "words-0").write_text(WATCHDOG.replace("rank1", "rank0"))
    (tmp_path / "words-1").write_text(WATCHDOG)
    job = LocalJob([], [], 2)
    job.ended_first = {1: 1}
    with pytest.raises(Gpt2Error, match="internal error"):
        job.judge({0: -9, 1: 1}, {1: LOST}, tmp_path)
    assert capsys.readouterr().err.startswith("process 1 of 2: [rank1]:[E1124 00:05:11.1 ProcessGroupNCCL.cpp:685]")


def test_the_folder_of_a_killed_command_is_cleared_away(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "words-0").touch()
    jobs.outlive(-1, tmp_path / "job")
    assert [*tmp_path.iterdir()] == []


# --- under torchrun --------------------------------------------------------------------------------------------------


def torchrun(size: int, flags: Sequence[object], data: str, outputs: Sequence[Path]) -> list[forks.Started]:
    """Start a job as torchrun does, by its environment; each process has an --output of its own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(size), "GLOO_SOCKET_IFNAME": "lo"}
    started = []
    with pytest.MonkeyPatch.context() as environment:
        for name, value in job.items():
            environment.setenv(name, value)
        for rank in range(size):
            environment.setenv("RANK", str(rank))
            environment.setenv("LOCAL_RANK", str(rank))
            words = command(outputs[rank], *flags, data=data)
            started.append(forks.Started(forks.program(train_with_patience, 3600, 0.5, *words[3:])))
    return started


def test_a_stop_under_torchrun_exits_as_asked_and_is_said_once(tmp_path: Path, corpus: str) -> None:
    """A saved stop exited with 128 plus the signal's number, and torchrun --max-restarts started the job again."""
    flags = ("--steps", 100_000, "--exit-zero-on-stop")
    job = torchrun(2, flags, corpus, [tmp_path / "run"] * 2)
    read_until(job[0], "step 3/")
    job[1].send_signal(signal.SIGTERM)
    rest = [process.communicate()[1] for process in job]
    assert [process.returncode for process in job] == [0, 0]
    assert "stopped by SIGTERM" in rest[0] and rest[1] == ""


def test_an_error_of_all_processes_is_said_once_under_torchrun(tmp_path: Path, corpus: str) -> None:
    """Every process printed the same sentence."""
    job = torchrun(2, ("--steps", 3), str(tmp_path / "nothing"), [tmp_path / "run"] * 2)
    errors = [process.communicate()[1] for process in job]
    assert [process.returncode for process in job] == [2, 2]
    assert "nothing.idx" in errors[0] and errors[1] == ""


def test_an_output_that_machines_do_not_share_is_said_to_be_so(
    tmp_path: Path, corpus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On disks of their own, processes failed on a missing index and were told to delete it."""
    job = torchrun(2, ("--steps", 3), corpus, [tmp_path / "here", tmp_path / "there"])
    errors = [process.communicate()[1] for process in job]
    assert [process.returncode for process in job] == [2, 2]
    assert "is not the same folder on all machines" in errors[0]
    assert "storage that all of them share" in errors[0]


def test_a_failure_of_the_processes_is_one_sentence(tmp_path: Path, corpus: str) -> None:
    flags = ("--steps", 3, "--data-parallel", 2, "--vocabulary-size", 50)
    done = run_command_line(tmp_path, *flags, data=corpus)
    assert done.returncode == 2
    assert done.stderr.count("error:") == 1 and "doesn't match" in done.stderr
    assert "Traceback" not in done.stderr


# --- dropout ---------------------------------------------------------------------------------------------------------


def dropped(tp_rank: int = 0, tp_size: int = 1, dp_rank: int = 0) -> torch.Tensor:
    """Which attention weights a layer drops."""
    world = World(torch.device("cpu"), dp_rank=dp_rank, dp_size=2, tp_rank=tp_rank, tp_size=tp_size)
    seed_micro_step(torch.nn.Identity(), 1, 2, 3, world)
    query = torch.zeros(1, 16, 2, 8)
    value = torch.eye(16)[None, :, None].expand(1, 16, 2, 16)
    layer: Any = SimpleNamespace(dropout=0.5, training=True)
    return PACKED.attend(layer, query, query, value) == 0


def test_data_parallel_ranks_drop_different_weights() -> None:
    """Pitfall 28: all data-parallel ranks shared one dropout seed."""
    assert torch.equal(dropped(dp_rank=0), dropped(dp_rank=0))
    assert not torch.equal(dropped(dp_rank=0), dropped(dp_rank=1))


def test_tensor_parallel_ranks_drop_differently_in_attention() -> None:
    """Their heads differ."""
    assert not torch.equal(dropped(0, 2), dropped(1, 2))


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


def gradient_of_sharded(mode: Literal["none", "full", "selective"], *, compiled: bool) -> torch.Tensor:
    """The gradient of a matrix of a model with sharded parameters; `compiled`, each kind of block is one graph."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    tokens = torch.arange(32).view(2, 16)
    model = GPT2(ModelConfig(3, 32, 4, 16, 100, dropout=0.0)).initialise(torch.Generator().manual_seed(1))
    world = make_world(torch.device("cpu"), 1)
    parallelize(model.train(), world, activation_checkpointing=mode, compiled=compiled)
    seed_micro_step(model, 1, 2, 3, world)
    model(tokens).square().sum().backward()
    assert counters["stats"]["unique_graphs"] == 3 * compiled, (mode, dict(counters["stats"]))
    gradient = dict(model.named_parameters())["blocks.1.feed_forward.up.weight"].grad
    assert isinstance(gradient, DTensor)
    gradient = gradient.full_tensor()
    with torch.no_grad():
        model.eval()(tokens)
    # Neither a change of mode nor what FSDP2 does between two passes is a reason to compile again.
    model.train()(tokens).square().sum().backward()
    assert counters["stats"]["unique_graphs"] == 6 * compiled, (mode, dict(counters["stats"]))
    return gradient


def compile_sharded() -> None:
    with without_code_generation():
        expected = gradient_of_sharded("none", compiled=False)
        for mode in ("none", "full", "selective"):
            torch.testing.assert_close(gradient_of_sharded(mode, compiled=True), expected)


@pytest.mark.exhaustive
def test_each_block_compiles_to_one_graph_where_parameters_are_sharded() -> None:
    """With activation checkpointing none was compiled. Of tensor parallelism: test_tensor_parallel.py."""
    forks.in_group(2, compile_sharded)
