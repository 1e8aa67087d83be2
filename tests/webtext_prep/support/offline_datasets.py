"""Hugging Face's `datasets` for tests: without the network, and with its caches in a folder that is removed."""

import atexit
import os
import shutil
import tempfile

from tests.lazily import Lazily

_home = tempfile.mkdtemp(prefix="webtext-datasets-")
atexit.register(shutil.rmtree, _home, ignore_errors=True)
# They count when it is imported.
os.environ |= {"HF_HOME": _home, "HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
os.environ["HF_DATASETS_DISABLE_PROGRESS_BARS"] = "1"

datasets = Lazily("datasets")
