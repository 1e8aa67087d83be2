"""GPT-2 on one device: `gpt2` (the model in one file), `attention` (all forms of it), `loss`."""
