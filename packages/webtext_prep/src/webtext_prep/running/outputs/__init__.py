"""An output: whose it is (`ownership`, `lease`), which tasks are done (`markers`), how a shard is written."""
