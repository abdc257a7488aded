//! This project's topology format, in TOML.
//!
//! ```toml
//! name = "two continents"          # for people; the file's name if left out
//!
//! [defaults]                       # for links that do not say otherwise; each may be left out
//! capacity = "1 Gbit/s"
//! delay = "5 ms"                   # where neither delay nor distance nor both places are known
//! stretch = 1.5                    # fibre length over great circle, at least 1
//! cost = 1.0
//! loss_ppm = 0                     # packets lost, in a million
//! loss_burst = 1                   # packets that a burst of losses takes in the mean; 1: each on its own
//! queue = "256 KiB"
//!
//! [[site]]
//! name = "amsterdam"
//! latitude_deg = 52.37             # north; the two go together
//! longitude_deg = 4.90             # east
//! address = "192.0.2.0/24"         # where sites reach it: a network, an address or a host's name
//! [[site]]
//! name = "ashburn"
//! [[site]]
//! name = "exchange"
//! switch = true                    # stands in the network and has no host; false if left out
//!
//! [[cable]]                        # full duplex: two links of the same properties
//! between = ["amsterdam", "ashburn"]
//! distance_km = 6600               # of fibre; or delay = "33 ms"; or nothing, for the great circle between places
//!
//! [[link]]                         # one way
//! from = "ashburn"
//! to = "amsterdam"
//! capacity = "400 Mbit/s"
//! loss_ppm = 1000
//! loss_burst = 8
//! ```
//!
//! Sites and links are numbered in file order. A cable or link that occurs twice in the file occurs
//! twice in the topology. Leaves out: everything except the topology. [`write()`] is the inverse of
//! reading. Read its example and [`super::parse`] first.

mod keys;

pub use keys::{Key, KeyTable, TABLES};

use super::{Defaults, LocatedProblem, Problem, quoted};
use crate::builtin::{fibre_delay, fibre_delay_over};
use crate::{GeoPoint, Hosts, LinkProperties, Site, Topology};
use ::toml::Spanned;
use ::toml::de::{DeTable, DeValue};
use anabranch_units::{BitRate, ByteCount, LOSS_BURST_MAX, ParseQuantityError, SiteId};
use keys::keys_of;
use std::fmt::Write;

/// Maximum length of a fibre in km: a hundred times half the circumference of the Earth.
const DISTANCE_KM_MAX: f64 = 2e6;

/// One table of the file and its name in messages.
struct Table<'a> {
    called: &'static str,
    at: usize,
    fields: &'a DeTable<'a>,
}

/// One value of a table.
struct Field<'a> {
    table: &'static str,
    name: &'static str,
    value: &'a Spanned<DeValue<'a>>,
}

pub(super) fn read(text: &str, outer: &Defaults) -> Result<Topology, LocatedProblem> {
    let root = DeTable::parse(text).map_err(|error| {
        let problem = Problem::Syntax { message: quoted_syntax(error.message()) };
        problem.at(error.span().map_or(0, |s| s.start))
    })?;
    let root = Table { called: "the file", at: 0, fields: root.get_ref() };
    root.only_known()?;
    let name = root.field("name").map(|f| f.text()).transpose()?.unwrap_or("topology");
    let defaults = LinkDefaults::read(&root, outer)?;

    let mut topology = Topology::new(name);
    for site in root.tables("site", "[[site]]")? {
        site.only_known()?;
        let name = site.require("name", "name = \"…\"")?.text()?.to_owned();
        let place = site.place()?;
        let hosts = site.field("address").map(|f| f.hosts()).transpose()?;
        let is_switch = site.field("switch").map(|f| f.boolean()).transpose()?.unwrap_or(false);
        let added = topology.push_site(Site { name, place, is_switch, hosts });
        added.map_err(|e| Problem::Topology(e).at(site.at))?;
    }

    let mut links: Vec<_> = root.tables("cable", "[[cable]]")?;
    links.extend(root.tables("link", "[[link]]")?);
    links.sort_by_key(|table| table.at);
    for link in links {
        let find = |field: &Field<'_>, name: &str| {
            topology.find_site(name).map_err(|e| Problem::Topology(e).at(field.at()))
        };
        let is_cable = link.called == "[[cable]]";
        link.only_known()?;
        let (from, to) = if is_cable {
            let between = link.require("between", "between = [\"…\", \"…\"]")?;
            let [a, b] = between.pair()?;
            (find(&between, a)?, find(&between, b)?)
        } else {
            let (from, to) = (link.require("from", "from = \"…\"")?, link.require("to", "to = \"…\"")?);
            (find(&from, from.text()?)?, find(&to, to.text()?)?)
        };
        let properties = defaults.properties(&link, &topology, from, to)?;
        let added = if is_cable {
            topology.add_cable(from, to, properties).map(|_| ())
        } else {
            topology.add_link(from, to, properties).map(|_| ())
        };
        added.map_err(|e| Problem::Topology(e).at(link.at))?;
    }
    Ok(topology)
}

/// Joins the lines of the TOML parser's messages, which may have several.
fn quoted_syntax(message: &str) -> String {
    format!("not TOML: {}", message.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// The `[defaults]` table, which overrides the caller's defaults.
struct LinkDefaults {
    outer: Defaults,
    cost: f64,
    loss_ppm: u32,
    loss_burst: u32,
    queue: Option<ByteCount>,
}

impl LinkDefaults {
    fn read(root: &Table<'_>, outer: &Defaults) -> Result<Self, LocatedProblem> {
        let mut defaults = Self { outer: *outer, cost: 1.0, loss_ppm: 0, loss_burst: 1, queue: None };
        let Some(field) = root.field("defaults") else { return Ok(defaults) };
        let table = field.table("[defaults]")?;
        table.only_known()?;
        if let Some(f) = table.field("capacity") {
            defaults.outer.capacity = f.capacity()?;
        }
        if let Some(f) = table.field("delay") {
            defaults.outer.delay = f.quantity("a time such as \"5 ms\"")?;
        }
        if let Some(f) = table.field("stretch") {
            defaults.outer.stretch = f.number(1.0, super::STRETCH_MAX, "a number from 1 to 100")?;
        }
        if let Some(f) = table.field("cost") {
            defaults.cost = f.cost()?;
        }
        if let Some(f) = table.field("loss_ppm") {
            defaults.loss_ppm = f.loss_ppm()?;
        }
        if let Some(f) = table.field("loss_burst") {
            defaults.loss_burst = f.loss_burst()?;
        }
        if let Some(f) = table.field("queue") {
            defaults.queue = Some(f.queue()?);
        }
        Ok(defaults)
    }

    fn properties(
        &self,
        link: &Table<'_>,
        topology: &Topology,
        from: SiteId,
        to: SiteId,
    ) -> Result<LinkProperties, LocatedProblem> {
        let capacity =
            link.field("capacity").map(|f| f.capacity()).transpose()?.unwrap_or(self.outer.capacity);
        let delay = match (link.field("delay"), link.field("distance_km")) {
            (Some(_), Some(both)) => {
                let problem = Problem::Conflict { table: link.called, field: "delay", other: "distance_km" };
                return Err(problem.at(both.at()));
            }
            (Some(f), None) => f.quantity("a time such as \"5 ms\"")?,
            (None, Some(f)) => {
                fibre_delay_over(f.number(0.0, DISTANCE_KM_MAX, "a number of km from 0 to 2000000")? * 1e3)
            }
            (None, None) => match (topology.site(from).place, topology.site(to).place) {
                (Some(a), Some(b)) => fibre_delay(a, b, self.outer.stretch),
                _ => self.outer.delay,
            },
        };
        Ok(LinkProperties {
            capacity,
            delay,
            cost: link.field("cost").map(|f| f.cost()).transpose()?.unwrap_or(self.cost),
            loss_ppm: link.field("loss_ppm").map(|f| f.loss_ppm()).transpose()?.unwrap_or(self.loss_ppm),
            loss_burst: link
                .field("loss_burst")
                .map(|f| f.loss_burst())
                .transpose()?
                .unwrap_or(self.loss_burst),
            queue: link.field("queue").map(|f| f.queue()).transpose()?.or(self.queue),
        })
    }
}

impl<'a> Table<'a> {
    /// Refuses fields that are not in [`TABLES`].
    fn only_known(&self) -> Result<(), LocatedProblem> {
        let known = keys_of(self.called);
        let is_unknown = |name: &str| known.iter().all(|key| key.name != name);
        let unknown = self.fields.iter().filter(|(key, _)| is_unknown(key.get_ref()));
        match unknown.min_by_key(|(key, _)| key.span().start) {
            None => Ok(()),
            Some((key, _)) => {
                let field = quoted(key.get_ref());
                Err(Problem::UnknownField { table: self.called, field, known }.at(key.span().start))
            }
        }
    }
    fn field(&self, name: &'static str) -> Option<Field<'a>> {
        let value = self.fields.get(name)?;
        Some(Field { table: self.called, name, value })
    }
    fn require(&self, name: &'static str, example: &'static str) -> Result<Field<'a>, LocatedProblem> {
        let missing = || Problem::MissingField { table: self.called, example }.at(self.at);
        self.field(name).ok_or_else(missing)
    }
    /// The tables of the array `name`; none if it is missing.
    fn tables(&self, name: &'static str, called: &'static str) -> Result<Vec<Table<'a>>, LocatedProblem> {
        let Some(field) = self.field(name) else { return Ok(Vec::new()) };
        let Some(items) = field.value.get_ref().as_array() else {
            return Err(field.bad(&format!("an array of tables: write {called}")));
        };
        let table = |value| Field { table: called, name, value }.table(called);
        items.iter().map(table).collect()
    }
    fn place(&self) -> Result<Option<GeoPoint>, LocatedProblem> {
        match (self.field("latitude_deg"), self.field("longitude_deg")) {
            (None, None) => Ok(None),
            (Some(lat), Some(lon)) => Ok(Some(GeoPoint {
                latitude_deg: lat.number(-90.0, 90.0, "degrees from -90 to 90")?,
                longitude_deg: lon.number(-180.0, 180.0, "degrees from -180 to 180")?,
            })),
            (one, _) => {
                let example = if one.is_some() { "longitude_deg" } else { "latitude_deg" };
                Err(Problem::MissingField { table: self.called, example }.at(self.at))
            }
        }
    }
}

impl<'a> Field<'a> {
    fn at(&self) -> usize {
        self.value.span().start
    }
    /// Creates the error for an invalid value of this field.
    fn bad(&self, allowed: &str) -> LocatedProblem {
        let value = match self.value.get_ref() {
            DeValue::String(s) => format!("\"{}\"", quoted(s)),
            DeValue::Integer(i) => quoted(i.as_str()),
            DeValue::Float(x) => quoted(x.as_str()),
            other => format!("({})", other.type_str()),
        };
        let (table, field) = (self.table, self.name.to_owned());
        Problem::BadValue { table, field, value, allowed: allowed.to_owned() }.at(self.at())
    }
    fn table(&self, called: &'static str) -> Result<Table<'a>, LocatedProblem> {
        let fields = self.value.get_ref().as_table().ok_or_else(|| self.bad("a table"))?;
        Ok(Table { called, at: self.at(), fields })
    }
    fn text(&self) -> Result<&'a str, LocatedProblem> {
        self.value.get_ref().as_str().ok_or_else(|| self.bad("a text in quotes"))
    }
    fn hosts(&self) -> Result<Hosts, LocatedProblem> {
        let allowed = "a network such as \"10.0.0.0/8\", an address or a host's name";
        self.text()?.parse().map_err(|()| self.bad(allowed))
    }
    fn boolean(&self) -> Result<bool, LocatedProblem> {
        self.value.get_ref().as_bool().ok_or_else(|| self.bad("true or false"))
    }
    fn pair(&self) -> Result<[&'a str; 2], LocatedProblem> {
        let items = self.value.get_ref().as_array().map(|a| a.iter().collect::<Vec<_>>());
        let names = items.as_deref().and_then(|items| match items {
            [a, b] => Some([a.get_ref().as_str()?, b.get_ref().as_str()?]),
            _ => None,
        });
        names.ok_or_else(|| self.bad("two sites: [\"…\", \"…\"]"))
    }
    fn quantity<Q: std::str::FromStr<Err = anabranch_units::ParseQuantityError>>(
        &self,
        allowed: &str,
    ) -> Result<Q, LocatedProblem> {
        let text = self.value.get_ref().as_str().ok_or_else(|| self.bad(allowed))?;
        text.parse().map_err(|error| match error {
            ParseQuantityError::NoUnit { example, .. } => {
                self.bad(&format!("{allowed}: write \"{example}\""))
            }
            _ => self.bad(allowed),
        })
    }
    fn capacity(&self) -> Result<BitRate, LocatedProblem> {
        let allowed = "a rate of at least 1 bit/s such as \"20 Mbit/s\"";
        let rate: BitRate = self.quantity(allowed)?;
        if rate.as_bps() == 0 { Err(self.bad(allowed)) } else { Ok(rate) }
    }
    fn queue(&self) -> Result<ByteCount, LocatedProblem> {
        self.quantity("a size such as \"256 KiB\"")
    }
    fn number(&self, least: f64, most: f64, allowed: &str) -> Result<f64, LocatedProblem> {
        let value = match self.value.get_ref() {
            DeValue::Float(x) => x.as_str().parse().ok(),
            DeValue::Integer(i) if i.radix() == 10 => i.as_str().parse().ok(),
            _ => None,
        };
        // NaN is outside every range.
        value.filter(|x| (least..=most).contains(x)).ok_or_else(|| self.bad(allowed))
    }
    fn cost(&self) -> Result<f64, LocatedProblem> {
        self.number(0.0, f64::MAX, "a finite number, at least 0")
    }
    fn loss_ppm(&self) -> Result<u32, LocatedProblem> {
        self.whole(0..=1_000_000).ok_or_else(|| self.bad("a whole number from 0 to 1000000 (1000 is 0.1 %)"))
    }
    fn loss_burst(&self) -> Result<u32, LocatedProblem> {
        let allowed = "a whole number of packets from 1 to 1000000 (1: each is lost on its own)";
        self.whole(1..=LOSS_BURST_MAX).ok_or_else(|| self.bad(allowed))
    }
    fn whole(&self, range: std::ops::RangeInclusive<u32>) -> Option<u32> {
        let value = self.value.get_ref().as_integer().filter(|i| i.radix() == 10)?;
        value.as_str().parse().ok().filter(|n| range.contains(n))
    }
}

/// Writes the topology as a file that [`super::parse`] reads back to an equal one.
///
/// Every link states all its properties, so the reader's defaults do not matter. Only `loss_burst`
/// is omitted, if losses have no bursts. Two consecutive links that form a cable are written as one
/// cable. The only topology that cannot be read back is the topology without sites.
///
/// ```
/// use anabranch_graph::builtin::builtin;
/// use anabranch_graph::file::{Defaults, Format, parse, toml};
/// use anabranch_units::BitRate;
/// let butterfly = builtin("butterfly", BitRate::mbps(20)).expect("it is built in");
/// let text = toml::write(&butterfly);
/// let again = parse(&text, Format::Toml, "butterfly.toml", &Defaults::new(BitRate::gbps(1)));
/// assert_eq!(again, Ok(butterfly));
/// ```
pub fn write(topology: &Topology) -> String {
    // Writing to a `String` cannot fail.
    let mut out = String::new();
    let text = |s: &str| ::toml::Value::String(s.to_owned()).to_string();
    let _ = writeln!(out, "name = {}", text(topology.name()));
    for site in topology.sites() {
        let _ = writeln!(out, "\n[[site]]\nname = {}", text(&site.name));
        if let Some(place) = site.place {
            let _ = writeln!(out, "latitude_deg = {:?}", place.latitude_deg);
            let _ = writeln!(out, "longitude_deg = {:?}", place.longitude_deg);
        }
        if site.is_switch {
            let _ = writeln!(out, "switch = true");
        }
        if let Some(hosts) = &site.hosts {
            let _ = writeln!(out, "address = {}", text(&hosts.to_string()));
        }
    }
    let mut links = topology.links().iter().peekable();
    while let Some(link) = links.next() {
        let (from, to) = (text(&topology.site(link.from).name), text(&topology.site(link.to).name));
        let is_back = |next: &&crate::Link| {
            (next.from, next.to) == (link.to, link.from) && next.properties == link.properties
        };
        let _ = match links.next_if(is_back) {
            Some(_) => writeln!(out, "\n[[cable]]\nbetween = [{from}, {to}]"),
            None => writeln!(out, "\n[[link]]\nfrom = {from}\nto = {to}"),
        };
        let p = &link.properties;
        let _ = writeln!(out, "capacity = \"{}\"", exactly(p.capacity, p.capacity.as_bps(), "bit/s"));
        let _ = writeln!(out, "delay = \"{}\"", exactly(p.delay, p.delay.as_ps(), "ps"));
        let _ = writeln!(out, "cost = {:?}", p.cost);
        let _ = writeln!(out, "loss_ppm = {}", p.loss_ppm);
        if p.loss_burst != 1 {
            let _ = writeln!(out, "loss_burst = {}", p.loss_burst);
        }
        if let Some(queue) = p.queue {
            let _ = writeln!(out, "queue = \"{}\"", exactly(queue, queue.as_u64(), "B"));
        }
    }
    out
}

/// The short form of a quantity if it is exact, or else a plain count of its base unit.
fn exactly<Q: std::fmt::Display + std::str::FromStr + PartialEq>(
    quantity: Q,
    count: u64,
    unit: &str,
) -> String {
    let pretty = quantity.to_string();
    match pretty.parse() {
        Ok(same) if quantity == same => pretty,
        _ => format!("{count} {unit}"),
    }
}

#[cfg(test)]
mod tests;
