"""Whether machine code pays: the one place that decides between a compiled function and its plain twin.

numba takes half a second of a processor to import, and the functions of a stage as much again to load; where they are
made first, those of `dedup` take 14. A corpus of a few megabytes is done in that time by plain numpy and Python, with
the same results: `dedup`, `dedup-passages` and `decontaminate` break even between 4 and 8 million characters.
"""

PLAIN_CHARACTERS = 8 << 20
"""Texts of this many characters in all are done before machine code would be loaded."""
TOKEN_CHARACTERS = 4
"""Of text in a token."""


def pays(characters: int) -> bool:
    """Whether there is so much text, or work like that on it, that machine code should be loaded."""
    return characters > PLAIN_CHARACTERS
