"""`asyncio.run` for tasks: SIGTERM ends it as Ctrl-C does."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


def run_until_done(main: Coroutine[Any, Any, Result]) -> Result:
    """`asyncio.run`, which SIGTERM ends as Ctrl-C does: by cancelling what runs. Raises KeyboardInterrupt then.

    The handler of the command line raises that wherever the program is just then; in a callback that C code calls, an
    exception is printed and forgotten, and the download went on.
    """
    before = signal.getsignal(signal.SIGTERM)
    if before is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        return asyncio.run(main)
    is_terminated = False

    async def watched() -> Result:
        task = asyncio.current_task()
        assert task is not None

        def end() -> None:
            nonlocal is_terminated
            is_terminated = True
            task.cancel()

        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end)
        return await main

    try:
        return asyncio.run(watched())
    except asyncio.CancelledError:
        if is_terminated:
            raise KeyboardInterrupt from None
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
