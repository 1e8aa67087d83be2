"""The settings of `gpt2 ablate`, and of `gpt2 train` for each of its runs.

The recipe is the quickstart's, which writes best after minutes (`benchmarks/LOG.md`).
"""

from __future__ import annotations

import dataclasses
import functools
import re
from typing import Literal

from command_kit import setting
from gpt2_train.config.errors import Gpt2UsageError

_run = functools.partial(setting, identity=False)
_recipe = functools.partial(setting, group="model and recipe of every run, as in gpt2 train")

NAME = re.compile(r"[\w.-]+")


@dataclasses.dataclass(frozen=True)
class AblateSettings:
    """The settings of `gpt2 ablate`. Raises Gpt2UsageError where two don't fit together."""

    data: tuple[str, ...] = setting(
        (), "the arms, two or more: token files with a name for each; the first is the baseline", metavar="NAME=PREFIX"
    )
    held_out: str = setting(
        "",
        "token files that no arm learns from, the pool: without it PREFIX_held_out of the baseline's, if it is there",
        metavar="PREFIX",
    )
    want: tuple[str, ...] = setting(
        (),
        "texts that the corpus is for, on which the first of these decides: a folder of .txt files, a .txt file, JSON "
        "lines with a text each, or token files",
        metavar="DIR|FILE|PREFIX",
    )
    seeds: int = setting(5, "pairs of runs: initial weights and orders of the data", ge=2, le=1000)
    seed: int = setting(1, "the first of the seeds", ge=0, lt=2**30)
    minutes: float = setting(20.0, "for all runs together: decides how many steps each takes", gt=0)
    steps: int | None = setting(None, "steps of each run, instead of as many as --minutes has time for", ge=1)
    held_out_tokens: int = setting(
        100_000, "tokens of each held-out set that are scored at most, whole documents chosen by their hashes", ge=1000
    )
    eval_task: tuple[str, ...] = setting(
        (),
        "evaluation tasks to measure at the end, such as lambada:FILE.jsonl (as in gpt2 train)",
        metavar="NAME:FILE",
    )
    output: str = _run("", "folder of the ablation; the same command on it resumes", metavar="DIR")
    processes: int = _run(0, "runs at the same time; 0 for one a core on CPU, and one on a GPU", ge=0)

    layers: int | None = _recipe(None, "transformer blocks; chosen for the time, with width and heads, without it")
    hidden: int | None = _recipe(None, "width of the model")
    heads: int | None = _recipe(None, "attention heads")
    sequence_length: int = _recipe(64, "tokens in a training sequence", ge=1)
    global_batch_size: int = _recipe(32, "sequences in one optimizer step", ge=1)
    optimizer: Literal["adamw", "muon"] = _recipe("muon", "adamw, or muon for the matrices of the blocks")
    lr: float = _recipe(2e-2, "peak learning rate; half of the seeds also run at a tenth of it", gt=0)
    min_lr: float = _recipe(0.0, "learning rate at the end of the decay", ge=0)
    warmup: float = _recipe(0.03, "warm-up: a fraction of the run if below 1, else steps", ge=0)
    schedule: Literal["cosine", "linear", "wsd"] = _recipe("linear", "learning-rate schedule, which ends with each run")
    weight_decay: float = _recipe(0.05, "weight decay of matrices", ge=0)
    beta2: float = _recipe(0.98, "Adam's decay of the squared gradient", ge=0, lt=1)
    dropout: float = _recipe(0.0, "dropout probability", ge=0, lt=1)
    precision: Literal["fp32", "bf16", "fp16", "auto"] = _recipe(
        "auto", "precision of matrix products; auto takes bf16 where the device is fast in it"
    )
    device: Literal["auto", "cpu", "cuda", "mps"] = _recipe("auto", "where to compute")

    def __post_init__(self) -> None:
        shape = {"--layers": self.layers, "--hidden": self.hidden, "--heads": self.heads}
        missing = [flag for flag, value in shape.items() if value is None]
        if missing and len(missing) < len(shape):
            raise Gpt2UsageError(f"{' and '.join(missing)} missing: give --layers, --hidden and --heads together.")

    def check(self) -> None:
        """Whether there is something to compare, and a place for it. Raises Gpt2UsageError."""
        self.arms()
        if not self.output:
            raise Gpt2UsageError("no --output: give a folder for the ablation.")

    def arms(self) -> dict[str, str]:
        """The prefix of each arm by its name, the baseline first.

        Raises Gpt2UsageError for fewer than two, one without a name, or a name that is there twice.
        """
        found: dict[str, str] = {}
        for entry in self.data:
            name, equals, prefix = entry.partition("=")
            if not (equals and prefix and NAME.fullmatch(name)):
                raise Gpt2UsageError(
                    f"--data {entry} should be NAME=PREFIX, the name of letters, digits, '.', '_' and '-', such as "
                    "plain=work/a_text_document."
                )
            if name in found:
                raise Gpt2UsageError(f"--data names two arms {name}: give each another name.")
            found[name] = prefix
        if len(found) < 2:
            raise Gpt2UsageError(
                f"--data gives {'no arm' if not found else 'one arm'}: a comparison needs two or more, such as "
                "--data plain=work/a_text_document strict=work/b_text_document."
            )
        return found
