"""From token files to training batches: splits by document, shuffled sample index, blending, reading ahead.

In the order of the work: `splits` (token files and their splits), `sample_index` (which tokens make up each sample),
`index_cache` (that on disk), `streams` (endless samples of one split), `blending` (several streams in proportion),
`batches` (each process's rows, one step ahead); `made_with` says which tokenizer the files were made with. All of it
works in a single process without torch; `shared_cache`, which only training imports, lets several processes share one
cache.
"""

from gpt2_train.data.batches import BatchReader, check_vocabulary
from gpt2_train.data.blending import BLEND_BLOCK, Blend, blend_picks, blend_split
from gpt2_train.data.corpus import SPLITS, Corpus, open_corpora, split_ranges
from gpt2_train.data.index import (
    EXTRA,
    IndexCache,
    SampleIndex,
    build_sample_index,
    epochs_needed,
    last_epoch_is_separate,
    locate_samples,
    stream_seed,
)
from gpt2_train.data.streams import Stream

__all__ = [
    "BLEND_BLOCK",
    "EXTRA",
    "SPLITS",
    "BatchReader",
    "Blend",
    "Corpus",
    "IndexCache",
    "SampleIndex",
    "Stream",
    "blend_picks",
    "blend_split",
    "build_sample_index",
    "check_vocabulary",
    "epochs_needed",
    "last_epoch_is_separate",
    "locate_samples",
    "open_corpora",
    "split_ranges",
    "stream_seed",
]
