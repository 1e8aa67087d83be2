"""URLs by the million: the same answers as `documents.urls` gives for one, from compiled code for a block of lines."""
