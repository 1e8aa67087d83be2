"""Training steps of three programs on the same batches: ours, transformers' GPT-2, and a minimal one.

Ours is the step of `gpt2 train` itself, with reading and bookkeeping; the others are plain loops with fused AdamW,
clipping at 1 and no dropout.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gpt2_train.config.settings import ModelConfig, TrainSettings
from gpt2_train.distributed.jobs import StopRequest
from gpt2_train.distributed.mesh import make_world
from gpt2_train.training.setup import set_up
from gpt2_train.training.trainer import Trainer
from indexed_tokens import IndexedTokensWriter
from minimal_gpt2 import MinimalGPT2

Step = Callable[[], object]


@dataclasses.dataclass(frozen=True)
class Case:
    """A model and a batch.

    Attributes:
        name: what it is called in the table.
        batch: sequences in a step.
        precision: `fp32`, or `bf16` by autocast.
        turns: steps of each that count.
    """

    name: str
    config: ModelConfig
    batch: int
    precision: str = "fp32"
    turns: int = 5

    def as_json(self) -> str:
        """It, for another process."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Case:
        """What `as_json` gave."""
        table = json.loads(text)
        return cls(**table | {"config": ModelConfig(**table["config"])})


def write_tokens(prefix: Path, vocabulary: int, tokens: int) -> str:
    """Random tokens in documents of 500; returns the prefix."""
    random = np.random.default_rng(0)
    with IndexedTokensWriter(prefix) as writer:
        for _ in range(max(4, tokens // 500)):
            writer.add(random.integers(0, vocabulary - 1, 500))
    return str(prefix)


def settings_for(case: Case, folder: Path, steps: int, **more: Any) -> dict[str, Any]:
    """What `gpt2 train` is told for `case`; `more` are further settings, or others than these."""
    config = case.config
    data = write_tokens(folder / "tokens", config.vocabulary_size, steps * case.batch * (config.sequence_length + 1))
    settings: dict[str, Any] = {
        "data": data,
        "tokenizer": "gpt2",
        "output": str(folder / "run"),
        "layers": config.layers,
        "hidden": config.hidden,
        "heads": config.heads,
        "sequence_length": config.sequence_length,
        "vocabulary_size": config.vocabulary_size,
        "dropout": 0.0,
        "steps": steps,
        "global_batch_size": case.batch,
        "micro_batch_size": case.batch,
        "precision": case.precision,
        "split": "1,0,0",
    }
    return settings | more


def train_words(case: Case, folder: Path, steps: int, **more: Any) -> list[str]:
    """The words after `gpt2 train` for `case` on a CPU, without a checkpoint."""
    settings = settings_for(case, folder, steps, device="cpu", **more)
    return ["--no-save", *(f"--{name.replace('_', '-')}={value}" for name, value in settings.items())]


def our_trainer(case: Case, folder: Path, steps: int, device: str = "cpu", **more: Any) -> Trainer:
    """A run that is about to take its first step; `more` as in `settings_for`."""
    told = settings_for(case, folder, steps, **{"device": device, "save": False} | more)
    settings = TrainSettings(**told | {"data": (told["data"],)})
    return Trainer(set_up(settings, make_world(torch.device(device), 1), folder / "run"), StopRequest())


def their_step(
    case: Case, model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], device: str, batches: int
) -> Step:
    """A plain training loop's step over that many random batches."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    shape = (case.batch, case.config.sequence_length + 1)
    random = torch.Generator().manual_seed(0)

    def step() -> None:
        for _ in range(batches):
            batch = torch.randint(0, case.config.vocabulary_size - 1, shape, generator=random)
            if device == "cuda":  # from memory that the host need not wait for, as in ours
                batch = batch.pin_memory()
            batch = batch.to(device, non_blocking=True)
            with torch.autocast(device, torch.bfloat16, enabled=case.precision == "bf16"):
                value = loss(batch[:, :-1], batch[:, 1:])
            (value / batches).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def minimal_step(case: Case, device: str = "cpu", *, compiled: bool = False, batches: int = 1) -> Step:
    """A step of the minimal model, as a whole compiled if that is asked for."""
    config = case.config
    model: Any = MinimalGPT2(
        config.layers, config.hidden, config.heads, config.sequence_length, config.vocabulary_size
    ).to(device)
    return their_step(case, model, torch.compile(model) if compiled else model, device, batches)


def transformers_step(case: Case, device: str = "cpu", *, compiled: bool = False, batches: int = 1) -> Step:
    """A step of transformers' GPT2LMHeadModel with `scaled_dot_product_attention`, compiled if that is asked for."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = case.config
    shape = GPT2Config(
        n_layer=config.layers, n_embd=config.hidden, n_head=config.heads, n_positions=config.sequence_length,
        vocab_size=config.vocabulary_size, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False,
        bos_token_id=0, eos_token_id=0, attn_implementation="sdpa",
    )  # fmt: skip
    model = GPT2LMHeadModel(shape).to(device).train()

    def loss(inputs: Tensor, targets: Tensor) -> Tensor:
        logits = model(inputs).logits
        return nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    return their_step(case, model, torch.compile(loss) if compiled else loss, device, batches)
