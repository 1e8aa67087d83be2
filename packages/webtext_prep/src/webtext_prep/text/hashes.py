"""xxHash in compiled code: XXH32 and XXH3 (64 bits, seed 0), as `xxhash` computes them, of a part of an array of bytes.

Kernels that hash millions of short strings use these, because a call of `xxhash` needs a Python object for each string.
Source: the xxHash specification (github.com/Cyan4973/xxHash, doc/xxhash_spec.md). Loads are little-endian and need no
alignment; tests compare every length class with the library.
"""

from __future__ import annotations

# numba's integers: an operation on uint32 gives a wider type, so that each result is cut to 32 bits again.
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from webtext_prep.text.compiled import compiled

U32, U64 = np.uint32, np.uint64
Bytes = npt.NDArray[np.uint8]


def _load(bits: int) -> Any:
    """Intrinsic that loads an integer of a width in bits."""
    result = getattr(types, f"uint{bits}")

    @intrinsic
    def load(_: Any, array: Any, at: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            start = context.make_array(signature.args[0])(context, builder, arguments[0]).data
            place = builder.gep(builder.bitcast(start, ir.IntType(8).as_pointer()), [arguments[1]])
            value = builder.load(builder.bitcast(place, ir.IntType(bits).as_pointer()))
            value.align = 1
            return value

        return result(array, types.intp), generate

    return load


load32, load64 = _load(32), _load(64)
"""`load(bytes, at)`: the little-endian unsigned integer at any place."""


@intrinsic
def _fold_product(_: Any, left: Any, right: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(*(builder.zext(argument, wide) for argument in arguments))
        upper = builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), ir.IntType(64))
        return builder.xor(upper, builder.trunc(product, ir.IntType(64)))

    return types.uint64(types.uint64, types.uint64), generate


fold_product: Any = _fold_product
"""Intrinsic `fold_product(left, right)`: the 128-bit product of two uint64, its upper half xored with the lower."""

A1, A2, A3, A4, A5 = U32(0x9E3779B1), U32(0x85EBCA77), U32(0xC2B2AE3D), U32(0x27D4EB2F), U32(0x165667B1)
B1, B2, B3 = U64(0x9E3779B185EBCA87), U64(0xC2B2AE3D27D4EB4F), U64(0x165667B19E3779F9)
B4, B5 = U64(0x85EBCA77C2B2AE63), U64(0x27D4EB2F165667C5)
SECRET = np.frombuffer(
    bytes.fromhex(
        "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
        "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
        "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb"
        "170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
    ),
    np.uint8,
)


@compiled
def rotate32(value: np.uint32, count: np.uint32) -> np.uint32:
    """`value` with its bits rotated to the left."""
    return U32((value << count) | (value >> U32(U32(32) - count)))


@compiled
def avalanche32(value: np.uint32) -> np.uint32:
    """The end of XXH32."""
    value = U32(value ^ (value >> U32(15)))
    value = U32(value * A2)
    value = U32(value ^ (value >> U32(13)))
    value = U32(value * A3)
    return U32(value ^ (value >> U32(16)))


@compiled
def _lane32(lane: np.uint32, word: np.uint32) -> np.uint32:
    return U32(rotate32(U32(lane + U32(word * A2)), U32(13)) * A1)


@compiled
def xxh32(data: Bytes, start: int, end: int) -> np.uint32:
    """XXH32 of `data[start:end]`, seed 0."""
    at = start
    value = A5
    if end - at >= 16:
        one, two, three, four = U32(A1 + A2), A2, U32(0), U32(U32(0) - A1)
        while end - at >= 16:
            one = _lane32(one, load32(data, at))
            two = _lane32(two, load32(data, at + 4))
            three = _lane32(three, load32(data, at + 8))
            four = _lane32(four, load32(data, at + 12))
            at += 16
        value = U32(rotate32(one, U32(1)) + rotate32(two, U32(7)) + rotate32(three, U32(12)) + rotate32(four, U32(18)))
    value = U32(value + U32(end - start))
    while end - at >= 4:
        value = U32(rotate32(U32(value + U32(load32(data, at) * A3)), U32(17)) * A4)
        at += 4
    while at < end:
        value = U32(rotate32(U32(value + U32(U32(data[at]) * A5)), U32(11)) * A1)
        at += 1
    return avalanche32(value)


@compiled
def _xxh64_avalanche(value: np.uint64) -> np.uint64:
    value = (value ^ (value >> U64(33))) * B2
    value = (value ^ (value >> U64(29))) * B3
    return value ^ (value >> U64(32))


@compiled
def _avalanche64(value: np.uint64) -> np.uint64:
    value = (value ^ (value >> U64(37))) * U64(0x165667919E3779F9)
    return value ^ (value >> U64(32))


@compiled
def _mix16(data: Bytes, at: int, secret: int) -> np.uint64:
    return fold_product(load64(data, at) ^ load64(SECRET, secret), load64(data, at + 8) ^ load64(SECRET, secret + 8))


@compiled
def _short(data: Bytes, start: int, length: int) -> np.uint64:
    """XXH3 of up to 16 bytes."""
    if length > 8:
        low = load64(data, start) ^ (load64(SECRET, 24) ^ load64(SECRET, 32))
        high = load64(data, start + length - 8) ^ (load64(SECRET, 40) ^ load64(SECRET, 48))
        return _avalanche64(U64(length) + _swapped(low) + high + fold_product(low, high))
    if length >= 4:
        word = U64(load32(data, start + length - 4)) + (U64(load32(data, start)) << U64(32))
        value = word ^ (load64(SECRET, 8) ^ load64(SECRET, 16))
        # The function that the specification calls rrmxmx.
        value ^= ((value << U64(49)) | (value >> U64(15))) ^ ((value << U64(24)) | (value >> U64(40)))
        value *= U64(0x9FB21C651E98DF25)
        value ^= (value >> U64(35)) + U64(length)
        value *= U64(0x9FB21C651E98DF25)
        return value ^ (value >> U64(28))
    if length > 0:
        first, middle, last = data[start], data[start + (length >> 1)], data[start + length - 1]
        word = (U64(first) << U64(16)) | (U64(middle) << U64(24)) | U64(last) | (U64(length) << U64(8))
        return _xxh64_avalanche(word ^ U64(load32(SECRET, 0) ^ load32(SECRET, 4)))
    return _xxh64_avalanche(load64(SECRET, 56) ^ load64(SECRET, 64))


@compiled
def _swapped(value: np.uint64) -> np.uint64:
    """The eight bytes of `value` in the opposite order."""
    value = ((value & U64(0x00FF00FF00FF00FF)) << U64(8)) | ((value >> U64(8)) & U64(0x00FF00FF00FF00FF))
    value = ((value & U64(0x0000FFFF0000FFFF)) << U64(16)) | ((value >> U64(16)) & U64(0x0000FFFF0000FFFF))
    return (value << U64(32)) | (value >> U64(32))


@compiled
def _medium(data: Bytes, start: int, end: int) -> np.uint64:
    """XXH3 of 17 to 240 bytes."""
    length = end - start
    value = U64(length) * B1
    if length <= 128:
        for pair in range((length - 1) // 32, -1, -1):
            value += _mix16(data, start + 16 * pair, 32 * pair)
            value += _mix16(data, end - 16 * (pair + 1), 32 * pair + 16)
        return _avalanche64(value)
    for block in range(8):
        value += _mix16(data, start + 16 * block, 16 * block)
    value = _avalanche64(value)
    for block in range(8, length // 16):
        value += _mix16(data, start + 16 * block, 16 * (block - 8) + 3)
    return _avalanche64(value + _mix16(data, end - 16, 136 - 17))


@compiled
def _stripe(lanes: npt.NDArray[np.uint64], data: Bytes, at: int, secret: int) -> None:
    for lane in range(8):
        word = load64(data, at + 8 * lane)
        keyed = word ^ load64(SECRET, secret + 8 * lane)
        lanes[lane ^ 1] += word
        lanes[lane] += (keyed & U64(0xFFFFFFFF)) * (keyed >> U64(32))


@compiled
def _long(data: Bytes, start: int, end: int) -> np.uint64:
    """XXH3 of more than 240 bytes: stripes of 64 bytes, blocks of 16 stripes."""
    length = end - start
    lanes = np.array([U64(A3), B1, B2, B3, B4, U64(A2), B5, U64(A1)])
    blocks = (length - 1) // 1024
    for block in range(blocks):
        for stripe in range(16):
            _stripe(lanes, data, start + 1024 * block + 64 * stripe, 8 * stripe)
        for lane in range(8):
            value = lanes[lane] ^ (lanes[lane] >> U64(47)) ^ load64(SECRET, 128 + 8 * lane)
            lanes[lane] = value * U64(A1)
    for stripe in range((length - 1 - 1024 * blocks) // 64):
        _stripe(lanes, data, start + 1024 * blocks + 64 * stripe, 8 * stripe)
    _stripe(lanes, data, end - 64, 192 - 64 - 7)
    value = U64(length) * B1
    for pair in range(4):
        value += fold_product(
            lanes[2 * pair] ^ load64(SECRET, 11 + 16 * pair), lanes[2 * pair + 1] ^ load64(SECRET, 19 + 16 * pair)
        )
    return _avalanche64(value)


@compiled
def xxh3(data: Bytes, start: int, end: int) -> np.uint64:
    """XXH3 with 64 bits of `data[start:end]`, seed 0."""
    length = end - start
    if length <= 16:
        return _short(data, start, length)
    if length <= 240:
        return _medium(data, start, end)
    return _long(data, start, end)
