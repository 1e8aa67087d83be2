"""How long a save keeps training waiting, in the foreground and in the background, and what it costs besides.

    python benchmarks/checkpoints.py --model tiny
    python benchmarks/checkpoints.py --model 124M

In one process on a CPU, with a model's and its optimizer's tensors filled with random numbers: a save that is waited
for; one in the background, of which only the copy is; and the copy alone, in CPU time. The best of several repeats
counts, each kind in turn, since other programs may keep the machine busy.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import torch

from gpt2_train.checkpoint.load import model_tensors
from gpt2_train.checkpoint.save import Checkpointer, Saved, Saver
from gpt2_train.config.settings import ModelConfig, TrainSettings
from gpt2_train.model.gpt2 import GPT2
from gpt2_train.optim.adamw import make_optimizer
from indexed_tokens.checksums import checksum_of_file

TINY = ModelConfig(layers=4, hidden=128, heads=4, sequence_length=128)


def measure(config: ModelConfig, folder: Path, repeats: int) -> list[str]:
    """Lines that say what saving `config` costs."""
    model = GPT2(config).initialise()
    tensors = model_tensors(model) | make_optimizer(model, TrainSettings(), torch.device("cpu")).tensors()
    for tensor in tensors.values():
        tensor.uniform_()
    size = sum(tensor.nbytes for tensor in tensors.values())
    checkpointer = Checkpointer(folder, config=config, keep=1)
    saved: list[Saved] = []
    saver = Saver(checkpointer, tensors, saved.append)
    foreground, reading_back, copying, hashing = [], [], [], []
    for step in range(1, repeats + 1):
        foreground.append(
            _timed(lambda step=step: checkpointer.save(tensors, step=2 * step, samples=0), time.perf_counter)  # type: ignore[misc]
        )
        # What saving used to do in addition, to know the CRCs of its files.
        files = sorted(folder.glob(f"step-{2 * step:07d}/*/__*"))
        reading_back.append(_timed(lambda files=files: [checksum_of_file(path) for path in files], time.perf_counter))  # type: ignore[misc]
        saver.save(goes_on=True, step=2 * step + 1, samples=0, state={})
        saver.finish()
        copying.append(_timed(saver.staging.copy, time.process_time))
        hashing.append(_timed(lambda: [zlib.crc32(tensor.numpy()) for tensor in tensors.values()], time.process_time))
    return [
        f"{config.parameters:,} parameters, {size / 1e6:,.0f} MB with the optimizer's state",
        f"waited for, CRCs by reading back:  {min(foreground) + min(reading_back):8.2f} s",
        f"waited for:                        {min(foreground):8.2f} s",
        f"in the background, whole:          {min(entry.seconds for entry in saved):8.2f} s",
        f"in the background, training waits: {min(entry.waited for entry in saved):8.3f} s",
        f"the copy, CPU time:                {min(copying):8.3f} s",
        f"CRC-32 of all tensors, CPU time:   {min(hashing):8.3f} s",
    ]


def _timed(work: Callable[[], object], clock: Callable[[], float]) -> float:
    begin = clock()
    work()
    return clock() - begin


def main() -> None:
    """Measure as the flags say and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=["tiny", "124M", "345M"], default="tiny")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", metavar="DIR", help="a folder on the disk to measure; the system's temporary one")
    arguments = parser.parse_args()
    config = TINY if arguments.model == "tiny" else ModelConfig.preset(arguments.model)
    folder = Path(tempfile.mkdtemp(dir=arguments.output))
    try:
        print("\n".join(measure(config, folder / "checkpoints", arguments.repeats)))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
