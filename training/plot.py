"""The loss curve as a small PNG, written with the standard library alone."""

from __future__ import annotations

import csv
import math
import struct
import zlib
from itertools import pairwise
from pathlib import Path

WIDTH, HEIGHT, MARGIN = 640, 320, 24


def read_curve(file: Path) -> list[tuple[float, float]]:
    """(tokens, loss) of every row of a loss CSV."""
    with file.open() as lines:
        return [(float(r["tokens"]), float(r["loss"])) for r in csv.DictReader(lines)]


def png(pixels: list[bytearray]) -> bytes:
    """An 8-bit grey image as PNG (ISO/IEC 15948)."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    head = struct.pack(">IIBBBBB", len(pixels[0]), len(pixels), 8, 0, 0, 0, 0)
    body = zlib.compress(b"".join(b"\0" + bytes(row) for row in pixels), 9)
    start = b"\x89PNG\r\n\x1a\n"
    return start + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def plot(source: Path, target: Path) -> None:
    """Loss (logarithmic) over tokens (linear); a grid line at each power of two."""
    curve = read_curve(source)
    if len(curve) < 2:
        return
    last = curve[-1][0]
    top = math.log2(max(y for _, y in curve))
    low = math.log2(max(1e-3, min(y for _, y in curve)))
    pixels = [bytearray(b"\xff" * WIDTH) for _ in range(HEIGHT)]

    def height(y: float) -> int:
        share = (math.log2(max(y, 1e-3)) - low) / max(1e-6, top - low)
        return round(HEIGHT - MARGIN - share * (HEIGHT - 2 * MARGIN))

    for power in range(math.ceil(low), math.floor(top) + 1):
        for x in range(MARGIN, WIDTH - MARGIN, 4):
            pixels[height(2.0**power)][x] = 0xB0
    for i in range(MARGIN, WIDTH - MARGIN):
        pixels[HEIGHT - MARGIN][i] = 0
    for i in range(MARGIN, HEIGHT - MARGIN):
        pixels[i][MARGIN] = 0
    places = [(round(MARGIN + x / last * (WIDTH - 2 * MARGIN)), height(y)) for x, y in curve]
    for (x0, y0), (x1, y1) in pairwise(places):
        steps = max(abs(x1 - x0), abs(y1 - y0), 1)
        for i in range(steps + 1):
            x, y = x0 + (x1 - x0) * i // steps, y0 + (y1 - y0) * i // steps
            pixels[y][x] = pixels[min(y + 1, HEIGHT - 1)][x] = 0x20
    target.write_bytes(png(pixels))
