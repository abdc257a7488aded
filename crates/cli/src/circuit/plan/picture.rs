//! Picture of a week: the circuit of each rack in each day.
//!
//! Leaves out: the plan, and the SVG writer ([`anabranch_graph::picture`]). Read [`svg`] first.

use anabranch_graph::picture::{Svg, Theme, axis, shortened, text_width, tick};
use anabranch_units::Duration;
use std::collections::BTreeMap;

/// Days of a schedule.
pub(super) struct Week<'a> {
    pub title: String,
    /// Names of the racks, from the top.
    pub racks: &'a [String],
    /// Time before each day in which no circuit carries anything.
    pub night: Duration,
    /// Duration of each day, and its circuits: names of source and destination.
    pub days: Vec<(Duration, &'a [(String, String)])>,
}

const WIDTH: f64 = 1240.0;
const LEFT: f64 = 130.0;
const RIGHT: f64 = WIDTH - 32.0;
const TOP: f64 = 84.0;
/// Bounds of a row's height, in pixels. Names need rows of `NAMED` pixels.
const ROW: (f64, f64) = (4.0, 26.0);
const NAMED: f64 = 10.0;

/// Draws a week: a row for each source, time to the right, and a bar for each circuit in the colour
/// of its destination. Nights are gaps.
///
/// Shape: a self-contained SVG document, 1,240 pixels wide, with 4 to 26 pixels for each rack.
/// Cost: linear in the circuits.
pub(super) fn svg(week: &Week<'_>, theme: Theme) -> String {
    let look = theme.look();
    let row = (720.0 / week.racks.len().max(1) as f64).clamp(ROW.0, ROW.1);
    let bottom = TOP + row * week.racks.len() as f64;
    let size = (row * 0.5).clamp(8.0, 13.0);
    let rank: BTreeMap<&str, usize> =
        week.racks.iter().enumerate().map(|(rank, name)| (name.as_str(), rank)).collect();
    let length: f64 = week.days.iter().map(|(day, _)| micros(*day) + micros(week.night)).sum();
    let (step, end) = axis(length, false);
    let x = |us: f64| LEFT + us / end * (RIGHT - LEFT);

    let mut svg = Svg::new(WIDTH, bottom + 72.0, &week.title, theme);
    svg.text((32.0, 44.0), "start", 20.0, "600", look.ink, &week.title);
    if row >= NAMED {
        for (rank, name) in week.racks.iter().enumerate() {
            let y = TOP + row * (rank as f64 + 0.5) + size * 0.35;
            svg.text((LEFT - 10.0, y), "end", size, "400", look.dim, &shortened(name, size, LEFT - 42.0));
        }
    }
    for mark in 0..=(end / step).round() as usize {
        let us = mark as f64 * step;
        svg.line((x(us), TOP - 4.0), (x(us), bottom + 5.0), look.grid, 1.0, "");
        svg.text((x(us), bottom + 22.0), "middle", 13.0, "400", look.dim, &tick(us, step));
    }
    let middle = (LEFT + RIGHT) / 2.0;
    svg.text((middle, bottom + 48.0), "middle", 14.0, "400", look.ink, "time of the week (us)");

    let mut begin = 0.0;
    for (number, (day, circuits)) in week.days.iter().enumerate() {
        begin += micros(week.night);
        let (from, to) = (x(begin), x(begin + micros(*day)));
        begin += micros(*day);
        for (source, destination) in *circuits {
            let y = TOP + row * rank[source.as_str()] as f64;
            let colour = look.colour(rank[destination.as_str()]);
            let gap = if row >= NAMED { 1.0 } else { 0.2 };
            let about = format!("day {}, {day}: {source} -> {destination}", number + 1);
            svg.bar((from, y + gap), (to, y + row - gap), colour, &about);
            if row >= NAMED && text_width(destination, size) + 6.0 < to - from {
                let y = y + row / 2.0 + size * 0.35;
                svg.text(((from + to) / 2.0, y), "middle", size, "600", look.paper, destination);
            }
        }
    }
    svg.finish()
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(circuits: usize) -> String {
        let racks: Vec<String> = (0..4).map(|rack| format!("r{rack}<")).collect();
        let circuits: Vec<(String, String)> =
            (0..circuits).map(|rack| (racks[rack].clone(), racks[(rack + 1) % 4].clone())).collect();
        let days = vec![(Duration::from_us(180), &circuits[..]); 2];
        let week = Week { title: "a & b".into(), racks: &racks, night: Duration::from_us(20), days };
        svg(&week, Theme::Dark)
    }

    #[test]
    fn each_circuit_of_each_day_has_one_bar() {
        for circuits in [0, 1, 4] {
            assert_eq!(drawn(circuits).matches("<title>day ").count(), 2 * circuits);
        }
    }

    #[test]
    fn names_are_escaped() {
        let drawn = drawn(4);
        assert!(drawn.contains("a &amp; b") && drawn.contains("r0&lt;") && !drawn.contains("r0<"), "{drawn}");
    }

    #[test]
    fn bars_begin_after_the_night() {
        // The axis ends at 400 us, the first night at 20 us.
        let from = LEFT + 20.0 / 400.0 * (RIGHT - LEFT);
        assert!(drawn(1).contains(&format!(r#"<rect x="{from:.2}""#)), "{}", drawn(1));
    }
}
