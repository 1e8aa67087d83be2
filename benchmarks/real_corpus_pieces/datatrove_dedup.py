"""datatrove's near-duplicates over `in/`, in its own environment: `python datatrove_dedup.py BUCKETS HASHES`."""

import sys

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.dedup import MinhashDedupCluster, MinhashDedupFilter, MinhashDedupSignature
from datatrove.pipeline.dedup.minhash import MinhashConfig, MinhashDedupBuckets
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.writers.jsonl import JsonlWriter

FILES, WORKERS = 8, 2
minhash = MinhashConfig(n_grams=5, num_buckets=int(sys.argv[1]), hashes_per_bucket=int(sys.argv[2]))

signatures = LocalPipelineExecutor(
    pipeline=[JsonlReader("in"), MinhashDedupSignature("work/signatures", config=minhash)],
    tasks=FILES,
    workers=WORKERS,
    logging_dir="work/logs/signatures",
)
buckets = LocalPipelineExecutor(
    pipeline=[MinhashDedupBuckets("work/signatures", "work/buckets", config=minhash)],
    tasks=minhash.num_buckets,
    workers=WORKERS,
    logging_dir="work/logs/buckets",
    depends=signatures,
)
clusters = LocalPipelineExecutor(
    pipeline=[MinhashDedupCluster("work/buckets", "work/remove_ids", config=minhash)],
    tasks=1,
    workers=WORKERS,
    logging_dir="work/logs/clusters",
    depends=buckets,
)
unique = LocalPipelineExecutor(
    pipeline=[JsonlReader("in"), MinhashDedupFilter("work/remove_ids"), JsonlWriter("work/unique")],
    tasks=FILES,
    workers=WORKERS,
    logging_dir="work/logs/unique",
    depends=clusters,
)

if __name__ == "__main__":
    unique.run()
