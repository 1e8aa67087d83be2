"""`gpt2 train` on GPUs that are not there: every layout runs, and asks of CUDA what it should and no more."""

import pytest

SAVING = ["--steps", "4", "--eval-every", "2", "--save-every", "2"]


@pytest.mark.parametrize(
    ("gpus", "flags"),
    [
        (1, ""),
        (1, "--precision fp16"),
        (2, "--tensor-parallel 2"),
    ],
)
def test_every_layout_runs(train, gpus, flags):
    done = train(*SAVING, *flags.split(), gpus=gpus)
    working = [asked for asked in done.asked if asked.calls("product")]
    assert len(working) == gpus
