"""The loops of `buckets`, compiled: for corpora of so many documents that loading machine code pays."""

from __future__ import annotations

from webtext_prep.dedup import buckets
from webtext_prep.text.compiled import compiled

unite, flatten, divide = compiled(buckets.unite), compiled(buckets.flatten), compiled(buckets.divide)
