//! SVG pictures: a writer of the document, colours, and axes.
//!
//! Leaves out: rendering to pixels, and fonts: the viewer's default sans-serif is used, and widths
//! are estimated. The same input gives the same text. Read [`Svg`] and [`Theme`] first.

use anabranch_units::text::printable;
use std::fmt::Write;

/// A point of a picture: x to the right, y down, in pixels.
pub type Point = (f64, f64);

/// Light or dark background.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Theme {
    /// Dark on white.
    #[default]
    Light,
    /// Light on near black.
    Dark,
}

/// The colours of a theme.
#[derive(Debug)]
pub struct Look {
    /// Background.
    pub paper: &'static str,
    /// Text and axes.
    pub ink: &'static str,
    /// Secondary text.
    pub dim: &'static str,
    /// Grid lines.
    pub grid: &'static str,
    /// Cables without flows.
    pub cable: &'static str,
    /// Filling of a site.
    pub site: &'static str,
    /// Filling of a source.
    pub source: &'static str,
    /// Colours of flows and series, in order.
    pub flows: [&'static str; 10],
}

impl Theme {
    /// The colours of the theme.
    pub fn look(self) -> Look {
        match self {
            Self::Light => Look {
                paper: "#ffffff",
                ink: "#1c2430",
                dim: "#5b6673",
                grid: "#e4e8ed",
                cable: "#c9d0d8",
                site: "#f2f4f7",
                source: "#f5b700",
                flows: [
                    "#0068b5", "#d1481b", "#00875f", "#a0379b", "#b07800", "#5b4fc9", "#0091a8", "#8a5a2b",
                    "#5c8000", "#c2184b",
                ],
            },
            Self::Dark => Look {
                paper: "#12161c",
                ink: "#e8ecf1",
                dim: "#9aa5b1",
                grid: "#262d36",
                cable: "#414b57",
                site: "#222a33",
                source: "#f5b700",
                flows: [
                    "#5db4ff", "#ff8a5c", "#3ddba4", "#e78be2", "#f0c04a", "#a89dff", "#4fd8ea", "#d3a06c",
                    "#b3dd4e", "#ff7fa3",
                ],
            },
        }
    }
}

impl Look {
    /// The colour of a series or flow, by its number.
    pub fn colour(&self, i: usize) -> &'static str {
        self.flows[i % self.flows.len()]
    }
}

/// A point between two points, offset to the right of the direction from the first to the second.
pub fn beside(a: Point, b: Point, t: f64, off: f64) -> Point {
    let (dx, dy) = (b.0 - a.0, b.1 - a.1);
    let length = dx.hypot(dy).max(1e-9);
    (a.0 + dx * t - dy / length * off, a.1 + dy * t + dx / length * off)
}

/// Estimated width of a text: most letters of the usual sans-serif fonts are narrower than 0.6
/// times their size.
pub fn text_width(text: &str, size: f64) -> f64 {
    text.chars().count() as f64 * size * 0.6
}

/// An SVG document under construction. Coordinates are pixels from the upper left corner.
#[derive(Debug)]
pub struct Svg {
    out: String,
}

/// Writing to a `String` cannot fail.
macro_rules! put {
    ($svg:expr, $($what:tt)*) => { let _ = writeln!($svg.out, $($what)*); };
}

impl Svg {
    /// Begins a document with a title and the background of a theme.
    pub fn new(width: f64, height: f64, title: &str, theme: Theme) -> Self {
        let mut svg = Self { out: String::new() };
        put!(
            svg,
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" font-family="Inter, 'Segoe UI', 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif" role="img">"#
        );
        put!(svg, "<title>{}</title>", escaped(title));
        put!(svg, r#"<rect width="{width}" height="{height}" fill="{}"/>"#, theme.look().paper);
        svg
    }
    /// Ends the document, and returns its text.
    pub fn finish(mut self) -> String {
        self.out.push_str("</svg>\n");
        self.out
    }
    /// Adds a line; `dash` is a dash pattern, or empty.
    pub fn line(&mut self, a: Point, b: Point, stroke: &str, width: f64, dash: &str) {
        let dash = if dash.is_empty() { String::new() } else { format!(r#" stroke-dasharray="{dash}""#) };
        put!(
            self,
            r#"<line x1="{:.1}" y1="{:.1}" x2="{:.1}" y2="{:.1}" stroke="{stroke}" stroke-width="{width}"{dash}/>"#,
            a.0,
            a.1,
            b.0,
            b.1
        );
    }
    /// Adds a line through points.
    pub fn polyline(&mut self, points: &[Point], stroke: &str, width: f64) {
        let points: Vec<_> = points.iter().map(|p| format!("{:.1},{:.1}", p.0, p.1)).collect();
        put!(
            self,
            r#"<polyline points="{}" fill="none" stroke="{stroke}" stroke-width="{width}" stroke-linejoin="round"/>"#,
            points.join(" ")
        );
    }
    /// Adds a circle.
    pub fn circle(&mut self, p: Point, r: f64, fill: &str, stroke: &str, width: f64) {
        put!(
            self,
            r#"<circle cx="{:.1}" cy="{:.1}" r="{r}" fill="{fill}" stroke="{stroke}" stroke-width="{width}"/>"#,
            p.0,
            p.1
        );
    }
    /// Adds a square with round corners.
    pub fn square(&mut self, p: Point, half: f64, fill: &str, stroke: &str, width: f64) {
        put!(
            self,
            r#"<rect x="{:.1}" y="{:.1}" width="{w}" height="{w}" rx="4" fill="{fill}" stroke="{stroke}" stroke-width="{width}"/>"#,
            p.0 - half,
            p.1 - half,
            w = half * 2.0
        );
    }
    /// Adds a bar from its upper left to its lower right corner. `about` is shown by a viewer that
    /// points at it.
    pub fn bar(&mut self, from: Point, to: Point, fill: &str, about: &str) {
        put!(
            self,
            r#"<rect x="{:.2}" y="{:.1}" width="{:.2}" height="{:.1}" fill="{fill}"><title>{}</title></rect>"#,
            from.0,
            from.1,
            to.0 - from.0,
            to.1 - from.1,
            escaped(about)
        );
    }
    /// Adds a box with round ends around a point.
    pub fn pill(&mut self, p: Point, width: f64, height: f64, fill: &str, stroke: &str) {
        put!(
            self,
            r#"<rect x="{:.1}" y="{:.1}" width="{width:.1}" height="{height:.1}" rx="{:.1}" fill="{fill}" stroke="{stroke}" stroke-width="1.4"/>"#,
            p.0 - width / 2.0,
            p.1 - height / 2.0,
            height / 2.0
        );
    }
    /// Adds a star with five points.
    pub fn star(&mut self, p: Point, r: f64, fill: &str, stroke: &str) {
        let corner = |i: u32| {
            let turn = f64::from(i) * std::f64::consts::PI / 5.0 - std::f64::consts::FRAC_PI_2;
            let r = if i.is_multiple_of(2) { r } else { r * 0.58 };
            format!("{:.1},{:.1}", p.0 + r * turn.cos(), p.1 + r * turn.sin())
        };
        let corners: Vec<_> = (0..10).map(corner).collect();
        put!(
            self,
            r#"<polygon points="{}" fill="{fill}" stroke="{stroke}" stroke-width="1.8" stroke-linejoin="round"/>"#,
            corners.join(" ")
        );
    }
    /// Adds the head of an arrow.
    pub fn arrow_head(&mut self, from: Point, tip: Point, size: f64, fill: &str) {
        let length = (tip.0 - from.0).hypot(tip.1 - from.1).max(1e-9);
        let back = 1.0 - size / length;
        let (l, r) = (beside(from, tip, back, -size * 0.42), beside(from, tip, back, size * 0.42));
        put!(
            self,
            r#"<polygon points="{:.1},{:.1} {:.1},{:.1} {:.1},{:.1}" fill="{fill}"/>"#,
            tip.0,
            tip.1,
            l.0,
            l.1,
            r.0,
            r.1
        );
    }
    /// Adds text that stays readable on top of a line.
    pub fn haloed(&mut self, p: Point, size: f64, weight: &str, fill: &str, halo: &str, text: &str) {
        put!(
            self,
            r#"<text x="{:.1}" y="{:.1}" text-anchor="middle" font-size="{size}" font-weight="{weight}" fill="{fill}" stroke="{halo}" stroke-width="4" stroke-linejoin="round" paint-order="stroke">{}</text>"#,
            p.0,
            p.1,
            escaped(text)
        );
    }
    /// Adds text at a point; `anchor` is `start`, `middle` or `end`.
    pub fn text(&mut self, p: Point, anchor: &str, size: f64, weight: &str, fill: &str, text: &str) {
        put!(
            self,
            r#"<text x="{:.1}" y="{:.1}" text-anchor="{anchor}" font-size="{size}" font-weight="{weight}" fill="{fill}">{}</text>"#,
            p.0,
            p.1,
            escaped(text)
        );
    }
}

/// Text in a form that XML allows: unprintable characters are replaced (XML forbids control
/// characters), markup is escaped.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in printable(text).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c => out.push(c),
        }
    }
    out
}

/// Shortens a text to a width, with `…` at its end.
pub fn shortened(text: &str, size: f64, width: f64) -> String {
    let mut short = text.to_owned();
    while text_width(&short, size) > width {
        let keep = short.chars().count().saturating_sub(2);
        short = short.chars().take(keep).collect::<String>() + "…";
    }
    short
}

/// A round step and end for an axis from 0 that contains `most`; with some space above if `air`.
pub fn axis(most: f64, air: bool) -> (f64, f64) {
    if most.is_nan() || most <= 0.0 {
        return (1.0, 5.0);
    }
    let rough = most / 5.0;
    let magnitude = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0].map(|m| m * magnitude).into_iter().find(|s| *s >= rough);
    let step = step.unwrap_or(10.0 * magnitude);
    let end = (most / step).ceil() * step;
    (step, if air && end - most < step * 0.15 { end + step } else { end })
}

/// Formats a value of an axis with the digits of its step.
pub fn tick(value: f64, step: f64) -> String {
    let decimals = (-(step.log10() + 1e-9).floor()).max(0.0) as usize;
    // 2.5 needs one decimal more than its magnitude.
    let exact = (step * 10f64.powi(decimals as i32)).fract() < 1e-9;
    format!("{value:.*}", decimals + usize::from(!exact))
}
