"""The process that leads the others that share a model: it sends each call to the others before it does the same
itself.

What can go wrong between processes is settled here. Ctrl-C waits until a call is over, since the others are inside it
too. When one of them dies, its error, or the signal that killed it, is what the user reads; a thread watches for that,
because on GPUs the driver itself would wait in a sum forever. When the driver ends, however it does, so do the others.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import signal
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

import torch.distributed as dist
from torch import Tensor

from command_kit.command import print_error, sentence_for
from command_kit.errors import CommandError
from gpt2_train.config.errors import Gpt2Error, Gpt2UsageError
from gpt2_train.distributed.processes import Child, Place, close_group, describe_death, leave, start_children
from gpt2_train.inference.kv_cache import CachedModel, arrange_weights
from gpt2_train.inference.runner import Batch, BatchScores, ModelRunner
from gpt2_train.inference.worker import (
    GRACE_SECONDS,
    STOP,
    Layout,
    ModelWorker,
    follow,
    is_lost_connection,
    join,
    send_request,
)  # fmt: skip

POLL_SECONDS = 0.05


class WorkerGroup:
    """The processes that share a model, as their driver has them.

    Attributes:
        children: processes that the driver starts; none under torchrun, which looks after its processes itself.
        has_ended: whether the others have ended, or were asked to.
    """

    def __init__(self) -> None:
        self.children: list[Child] = []
        self.has_ended = False
        self._is_calling = False
        self._closing = threading.Event()

    def start(self, layout: Layout) -> dist.TCPStore:
        """Start all but the first process of `layout` and watch over them; returns the store at which they meet."""
        store = start_children(
            self.children,
            "gpt2_train.inference.worker",
            range(1, layout.size),
            layout.size,
            threads=layout.threads,
            layout=dataclasses.asdict(layout),
        )
        threading.Thread(target=self._watch, name="worker-watch", daemon=True).start()
        return store

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """What all processes do together; if it fails on this or another one, all others are ended.

        Raises the cause of that, and before anything is done, if one has died since.
        """
        self._is_calling = True  # Before the check: a child that dies just after it is seen by the thread.
        try:
            self._check()
            yield
        except Gpt2Error:
            raise  # All processes raise it, and are ready for the next call.
        except BaseException as error:
            cause = self._cause(error)
            self.end()
            if cause is error:
                raise
            raise cause from error
        finally:
            self._is_calling = False

    def wait_for(self, store: dist.Store) -> None:
        """Wait until all children have said in `store` that they are here. Raises Gpt2Error if one can't."""
        names = [f"here {rank}" for rank in range(1, len(self.children) + 1)]
        while not store.check(names):
            self._check()
            time.sleep(POLL_SECONDS)

    def end(self) -> None:
        """End all children at once."""
        self.has_ended = True
        self._closing.set()
        for child in self.children:
            child.end()
            child.close()

    def close(self) -> None:
        """Let all processes end, after all work is done."""
        if self.has_ended:
            return
        self._closing.set()
        try:
            send_request(STOP, [])
            close_group()
            deadline = time.monotonic() + GRACE_SECONDS
            while any(child.process.poll() is None for child in self.children) and time.monotonic() < deadline:
                time.sleep(POLL_SECONDS)
        except RuntimeError:
            pass  # One of them is gone already; what it did before is done.
        finally:
            self.end()

    def _check(self) -> None:
        if self.has_ended:
            raise Gpt2Error("the processes that shared the model have ended: start the command again.")
        if (death := self._death()) is not None:
            self.end()
            raise death

    def _cause(self, error: BaseException) -> BaseException:
        """What made this process fail with `error`: it may be the end of another."""
        if not is_lost_connection(error):
            return error
        deadline = time.monotonic() + GRACE_SECONDS
        while self.children and time.monotonic() < deadline:
            if (death := self._death()) is not None:
                return death
            time.sleep(POLL_SECONDS)
        return Gpt2Error("another process of the group has ended: what it printed says why.")

    def _death(self) -> Gpt2Error | None:
        """The error of the first child that has ended, None if all run."""
        size = len(self.children) + 1
        for rank, child in enumerate(self.children, 1):
            code = child.process.poll()
            if code is None:
                continue
            report = child.report()
            if "error" in report:
                kind = Gpt2UsageError if report["exit_code"] == 2 else Gpt2Error
                return kind(f"process {rank} of {size}: {report['error']}")
            return Gpt2Error(f"{describe_death(rank, size, -code)}: the command ends with it.")
        return None

    def _watch(self) -> None:
        """End this process if another one has, and this one does not notice: it waits for that one, on a GPU."""
        while all(child.process.poll() is None for child in self.children):
            if self._closing.wait(POLL_SECONDS):
                return
        deadline = time.monotonic() + GRACE_SECONDS
        while self._is_calling and time.monotonic() < deadline:
            if self._closing.wait(POLL_SECONDS):
                return
        if self._is_calling:
            print_error("gpt2", str(self._death()))
            self.end()
            leave(1)


class Driver(ModelRunner):
    """Computes with a model in several processes, of which this is the first.

    Args:
        workers: the others.
        process: this process's part of the model.
    """

    def __init__(self, workers: WorkerGroup, process: ModelWorker) -> None:
        self.workers, self.process = workers, process
        self.batches_at_once = process.layout.data_parallel
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._unused: collections.deque[int] = collections.deque()

    def load(self, path: str, tokenizer: str | None) -> None:
        """Read the model's weights. Raises Gpt2UsageError if they are damaged, or can't be divided so."""
        with self.workers.working():
            send_request("load", [path, tokenizer])
            self.process.load(path, tokenizer)

    def close(self) -> None:
        """Let all processes end, once a call of another thread is over."""
        with self._lock:
            self.workers.close()

    def score(self, batches: Sequence[Batch], precision: str) -> list[BatchScores]:
        """The scores of at most `batches_at_once` batches, in order. Raises Gpt2Error if a loss is not finite."""
        tables = [batch.as_plain() for batch in batches]
        with self.calling("score", tables, precision):
            return self.process.score(tables, precision)

    def cached_model(self, rows: int, length: int | None = None, *, precision: str = "fp32") -> CachedModel:
        """A cache of which each process has its heads. Raises Gpt2UsageError as `CachedModel` does."""
        number = next(self._numbers)
        with self.calling("make_cache", number, rows, length, precision):
            cache = _SharedCache(self, number, rows, length, precision)
        weakref.finalize(cache, self._unused.append, number)
        return cache

    @contextlib.contextmanager
    def calling(self, name: str, *arguments: Any) -> Iterator[None]:
        """Send a call to all others; the block does this process's part. Raises as `WorkerGroup.working` does."""
        with self._lock, interrupts_deferred(), self.workers.working():
            unused = [self._unused.popleft() for _ in range(len(self._unused))]
            if unused:
                send_request("drop_caches", [unused])
            send_request(name, arguments)
            yield


class _SharedCache(CachedModel):
    """The driver's part of a cache; the others repeat each change on theirs."""

    def __init__(self, driver: Driver, number: int, rows: int, length: int | None, precision: str) -> None:
        process = driver.process
        model = arrange_weights(process.runner.model, precision, rows)
        super().__init__(model, rows, length, precision=precision, group=process.group)
        self._driver, self._number = driver, number

    def feed(self, rows: Sequence[int], tokens: Sequence[Sequence[int]], every: Sequence[int] = ()) -> Tensor:
        """As `CachedModel.feed`."""
        with self._driver.calling("use_cache", self._number, "feed", rows, tokens, every):
            return super().feed(rows, tokens, every)

    def forget(self, row: int) -> None:
        """Empty a row."""
        with self._driver.calling("use_cache", self._number, "forget", row):
            super().forget(row)

    def copy(self, row: int, to: int) -> None:
        """Let the row `to` remember what `row` does."""
        with self._driver.calling("use_cache", self._number, "copy", row, to):
            super().copy(row, to)


@contextlib.contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Let Ctrl-C take effect at the end of the block only; in the main thread, the only one that it reaches."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    received: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: received.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if received:
        before(*received[0])


def start_driver(layout: Layout, place: Place | None) -> Driver:
    """Lead the other processes: of torchrun's job, or without a `place` processes that are started here."""
    workers, store = WorkerGroup(), None
    try:
        if place is None:
            store = workers.start(layout)
            place = Place.local(0, layout.size, store.port)
        device = place.take_device(layout.device, layout.threads)
        with workers.working():
            if store is not None:
                workers.wait_for(store)
            return Driver(workers, join(place, layout, device, store))
    except BaseException:
        workers.end()
        raise


def enter_torchrun(layout: Layout) -> Place:
    """Return on the first process of the job, with its place; follow it on the others, and end there.

    Raises Gpt2UsageError if the job has another number of processes than the layout.
    """
    place = Place.under_torchrun()
    if place.size != layout.size:
        if place.rank == 0:
            raise Gpt2UsageError(
                f"torchrun started {place.size} processes, and {layout} asks for {layout.size}: make them equal."
            )
        leave(2)
    if place.rank > 0:
        try:
            follow(place, layout)
        except BaseException as error:
            lost = "the process that leads it has ended, or another one."
            sentence = lost if is_lost_connection(error) else sentence_for(error)
            print_error("gpt2", f"process {place.rank} of {place.size}: {sentence}")
            leave(error.exit_code if isinstance(error, CommandError) else 1)
        leave(0)
    return place
