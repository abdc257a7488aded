"""Captures of the simulator: packets of a pcapng file.

Standard library only, for the reason that `anabranch_lab.cells` states. Leaves out: other blocks than packets, files of the
other byte order, and times in other units than nanoseconds, which the simulator does not write. Read `packets` first.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterator
from pathlib import Path

#: Kind of a block with a packet (draft-ietf-opsawg-pcapng, Enhanced Packet Block), and bytes of the block before its packet.
ENHANCED_PACKET, HEAD_BYTES = 6, 28


@dataclasses.dataclass(frozen=True)
class Packet:
    """A captured packet.

    Attributes
    ----------
    time_ns
        Time since the run began.
    size_bytes
        Length on the link.
    head
        Bytes that the capture kept: the headers.
    """

    time_ns: int
    size_bytes: int
    head: bytes


def packets(capture: Path) -> Iterator[Packet]:
    """Yield the packets of a pcapng file in their order.

    Parameters
    ----------
    capture
        The file.
    """
    data = capture.read_bytes()
    at = 0
    while at < len(data):
        kind, length = struct.unpack_from("<II", data, at)
        if kind == ENHANCED_PACKET:
            high, low, kept, size_bytes = struct.unpack_from("<IIII", data, at + 12)
            begin = at + HEAD_BYTES
            yield Packet(high << 32 | low, size_bytes, data[begin : begin + kept])
        at += length
