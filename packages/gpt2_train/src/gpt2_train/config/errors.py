"""The errors of this package; each message says what was found, where, and what to do."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from command_kit import CommandError, UsageError


class Gpt2Error(CommandError):
    """A failure of `gpt2` that its message explains (exit code 1)."""


class Gpt2UsageError(Gpt2Error, UsageError):
    """Settings, data or a checkpoint that the user has to change before the command can work (exit code 2)."""

    exit_code = 2


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that a GPU or the machine has no memory left."""
    # torch's own class is for CUDA alone; its allocators for CPUs and Apple's GPUs say it in words only.
    is_named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return is_named or any(words in str(error) for words in _OUT_OF_MEMORY)


@contextlib.contextmanager
def explained_out_of_memory(advice: str) -> Iterator[None]:
    """Turn running out of memory, on a GPU or on the machine, into a Gpt2Error that gives `advice`."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise Gpt2Error(f"out of memory: {advice}.") from error


_OUT_OF_MEMORY = ("can't allocate memory", "MPS backend out of memory")


@contextlib.contextmanager
def explained_compile_failure() -> Iterator[None]:
    """Turn a failure of torch.compile (no C compiler, an unsupported GPU) into a Gpt2Error that names --no-compile."""
    try:
        yield
    except Exception as error:
        if not type(error).__module__.startswith(_COMPILER_MODULES):
            raise
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        needs_compiler = any("compiler" in line.lower() for line in lines)
        advice = "install a C++ compiler, or give --no-compile" if needs_compiler else "give --no-compile"
        raise Gpt2Error(f"torch.compile failed ({lines[0] if lines else type(error).__name__}): {advice}.") from error


_COMPILER_MODULES = ("torch._dynamo", "torch._inductor", "triton")
"""The modules that define the errors of torch.compile; it has no public class for them."""


def shortened(text: str, length: int = 40) -> str:
    """The beginning of a text."""
    return text if len(text) <= length else text[: length - 3] + "..."


ASSUMED_TOKENIZER = (
    "{} has no tokenizer, but as many token ids as GPT-2: taking GPT-2's; if it has another, give it by --tokenizer."
)
"""The note on a model whose tokenizer is GPT-2's for want of another."""
