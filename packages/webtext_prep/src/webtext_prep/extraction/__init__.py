"""From the bytes of a page to its text: decoding, extractors, and the worker processes that bound them."""
