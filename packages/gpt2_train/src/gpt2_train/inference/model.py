"""Opening a trained model: its weights, its tokenizer, where it came from, and the processes that share it.

Everything that uses a trained model starts with `open_model` or `ModelSettings.opened` and knows nothing of training:
no module of the training loop, its launcher or its optimizers is imported here. What a path may be,
`conversion.formats` knows. The weights, gigabytes, are read when `model` or `runner` is first used: data or prompts
that do not fit are found before. For several processes, this one becomes the driver of local ones that it starts then,
or it is one of a torchrun job, of which the first leads and the others follow from the moment they open the model.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from command_kit import setting
from gpt2_train.config.errors import ASSUMED_TOKENIZER, Gpt2UsageError
from gpt2_train.config.loading import load_torch
from gpt2_train.config.settings import MOST_THREADS, TOKENIZER_HELP
from indexed_tokens import Tokenizer

if TYPE_CHECKING:
    import torch

    from gpt2_train.config.settings import ModelConfig
    from gpt2_train.distributed.device import DeviceKind
    from gpt2_train.inference.runner import ModelRunner
    from gpt2_train.model.gpt2 import GPT2

SMALL_MODEL = 10_000_000
"""Parameters below which one CPU thread writes best: a step is over before several have met, 30 times sooner on cores
that other programs use too."""


@dataclasses.dataclass(frozen=True)
class InferenceModel:
    """A trained model in one process.

    Attributes:
        folder: where it was found.
        step: optimizer steps that it was trained for.
        config: its shape.
        tokenizer: None if the model has none and no other was given.
        device: where it computes.
        trained_with: fingerprint of the tokenizer that it was trained with; None if that is not known.
        settings: the settings that decided its weights, as the training run recorded them; empty if it did not.
        data: what its training files were, one entry per file; empty if that was not recorded.
        load: reads the weights.
        assumes_tokenizer: whether the tokenizer is GPT-2's for want of another.
        precision: `fp32`, `bf16` or `fp16`: in what matrices multiply (by autocast).
        start: starts the processes that share the model, which read the weights; None if this process has it alone.
    """

    folder: Path
    step: int
    config: ModelConfig
    tokenizer: Tokenizer | None
    device: torch.device
    trained_with: str | None
    settings: dict[str, Any]
    data: list[dict[str, Any]]
    load: Callable[[], GPT2]
    assumes_tokenizer: bool = False
    precision: str = "fp32"
    start: Callable[[], ModelRunner] | None = None

    @functools.cached_property
    def model(self) -> GPT2:
        """The whole model on its device, in evaluation mode. Raises Gpt2UsageError if the weights are damaged."""
        return self.load()

    @functools.cached_property
    def runner(self) -> ModelRunner:
        """What computes with the model, in all processes that share it. Raises as `model` does."""
        if self.start is not None:
            return self.start()
        from gpt2_train.inference.runner import ModelRunner

        return ModelRunner(self.model)

    @property
    def required_tokenizer(self) -> Tokenizer:
        """The tokenizer. Raises Gpt2UsageError if there is none."""
        if self.tokenizer is None:
            raise Gpt2UsageError(
                f"the checkpoint {self.folder} has no tokenizer: give the one that it was trained with by --tokenizer."
            )
        return self.tokenizer

    @property
    def vocabulary_size(self) -> int:
        """Ids that both the model and the tokenizer know: ids at or above it have no text."""
        known = self.config.vocabulary_size
        return known if self.tokenizer is None else min(known, self.tokenizer.vocabulary_size)

    @property
    def end_of_text(self) -> int | None:
        """The id of `<|endoftext|>`; None if the tokenizer or the model has none."""
        end = self.tokenizer.document_end if self.tokenizer is not None else None
        return end if end is not None and end < self.vocabulary_size else None

    @property
    def separates_documents(self) -> bool:
        """Whether it was trained with attention inside documents alone."""
        return self.settings.get("documents") == "separate"

    @property
    def masks_end_of_text(self) -> bool:
        """Whether it was trained without predictions after the end of a text."""
        return bool(self.settings.get("mask_end_of_text"))


def open_model(
    path: str | Path,
    *,
    device: DeviceKind = "auto",
    tokenizer: str | None = None,
    precision: str | None = None,
    processes: int = 1,
) -> InferenceModel:
    """The model that `path` names; its weights are not read yet.

    Args:
        path: the folder of a training run, its `checkpoints` folder, one `step-...` folder, a model of another
            format (a Hugging Face folder, a checkpoint of Megatron-LM), or the name of one on Hugging Face's hub.
        device: where to compute.
        tokenizer: a folder or file to take the tokenizer from, instead of the model's own.
        precision: in what matrices multiply; what suits the device without it.
        processes: how many of this machine will share it, each with a device of its own.

    Raises Gpt2UsageError if there is no model or its record is damaged, IndexedTokensError for a damaged tokenizer,
    Gpt2Error if the hub can't be reached.
    """
    if not path:
        raise Gpt2UsageError("no --checkpoint: give the --output folder of a `gpt2 train`, or another model.")
    from gpt2_train.conversion.formats import ReadOptions, find_model, open_weights
    from gpt2_train.distributed.device import choose_device, default_precision

    weights = open_weights(find_model(path), ReadOptions(tokenizer=tokenizer))
    where = choose_device(device, local_size=processes)
    return InferenceModel(
        folder=weights.origin,
        step=weights.step,
        config=weights.config,
        tokenizer=weights.tokenizer,
        device=where,
        trained_with=weights.trained_with,
        settings=weights.settings,
        data=weights.data,
        load=lambda: weights.load(where),
        assumes_tokenizer=weights.assumes_tokenizer,
        precision=precision or default_precision(where),
    )


@dataclasses.dataclass(frozen=True)
class ModelSettings:
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

    @contextlib.contextmanager
    def opened(self, data_parallel: int = 1) -> Iterator[InferenceModel]:
        """The model, in --tensor-parallel times `data_parallel` processes; they end with the block.

        Each group of tensor-parallel processes scores one batch at the same time. They start when `runner` is first
        asked for. Under torchrun it returns on the first process only, and the others do what that one says until they
        end. Raises as `open_model` does, and Gpt2UsageError if model, GPUs or torchrun's processes don't fit the
        numbers.
        """
        load_torch()
        is_torchrun = "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1
        own = functools.partial(
            open_model, self.checkpoint, device=self.device, tokenizer=self.tokenizer, precision=self.precision
        )
        if self.tensor_parallel * data_parallel == 1 and not is_torchrun:
            yield own()
            return
        from gpt2_train.inference.driver import Driver, enter_torchrun, start_driver
        from gpt2_train.inference.worker import Layout, check_division

        layout = Layout(self.tensor_parallel, data_parallel, self.device, self.threads)
        place = enter_torchrun(layout) if is_torchrun else None
        source = own(processes=1 if is_torchrun else layout.size)
        check_division(source.config, self.tensor_parallel)
        with contextlib.ExitStack() as drivers:

            def start() -> Driver:
                driver = start_driver(layout, place)
                drivers.callback(driver.close)
                driver.load(str(source.folder), self.tokenizer)
                return driver

            yield dataclasses.replace(source, start=start)

    def for_writing(self, source: InferenceModel, rows: int) -> InferenceModel:
        """`source` made ready to write `rows` texts at once; what the user should know of it is printed."""
        import torch

        if self.tensor_parallel == 1:  # Processes of a divided model were given theirs.
            threads = 1 if self.threads is None and source.config.parameters < SMALL_MODEL else self.threads
            if threads is not None:
                torch.set_num_threads(threads)
        print_notes(source)
        return for_writing(source, rows)


def for_writing(source: InferenceModel, rows: int) -> InferenceModel:
    """`source` with weights that are arranged, once they are read, to write `rows` texts at once.

    On CUDA, products in fp32 may use TF32 from here on.
    """
    import torch

    from gpt2_train.inference.kv_cache import arrange_weights

    if source.device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    return dataclasses.replace(source, load=lambda: arrange_weights(source.load(), source.precision, rows))


def print_notes(source: InferenceModel) -> None:
    """Tell the user if the tokenizer may not be the one of the training, or the device has no such precision."""
    from gpt2_train.distributed.device import note_emulated

    tokenizer = source.tokenizer
    if source.assumes_tokenizer:
        print(f"gpt2: {ASSUMED_TOKENIZER.format(source.folder)}", file=sys.stderr)
    elif tokenizer is not None and source.trained_with not in (None, tokenizer.fingerprint):
        told = f"the tokenizer {tokenizer.name} is not the one that {source.folder} was trained with."
        print(f"gpt2: {told}", file=sys.stderr)
    if note := note_emulated(source.device, source.precision):
        print(f"gpt2: {note}", file=sys.stderr)
