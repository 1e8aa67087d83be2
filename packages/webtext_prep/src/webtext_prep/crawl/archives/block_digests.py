"""Digests of blocks in archives, in the spellings that crawlers use.

ISO 28500 (5.8) leaves algorithm and spelling open: `sha1:` in Base32 is usual, hex is common, with or without padding,
in small or capital letters. FastWARC 2.0.1 checks md5, sha1, sha256 and sha512, and takes some right digests for wrong:
Base32 in small letters, without padding but of sha1, Base64, names with a hyphen.
"""

from __future__ import annotations

import base64
import binascii
import re

_BYTES = {"md5": 16, "sha1": 20, "sha256": 32, "sha512": 64}
_USUAL = re.compile(r"sha1:[A-Z2-7]{32}|sha256:[0-9a-f]{64}")


def fastwarc_digest(said: str) -> str | None:
    """A digest as FastWARC checks it; None for one that is of no known algorithm or spelling, which says nothing.

    >>> fastwarc_digest("SHA-1:3i42h3s6nnfq2msvx7xzkyayscx5qbyj")
    'sha1:da39a3ee5e6b4b0d3255bfef95601890afd80709'
    """
    if _USUAL.fullmatch(said):
        return said
    name, _, value = said.partition(":")
    name, value = name.strip().lower().replace("-", ""), value.strip()
    size = _BYTES.get(name)
    digest = _decoded(value, size) if size is not None else None
    return None if digest is None else f"{name}:{digest.hex()}"


def _decoded(value: str, size: int) -> bytes | None:
    """The bytes of a digest of that many, in hex, Base32 or Base64."""
    bare = value.rstrip("=")
    try:
        if len(bare) == 2 * size:
            return bytes.fromhex(value)
        if len(bare) == -(-size * 8 // 5):
            return base64.b32decode(bare.upper() + "=" * (-len(bare) % 8))
        if len(bare) == -(-size * 8 // 6):
            return base64.b64decode(bare.replace("-", "+").replace("_", "/") + "=" * (-len(bare) % 4), validate=True)
    except (ValueError, binascii.Error):
        return None
    return None
