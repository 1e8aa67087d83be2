"""Opening a trained model: its weights, its tokenizer, where it came from, and the processes that share it.

Everything that uses a trained model starts with `open_model` or `InferenceSettings.opened` and knows nothing of
training: no module of the training loop, its launcher or its optimizers is imported here. What a path may be,
`conversion.formats` knows. The weights, gigabytes, are read by `read_model`: data or prompts that do not fit are found
before. Where several processes are to share it, a command starts itself in each of them
(`InferenceSettings.in_processes`), and all do the same.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from command_kit import setting
from gpt2_train.config.errors import ASSUMED_TOKENIZER
from gpt2_train.config.layout import check_tensor_parallel, is_in_job
from gpt2_train.config.loading import load_torch
from gpt2_train.config.settings import MOST_THREADS, TOKENIZER_HELP

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup

    from gpt2_train.conversion.formats import StoredModel
    from gpt2_train.distributed.device import DeviceKind
    from gpt2_train.model.gpt2 import GPT2

Result = TypeVar("Result")

SMALL_MODEL = 10_000_000
"""Parameters below which one CPU thread writes best: a step is over before several have met, 30 times sooner on cores
that other programs use too."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class InferenceModel:
    """A model in use in one process, as whoever opens it makes it.

    Attributes:
        stored: what is known of it.
        load: reads its weights, to `device`.
        device: where it computes.
        precision: `fp32`, `bf16` or `fp16`: in what matrices multiply (by autocast).
        group: the processes that divide the model, for its logits; None for a whole one.
        dp_rank, dp_size: the number of this model, or group, among those that score a batch each at the same time, and
            how many these are.
        before_batches: called before each round of batches that are scored; what it raises ends the scoring.
    """

    stored: StoredModel
    load: Callable[[], GPT2]
    device: torch.device
    precision: str = "fp32"
    group: ProcessGroup | None = None
    dp_rank: int = 0
    dp_size: int = 1
    before_batches: Callable[[], object] = lambda: None

    def read_model(self) -> GPT2:
        """The model on its device, in evaluation mode; the first call reads its weights, for which all processes that
        share it meet. Raises Gpt2UsageError if they are damaged."""
        return self._model

    @functools.cached_property
    def _model(self) -> GPT2:
        return self.load()

    @property
    def is_shared(self) -> bool:
        """Whether several processes have it together, all of which do the same."""
        return self.group is not None or self.dp_size > 1

    def of_first(self, work: Callable[[], Result]) -> Result:
        """The result of `work` in the first of the processes that share the model; all call this. Raises as `work`."""
        if not self.is_shared:
            return work()
        from gpt2_train.distributed.collectives import from_first_rank

        return from_first_rank(work)


def open_model(
    path: str | Path,
    *,
    device: DeviceKind = "auto",
    tokenizer: str | None = None,
    precision: str | None = None,
) -> InferenceModel:
    """The model that `path` names; its weights are not read yet.

    Args:
        path: the folder of a training run, its `checkpoints` folder, one `step-...` folder, a model of another
            format (a Hugging Face folder, a checkpoint of Megatron-LM), or the name of one on Hugging Face's hub.
        device: where to compute.
        tokenizer: a folder or file to take the tokenizer from, instead of the model's own.
        precision: in what matrices multiply; what suits the device without it.

    Raises Gpt2UsageError if there is no model or its record is damaged, IndexedTokensError for a damaged tokenizer,
    Gpt2Error if the hub can't be reached.
    """
    from gpt2_train.conversion.formats import ReadOptions, open_weights
    from gpt2_train.distributed.device import choose_device, default_precision

    weights = open_weights(path, ReadOptions(tokenizer=tokenizer))
    where = choose_device(device)
    return InferenceModel(
        stored=weights,
        load=functools.partial(weights.load, where),
        device=where,
        precision=precision or default_precision(where),
    )


@dataclasses.dataclass(frozen=True)
class InferenceSettings:
    """The settings by which every command that uses a model opens it."""

    checkpoint: str = setting(
        "",
        "the model: the --output folder of a `gpt2 train`, one step-... folder in it, a model of another format, or "
        "its name on Hugging Face's hub",
        metavar="DIR",
    )
    tokenizer: str | None = setting(None, TOKENIZER_HELP, metavar="DIR|FILE")
    tensor_parallel: int = setting(
        1, "processes, each with a GPU where there are some, that divide the model among them", ge=1
    )
    device: Literal["auto", "cpu", "cuda", "mps"] = setting("auto", "where to compute")
    precision: Literal["fp32", "bf16", "fp16"] | None = setting(
        None, "type of the matrices, their products and the cache: bf16 on GPUs that have it, else fp32"
    )
    threads: int | None = setting(
        None,
        "CPU threads of each process; to write with a small model one, else the cores divided among them, without it",
        ge=1,
        le=MOST_THREADS,
    )

    def in_processes(
        self,
        command: Sequence[str],
        work: Callable[[], int],
        *others: Any,
        data_parallel: int = 1,
        as_json: bool = False,
        debug: bool = False,
    ) -> int:
        """Do `work` of a command in --tensor-parallel times `data_parallel` processes.

        It returns the exit code, and so does this; under torchrun, and in each of several processes, it ends this one.
        Several are given the command, these settings, and the `others` that it has.
        Raises Gpt2UsageError for a model that can't be divided so, and what `work` raises.
        """
        size = self.tensor_parallel * data_parallel
        if size == 1 and not is_in_job():
            return work()
        load_torch()
        from gpt2_train.conversion.formats import ReadOptions, open_weights
        from gpt2_train.distributed.jobs import work_in_job
        from gpt2_train.distributed.local_job import LocalJob

        if is_in_job():
            work_in_job(work, debug=debug)
        config = open_weights(self.checkpoint, ReadOptions(tokenizer=self.tokenizer)).config
        check_tensor_parallel(config, self.tensor_parallel, in_training=False)
        settings = [self, *others]
        return LocalJob(command, settings, size, threads=self.threads, as_json=as_json, debug=debug).run()

    @contextlib.contextmanager
    def opened(self, data_parallel: int = 1) -> Iterator[InferenceModel]:
        """The model, in this process, or in one of those that share it, all of which do the same in the block.

        Each group of tensor-parallel processes scores one of `data_parallel` batches at the same time. Raises as
        `open_model` does, and Gpt2UsageError if model, GPUs or the job's processes don't fit the numbers.
        """
        load_torch()
        if not is_in_job():
            yield open_model(self.checkpoint, device=self.device, tokenizer=self.tokenizer, precision=self.precision)
            return
        from gpt2_train.distributed.device import default_precision
        from gpt2_train.inference.divided import joined, open_part

        with joined(self.tensor_parallel, data_parallel, self.device, self.threads) as (world, group):
            weights, load = open_part(self.checkpoint, self.tokenizer, world, group)
            yield InferenceModel(
                stored=weights,
                load=load,
                device=world.device,
                precision=self.precision or default_precision(world.device),
                group=group,
                dp_rank=world.dp_rank,
                dp_size=world.dp_size,
            )

    def prepare_to_write(self, source: InferenceModel) -> None:
        """Take the threads that suit writing with `source`, and print what the user should know of it."""
        import torch

        if self.tensor_parallel == 1:  # Processes of a divided model were given theirs.
            threads = 1 if self.threads is None and source.stored.config.parameters < SMALL_MODEL else self.threads
            if threads is not None:
                torch.set_num_threads(threads)
        print_notes(source)


def print_notes(source: InferenceModel) -> None:
    """Tell the user if the tokenizer may not be the one of the training, or the device has no such precision."""
    from gpt2_train.distributed.device import note_emulated

    stored, tokenizer = source.stored, source.stored.tokenizer
    if stored.assumes_tokenizer:
        print(f"gpt2: {ASSUMED_TOKENIZER.format(stored.origin)}", file=sys.stderr)
    elif tokenizer is not None and stored.trained_with not in (None, tokenizer.fingerprint):
        told = f"the tokenizer {tokenizer.name} is not the one that {stored.origin} was trained with."
        print(f"gpt2: {told}", file=sys.stderr)
    if note := note_emulated(source.device, source.precision):
        print(f"gpt2: {note}", file=sys.stderr)
