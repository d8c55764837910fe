"""Pictures of pages as PNGs of 256 colours: a third of the bytes, with sharp letters."""

import struct
import zlib

import numpy as np

COLOURS = 256
EXACT = 64
"""Number of most used colours that stay unchanged: a page has few colours, and its shades of white are close."""
STEP = 8
"""Colours with a smaller difference in every channel count as one."""


def as_png(rgba: bytes, *, width: int) -> bytes:
    """Encodes pixels. rgba: [height, width, 4] bytes; transparency is ignored."""
    pixels = np.frombuffer(rgba, np.uint8).reshape(-1, width, 4)[:, :, :3]
    palette, places = _reduced(pixels.reshape(-1, 3))
    rows = places.reshape(-1, width)
    scanlines = np.concatenate([np.zeros((len(rows), 1), np.uint8), rows], axis=1)
    head = struct.pack(">IIBBBBB", width, len(rows), 8, 3, 0, 0, 0)
    parts = ((b"IHDR", head), (b"PLTE", palette.tobytes()), (b"IDAT", zlib.compress(scanlines.tobytes(), 9)))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, body) for name, body in (*parts, (b"IEND", b"")))


def _reduced(pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[pixels, 3] -> the selected colours [colours, 3], and the index of each pixel's colour [pixels].

    Selects the most used colours, and distinguishable ones of the others; any other colour gets the nearest.
    """
    packed = pixels.astype(np.uint32) @ np.array([1 << 16, 1 << 8, 1], np.uint32)
    unique_colours, kinds, counts = np.unique(packed, return_inverse=True, return_counts=True)
    colours = np.stack([unique_colours >> 16, unique_colours >> 8 & 255, unique_colours & 255], axis=1).astype(np.int32)
    by_use = np.argsort(-counts, kind="stable")
    rest = by_use[EXACT:]
    _, firsts = np.unique(colours[rest] // STEP, axis=0, return_index=True)
    kept_colours = colours[[*by_use[:EXACT], *rest[np.sort(firsts)[: COLOURS - EXACT]]]]
    nearest = np.concatenate(
        [_nearest(some, kept_colours) for some in np.array_split(colours, len(colours) // 1000 + 1)]
    )
    return kept_colours.astype(np.uint8), nearest[kinds]


def _nearest(colours: np.ndarray, kept: np.ndarray) -> np.ndarray:
    nearest: np.ndarray = ((colours[:, None, :] - kept[None, :, :]) ** 2).sum(axis=2).argmin(axis=1).astype(np.uint8)
    return nearest


def _chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
