"""What ends a run on GPUs is told in one sentence, without the pages that PyTorch writes of it.

A stop by a signal can't be tried here: processes agree on it by numbers that the GPU adds up, and all are 0.
"""

import pytest
from tests.cuda.gpus import Gpus


@pytest.mark.exhaustive
def test_out_of_memory_is_one_sentence(train):
    """A micro-batch that does not fit ends the run with what to do, and without torch's own messages."""
    shape = ["--micro-batch-size", 64, "--global-batch-size", 64, "--sequence-length", 1024]
    done = train("--steps", 1, *shape, machine=Gpus(memory=1.2), fine=False, is_fork=False)
    *_, last = done.errors.strip().splitlines()
    assert done.code == 1
    assert "memory" in last and "--micro-batch-size" in last
    assert "CUDACachingAllocator" not in done.errors


@pytest.mark.exhaustive
def test_a_process_that_waits_in_vain_says_so_alone(train):
    """NCCL's watchdog wrote 100 lines of stack traces before our sentence; then it was hidden altogether."""
    machine = Gpus(2, stuck=25)
    done = train("--steps", 6, "--distributed-timeout", 0.1, machine=machine, fine=False, is_fork=False)
    assert done.code == 1
    assert "waited for 0.1 minutes in an exchange (NCCL) in vain" in done.errors
    words = [line for line in done.errors.splitlines() if "ProcessGroupNCCL" in line]
    assert any("Watchdog caught collective operation timeout: WorkNCCL(SeqNum=" in line for line in words)
    assert len(words) <= 8 and "frame #" not in done.errors
    assert sum(asked.of("nccl").get("all_gather (bytes of one)", (0,))[0] for asked in done.asked) > 2


@pytest.mark.exhaustive
def test_torch_does_not_warn_of_groups(train):
    """Each process warned that options of NCCL can't be given to a group over gloo."""
    done = train("--steps", 1, "--data-parallel-replicate", 2, "--tensor-parallel", 2, gpus=4, is_fork=False)
    assert "ProcessGroup" not in done.errors
