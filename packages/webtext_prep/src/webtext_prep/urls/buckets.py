"""How an input is divided: into how many shards, and which of them a host or a page belongs to."""

from __future__ import annotations

import xxhash


def shards_for(size: int, bytes_per_shard: int) -> int:
    """How many shards an input of `size` bytes makes: a power of two, so that a grown input only splits shards."""
    return min(1 << max(0, (size - 1) // bytes_per_shard).bit_length(), 4096) if size else 1


def bucket_of(name: str, buckets: int) -> int:
    """A stable bucket, 0 to `buckets` - 1, for `name`. With twice the buckets, each one's names stay in it or move to
    the one `buckets` further on."""
    return xxhash.xxh3_64_intdigest(name.encode("utf-8", "surrogatepass")) % buckets
