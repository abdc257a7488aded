//! Positions of the sites of a topology in a picture.
//!
//! There are three layouts, depending on the data: a map if every site has a place, stretched in
//! crowded areas; layers from left to right if the links have no cycle; otherwise distances that
//! follow the number of hops (stress majorisation, Gansner and others 2004). All are deterministic.
//! Leaves out: drawing. Read [`positions`] first.

use anabranch_graph::picture::Point;
use anabranch_graph::{GeoPoint, Topology};
use anabranch_units::SiteId;

/// The rectangle for sites: left, top, right, bottom.
pub(super) type Frame = (f64, f64, f64, f64);

/// Wanted distance between a site and a link between other sites, in pixels.
const LINK_GAP: f64 = 46.0;
/// Work limit of the iterative layouts, in examined pairs of sites.
const PAIRS_MAX: usize = 20_000_000;

/// A position for every site, by id.
pub(super) fn positions(topology: &Topology, first: Option<SiteId>, frame: Frame) -> Vec<Point> {
    let n = topology.sites().len();
    let places: Option<Vec<GeoPoint>> = topology.sites().iter().map(|s| s.place).collect();
    let start = match (places, layers(topology, first)) {
        (Some(places), _) if n > 1 => map(topology, &places, frame),
        (_, Some(layers)) => return fit(&layered(topology, &layers), frame),
        _ => fit(&by_hops(topology), frame),
    };
    relaxed(topology, start, frame)
}

/// Minimum distance between two sites: enough to read names and flows, if there is room.
fn site_gap(sites: usize, (left, top, right, bottom): Frame) -> f64 {
    let room_each = ((right - left) * (bottom - top) / sites.max(1) as f64).sqrt();
    (0.72 * room_each).clamp(30.0, 165.0)
}

/// Scales points to fill the frame. Points without extent are placed in its middle.
fn fit(points: &[Point], (left, top, right, bottom): Frame) -> Vec<Point> {
    let scale = |value: fn(&Point) -> f64, low: f64, high: f64| {
        let least = points.iter().map(value).fold(f64::INFINITY, f64::min);
        let most = points.iter().map(value).fold(f64::NEG_INFINITY, f64::max);
        move |p: &Point| {
            if most - least > 1e-9 {
                low + (value(p) - least) / (most - least) * (high - low)
            } else {
                (low + high) / 2.0
            }
        }
    };
    let (x, y) = (scale(|p| p.0, left, right), scale(|p| p.1, top, bottom));
    points.iter().map(|p| (x(p), y(p))).collect()
}

/// The map: cut along the meridian with the shortest links, and stretched until no two sites are
/// too close.
fn map(topology: &Topology, places: &[GeoPoint], frame: Frame) -> Vec<Point> {
    let mut meridians: Vec<f64> = places.iter().map(|p| p.longitude_deg).collect();
    meridians.sort_by(f64::total_cmp);
    let unrolled = |west: f64| -> Vec<Point> {
        places.iter().map(|p| ((p.longitude_deg - west).rem_euclid(360.0), -p.latitude_deg)).collect()
    };
    let length = |points: &[Point]| -> f64 {
        topology.links().iter().map(|l| (points[l.from.index()].0 - points[l.to.index()].0).abs()).sum()
    };
    let globe = meridians
        .iter()
        .map(|west| unrolled(*west))
        .min_by(|a, b| length(a).total_cmp(&length(b)))
        .expect("the caller has at least two sites");

    let flat = fit(&globe, frame);
    let ranked = fit(&ranks(&globe), frame);
    let mix = |share: f64| -> Vec<Point> {
        let blend = |a: f64, b: f64| a * (1.0 - share) + b * share;
        flat.iter().zip(&ranked).map(|(f, r)| (blend(f.0, r.0), blend(f.1, r.1))).collect()
    };
    let gap = site_gap(places.len(), frame);
    [0.0, 0.15, 0.3, 0.45, 0.6]
        .map(mix)
        .into_iter()
        .find(|points| closest(points) >= gap)
        .unwrap_or_else(|| mix(0.6))
}

/// Every site's rank from west to east and from north to south.
fn ranks(points: &[Point]) -> Vec<Point> {
    let rank = |value: fn(&Point) -> f64| {
        let mut order: Vec<usize> = (0..points.len()).collect();
        order.sort_by(|a, b| value(&points[*a]).total_cmp(&value(&points[*b])).then(a.cmp(b)));
        let mut ranks = vec![0.0; points.len()];
        for (rank, site) in order.into_iter().enumerate() {
            ranks[site] = rank as f64;
        }
        ranks
    };
    rank(|p| p.0).into_iter().zip(rank(|p| p.1)).collect()
}

fn closest(points: &[Point]) -> f64 {
    let mut least = f64::INFINITY;
    for (i, a) in points.iter().enumerate() {
        for b in &points[..i] {
            least = least.min((a.0 - b.0).hypot(a.1 - b.1));
        }
    }
    least
}

/// The longest path from the start to each site, if the links have no cycle.
fn layers(topology: &Topology, first: Option<SiteId>) -> Option<Vec<usize>> {
    let n = topology.sites().len();
    let mut waiting = vec![0usize; n];
    for link in topology.links() {
        waiting[link.to.index()] += 1;
    }
    let mut ready: Vec<usize> = (0..n).filter(|i| waiting[*i] == 0).collect();
    ready.sort_by_key(|i| Some(SiteId(*i as u16)) != first);
    let (mut layer, mut done) = (vec![0; n], 0);
    while let Some(site) = ready.pop() {
        done += 1;
        for link in topology.links().iter().filter(|l| l.from.index() == site) {
            let to = link.to.index();
            layer[to] = layer[to].max(layer[site] + 1);
            waiting[to] -= 1;
            if waiting[to] == 0 {
                ready.push(to);
            }
        }
    }
    (done == n && !topology.links().is_empty()).then_some(layer)
}

/// Columns by layer; within a column, sites follow the mean height of their neighbours.
fn layered(topology: &Topology, layer: &[usize]) -> Vec<Point> {
    let depth = layer.iter().max().map_or(0, |m| m + 1);
    let mut columns: Vec<Vec<usize>> = vec![Vec::new(); depth];
    for (site, l) in layer.iter().enumerate() {
        columns[*l].push(site);
    }
    let widest = columns.iter().map(Vec::len).max().unwrap_or(1) as f64;
    let mut y = vec![0.0; layer.len()];
    let place = |column: &[usize], y: &mut [f64]| {
        let step = widest / column.len() as f64;
        for (i, site) in column.iter().enumerate() {
            y[*site] = (i as f64 + 0.5) * step;
        }
    };
    columns.iter().for_each(|c| place(c, &mut y));
    // A few sweeps suffice for the small networks that are drawn: the order settles or alternates.
    for _ in 0..8 {
        for column in &mut columns {
            let mean = |site: usize| {
                let near = topology.links().iter().filter_map(|l| match (l.from.index(), l.to.index()) {
                    (a, b) if a == site => Some(y[b]),
                    (a, b) if b == site => Some(y[a]),
                    _ => None,
                });
                let (sum, count) = near.fold((0.0, 0.0), |(s, c), v| (s + v, c + 1.0));
                if count > 0.0 { sum / count } else { y[site] }
            };
            let means: Vec<f64> = (0..layer.len()).map(mean).collect();
            column.sort_by(|a, b| means[*a].total_cmp(&means[*b]).then(a.cmp(b)));
            place(column, &mut y);
        }
    }
    layer.iter().zip(y).map(|(l, y)| (*l as f64, y)).collect()
}

/// Positions whose distances follow the number of hops between sites.
fn by_hops(topology: &Topology) -> Vec<Point> {
    let n = topology.sites().len();
    let circle = |i: usize| {
        let turn = i as f64 / n.max(1) as f64 * std::f64::consts::TAU - std::f64::consts::FRAC_PI_2;
        (turn.cos(), turn.sin())
    };
    let mut at: Vec<Point> = (0..n).map(circle).collect();
    if n * n > PAIRS_MAX / 20 {
        return at;
    }
    let mut near = vec![Vec::new(); n];
    for link in topology.links() {
        near[link.from.index()].push(link.to.index());
        near[link.to.index()].push(link.from.index());
    }
    let hops: Vec<Vec<f64>> = (0..n)
        .map(|start| {
            let mut hops = vec![f64::INFINITY; n];
            hops[start] = 0.0;
            let mut queue = std::collections::VecDeque::from([start]);
            while let Some(site) = queue.pop_front() {
                for next in &near[site] {
                    if hops[*next].is_infinite() {
                        hops[*next] = hops[site] + 1.0;
                        queue.push_back(*next);
                    }
                }
            }
            hops
        })
        .collect();
    let far = hops.iter().flatten().filter(|h| h.is_finite()).fold(1.0, |a: f64, b| a.max(*b)) + 1.0;
    for _ in 0..(PAIRS_MAX / (n * n).max(1)).min(300) {
        for i in 0..n {
            let (mut x, mut y, mut weights) = (0.0, 0.0, 0.0);
            for j in (0..n).filter(|j| *j != i) {
                let ideal = hops[i][j].min(far);
                let weight = ideal.powi(-2);
                let (dx, dy) = (at[i].0 - at[j].0, at[i].1 - at[j].1);
                let pull = ideal / dx.hypot(dy).max(1e-6);
                x += weight * (at[j].0 + dx * pull);
                y += weight * (at[j].1 + dy * pull);
                weights += weight;
            }
            if weights > 0.0 {
                at[i] = (x / weights, y / weights);
            }
        }
    }
    at
}

/// The nearest point of a segment to `p`.
pub(super) fn nearest_on(segment: (Point, Point), p: Point) -> Point {
    let ((ax, ay), (bx, by)) = segment;
    let (dx, dy) = (bx - ax, by - ay);
    let length2 = dx * dx + dy * dy;
    let t = if length2 > 0.0 { (((p.0 - ax) * dx + (p.1 - ay) * dy) / length2).clamp(0.0, 1.0) } else { 0.0 };
    (ax + t * dx, ay + t * dy)
}

/// Moves sites apart, and away from links between other sites, in small steps.
fn relaxed(topology: &Topology, mut at: Vec<Point>, frame: Frame) -> Vec<Point> {
    let (left, top, right, bottom) = frame;
    let gap = site_gap(at.len(), frame);
    let n = at.len();
    let links = topology.links();
    let work = n * (n + links.len());
    let rounds = (PAIRS_MAX / work.max(1)).min(300);
    let home = at.clone();
    for _ in 0..rounds {
        let mut push = vec![(0.0, 0.0); n];
        for i in 0..n {
            for j in 0..i {
                let (dx, dy) = (at[i].0 - at[j].0, at[i].1 - at[j].1);
                let distance = dx.hypot(dy);
                if distance < gap {
                    // Two sites at the same point move apart sideways.
                    let (ux, uy) = if distance > 1e-6 { (dx / distance, dy / distance) } else { (1.0, 0.0) };
                    let by = (gap - distance) * 0.2;
                    push[i].0 += ux * by;
                    push[i].1 += uy * by;
                    push[j].0 -= ux * by;
                    push[j].1 -= uy * by;
                }
            }
            for link in links.iter().filter(|l| l.from.index() != i && l.to.index() != i) {
                let (a, b) = (link.from.index(), link.to.index());
                let near = nearest_on((at[a], at[b]), at[i]);
                let (dx, dy) = (at[i].0 - near.0, at[i].1 - near.1);
                let distance = dx.hypot(dy);
                if distance < LINK_GAP {
                    let (ux, uy) = if distance > 1e-6 {
                        (dx / distance, dy / distance)
                    } else {
                        let (lx, ly) = (at[b].0 - at[a].0, at[b].1 - at[a].1);
                        let length = lx.hypot(ly).max(1e-6);
                        (-ly / length, lx / length)
                    };
                    let by = (LINK_GAP - distance) * 0.2;
                    push[i].0 += ux * by;
                    push[i].1 += uy * by;
                    for end in [a, b] {
                        push[end].0 -= ux * by * 0.3;
                        push[end].1 -= uy * by * 0.3;
                    }
                }
            }
        }
        for i in 0..n {
            at[i].0 = (at[i].0 + push[i].0 + (home[i].0 - at[i].0) * 0.01).clamp(left, right);
            at[i].1 = (at[i].1 + push[i].1 + (home[i].1 - at[i].1) * 0.01).clamp(top, bottom);
        }
    }
    at
}
