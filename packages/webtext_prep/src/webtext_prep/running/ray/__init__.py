"""What engine ray is made of: reaching a cluster, and the tasks there."""

import os

# For a command that `uv run` started, Ray would have each worker install the environment of this machine once more.
# Nodes have their own, whose versions are compared. Ray reads this variable when it is imported.
os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
