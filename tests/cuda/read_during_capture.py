"""A program: a batch is pinned by another thread while a graph of a model that writes is captured.

Prints what went wrong in either as JSON.
"""

from __future__ import annotations

import concurrent.futures
import json
import warnings
from typing import Any

import numpy as np
import torch

from gpt2_train.config.settings import ModelConfig
from gpt2_train.data.batches import MicroBatches
from gpt2_train.inference.kv_cache import CachedModel
from gpt2_train.model.gpt2 import GPT2


def main() -> None:
    device = torch.device("cuda", 0)
    config = ModelConfig(layers=1, hidden=64, heads=1, sequence_length=64, vocabulary_size=128)
    cache = CachedModel(GPT2(config).to(device).eval(), 2, precision="bf16")
    batches, found = MicroBatches(2, device), {"read": 0, "failures": []}
    with concurrent.futures.ThreadPoolExecutor(1) as reader:

        def read(*_: Any) -> None:
            if torch.cuda.is_current_stream_capturing():
                # Of a size that no pinned block has yet, so that CUDA is asked for one.
                rows = np.zeros((2, 1 << 16), np.int64)
                found["read"] += 1
                failure = reader.submit(batches.on_host, rows).exception()
                found["failures"] += [] if failure is None else [str(failure).splitlines()[0]]

        cache.model.register_forward_pre_hook(read)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            cache.feed([0, 1], [[1], [2]])
    found["warnings"] = [str(warning.message).splitlines()[0] for warning in caught]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
