"""The one thread that uses the model: asyncio hands it texts to write, and reads their pieces as they come.

A forward pass takes milliseconds to seconds, in which the event loop has to go on answering, so it runs in a thread of
its own; and in one only, since all texts share each pass. Everything but `_run` and what it calls belongs to the loop,
so nothing needs a lock: orders go over in a queue, pieces come back by `call_soon_threadsafe`, one call a step.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType

from gpt2_train.inference.engine import GenerationRequest
from gpt2_train.inference.generator import TextPiece, TextSession

STEPS_AHEAD = 64
"""Steps whose pieces may wait for the event loop: beyond them the model waits, so that the loop never falls behind."""


class TooManyCompletionsError(Exception):
    """More texts than may wait."""


class ModelStoppedError(Exception):
    """The model writes no more: the server is stopping, or the model failed."""


class Completions:
    """The texts of one request: iterate over it for (index, piece) until each has ended; leaving the block cancels."""

    def __init__(self, owner: ModelThread, requests: Sequence[GenerationRequest]) -> None:
        self.requests = requests
        self.open = len(requests)
        self.is_cancelled = False
        self._owner = owner
        self._news: asyncio.Queue[tuple[int, TextPiece] | Exception] = asyncio.Queue()

    def __enter__(self) -> Completions:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._owner.cancel(self)

    async def __aiter__(self) -> AsyncIterator[list[tuple[int, TextPiece]]]:
        """Pieces written since the last time, in order; raises ModelStoppedError, or what the session raised."""
        left = len(self.requests)
        while left:
            news = [await self._news.get()]
            while not self._news.empty():
                news.append(self._news.get_nowait())
            pieces: list[tuple[int, TextPiece]] = []
            for one in news:
                if isinstance(one, Exception):
                    if pieces:
                        yield pieces
                    raise one
                pieces.append(one)
                left -= one[1].finished is not None
            yield pieces

    def tell(self, news: tuple[int, TextPiece] | Exception) -> None:
        """Called in the loop with what has happened."""
        self._news.put_nowait(news)


News = tuple[Completions, int, TextPiece | Exception]
"""News from the thread to the loop: of which request, which of its texts, and what has happened to it."""


class ModelThread:
    """Steps `session` while there are texts.

    Args:
        session: used by the thread alone from `start` on.
        capacity: texts that may be open, being written or waiting.

    Attributes:
        on_failure: called in the loop when a step has failed, after which nothing is written any more.
        failure: what the step raised.
    """

    def __init__(self, session: TextSession, capacity: int) -> None:
        self.capacity = capacity
        self.failure: BaseException | None = None
        self.on_failure: Callable[[], object] = lambda: None
        self._session = session
        self._open: dict[Completions, None] = {}
        """The open requests, in the order in which they came."""
        self._stopped: ModelStoppedError | None = None
        self._orders: queue.SimpleQueue[tuple[str, Completions | None]] = queue.SimpleQueue()
        self._ahead = threading.Semaphore(STEPS_AHEAD)
        self._writing: dict[int, tuple[Completions, int]] = {}
        self._thread = threading.Thread(target=self._run, name="model", daemon=True)

    # In the event loop

    def start(self) -> None:
        """Begin; called in the event loop that will read."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    @property
    def open_texts(self) -> int:
        """Completions that are being written or waiting."""
        return sum(texts.open for texts in self._open)

    @property
    def writing(self) -> int:
        """Completions that have a row of the model's cache."""
        return self._session.engine.writing

    @property
    def is_stopped(self) -> bool:
        """Whether no more texts are taken."""
        return self._stopped is not None

    def write(self, requests: Sequence[GenerationRequest]) -> Completions:
        """Submit `requests`, at least one: all of them or none.

        Raises TooManyCompletionsError, ModelStoppedError.
        """
        if self._stopped is not None:
            raise self._stopped
        if self.open_texts + len(requests) > self.capacity:
            raise TooManyCompletionsError
        texts = Completions(self, requests)
        self._open[texts] = None
        self._orders.put(("write", texts))
        return texts

    def place(self, texts: Completions) -> int:
        """The place of `texts` among the requests that wait for a row, from 1; 0 if it has one, or has ended."""
        before, waiting = 0, 0
        for other in self._open:
            waiting += before >= self._session.rows
            if other is texts:
                return waiting
            before += other.open
        return 0

    def cancel(self, texts: Completions) -> None:
        """Stop writing the rest of `texts`."""
        if texts in self._open:
            del self._open[texts]
            texts.is_cancelled = True
            self._orders.put(("cancel", texts))

    def refuse(self, reason: str) -> None:
        """Take no more texts; open ones go on."""
        self._stopped = self._stopped or ModelStoppedError(reason)

    def end_all(self, reason: str) -> None:
        """End all texts where they are, with a ModelStoppedError."""
        self.refuse(reason)
        assert self._stopped is not None
        for texts in list(self._open):
            self.cancel(texts)
            texts.tell(self._stopped)

    def close(self) -> None:
        """End the thread, after the step that it is in; called from any thread once the loop has ended."""
        self._orders.put(("end", None))
        self._ahead.release(STEPS_AHEAD)
        if self._thread.ident is not None:
            self._thread.join()

    def _deliver(self, news: list[News]) -> None:
        self._ahead.release()
        for texts, index, piece in news:
            if texts not in self._open:
                continue
            if isinstance(piece, Exception):
                self.cancel(texts)
                texts.tell(piece)
                continue
            if piece.finished is not None:
                texts.open -= 1
                if not texts.open:
                    del self._open[texts]
            texts.tell((index, piece))

    def _failed(self, error: BaseException) -> None:
        self.failure = error
        self.end_all("the model failed")
        self.on_failure()

    # In the thread

    def _run(self) -> None:
        try:
            while self._take_orders():
                if self._is_idle():
                    continue
                pieces = self._session.step()
                news: list[News] = [(*self._writing[piece.number], piece) for piece in pieces]
                for piece in pieces:
                    if piece.finished is not None:
                        del self._writing[piece.number]
                self._tell(self._deliver, news)
        except BaseException as error:
            self._call(self._failed, error)

    def _is_idle(self) -> bool:
        return not (self._session.engine.writing or self._session.engine.waiting)

    def _take_orders(self) -> bool:
        """Carry out what was asked since the last step, waiting where there is nothing to write; False at the end."""
        must_wait = self._is_idle()
        while True:
            try:
                order, texts = self._orders.get(must_wait)
            except queue.Empty:
                return True
            must_wait = False
            if texts is None:
                return False
            (self._submit if order == "write" else self._forget)(texts)

    def _submit(self, texts: Completions) -> None:
        try:
            for index, request in enumerate(texts.requests):
                if texts.is_cancelled:
                    break
                self._writing[self._session.submit(request)] = texts, index
        except Exception as error:
            self._forget(texts)
            self._tell(self._deliver, [(texts, 0, error)])

    def _forget(self, texts: Completions) -> None:
        for number in [number for number, (owner, _) in self._writing.items() if owner is texts]:
            del self._writing[number]
            self._session.cancel(number)

    def _tell(self, call: Callable[..., object], news: list[News]) -> None:
        if news:
            self._ahead.acquire()
            self._call(call, news)

    def _call(self, call: Callable[..., object], value: object) -> None:
        try:
            self._loop.call_soon_threadsafe(call, value)
        except RuntimeError:
            self._orders.put(("end", None))  # The loop has ended: nobody is left to tell.
