"""From documents to token files: `runs` and `plan`, tokenizers trained (`bpe_training`), suffixes sorted."""
