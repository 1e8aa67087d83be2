"""Opening a model for evaluation and generation: its weights, its tokenizer, and where it came from.

Everything that uses a trained model starts with `open_model(path)` and knows nothing of training: no module of the
training loop, its launcher or its optimizers is imported here. What `path` may be `conversion.format` knows. The
weights, gigabytes, are read when `model` is first used: data or prompts that do not fit are found before.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt2_train.config.errors import ASSUMED_TOKENIZER, Gpt2UsageError
from indexed_tokens import Tokenizer

if TYPE_CHECKING:
    import torch

    from gpt2_train.config.settings import ModelConfig
    from gpt2_train.distributed.device import DeviceKind
    from gpt2_train.inference.runner import ModelRunner
    from gpt2_train.model.gpt2 import GPT2


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
        precision: `fp32`, `bf16` or `fp16`: in what matrices multiply while texts are written (by autocast).
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
        from gpt2_train.inference.runner import LocalRunner  # with torch, which commands say that they load

        return LocalRunner(self.model)

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
        """Ids that both the model and the tokenizer know: those at or above it have no text."""
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
        """Whether it was trained without predictions behind the end of a text."""
        return bool(self.settings.get("mask_end_of_text"))


def open_model(
    path: str | Path, *, device: DeviceKind = "auto", tokenizer: str | None = None, processes: int = 1
) -> InferenceModel:
    """The model that `path` names; its weights are not read yet.

    Args:
        path: the folder of a training run, its `checkpoints` folder, one `step-...` folder, a model of another
            format (a Hugging Face folder, a checkpoint of Megatron-LM), or the name of one on Hugging Face's hub.
        device: where to compute.
        tokenizer: a folder or file to take the tokenizer from, instead of the model's own.
        processes: how many of this machine will share it, each with a device of its own.

    Raises Gpt2UsageError if there is no model or its record is damaged, IndexedTokensError for a damaged tokenizer,
    Gpt2Error if the hub can't be reached.
    """
    if not path:
        raise Gpt2UsageError("no --checkpoint: give the --output folder of a `gpt2 train`, or another model.")
    from gpt2_train.checkpoint.info import find_checkpoint
    from gpt2_train.conversion.format import ReadOptions, open_weights
    from gpt2_train.conversion.hub import located
    from gpt2_train.distributed.device import choose_device

    place = located(path)
    if not place.exists():
        find_checkpoint(place)  # raises the sentence, with the step that is there where another is meant
    weights = open_weights(place, ReadOptions(tokenizer=tokenizer))
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
    )


def note_other_tokenizer(source: InferenceModel) -> str | None:
    """A sentence for the user if the tokenizer may not be the one that the model was trained with, else None."""
    tokenizer = source.tokenizer
    if source.assumes_tokenizer:
        return ASSUMED_TOKENIZER.format(source.folder)
    if tokenizer is None or source.trained_with in (None, tokenizer.fingerprint):
        return None
    return f"the tokenizer {tokenizer.name} is not the one that {source.folder} was trained with."
