"""Who of those that wait is next: the clients take turns, and each keeps its own order."""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import Generic, Protocol, TypeVar


class Queued(Protocol):
    """What can wait."""

    @property
    def number(self) -> int: ...

    @property
    def client(self) -> str: ...


Item = TypeVar("Item", bound=Queued)


class FairQueue(Generic[Item]):
    """Items that wait, each for a client; with one client alone it is a queue like any other."""

    def __init__(self) -> None:
        self._waiting: dict[str, collections.deque[Item]] = {}
        """By client, the one that has waited longest for its turn first; none of them is empty."""

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def append(self, item: Item) -> None:
        """Put `item` at the end of its client's."""
        self._waiting.setdefault(item.client, collections.deque()).append(item)

    def put_back(self, item: Item) -> None:
        """Put `item`, which was taken, at the beginning of its client's."""
        self._waiting.setdefault(item.client, collections.deque()).appendleft(item)

    def remove(self, number: int) -> None:
        """Forget an item; nothing happens if it is not here."""
        for client, items in list(self._waiting.items()):
            self._keep(client, collections.deque(item for item in items if item.number != number))

    def next_client(self, rows: Mapping[str, int]) -> str:
        """Whose turn it is: of those who wait the one that has the fewest `rows`, of several the first."""
        return min(self._waiting, key=lambda client: rows.get(client, 0))

    def take(self, client: str) -> Item:
        """The first item of `client`, whose next turn comes after those of all others."""
        items = self._waiting.pop(client)
        item = items.popleft()
        self._keep(client, items)
        return item

    def _keep(self, client: str, items: collections.deque[Item]) -> None:
        if items:
            self._waiting[client] = items
        else:
            self._waiting.pop(client, None)
