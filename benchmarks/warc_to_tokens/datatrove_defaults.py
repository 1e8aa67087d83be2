from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.dedup import MinhashDedupCluster, MinhashDedupFilter, MinhashDedupSignature
from datatrove.pipeline.dedup.minhash import MinhashConfig, MinhashDedupBuckets
from datatrove.pipeline.extractors import Trafilatura
from datatrove.pipeline.filters import GopherQualityFilter, LanguageFilter
from datatrove.pipeline.readers import JsonlReader, WarcReader
from datatrove.pipeline.tokens.megatron_tokenizer import MegatronDocumentTokenizer
from datatrove.pipeline.writers.jsonl import JsonlWriter

FILES, WORKERS = 8, 2
minhash = MinhashConfig()

process = LocalPipelineExecutor(
    pipeline=[
        WarcReader("warcs", glob_pattern="*.warc.gz"),
        Trafilatura(favour_precision=True),
        LanguageFilter(["en"]),
        GopherQualityFilter(),
        JsonlWriter("work/pages"),
    ],
    tasks=FILES,
    workers=WORKERS,
    logging_dir="work/logs/process",
)
signatures = LocalPipelineExecutor(
    pipeline=[JsonlReader("work/pages"), MinhashDedupSignature("work/signatures", config=minhash)],
    tasks=FILES,
    workers=WORKERS,
    logging_dir="work/logs/signatures",
    depends=process,
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
    pipeline=[JsonlReader("work/pages"), MinhashDedupFilter("work/remove_ids"), JsonlWriter("work/unique")],
    tasks=FILES,
    workers=WORKERS,
    logging_dir="work/logs/unique",
    depends=clusters,
)
tokens = LocalPipelineExecutor(
    pipeline=[JsonlReader("work/unique"), MegatronDocumentTokenizer("work/tokens", tokenizer_name_or_path="gpt2.json")],
    tasks=FILES,
    workers=WORKERS,
    logging_dir="work/logs/tokens",
    depends=unique,
)

if __name__ == "__main__":
    tokens.run()
