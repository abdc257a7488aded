"""Contents of figures: they show only measured values."""

from pathlib import Path

import pandas as pd

from anabranch_lab import claims
from anabranch_lab.claims import Published
from anabranch_lab.figures import THEMES, draw, save_themed
from anabranch_lab.stats import spread

#: Two peaks, as goodput with and without a timeout: Student's t would reach from below 0 to above 1,000.
ROWS = pd.DataFrame(
    {"servers": [1] * 4 + [2] * 4, "goodput_mbps": [0.0, 1000.0, 1000.0, 1000.0, 0.0, 0.0, 0.0, 1000.0]}
)


def test_band_stays_within_the_range_of_trials() -> None:
    """#17: bands of one-gigabit links reached 1,265 Mbit/s, and 0."""
    table = spread(ROWS, "goodput_mbps", by="servers")
    assert (table["low"] >= 0).all()
    assert (table["high"] <= 1000).all()
    assert ((table["low"] <= table["mean"]) & (table["mean"] <= table["high"])).all()
    rare = pd.DataFrame({"x": [1] * 40, "y": [1.0] * 39 + [100.0]})
    assert spread(rare, "y", by="x").loc[0, "high"] == 1.0 + 99 / 40, "a mean beyond the quantiles is in the band"


def test_counts_have_whole_ticks_and_labels_their_source() -> None:
    """#17: axes showed 2.5 servers, and a user's own labels were called ours."""
    [axes] = draw(ROWS, "servers", "goodput_mbps").axes
    assert all(tick == int(tick) for tick in axes.get_xticks())
    assert axes.get_lines()[0].get_label() == "goodput_mbps"
    published = [Published(label="paper", line=None, points=[[1, 900.0]])]
    [axes] = draw(ROWS, "servers", "goodput_mbps", published=published).axes
    assert [line.get_label() for line in axes.get_lines()] == ["goodput_mbps, ours", "paper"]


def test_a_figure_is_written_light_and_dark(tmp_path: Path) -> None:
    paths = save_themed(lambda theme: draw(ROWS, "servers", "goodput_mbps", theme=theme), tmp_path, "one", {})
    assert {path.name for path in paths} == {"one.svg", "one.png", "one-dark.svg", "one-dark.png"}
    assert THEMES["dark"].paper in (tmp_path / "one-dark.svg").read_text()


def test_readmes_count_the_expected_values() -> None:
    """#17: the count of 84 of 134 treated goals of our own as published values."""
    experiments = Path(__file__).parents[2] / "experiments"
    said = {}
    for name in ("lttp", "codedbulk-full-rate", "incast"):
        counts = {False: [0, 0], True: [0, 0]}
        for row in claims.Claim.read(experiments / name).expected.values():
            own = counts[row.source.startswith(claims.OWN)]
            ours = None if row.ours == "none" else float(row.ours)
            own[0] += claims.is_within(ours, row.published, row.tolerance)
            own[1] += 1
        said[name] = (*counts[False], *counts[True])
    assert said == {"lttp": (61, 100, 23, 34), "codedbulk-full-rate": (7, 36, 4, 12), "incast": (19, 32, 0, 0)}
