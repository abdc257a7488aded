"""Files of requests for ``anabranch live evaluate --requests``, drawn with the statistics of ``live``'s generator.

A file decides what the generator does not: the order of requests, and whether a refused viewer may ask for a lower
bitrate. Places are left out, so `live evaluate` draws them. Constants and laws are those of
`crates/live-proto/src/plan/generator/demand.rs`: change both.

Read first: `RequestFile`.
"""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Callable, Sequence
from pathlib import Path

#: Bitrates of Average Day and of a game in kbit/s, and shares of requests by rung, as in the
#: generator.
AVERAGE_DAY_KBPS = (150, 300, 500, 800, 1_200, 1_600, 2_200, 3_000, 4_000, 5_000, 6_000, 8_000)
GAME_KBPS = (800, 1_600, 3_000, 5_000, 8_000)
RUNG_SHARES = (0.30, 0.12, 0.12, 0.16, 0.30)
#: Bitrates of Heavy-Tail in kbit/s, and shares of requests.
HEAVY_TAIL_KBPS = (400, 1_000, 4_500, 30_000)
HEAVY_TAIL_SHARES = (0.25, 0.275, 0.305, 0.17)
GAMES = 4
VIEWERS_PER_GAME = 1_000_000
#: Number of ladders from which the tilt is computed.
LADDERS_SAMPLED = 2_000
WINDOW_S = 60

#: Video, bitrate in kbit/s, and viewers.
Request = tuple[str, int, int]


@dataclasses.dataclass(frozen=True)
class Statistics:
    """Published statistics of a trace (§4.7.1)."""

    videos: int
    top_share: float
    top_requests: float
    mean_kbps: float
    shares: tuple[float, ...]


STATISTICS = {
    "average-day": Statistics(4_144, 0.07, 0.5, 2_725, RUNG_SHARES),
    "heavy-tail": Statistics(10_000, 0.01, 0.4, 6_850, HEAVY_TAIL_SHARES),
}


def root(low: float, high: float, function: Callable[[float], float]) -> float:
    """Return the zero of a monotonic function by bisection."""
    for _ in range(60):
        middle = (low + high) / 2
        if (function(low) < 0) == (function(middle) < 0):
            low = middle
        else:
            high = middle
    return low


@functools.cache
def exponent(workload: str) -> float:
    """Return the exponent of the Zipf law at which the most popular videos have their published share."""
    of = STATISTICS[workload]

    def total(count: int, power: float) -> float:
        return sum(float((rank + 1) ** -power) for rank in range(count))

    top = round(of.top_share * of.videos)
    return root(0, 3, lambda power: total(top, power) / total(of.videos, power) - of.top_requests)


def tilted(shares: Sequence[float], ladder: Sequence[int], tilt: float) -> list[float]:
    """Return the shares, each multiplied by a power of its bitrate."""
    return [share * (kbps / 1_000) ** tilt for share, kbps in zip(shares, ladder, strict=True)]


def tilt_to(mean_kbps: float, shares: Sequence[float], ladders: Sequence[tuple[Sequence[int], float]]) -> float:
    """Return the tilt at which the mean bitrate over ladders and their popularities is `mean_kbps`."""

    def excess(tilt: float) -> float:
        rate = weight = 0.0
        for ladder, popularity in ladders:
            of = tilted(shares, ladder, tilt)
            rate += popularity * sum(share * kbps for share, kbps in zip(of, ladder, strict=True)) / sum(of)
            weight += popularity
        return rate / weight - mean_kbps

    return root(-3, 3, excess)


def window(workload: str, videos: int, requests: int, source: random.Random) -> list[tuple[int, int]]:
    """Draw one window: the popularity rank of the video and the bitrate of each request."""
    of = STATISTICS[workload]
    popularity = [(rank + 1) ** -exponent(workload) for rank in range(videos)]
    is_tail = workload == "heavy-tail"

    def ladder() -> tuple[int, ...]:
        return HEAVY_TAIL_KBPS if is_tail else tuple(sorted(source.sample(AVERAGE_DAY_KBPS, len(RUNG_SHARES))))

    ladders = [ladder() for _ in range(videos)]
    sample = [HEAVY_TAIL_KBPS] if is_tail else ladders[:LADDERS_SAMPLED]
    tilt = tilt_to(of.mean_kbps, of.shares, list(zip(sample, popularity, strict=False)))
    ranks = source.choices(range(videos), popularity, k=requests)
    return [(rank, source.choices(ladders[rank], tilted(of.shares, ladders[rank], tilt))[0]) for rank in ranks]


def games() -> list[Request]:
    """Return the requests for the games of Large Event."""
    tilt = tilt_to(STATISTICS["average-day"].mean_kbps, RUNG_SHARES, [(GAME_KBPS, 1.0)])
    shares = tilted(RUNG_SHARES, GAME_KBPS, tilt)
    counts = [round(VIEWERS_PER_GAME * share / sum(shares)) for share in shares]
    return [(f"game{game}", kbps, count) for game in range(GAMES) for kbps, count in zip(GAME_KBPS, counts, strict=True)]


#: Sort keys of the orders of requests; `arrival` keeps the drawn order.
ORDERS: dict[str, Callable[[tuple[int, int]], float]] = {
    "arrival": lambda _: 0,
    "popular videos first": lambda request: request[0],
    "unpopular videos first": lambda request: -request[0],
    "high bitrates first": lambda request: -request[1],
    "low bitrates first": lambda request: request[1],
}


@dataclasses.dataclass(frozen=True)
class RequestFile:
    """A file of one window.

    Attributes
    ----------
    workload
        Trace whose statistics the requests have.
    videos, requests
        Sizes of the window.
    order
        Order of the requests, a key of `ORDERS`.
    has_retries
        Whether refused viewers may ask for the lower bitrates of their video that the window contains. Otherwise each
        bitrate is a video of its own.
    games
        Requests for the games of Large Event: `first`, `last`, or none.
    """

    workload: str
    videos: int
    requests: int
    order: str = "arrival"
    has_retries: bool = True
    games: str = ""

    def write(self, folder: Path, seed: int) -> Path:
        """Draw the window and write the file."""
        drawn = sorted(window(self.workload, self.videos, self.requests, random.Random(seed)), key=ORDERS[self.order])
        rows: list[Request] = [(f"{rank}" if self.has_retries else f"{rank}-{kbps}", kbps, 1) for rank, kbps in drawn]
        if self.games:
            rows = games() + rows if self.games == "first" else rows + games()
        # The window ends before `WINDOW_S`.
        times = ((WINDOW_S - 1) * at / len(rows) for at in range(len(rows)))
        lines = [f"{time:.6f},{video},{kbps},{count}" for time, (video, kbps, count) in zip(times, rows, strict=True)]
        path = folder / "requests.csv"
        path.write_text("\n".join(["time,video,bitrate_kbps,viewers", *lines]) + "\n")
        return path
