"""Hugging Face's `datasets` for tests: without the network, and with its caches in a folder that is removed."""

import atexit
import os
import shutil
import tempfile

_home = tempfile.mkdtemp(prefix="webtext-datasets-")
atexit.register(shutil.rmtree, _home, ignore_errors=True)
# They count when it is imported.
os.environ |= {"HF_HOME": _home, "HF_DATASETS_OFFLINE": "1", "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}

import datasets  # noqa: E402

datasets.disable_progress_bars()
