//! `cargo xtask rooms`: a picture of the dependencies between rooms.
//!
//! A row is a room, a column a room that it may use. Rooms are ordered by kind and, within a kind,
//! after the rooms that they use: a square to the right of the diagonal would be a forbidden upward
//! dependency. The picture is drawn from the manifests, and `cargo xtask tidy` reports if it is out
//! of date. Read [`draw`] first.

use super::walls::{Kind, Room, Table};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Path of the picture in the repository.
pub(super) const PICTURE: &str = "docs/img/rooms.svg";

/// Side of a square, in units of the picture.
const CELL: usize = 20;
/// Space for the names left of the squares and above them, in units of the picture.
const NAMES: usize = 130;
/// Space for the names of kinds, right of the squares.
const KINDS: usize = 90;
/// Space between two kinds.
const GAP: usize = 8;

/// The kinds from the bottom up, with their colours.
const LAYERS: [(Kind, &str, &str); 7] = [
    (Kind::Pure, "pure", "#4477aa"),
    (Kind::Network, "network", "#228833"),
    (Kind::Proto, "proto", "#ccbb44"),
    (Kind::Driver, "driver", "#66a5cc"),
    (Kind::Service, "service", "#ee6677"),
    (Kind::Top, "top", "#aa3377"),
    (Kind::Tool, "tool", "#888888"),
];

/// Rooms in their order, with the layer of each.
fn order<'a>(table: &Table, rooms: &'a [Room]) -> Vec<(&'a Room, usize)> {
    let by_name: BTreeMap<&str, &Room> = rooms.iter().map(|room| (room.name.as_str(), room)).collect();
    let mut placed: Vec<(&Room, usize)> = Vec::new();
    for (layer, (kind, ..)) in LAYERS.iter().enumerate() {
        let is_here = |name: &str| table.rows.get(name).is_some_and(|row| row.kind == *kind);
        let mut left: Vec<&Room> = by_name.values().filter(|room| is_here(&room.name)).copied().collect();
        while !left.is_empty() {
            let waits = |room: &Room| room.uses.iter().any(|(used, _)| left.iter().any(|l| l.name == *used));
            // Cargo allows no ring of packages. In a ring, the first package would be placed first.
            let next = left.iter().position(|room| !waits(room)).unwrap_or(0);
            placed.push((left.remove(next), layer));
        }
    }
    placed
}

/// Draws the rooms of the table with the dependencies that their manifests have.
pub(super) fn draw(table: &Table, rooms: &[Room]) -> String {
    let rooms = order(table, rooms);
    let at = |i: usize| NAMES + i * CELL + rooms[i].1 * GAP;
    let side = rooms.len().checked_sub(1).map_or(NAMES, |last| at(last) + CELL);
    let mut out = String::new();
    let mut line = |text: std::fmt::Arguments<'_>| writeln!(out, "{text}").expect("a string takes any text");
    let width = side + KINDS;
    line(format_args!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {}" font-family="sans-serif" font-size="12">"#,
        side + GAP
    ));
    line(format_args!("<title>Which room uses which</title>"));
    line(format_args!("<style>"));
    line(format_args!(
        "text {{ fill: #1f2328; }} .page {{ fill: #ffffff; }} .none {{ fill: #eceff2; }} .self {{ fill: #c9cfd6; }}"
    ));
    line(format_args!(
        "@media (prefers-color-scheme: dark) {{ text {{ fill: #e6edf3; }} .page {{ fill: #12161c; }} .none {{ fill: #1c2128; }} .self {{ fill: #444c56; }} }}"
    ));
    line(format_args!("</style>"));
    line(format_args!(r#"<rect width="100%" height="100%" class="page"/>"#));
    for (i, (room, _)) in rooms.iter().enumerate() {
        let (y, name) = (at(i) + CELL * 7 / 10, &room.name);
        line(format_args!(r#"<text x="{}" y="{y}" text-anchor="end">{name}</text>"#, NAMES - 6));
        let x = at(i) + CELL * 7 / 10;
        line(format_args!(r#"<text transform="translate({x} {}) rotate(-90)">{name}</text>"#, NAMES - 6));
        for (j, (used, layer)) in rooms.iter().enumerate() {
            let uses = room.uses.iter().any(|(name, _)| *name == used.name);
            // The half above the diagonal stays empty, so that an upward dependency would be seen
            // at once.
            let fill = match (uses, i == j) {
                (true, _) => format!(r#"fill="{}""#, LAYERS[*layer].2),
                (false, true) => r#"class="self""#.to_owned(),
                (false, false) if j < i => r#"class="none""#.to_owned(),
                (false, false) => continue,
            };
            let (x, y, side) = (at(j) + 1, at(i) + 1, CELL - 2);
            let title =
                if uses { format!("<title>{name} uses {}</title>", used.name) } else { String::new() };
            line(format_args!(
                r#"<rect x="{x}" y="{y}" width="{side}" height="{side}" {fill}>{title}</rect>"#
            ));
        }
    }
    for (layer, (_, name, colour)) in LAYERS.iter().enumerate() {
        let of = |i: &usize| rooms[*i].1 == layer;
        let (Some(first), Some(last)) = ((0..rooms.len()).find(of), (0..rooms.len()).rfind(of)) else {
            continue;
        };
        let (top, height) = (at(first) + 1, at(last) + CELL - at(first) - 2);
        line(format_args!(
            r#"<rect x="{}" y="{top}" width="6" height="{height}" fill="{colour}"/>"#,
            side + GAP
        ));
        line(format_args!(r#"<text x="{}" y="{}">{name}</text>"#, side + GAP + 12, top + height / 2 + 4));
    }
    line(format_args!("</svg>"));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(name: &str, uses: &[&str]) -> Room {
        let uses = uses.iter().map(|used| ((*used).to_owned(), 1)).collect();
        Room { name: name.to_owned(), manifest: String::new(), uses, dependencies: Vec::new() }
    }

    #[test]
    fn matrix_lists_dependencies_first_and_marks_each_use() {
        let text = "| room | kind | may use |\n| --- | --- | --- |\n| `a` | pure | `b` |\n| `b` | pure | – |\n\
                    | `cli` | top | `a`, `b`, `d` |\n| `d` | driver | `b` |\n";
        let (table, findings) = Table::parse(text);
        assert_eq!(findings, []);
        let rooms = [room("a", &["b"]), room("b", &[]), room("cli", &["a", "b", "d"]), room("d", &["b"])];
        let names: Vec<&str> = order(&table, &rooms).iter().map(|(room, _)| room.name.as_str()).collect();
        assert_eq!(names, ["b", "a", "d", "cli"]);
        let picture = draw(&table, &rooms);
        let uses = [("a", "b"), ("cli", "a"), ("cli", "b"), ("cli", "d"), ("d", "b")];
        for (user, used) in uses {
            assert!(picture.contains(&format!("<title>{user} uses {used}</title>")), "{user} {used}");
        }
        // The picture's own title contains the word, too.
        assert_eq!(picture.matches(" uses ").count(), uses.len() + 1);
        assert_eq!(draw(&table, &rooms), picture);
    }
}
