"""Compressed files made of members, and which of their bytes a reader may give when some were damaged.

A zstd frame of Arrow has no checksum; `zstd_member` adds one (XXH64, as RFC 8878 has it), so that damage can be seen.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Sequence
from random import Random

import pyarrow as pa

_MASK = (1 << 64) - 1
_P1, _P2, _P3, _P4, _P5 = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)


def gzip_member(data: bytes) -> bytes:
    """Compress to one gzip member, which ends with a CRC and a size."""
    return gzip.compress(data, mtime=0)


def zstd_member(data: bytes) -> bytes:
    """Compress to one zstd frame with a checksum."""
    frame = bytearray(pa.compress(data, "zstd", asbytes=True))
    frame[4] |= 0x04
    return bytes(frame) + (xxh64(data) & 0xFFFFFFFF).to_bytes(4, "little")


PACKERS: dict[str, Callable[[bytes], bytes]] = {"gz": gzip_member, "zst": zstd_member}


def truncated(members: Sequence[bytes], rng: Random) -> tuple[bytes, int]:
    """Cut a file of members short; return it with the number of members that are whole."""
    kept = rng.randrange(sum(map(len, members)))
    return b"".join(members)[:kept], _whole_before(members, kept)


def flipped(members: Sequence[bytes], rng: Random) -> tuple[bytes, int]:
    """Flip a bit of a file of members; return it with the number of members before the flipped bit."""
    data = bytearray(b"".join(members))
    place = rng.randrange(len(data))
    data[place] ^= 1 << rng.randrange(8)
    return bytes(data), _whole_before(members, place)


def _whole_before(members: Sequence[bytes], place: int) -> int:
    end = whole = 0
    for member in members:
        end += len(member)
        whole += end <= place
    return whole


def xxh64(data: bytes) -> int:
    """Return the XXH64 digest of data, with seed 0."""
    length, at = len(data), 0
    if length >= 32:
        lanes = [(_P1 + _P2) & _MASK, _P2, 0, -_P1 & _MASK]
        while at <= length - 32:
            for lane in range(4):
                lanes[lane] = _round(lanes[lane], _word(data, at + 8 * lane, 8))
            at += 32
        digest = sum(_rotated(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True)) & _MASK
        for lane in lanes:
            digest = ((digest ^ _round(0, lane)) * _P1 + _P4) & _MASK
    else:
        digest = _P5
    digest = (digest + length) & _MASK
    while at + 8 <= length:
        digest = (_rotated(digest ^ _round(0, _word(data, at, 8)), 27) * _P1 + _P4) & _MASK
        at += 8
    if at + 4 <= length:
        digest = (_rotated(digest ^ (_word(data, at, 4) * _P1 & _MASK), 23) * _P2 + _P3) & _MASK
        at += 4
    for byte in data[at:]:
        digest = _rotated(digest ^ (byte * _P5 & _MASK), 11) * _P1 & _MASK
    digest = (digest ^ digest >> 33) * _P2 & _MASK
    digest = (digest ^ digest >> 29) * _P3 & _MASK
    return digest ^ digest >> 32


def _round(lane: int, word: int) -> int:
    return _rotated((lane + word * _P2) & _MASK, 31) * _P1 & _MASK


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> 64 - bits) & _MASK


def _word(data: bytes, at: int, size: int) -> int:
    return int.from_bytes(data[at : at + size], "little")
