"""Captures of the simulator."""

from __future__ import annotations

import struct
from pathlib import Path

from anabranch_lab.captures import Packet, packets


def block(kind: int, body: bytes) -> bytes:
    """Return a block of a pcapng file."""
    length = 12 + len(body)
    return struct.pack("<II", kind, length) + body + struct.pack("<I", length)


def test_packets_are_read_between_other_blocks(tmp_path: Path) -> None:
    time_ns = (5 << 32) + 7
    enhanced = block(6, struct.pack("<IIIII", 0, 5, 7, 4, 9_000) + b"head")
    capture = tmp_path / "packets.pcapng"
    capture.write_bytes(block(0x0A0D0D0A, bytes(16)) + block(1, bytes(8)) + enhanced + block(5, bytes(8)) + enhanced)
    assert list(packets(capture)) == [Packet(time_ns, 9_000, b"head")] * 2
