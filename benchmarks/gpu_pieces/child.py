"""One piece in a process of its own: `python -m gpu_pieces.child MODULE:FUNCTION FILE [--smoke]`.

What it yields is in the file at once, so that nothing is lost which was measured before a failure.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from command_kit import write_json
from gpt2_train.cli import prepare_for_torch


def main(work: str, file: str, *flags: str) -> int:
    """Run a piece; returns the exit status."""
    found: dict[str, Any] = {"results": {}}
    module, function = work.split(":")
    prepare_for_torch(debug=True)  # torch's allocator as the command has it
    try:
        for part, result in getattr(importlib.import_module(module), function)(smoke="--smoke" in flags):
            print(f"  {part}: {result}", flush=True)
            found["results"][part] = result
            write_json(Path(file), found)
    except Exception as error:
        traceback.print_exc()
        write_json(Path(file), found | {"failed": f"{type(error).__name__}: {error}"[:500]})
        return 1
    return 0


if __name__ == "__main__":
    status = main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(status)  # All is saved; torch's pool of compilers can take minutes to end.
