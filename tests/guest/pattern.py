# SPDX-License-Identifier: Apache-2.0
"""Bytes that depend on their place and on a seed, so that any of them, found anywhere, tells where it belongs. The
same as guest_tenant's `fill` (tests/guest/guest_tenant.cc)."""

MASK = (1 << 64) - 1


def pattern(seed, length):
    """`length` bytes, a multiple of eight."""
    words = []
    for at in range(length // 8):
        value = ((at + 1) * 0x9E3779B97F4A7C15 & MASK) ^ (seed * 0xBF58476D1CE4E5B9 & MASK)
        words.append((value ^ value >> 31).to_bytes(8, "little"))
    return b"".join(words)
