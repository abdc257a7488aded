//! Keys of the TOML format: the tables of a file, and the keys of each.
//!
//! The reader refuses every key that is not listed here, and the reference of the format is
//! generated from this list. Leaves out: types and ranges of values, which the reader checks. Read
//! [`TABLES`] first.

/// A table of the format.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct KeyTable {
    /// Name of the table as written, such as `[[site]]`; `the file` for the top level.
    pub name: &'static str,
    /// Keys of the table.
    pub keys: &'static [Key],
}

/// A key of a table.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// Name of the key.
    pub name: &'static str,
    /// Default in words; `None` for a required key.
    pub default: Option<&'static str>,
    /// Meaning and range of the value.
    pub meaning: &'static str,
}

const fn key(name: &'static str, default: &'static str, meaning: &'static str) -> Key {
    Key { name, default: Some(default), meaning }
}

const fn required(name: &'static str, meaning: &'static str) -> Key {
    Key { name, default: None, meaning }
}

/// Keys that both links and cables have.
const CAPACITY: Key = key("capacity", "of `[defaults]`, else `--rate`", "Rate of each direction.");
const DELAY: Key = key("delay", "of the fibre, else of `[defaults]`", "One-way delay, at most an hour.");
const DISTANCE: Key = key("distance_km", "none", "Length of the fibre in km, in place of `delay`.");
const COST: Key = key("cost", "of `[defaults]`, else 1", "Price of a byte, in a unit common to all links.");
const LOSS: Key = key("loss_ppm", "of `[defaults]`, else 0", "Random packet loss, parts per million.");
const BURST: Key = key("loss_burst", "of `[defaults]`, else 1", "Mean length of a loss burst in packets.");
const QUEUE: Key =
    key("queue", "of `[defaults]`, else of the simulator or emulator", "Maximum queue before the link.");

/// Tables of a file, starting with the top level.
pub const TABLES: [KeyTable; 5] = [
    KeyTable {
        name: "the file",
        keys: &[
            key("name", "`topology`", "Name for people."),
            key("defaults", "none", "A table of properties of links that state none."),
            key("site", "none", "Tables of the sites; at least one."),
            key("cable", "none", "Tables of the cables."),
            key("link", "none", "Tables of the links."),
        ],
    },
    KeyTable {
        name: "[defaults]",
        keys: &[
            key("capacity", "`--rate`", "Rate of each direction."),
            key("delay", "5 ms", "One-way delay where neither delay, distance nor both places are known."),
            key("stretch", "1.5", "Length of a fibre as a multiple of the great circle, 1 to 100."),
            key("cost", "1", "Price of a byte."),
            key("loss_ppm", "0", "Random packet loss, parts per million."),
            key("loss_burst", "1", "Mean length of a loss burst in packets, 1 to 1,000,000."),
            key("queue", "of the simulator or emulator", "Maximum queue before a link."),
        ],
    },
    KeyTable {
        name: "[[site]]",
        keys: &[
            required("name", "Unique name, 1 to 128 bytes without `/` and control characters."),
            key("latitude_deg", "none", "Degrees north, -90 to 90; together with the longitude."),
            key("longitude_deg", "none", "Degrees east, -180 to 180."),
            key("switch", "false", "Whether the site only forwards and has no host."),
            key("address", "any", "Network, address or host name by which other sites reach it."),
        ],
    },
    KeyTable {
        name: "[[cable]]",
        keys: &[
            required("between", "Its two ends: two links with equal properties."),
            CAPACITY,
            DELAY,
            DISTANCE,
            COST,
            LOSS,
            BURST,
            QUEUE,
        ],
    },
    KeyTable {
        name: "[[link]]",
        keys: &[
            required("from", "Site at its begin."),
            required("to", "Site at its end."),
            CAPACITY,
            DELAY,
            DISTANCE,
            COST,
            LOSS,
            BURST,
            QUEUE,
        ],
    },
];

/// Keys of the table that messages call `name`.
pub(super) fn keys_of(name: &str) -> &'static [Key] {
    let found = TABLES.iter().find(|table| table.name == name);
    found.expect("the reader calls its tables as this list does").keys
}
