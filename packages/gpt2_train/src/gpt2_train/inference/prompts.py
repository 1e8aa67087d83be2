"""Prompts as they come from outside: one per line of a text, JSON strings or objects, or flags."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from command_kit import parse_json
from gpt2_train.config.errors import Gpt2UsageError


def valid_text(text: str) -> str:
    """`text` with U+FFFD for each lone surrogate, which undecodable bytes of a command line become."""
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def prompts_of_lines(data: bytes, where: str, *, as_json: bool = False) -> list[str]:
    """The prompts in `data`, one per line; lines without text are skipped. Raises Gpt2UsageError naming the line."""
    prompts: list[str] = []
    for number, line in enumerate(data.split(b"\n"), 1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8").removesuffix("\r")
        except UnicodeDecodeError:
            raise Gpt2UsageError(f"{where}, line {number}, is not valid UTF-8: save it as UTF-8.") from None
        if not text.strip():
            continue
        if as_json:
            try:
                value: Any = parse_json(text)
            except ValueError as error:
                raise Gpt2UsageError(f"{where}, line {number}, is not valid JSON ({error}): correct it.") from None
            value = value.get("prompt") if isinstance(value, dict) else value
            if not isinstance(value, str):
                raise Gpt2UsageError(
                    f'{where}, line {number}, should be a JSON string, or an object with a string under "prompt".'
                )
            text = value
        prompts.append(valid_text(text))
    return prompts


def prompts_of_file(path: str | Path) -> list[str]:
    """The prompts in a file: JSON if its name ends in .jsonl, else one per line. Raises Gpt2UsageError for none."""
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise Gpt2UsageError(f"can't read the prompts {path} ({error.strerror}): give another file.") from None
    prompts = prompts_of_lines(data, str(path), as_json=path.suffix == ".jsonl")
    if not prompts:
        raise Gpt2UsageError(f"{path} holds no prompt: write one per line.")
    return prompts
