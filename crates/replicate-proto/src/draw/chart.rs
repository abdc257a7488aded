//! Delivered rate over time, one line per scheme, below the min-cut bound.
//!
//! Leaves out: the origin of the numbers. Read [`throughput_svg`] first.

use super::Theme;
use anabranch_graph::picture::{Svg, axis, shortened, tick};
use anabranch_units::{BitRate, Duration};

/// The delivered rate of one scheme, over time.
#[derive(Clone, Debug, PartialEq)]
pub struct ThroughputSeries {
    /// Name in the picture.
    pub name: String,
    /// Time since the transfer began and rate; ascending in time.
    pub points: Vec<(Duration, BitRate)>,
    /// Rate and duration of the whole transfer, for the legend. The points are averages and lag
    /// behind.
    pub whole: Option<(BitRate, Duration)>,
}

/// Maximum number of points of a series; of a longer series every second, third, … point is drawn.
const POINTS_MAX: usize = 1_000;

/// Draws the rate of each series over time, in Mbit/s and seconds, and the bound as a dashed line.
///
/// Shape: a self-contained SVG document, 1080 by 560 pixels plus a line for each series after the
/// twelfth.
/// Cost: linear in the points; at most 1,000 points per series are drawn.
pub fn throughput_svg(
    title: &str,
    series: &[ThroughputSeries],
    bound: Option<BitRate>,
    theme: Theme,
) -> String {
    let look = theme.look();
    let (width, height) = (1080.0, 560.0 + 38.0 * series.len().saturating_sub(11) as f64);
    let (left, top, right, bottom) = (84.0, 84.0, 790.0, 560.0 - 70.0);
    let mut svg = Svg::new(width, height, title, theme);
    svg.text((32.0, 44.0), "start", 20.0, "600", look.ink, title);

    let points = || series.iter().flat_map(|s| &s.points);
    let time_max = points().map(|p| p.0.as_secs_f64()).fold(0.0, f64::max);
    let rate_max =
        points().map(|p| p.1.as_mbps_f64()).chain(bound.map(|b| b.as_mbps_f64())).fold(0.0, f64::max);
    let (time_step, time_end) = axis(time_max, false);
    let (rate_step, rate_end) = axis(rate_max, true);
    let x = |s: f64| left + s / time_end * (right - left);
    let y = |mbps: f64| bottom - mbps / rate_end * (bottom - top);

    for i in 0.. {
        let mbps = i as f64 * rate_step;
        if mbps > rate_end * (1.0 + 1e-9) {
            break;
        }
        svg.line((left, y(mbps)), (right, y(mbps)), if i == 0 { look.ink } else { look.grid }, 1.0, "");
        svg.text((left - 10.0, y(mbps) + 4.5), "end", 13.0, "400", look.dim, &tick(mbps, rate_step));
    }
    for i in 0.. {
        let s = i as f64 * time_step;
        if s > time_end * (1.0 + 1e-9) {
            break;
        }
        svg.line((x(s), bottom), (x(s), bottom + 5.0), look.ink, 1.0, "");
        svg.text((x(s), bottom + 22.0), "middle", 13.0, "400", look.dim, &tick(s, time_step));
    }
    svg.text(
        ((left + right) / 2.0, bottom + 48.0),
        "middle",
        14.0,
        "400",
        look.ink,
        "time since the start (s)",
    );
    svg.text((32.0, top - 14.0), "start", 14.0, "400", look.ink, "delivered (Mbit/s)");

    let mut row = top + 12.0;
    if let Some(bound) = bound {
        let mbps = bound.as_mbps_f64();
        svg.line((left, y(mbps)), (right, y(mbps)), look.ink, 1.6, "7 5");
        svg.line((right + 28.0, row - 4.5), (right + 58.0, row - 4.5), look.ink, 1.6, "7 5");
        svg.text((right + 68.0, row), "start", 14.0, "600", look.ink, "min-cut bound");
        svg.text((right + 68.0, row + 16.0), "start", 12.0, "400", look.dim, &bound.to_string());
        row += 38.0;
    }
    for (i, one) in series.iter().enumerate() {
        let colour = look.colour(i);
        let stride = one.points.len().div_ceil(POINTS_MAX).max(1);
        let last = one.points.len().saturating_sub(1);
        let drawn = one.points.iter().enumerate().filter(|(i, _)| i % stride == 0 || *i == last);
        let path: Vec<_> = drawn.map(|(_, p)| (x(p.0.as_secs_f64()), y(p.1.as_mbps_f64()))).collect();
        svg.polyline(&path, colour, 2.4);
        if let Some(end) = path.last() {
            svg.circle(*end, 4.5, colour, look.paper, 1.5);
        }
        svg.line((right + 28.0, row - 4.5), (right + 58.0, row - 4.5), colour, 3.0, "");
        svg.text((right + 68.0, row), "start", 14.0, "600", look.ink, &shortened(&one.name, 14.0, 200.0));
        svg.text((right + 68.0, row + 16.0), "start", 12.0, "400", look.dim, &summary(one));
        row += 38.0;
    }
    svg.finish()
}

/// Text after a series' name.
fn summary(series: &ThroughputSeries) -> String {
    series.whole.map_or_else(
        || "not whole".into(),
        |(rate, time)| format!("{:.2} Mbit/s, {:.1} s", rate.as_mbps_f64(), time.as_secs_f64()),
    )
}
