"""One request: addresses that may be asked, bodies up to a size, memory that is left."""
