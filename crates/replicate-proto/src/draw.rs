//! Pictures as SVG: a plan on its topology, and delivered rate over time.
//!
//! A cable is a grey line; a flow is a coloured arrow next to it, on the right in the direction of
//! the data. Colours show the content of a flow: its tree or path (routed), or its combination of
//! the streams (coded). Streams are called `A`, `B`, `C`…; `3·B` is `B` times 3 in GF(2^8), `B′` is
//! `B` of one generation earlier.
//!
//! Leaves out: rendering to pixels, and fonts: the viewer's default sans-serif is used, and widths
//! are estimated. The same input gives the same text. Read [`svg`] and [`throughput_svg`] first.

mod chart;
mod layout;

pub use anabranch_graph::picture::Theme;
pub use chart::{ThroughputSeries, throughput_svg};

use crate::plan::{Flow, Input, Plan, Scheme, Term};
use anabranch_graph::Topology;
use anabranch_graph::picture::{Look, Point, Svg, beside, text_width};
use anabranch_units::{BitRate, Duration, SiteId};
use layout::nearest_on;
use std::collections::BTreeMap;

const WIDTH: f64 = 1240.0;
const FRAME: layout::Frame = (110.0, 140.0, WIDTH - 110.0, 680.0);
const SITE_RADIUS: f64 = 17.0;
/// Dash pattern of the line of a filling flow.
const FILL_DASH: &str = "7 5";
/// Distance from a link's centre line to its first flow, and between flows.
const LANE: f64 = 8.0;
/// Maximum delay in generations that a label shows; a longer feedback of a cyclic code is shown as
/// `…`.
const DELAY_MAX: usize = 4;

/// Draws the topology and, if given, the plan on it.
///
/// Shape: a self-contained SVG document, 1,240 pixels wide.
/// Panics: if the plan does not belong to this topology.
/// Cost: quadratic in the number of sites up to about a thousand; larger networks get a simpler
/// layout.
pub fn svg(topology: &Topology, plan: Option<&Plan>, theme: Theme) -> String {
    let look = theme.look();
    let at = layout::positions(topology, plan.map(|p| p.source), FRAME);
    let carried = plan.map(|plan| Content::of(topology, plan));
    let legend = legend_rows(topology, plan, carried.as_ref());
    let height = FRAME.3 + 80.0 + 28.0 * legend.len() as f64;
    let (title, subtitle) = titles(topology, plan);
    let mut svg = Svg::new(WIDTH, height, &title, theme);
    svg.text((36.0, 50.0), "start", 22.0, "600", look.ink, &title);
    svg.text((36.0, 76.0), "start", 14.0, "400", look.dim, &subtitle);

    let used = sites_used(topology, plan);
    let mut busy = Area { boxes: Vec::new(), lines: Vec::new() };
    for p in &at {
        busy.boxes.push(Box2::around(*p, SITE_RADIUS * 2.0 + 8.0, SITE_RADIUS * 2.0 + 8.0));
    }
    draw_cables(&mut svg, topology, &at, &look, &mut busy);
    let arrows = match (plan, &carried) {
        (Some(plan), Some(carried)) => draw_flows(&mut svg, topology, plan, carried, &at, &look, &mut busy),
        _ => Vec::new(),
    };
    for site in topology.site_ids() {
        let coding = carried.as_ref().is_some_and(|c| c.sums.contains_key(&site));
        draw_site(
            &mut svg,
            site,
            at[site.index()],
            Role::of(topology, site, plan),
            coding,
            used[site.index()],
            &look,
        );
    }
    // Names are placed first, because they have fewer possible positions than the labels of arrows
    // and cables. Crowded sites are placed before free ones.
    let mut order: Vec<SiteId> = topology.site_ids().collect();
    let badges = |site: &SiteId| carried.as_ref().and_then(|c| c.sums.get(site)).map_or(0, Vec::len);
    order.sort_by_key(|site| (std::cmp::Reverse(badges(site)), *site));
    for site in order {
        let sums = carried.as_ref().and_then(|c| c.sums.get(&site)).map_or(&[][..], |s| s);
        let ink = if used[site.index()] { look.ink } else { look.dim };
        draw_name(&mut svg, &topology.site(site).name, sums, at[site.index()], ink, &look, &mut busy);
    }
    if let Some(carried) = carried.as_ref().filter(|c| c.classes.len() > 1) {
        draw_contents(&mut svg, carried, &arrows, &look, &mut busy);
    }
    draw_labels(&mut svg, topology, plan.is_none(), &at, &look, &mut busy);
    draw_legend(&mut svg, &legend, &look);
    svg.finish()
}

fn titles(topology: &Topology, plan: Option<&Plan>) -> (String, String) {
    let Some(plan) = plan else {
        let (sites, links) = (topology.sites().len(), topology.links().len());
        let capacities = topology.links().iter().map(|l| l.properties.capacity);
        let capacity = match (capacities.clone().min(), capacities.max()) {
            (Some(least), Some(most)) if least == most => format!(", {least} each"),
            (Some(least), Some(most)) => format!(", {least} to {most}"),
            _ => String::new(),
        };
        let delay = one_delay(topology).map_or(String::new(), |d| format!(", {d} each way"));
        return (
            topology.name().to_owned(),
            format!("{sites} sites, {links} directed links{capacity}{delay}"),
        );
    };
    let scheme = match plan.scheme {
        Scheme::Coded => "coded",
        Scheme::Packed => "packed",
        Scheme::Steiner => "steiner",
        Scheme::SteinerStoreAndForward => "steiner, store and forward",
        Scheme::SteinerOneTree => "steiner, one tree",
        Scheme::MultiPath => "multi_path",
        Scheme::SinglePath => "single_path",
    };
    let name = |s: &SiteId| topology.site(*s).name.clone();
    let mut to: String = plan.destinations.iter().map(name).collect::<Vec<_>>().join(", ");
    if to.len() > 90 {
        to = format!("{} destinations", plan.destinations.len());
    }
    let links = one_capacity(topology).map_or(String::new(), |capacity| format!(" · links of {capacity}"));
    let share = match plan.bound.as_bps() {
        0 => String::new(),
        bound => format!(" ({:.0} %)", 100.0 * plan.rate.as_bps() as f64 / bound as f64),
    };
    let units = plan.flow_units().into_iter();
    let flows = match (units.clone().min(), units.max()) {
        (Some(least), Some(most)) if least < most => {
            format!("flows of {} to {}", plan.unit * least, plan.unit * most)
        }
        _ => format!("{} per flow", plan.unit),
    };
    (
        format!("{scheme}: {} of the min-cut's {}{share}", plan.rate, plan.bound),
        format!("{}: {} to {to}{links} · {flows}", topology.name(), name(&plan.source)),
    )
}

/// Sites that the plan uses; all sites if there is no plan.
fn sites_used(topology: &Topology, plan: Option<&Plan>) -> Vec<bool> {
    let mut used = vec![plan.is_none(); topology.sites().len()];
    if let Some(plan) = plan {
        used[plan.source.index()] = true;
        plan.destinations.iter().for_each(|d| used[d.index()] = true);
        for flow in &plan.flows {
            let link = topology.link(flow.link);
            used[link.from.index()] = true;
            used[link.to.index()] = true;
        }
    }
    used
}

/// Maximum length of a sum that is written on an arrow.
const CLASS_CHARS_MAX: usize = 12;

/// Contents of the flows of a plan in terms of its streams, and their labels.
struct Content {
    /// Class of each flow.
    class: Vec<usize>,
    /// Label of each class: its sum, or `f1`, `f2`… if the sum is too long. Short sums come first.
    classes: Vec<String>,
    /// The sums of classes whose label is not the sum.
    long_sums: Vec<Option<String>>,
    /// Whether only filling flows carry the class, by class.
    fill: Vec<bool>,
    /// The different sums that each coding site sends, as they are computed.
    sums: BTreeMap<SiteId, Vec<String>>,
}

/// Coefficients by stream and generations of delay; zeros are left out.
type Combination = BTreeMap<(u16, usize), u8>;

impl Content {
    fn of(topology: &Topology, plan: &Plan) -> Self {
        // Streams are numbered through all groups, so that each letter has one meaning.
        let mut first = vec![0u16];
        for group in &plan.groups {
            let before = first.last().copied().unwrap_or(0);
            first.push(before.saturating_add(group.streams));
        }
        let stream = |flow: &Flow, s: u16| first[usize::from(flow.group)].saturating_add(s);
        let combinations = combinations(plan, &stream);

        let mut distinct: Vec<&Combination> = combinations.iter().collect();
        distinct.sort_by_cached_key(|c| {
            (c.len(), c.keys().copied().collect::<Vec<_>>(), c.values().copied().collect::<Vec<_>>())
        });
        distinct.dedup();
        let numbers: BTreeMap<_, _> = distinct.iter().enumerate().map(|(i, c)| (*c, i)).collect();
        let class: Vec<usize> = combinations.iter().map(|c| numbers[c]).collect();
        let (mut classes, mut long_sums) = (Vec::new(), Vec::new());
        for combination in &distinct {
            let sum = written(combination);
            let is_long = sum.chars().count() > CLASS_CHARS_MAX;
            let name = format!("f{}", long_sums.iter().flatten().count() + 1);
            classes.push(if is_long { name } else { sum.clone() });
            long_sums.push(is_long.then_some(sum));
        }

        let mut sums: BTreeMap<SiteId, Vec<String>> = BTreeMap::new();
        for (flow, class_of) in plan.flows.iter().zip(&class).filter(|(f, _)| f.terms.len() > 1) {
            let term = |t: &Term| {
                let (first, mut text) = match t.input {
                    Input::Stream(s) => (Some(stream(flow, s)), letter(stream(flow, s))),
                    Input::Flow(f) => {
                        let (input, text) = (distinct[class[f.index()]], &classes[class[f.index()]]);
                        let is_sum = input.len() > 1 && long_sums[class[f.index()]].is_none();
                        let text = if is_sum { format!("({text})") } else { text.clone() };
                        (input.keys().next().map(|k| k.0), text)
                    }
                };
                if t.delayed {
                    text.push('′');
                }
                (first, if t.coefficient == 1 { text } else { format!("{}·{text}", t.coefficient) })
            };
            // In the order of the streams, independent of the order in the plan.
            let mut terms: Vec<_> = flow.terms.iter().map(term).collect();
            terms.sort();
            let made = terms.into_iter().map(|(_, text)| text).collect::<Vec<_>>().join("+");
            let result = &classes[*class_of];
            let sum = if made == *result { made } else { format!("{made} = {result}") };
            let at_site = sums.entry(topology.link(flow.link).from).or_default();
            if !at_site.contains(&sum) {
                at_site.push(sum);
            }
        }
        // Streams are numbered through all groups, so a class never belongs to two groups.
        let mut fill = vec![false; classes.len()];
        plan.flows.iter().zip(&class).for_each(|(flow, class)| fill[*class] = plan.fills(flow));
        Self { class, classes, long_sums, fill, sums }
    }
}

/// The contents of each flow, with up to [`DELAY_MAX`] generations of delay.
fn combinations(plan: &Plan, stream: &impl Fn(&Flow, u16) -> u16) -> Vec<Combination> {
    let mut carried = vec![Combination::new(); plan.flows.len()];
    // A flow is correct once its inputs are: after as many rounds as the longest chain of flows.
    // Flows are mostly numbered from the source on, so a few rounds suffice.
    for _ in 0..=plan.flows.len() * (DELAY_MAX + 1) {
        let mut changed = false;
        for (i, flow) in plan.flows.iter().enumerate() {
            let mut sum = Combination::new();
            for term in &flow.terms {
                let back = usize::from(term.delayed);
                let mut add = |of: (u16, usize), coefficient: u8| {
                    let total = sum.entry(of).or_default();
                    *total ^= times(term.coefficient, coefficient);
                    if *total == 0 {
                        sum.remove(&of);
                    }
                };
                match term.input {
                    Input::Stream(s) => add((stream(flow, s), back), 1),
                    Input::Flow(f) => {
                        for ((s, delay), coefficient) in &carried[f.index()] {
                            if delay + back <= DELAY_MAX {
                                add((*s, delay + back), *coefficient);
                            }
                        }
                    }
                }
            }
            if sum != carried[i] {
                carried[i] = sum;
                changed = true;
            }
        }
        if !changed {
            break;
        }
    }
    carried
}

/// Product in GF(2^8) with polynomial 0x11D, bit by bit: a few dozen per picture.
fn times(mut a: u8, mut b: u8) -> u8 {
    let mut product = 0;
    while b != 0 {
        if b & 1 != 0 {
            product ^= a;
        }
        a = (a << 1) ^ if a & 0x80 != 0 { 0x1D } else { 0 };
        b >>= 1;
    }
    product
}

/// Name of a stream: `A` to `Z`, then `S26`, `S27`, ….
fn letter(stream: u16) -> String {
    match u8::try_from(stream) {
        Ok(s) if s < 26 => char::from(b'A' + s).to_string(),
        _ => format!("S{stream}"),
    }
}

fn written(combination: &Combination) -> String {
    const TERMS_MAX: usize = 6;
    let term = |((stream, delay), coefficient): (&(u16, usize), &u8)| {
        let text = letter(*stream) + &"′".repeat(*delay);
        if *coefficient == 1 { text } else { format!("{coefficient}·{text}") }
    };
    let mut terms: Vec<_> = combination.iter().take(TERMS_MAX).map(term).collect();
    // At the last generation that is examined, a code with feedback has older generations behind
    // it.
    if combination.len() > TERMS_MAX || combination.keys().any(|(_, delay)| *delay == DELAY_MAX) {
        terms.push("…".into());
    }
    if terms.is_empty() { "0".into() } else { terms.join("+") }
}

/// Role of a site in the plan.
#[derive(Copy, Clone, PartialEq)]
enum Role {
    Source,
    /// A destination, and whether it also relays.
    Destination(bool),
    Other,
}

impl Role {
    fn of(topology: &Topology, site: SiteId, plan: Option<&Plan>) -> Self {
        match plan {
            Some(plan) if plan.source == site => Self::Source,
            Some(plan) if plan.destinations.contains(&site) => {
                Self::Destination(plan.flows.iter().any(|f| topology.link(f.link).from == site))
            }
            _ => Self::Other,
        }
    }
}

/// An axis-parallel rectangle: left, top, right, bottom.
#[derive(Copy, Clone)]
struct Box2(f64, f64, f64, f64);

impl Box2 {
    fn around(p: Point, width: f64, height: f64) -> Self {
        Self(p.0 - width / 2.0, p.1 - height / 2.0, p.0 + width / 2.0, p.1 + height / 2.0)
    }
    fn overlap(&self, other: &Self) -> f64 {
        let width = self.2.min(other.2) - self.0.max(other.0);
        let height = self.3.min(other.3) - self.1.max(other.1);
        if width > 0.0 && height > 0.0 { width * height } else { 0.0 }
    }
    /// Length of the part of a segment inside the rectangle.
    fn crossed(&self, ((ax, ay), (bx, by)): (Point, Point)) -> f64 {
        let (mut enter, mut leave) = (0.0f64, 1.0f64);
        for (start, delta, low, high) in [(ax, bx - ax, self.0, self.2), (ay, by - ay, self.1, self.3)] {
            if delta.abs() < 1e-9 {
                if start < low || start > high {
                    return 0.0;
                }
                continue;
            }
            let (t, u) = ((low - start) / delta, (high - start) / delta);
            enter = enter.max(t.min(u));
            leave = leave.min(t.max(u));
        }
        (leave - enter).max(0.0) * (bx - ax).hypot(by - ay)
    }
}

/// The occupied areas that labels avoid.
struct Area {
    boxes: Vec<Box2>,
    lines: Vec<(Point, Point)>,
}

impl Area {
    /// Cost of a label at this position.
    fn cost(&self, label: &Box2) -> f64 {
        let outside = (FRAME.0 - 90.0 - label.0).max(0.0)
            + (label.2 - FRAME.2 - 90.0).max(0.0)
            + (FRAME.1 - 50.0 - label.1).max(0.0)
            + (label.3 - FRAME.3 - 56.0).max(0.0);
        let boxes: f64 = self.boxes.iter().map(|b| b.overlap(label)).sum();
        let lines: f64 = self.lines.iter().map(|l| label.crossed(*l)).sum();
        outside * 1_000.0 + boxes * 20.0 + lines
    }
}

/// The pairs of connected sites, smaller id first, with the number of links in each direction.
fn cables(topology: &Topology) -> BTreeMap<(SiteId, SiteId), (usize, usize)> {
    let mut cables: BTreeMap<_, (usize, usize)> = BTreeMap::new();
    for link in topology.links() {
        if link.from < link.to {
            cables.entry((link.from, link.to)).or_default().0 += 1;
        } else {
            cables.entry((link.to, link.from)).or_default().1 += 1;
        }
    }
    cables
}

fn draw_cables(svg: &mut Svg, topology: &Topology, at: &[Point], look: &Look, busy: &mut Area) {
    for ((a, b), (there, back)) in cables(topology) {
        let (p, q) = (at[a.index()], at[b.index()]);
        let width = 3.0 + 2.0 * (there.max(back) - 1).min(4) as f64;
        svg.line(p, q, look.cable, width, "");
        busy.lines.push((p, q));
        if there == 0 || back == 0 {
            let (from, to) = if back == 0 { (p, q) } else { (q, p) };
            let length = (to.0 - from.0).hypot(to.1 - from.1).max(1e-9);
            let tip = beside(from, to, 1.0 - (SITE_RADIUS + 5.0) / length, 0.0);
            svg.arrow_head(from, tip, 11.0, look.cable);
        }
    }
}

/// Draws every flow as an arrow and returns the ends of the arrows.
fn draw_flows(
    svg: &mut Svg,
    topology: &Topology,
    plan: &Plan,
    carried: &Content,
    at: &[Point],
    look: &Look,
    busy: &mut Area,
) -> Vec<(Point, Point)> {
    let mut lanes: BTreeMap<(SiteId, SiteId), usize> = BTreeMap::new();
    let mut arrows = Vec::with_capacity(plan.flows.len());
    for (flow, class) in plan.flows.iter().zip(&carried.class) {
        let link = topology.link(flow.link);
        let (p, q) = (at[link.from.index()], at[link.to.index()]);
        let lane = lanes.entry((link.from, link.to)).or_default();
        let off = LANE * (*lane as f64 + 1.0);
        *lane += 1;
        let length = (q.0 - p.0).hypot(q.1 - p.1).max(1.0);
        let start = beside(p, q, (SITE_RADIUS + 3.0) / length, off);
        let end = beside(p, q, 1.0 - (SITE_RADIUS + 6.0) / length, off);
        let colour = look.colour(*class);
        let neck = beside(start, end, 1.0 - 8.0 / length, 0.0);
        svg.line(start, neck, colour, 3.0, if plan.fills(flow) { FILL_DASH } else { "" });
        svg.arrow_head(start, end, 12.0, colour);
        busy.lines.push((start, end));
        arrows.push((start, end));
    }
    arrows
}

fn draw_site(svg: &mut Svg, site: SiteId, p: Point, role: Role, coding: bool, used: bool, look: &Look) {
    let stroke = if used { look.ink } else { look.cable };
    let r = SITE_RADIUS;
    match role {
        Role::Source => svg.star(p, r + 7.0, look.source, look.ink),
        Role::Destination(_) if coding => {
            svg.square(p, r + 4.0, look.paper, look.ink, 2.0);
            svg.square(p, r - 1.0, look.site, look.ink, 2.0);
        }
        Role::Destination(passes_on) => {
            svg.circle(p, r + 4.0, look.paper, look.ink, 2.0);
            svg.circle(p, r - 1.0, if passes_on { look.cable } else { look.site }, look.ink, 2.0);
        }
        Role::Other if coding => svg.square(p, r, look.site, look.ink, 2.0),
        Role::Other => svg.circle(p, r - 2.0, look.site, stroke, 1.5),
    }
    let ink = match (role, used) {
        (Role::Source, _) => "#1c2430",
        (_, true) => look.ink,
        (_, false) => look.dim,
    };
    svg.text((p.0, p.1 + 4.5), "middle", 13.0, "600", ink, &site.to_string());
}

/// Writes a site's name at a free position, and below it the sums that the site computes.
fn draw_name(svg: &mut Svg, name: &str, sums: &[String], p: Point, ink: &str, look: &Look, busy: &mut Area) {
    const SUMS_MAX: usize = 4;
    let mut lines: Vec<String> = sums.iter().take(SUMS_MAX).map(|s| format!("⊕ {s}")).collect();
    if sums.len() > SUMS_MAX {
        lines.push(format!("and {} more", sums.len() - SUMS_MAX));
    }
    let width = lines.iter().map(|l| text_width(l, 13.0)).fold(text_width(name, 14.0), f64::max) + 8.0;
    let height = 18.0 + 17.0 * lines.len() as f64;
    let mut best: Option<(f64, Box2, Point)> = None;
    for (ring, gap) in [3.0, 12.0, 24.0, 40.0].into_iter().enumerate() {
        for (i, (dx, dy)) in DIRECTIONS.into_iter().enumerate() {
            let reach = SITE_RADIUS + 5.0 + gap;
            // Half the label's size is added, so that it is next to the site and not on it.
            let middle = (p.0 + dx * (reach + width / 2.0), p.1 + dy * (reach + height / 2.0));
            let middle = (middle.0 - dx * if dy.abs() > 0.9 { reach } else { 0.0 }, middle.1);
            let label = Box2::around(middle, width, height);
            let cost = busy.cost(&label) + 14.0 * ring as f64 + i as f64 * 0.5;
            if best.as_ref().is_none_or(|(least, ..)| cost < *least) {
                best = Some((cost, label, middle));
            }
        }
    }
    let (_, label, middle) = best.expect("there are directions to try");
    svg.haloed((middle.0, label.1 + 14.0), 14.0, "600", ink, look.paper, name);
    for (i, line) in lines.iter().enumerate() {
        svg.haloed((middle.0, label.1 + 31.0 + 17.0 * i as f64), 13.0, "400", look.ink, look.paper, line);
    }
    busy.boxes.push(label);
}

/// Possible positions of a name: below, above, the sides, the corners and between them.
const DIRECTIONS: [Point; 12] = [
    (0.0, 1.0),
    (0.0, -1.0),
    (1.0, 0.0),
    (-1.0, 0.0),
    (0.7, 0.7),
    (-0.7, 0.7),
    (0.7, -0.7),
    (-0.7, -0.7),
    (0.5, 1.0),
    (-0.5, 1.0),
    (0.5, -1.0),
    (-0.5, -1.0),
];

/// Positions along an arrow for its label.
const ALONG: [f64; 11] = [0.5, 0.42, 0.58, 0.34, 0.66, 0.27, 0.73, 0.2, 0.8, 0.14, 0.86];

/// Writes each flow's content on its arrow.
fn draw_contents(svg: &mut Svg, carried: &Content, arrows: &[(Point, Point)], look: &Look, busy: &mut Area) {
    for (class, (start, end)) in carried.class.iter().zip(arrows) {
        let text = carried.classes[*class].as_str();
        let (width, height) = (text_width(text, 12.0) + 10.0, 17.0);
        let candidates = ALONG.map(|t| (t, beside(*start, *end, t, 0.0)));
        let cost = |(t, p): &(f64, Point)| {
            let label = Box2::around(*p, width, height);
            let boxes: f64 = busy.boxes.iter().map(|b| b.overlap(&label)).sum();
            let lines: f64 = busy.lines.iter().map(|l| label.crossed(*l)).sum();
            (boxes, boxes * 20.0 + lines + (t - 0.5).abs() * 60.0)
        };
        let best = candidates.into_iter().min_by(|a, b| cost(a).1.total_cmp(&cost(b).1));
        let (t, p) = best.expect("there are candidates");
        // A label longer than its arrow would hide the arrow; colour and legend show the content.
        if width < (end.0 - start.0).hypot(end.1 - start.1) * 0.9 || cost(&(t, p)).0 == 0.0 {
            svg.pill(p, width, height, look.paper, look.colour(*class));
            svg.text((p.0, p.1 + 4.2), "middle", 12.0, "600", look.colour(*class), text);
            busy.boxes.push(Box2::around(p, width, height));
        }
    }
}

/// The delay of the links, if all links have the same delay.
fn one_delay(topology: &Topology) -> Option<Duration> {
    let first = topology.links().first()?.properties.delay;
    topology.links().iter().all(|l| l.properties.delay == first).then_some(first)
}

/// The capacity of the links, if all links have the same capacity.
fn one_capacity(topology: &Topology) -> Option<BitRate> {
    let first = topology.links().first()?.properties.capacity;
    topology.links().iter().all(|l| l.properties.capacity == first).then_some(first)
}

/// Writes capacity and (optionally) delay on every cable, if they differ between cables and are few
/// enough to read.
fn draw_labels(svg: &mut Svg, topology: &Topology, delays: bool, at: &[Point], look: &Look, busy: &mut Area) {
    const CABLES_MAX: usize = 60;
    let cables = cables(topology);
    let capacities = one_capacity(topology).is_none();
    let delays = delays && one_delay(topology).is_none();
    if cables.len() > CABLES_MAX || !capacities && !delays {
        return;
    }
    for (a, b) in cables.into_keys() {
        let between = |l: &&anabranch_graph::Link| (l.from, l.to) == (a, b) || (l.from, l.to) == (b, a);
        let Some(link) = topology.links().iter().find(between) else { continue };
        let text = format!("{:.3}", link.properties.delay.as_secs_f64() * 1e3);
        let digits = text.find('.').map_or(text.len(), |dot| if dot >= 2 { dot + 2 } else { dot + 3 });
        let delay = delays.then(|| format!("{} ms", &text[..digits.min(text.len())]));
        let capacity = capacities.then(|| {
            let back = topology.links().iter().find(|l| (l.from, l.to) == (link.to, link.from));
            let (there, back) = (link.properties.capacity, back.map(|l| l.properties.capacity));
            match back.filter(|back| *back != there) {
                Some(back) => format!("{there} from {}, {back} back", link.from),
                None => there.to_string(),
            }
        });
        let text = [capacity, delay].into_iter().flatten().collect::<Vec<_>>().join(", ");
        let (width, height) = (text_width(&text, 11.5) + 8.0, 16.0);
        let candidates = ALONG.map(|t| beside(at[a.index()], at[b.index()], t, 0.0));
        let cost = |p: &Point| {
            let label = Box2::around(*p, width, height);
            let others = busy.lines.iter().filter(|l| {
                let near = nearest_on(**l, *p);
                **l != (at[a.index()], at[b.index()]) && (near.0 - p.0).hypot(near.1 - p.1) < 60.0
            });
            let lines: f64 = others.map(|l| label.crossed(*l)).sum();
            busy.boxes.iter().map(|x| x.overlap(&label)).sum::<f64>() * 20.0 + lines
        };
        let p =
            candidates.into_iter().min_by(|x, y| cost(x).total_cmp(&cost(y))).expect("there are candidates");
        svg.pill(p, width, height, look.paper, look.cable);
        svg.text((p.0, p.1 + 4.0), "middle", 11.5, "400", look.dim, &text);
        busy.boxes.push(Box2::around(p, width, height));
    }
}

/// One entry of the legend.
enum Entry {
    Class(usize, String, bool),
    Site(Role, bool, &'static str),
}

impl Entry {
    fn width(&self) -> f64 {
        match self {
            Self::Class(_, text, _) => 66.0 + text_width(text, 13.0),
            Self::Site(_, _, text) => 58.0 + text_width(text, 13.0),
        }
    }
}

/// The legend, divided into rows that fit.
fn legend_rows(topology: &Topology, plan: Option<&Plan>, carried: Option<&Content>) -> Vec<Vec<Entry>> {
    const CLASSES_MAX: usize = 24;
    let (Some(plan), Some(carried)) = (plan, carried) else { return Vec::new() };
    let what = |((text, long), fill): ((&String, &Option<String>), &bool)| match plan.scheme {
        _ if *fill => format!("{text} fills"),
        Scheme::Coded => long.as_ref().map_or(text.clone(), |long| format!("{text} = {long}")),
        Scheme::MultiPath | Scheme::SinglePath => format!("path {text}"),
        _ => format!("tree {text}"),
    };
    let codes = |site: &SiteId| carried.sums.contains_key(site);
    let used = sites_used(topology, Some(plan));
    let roles: Vec<(Role, bool)> = topology
        .site_ids()
        .filter(|site| used[site.index()])
        .map(|site| (Role::of(topology, site, Some(plan)), codes(&site)))
        .collect();
    let all = [
        (Role::Source, false, "source"),
        (Role::Destination(false), false, "destination"),
        (Role::Destination(true), false, "destination, passes on"),
        (Role::Other, true, "codes (⊕ what it adds)"),
        (Role::Other, false, "passes on"),
    ];
    // The legend shows only roles that occur. Sites that code are squares, destinations included.
    let shown = |(role, coding): (Role, bool)| {
        roles.iter().any(|(is, codes)| match role {
            Role::Source => true,
            Role::Other if coding => *codes,
            _ => *is == role && !codes,
        })
    };
    let mut entries: Vec<Entry> = all
        .into_iter()
        .filter(|(role, coding, _)| shown((*role, *coding)))
        .map(|(role, coding, text)| Entry::Site(role, coding, text))
        .collect();
    let classes = carried.classes.iter().zip(&carried.long_sums).zip(&carried.fill).take(CLASSES_MAX);
    entries.extend(classes.enumerate().map(|(i, class)| Entry::Class(i, what(class), *class.1)));
    let mut rows: Vec<Vec<Entry>> = Vec::new();
    let mut left = 0.0;
    for entry in entries {
        let width = entry.width();
        let begins_classes = matches!(entry, Entry::Class(0, ..));
        match rows.last_mut() {
            Some(row) if width <= left && !begins_classes => row.push(entry),
            _ => {
                left = WIDTH - 72.0;
                rows.push(vec![entry]);
            }
        }
        left -= width;
    }
    rows
}

fn draw_legend(svg: &mut Svg, rows: &[Vec<Entry>], look: &Look) {
    for (i, row) in rows.iter().enumerate() {
        let (mut x, y) = (36.0, FRAME.3 + 84.0 + 28.0 * i as f64);
        for entry in row {
            match entry {
                Entry::Class(class, text, fill) => {
                    let colour = look.colour(*class);
                    svg.line((x, y), (x + 24.0, y), colour, 3.0, if *fill { FILL_DASH } else { "" });
                    svg.arrow_head((x, y), (x + 32.0, y), 12.0, colour);
                    svg.text((x + 40.0, y + 4.5), "start", 13.0, "400", look.ink, text);
                }
                Entry::Site(role, coding, text) => {
                    let p = (x + 12.0, y);
                    match role {
                        Role::Source => svg.star(p, 12.0, look.source, look.ink),
                        Role::Destination(passes_on) => {
                            svg.circle(p, 10.0, look.paper, look.ink, 1.5);
                            let fill = if *passes_on { look.cable } else { look.site };
                            svg.circle(p, 7.0, fill, look.ink, 1.5);
                        }
                        Role::Other if *coding => svg.square(p, 9.0, look.site, look.ink, 1.5),
                        Role::Other => svg.circle(p, 8.5, look.site, look.ink, 1.5),
                    }
                    svg.text((x + 32.0, y + 4.5), "start", 13.0, "400", look.ink, text);
                }
            }
            x += entry.width();
        }
    }
}

#[cfg(test)]
mod tests;
