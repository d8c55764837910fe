"""Decoder of the delta format written from docs/reference/weight-format.md alone: element by element, without numpy."""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from xxhash import xxh3_64_intdigest


def decode(delta: bytes, base: bytes) -> bytes:
    """Returns the target's buffer."""
    magic, _, _, size_bytes, blocks, zero = struct.unpack_from("<8s32s32sQII", delta)
    assert (magic, size_bytes, zero) == (b"AFDELTA2", len(base), 0)
    assert struct.unpack_from("<Q", delta, 88) == (xxh3_64_intdigest(delta[:88]),)
    target, at = bytearray(base), 96
    for _ in range(blocks):
        level, width, zero, elements, offset, payload_bytes, zero_too = struct.unpack_from("<BBHIQII", delta, at)
        assert zero == zero_too == 0
        payload = delta[at + 32 : at + 32 + payload_bytes]
        seed = xxh3_64_intdigest(delta[at : at + 24])
        assert struct.unpack_from("<Q", delta, at + 24) == (xxh3_64_intdigest(payload, seed=seed),)
        old = base[offset : offset + elements * width]
        target[offset : offset + elements * width] = payload if level == 0 else decode_payload(payload, old, width)
        at += 32 + payload_bytes
    assert at == len(delta)
    return bytes(target)


def decode_payload(payload: bytes, old: bytes, width: int) -> bytes:
    """Returns the new bytes of one block of level 1 or 2."""
    elements = [int.from_bytes(old[at : at + width], "little") for at in range(0, len(old), width)]
    source = _Source(payload)
    bands = _bands(source, elements, width)
    changed_table, large_table, extra_table = [], [], []
    for band in bands:
        changed_table.append(_Entry.read(source, len(band)))
        large_table.append(_Entry.read(source, changed_table[-1].meant))
        large = large_table[-1].meant
        extra_table.append((large, source.number() if large else 0))
    changed = _listing(source, changed_table)
    large_steps = _listing(source, large_table)
    extras = _rice(source, extra_table)
    directions = iter(source.bits(sum(map(len, changed))))
    for band, members, large_members, extra in zip(bands, changed, large_steps, map(iter, extras), strict=True):
        large_numbers = set(large_members)
        for number, member in enumerate(members):
            size = 1 + (next(extra) + 1 if number in large_numbers else 0)
            step = size if next(directions) else -size
            elements[band[member]] = _moved(elements[band[member]], step, 8 * width)
    assert source.is_at_end
    return b"".join(element.to_bytes(width, "little") for element in elements)


@dataclass(frozen=True)
class _Entry:
    of: int
    listed: int
    is_inverted: bool
    low_bits: int

    @property
    def meant(self) -> int:
        return self.of - self.listed if self.is_inverted else self.listed

    @classmethod
    def read(cls, source: "_Source", of: int) -> "_Entry":
        number = source.number() if of else 0
        return cls(of, number // 2, number % 2 == 1, source.number() if number // 2 else 0)


class _Source:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self) -> int:
        value = shift = 0
        while True:
            byte = self.bytes(1)[0]
            value += (byte % 128) << shift
            shift += 7
            if byte < 128:
                return value

    def bytes(self, count: int) -> bytes:
        self._at += count
        assert self._at <= len(self._data)
        return self._data[self._at - count : self._at]

    def bits(self, count: int) -> list[int]:
        run = self.bytes((count + 7) // 8)
        return [run[at // 8] >> at % 8 & 1 for at in range(count)]

    @property
    def is_at_end(self) -> bool:
        return self._at == len(self._data)


def _bands(source: _Source, elements: Sequence[int], width: int) -> list[list[int]]:
    """Returns the positions of the elements of each band."""
    first_keys = [0]
    for _ in range(source.number() - 1):
        first_keys.append(first_keys[-1] + source.number())
    bands: list[list[int]] = [[] for _ in first_keys]
    for position, bits in enumerate(elements):
        key = 2 * bits % 256 if width == 1 else bits // 2 ** (8 * width - 9) % 256
        bands[max(band for band, first in enumerate(first_keys) if first <= key)].append(position)
    return bands


def _listing(source: _Source, table: Sequence[_Entry]) -> list[list[int]]:
    """Returns the selected members of each band."""
    listing = []
    for entry, gaps in zip(table, _rice(source, [(entry.listed, entry.low_bits) for entry in table]), strict=True):
        listed, member = set(), -1
        for gap in gaps:
            member += gap + 1
            listed.add(member)
        listing.append([member for member in range(entry.of) if (member in listed) != entry.is_inverted])
    return listing


def _rice(source: _Source, groups: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Returns the values of groups with the given sizes and low bits."""
    unary_quotients = _quotients(source.bits(8 * source.number()))
    quotients = [[next(unary_quotients) for _ in range(size)] for size, _ in groups]
    assert next(unary_quotients, None) is None
    planes = iter(source.bits(sum(size * low_bits for size, low_bits in groups)))
    remainders = []
    for size, low_bits in groups:
        values = [0] * size
        for index in range(low_bits):
            values = [value + (next(planes) << index) for value in values]
        remainders.append(values)
    group_values = []
    for (_, low_bits), quotient, remainder in zip(groups, quotients, remainders, strict=True):
        whole = [q + int.from_bytes(source.bytes(4), "little") if q == 16 else q for q in quotient]
        group_values.append([(q << low_bits) + r for q, r in zip(whole, remainder, strict=True)])
    return group_values


def _quotients(bits: Sequence[int]) -> Iterator[int]:
    zeros = 0
    for bit in bits:
        if bit:
            yield zeros
        zeros = 0 if bit else zeros + 1


def _moved(bits: int, step: int, width_bits: int) -> int:
    half, all_of_them = 1 << (width_bits - 1), 1 << width_bits
    ordered_value = bits + half if bits < half else all_of_them - 1 - bits
    ordered_value = (ordered_value + step) % all_of_them
    return ordered_value - half if ordered_value >= half else all_of_them - 1 - ordered_value
