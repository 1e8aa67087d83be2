"""A finished corpus as a Hugging Face dataset: what it holds, its columns and files, its card and list of domains."""
