"""URLs: their parts and keys, one name for each host, and which task may ask it."""
