"""What engine ray is made of: reaching a cluster, and the tasks there.

Ray reads these variables when it is imported.
"""

import os

# For a command that `uv run` started, Ray would have each worker install the environment of this machine once more.
# Nodes have their own, whose versions are compared.
os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
# Ray would print what it knows of dead workers to standard output, which is the command's own; the engine says it.
os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
# Nothing about the work is told to anybody.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
