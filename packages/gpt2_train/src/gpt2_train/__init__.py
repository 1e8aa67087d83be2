"""gpt2_train."""
