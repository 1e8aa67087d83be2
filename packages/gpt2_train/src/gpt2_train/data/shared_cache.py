"""The cache of indices that all processes of a training run share: the first one builds, all of them read.

Only training imports this: it is the one module of `data` that exchanges anything between processes. What is exchanged
is whether each process could do its part; the arrays themselves come from the disk, memory-mapped, once per machine.
"""

from __future__ import annotations

from gpt2_train.data.index import Build, IndexCache, SampleIndex, read_index
from gpt2_train.distributed.collectives import check_is_shared, keep_on_all_ranks, on_all_ranks, rank_and_size


class SharedIndexCache(IndexCache):
    """A folder of indices on storage that all processes see; in a single process the same as `IndexCache`.

    All processes call `sample_index` together. Any failure of one is raised on all of them.
    """

    def sample_index(self, name: str, build: Build) -> SampleIndex:
        """The index `name`, built by the first process if it is not there.

        Raises Gpt2UsageError if a process can't see what the first one wrote, OSError if it can't be written.
        """
        folder = self.folder / name
        on_all_ranks(lambda: self._build_if_missing(folder, build) if rank_and_size()[0] == 0 else None)
        check_is_shared(folder)
        return keep_on_all_ranks(lambda: read_index(folder))

    def keep_blend_state(self, name: str, block: int, taken: list[int]) -> None:
        """Keep what `blend_state` returns, if this is the first process and it can be written."""
        if rank_and_size()[0] == 0:
            super().keep_blend_state(name, block, taken)
