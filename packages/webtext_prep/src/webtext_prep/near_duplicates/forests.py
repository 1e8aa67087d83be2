"""The loops of `buckets`, compiled: for corpora of so many documents that loading machine code pays."""

from __future__ import annotations

from webtext_prep.compiled import compiled
from webtext_prep.near_duplicates import buckets

unite, flatten, divide = compiled(buckets.unite), compiled(buckets.flatten), compiled(buckets.divide)
