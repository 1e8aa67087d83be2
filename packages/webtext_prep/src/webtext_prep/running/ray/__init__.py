"""What engine ray is made of: reaching a cluster, and the tasks there."""

import os

# Ray notices a command that `uv run` started, and would have each node install the environment of this machine anew.
# Nodes have their own, whose versions are compared. It is read when Ray is imported.
os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
