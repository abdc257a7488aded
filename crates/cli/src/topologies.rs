//! `anabranch topologies`: lists the built-in networks, or the sites and links of one network, by
//! the names that other commands accept.
//!
//! Leaves out: plans on a network (`replicate plan`). Networks that scenarios generate from numbers
//! are only listed by name.

use crate::network::TopologyArgs;
use anabranch_graph::Topology;
use anabranch_graph::builtin::{BUILTINS, builtin};
use anabranch_units::BitRate;
use anabranch_units::text::printable;
use comfy_table::{Table, presets};
use std::process::ExitCode;

/// The topology, and the form of the list.
#[derive(clap::Args)]
pub struct Args {
    /// A built-in topology, or a .toml, .graphml, .gml or .xml file, whose sites and links are
    /// listed. Without: all built-in ones.
    #[arg(value_name = "NAME|FILE")]
    topology: Option<String>,
    /// Rate of links without one in the topology.
    #[arg(long, value_name = "RATE", default_value = "1 Gbit/s")]
    rate: BitRate,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Networks that scenarios generate from numbers: name, numbers, description.
const GENERATED: [(&str, &str, &str); 4] = [
    ("star", "hosts", "hosts h0, h1, … around the switch hub"),
    ("dumbbell", "pairs", "hosts at the switches left and right, which one cable joins"),
    ("leaf-spine", "tors, spines, hosts", "hosts below switches tor-0, …, each joined to spine-0, …"),
    ("fat-tree", "k", "pods of switches edge-P-E and agg-P-A below core-0, …"),
];

/// Runs the command.
///
/// Errors: an unknown name, an unreadable or invalid file, with the line.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.topology {
        None => outln!("{}", if args.json { all_json()? } else { all() }),
        Some(name) => {
            let topology = TopologyArgs { topology: name.clone(), rate: args.rate }.load_any()?;
            outln!("{}", if args.json { json(&topology).to_string() } else { table(&topology) });
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn rows(header: &[&str]) -> Table {
    let mut rows = Table::new();
    rows.load_preset(presets::NOTHING).set_header(header.to_vec());
    rows
}

fn all() -> String {
    let mut built_in = rows(&["built in", "sites", "links", ""]);
    for b in BUILTINS {
        let topology = builtin(b.name, BitRate::gbps(1)).expect("it is listed");
        let counts = [topology.sites().len().to_string(), topology.links().len().to_string()];
        built_in.add_row([b.name, &counts[0], &counts[1], b.description]);
    }
    let mut generated = rows(&["in scenarios", "numbers", ""]);
    for (name, numbers, description) in GENERATED {
        generated.add_row([name, numbers, description]);
    }
    let more = "`anabranch topologies NAME` lists a network's sites and links; a .toml, .graphml, .gml or .xml file may stand for NAME.";
    format!("{built_in}\n\n{generated}\n\n{more}")
}

fn all_json() -> anyhow::Result<String> {
    let built_in =
        BUILTINS.iter().map(|b| serde_json::json!({ "name": b.name, "description": b.description }));
    let generated = GENERATED.iter().map(|(name, numbers, description)| {
        serde_json::json!({ "name": name, "numbers": numbers, "description": description })
    });
    let all = serde_json::json!({
        "built_in": built_in.collect::<Vec<_>>(), "generated": generated.collect::<Vec<_>>(),
    });
    Ok(serde_json::to_string(&all)?)
}

fn table(topology: &Topology) -> String {
    let mut sites = rows(&["site", "name", "kind", "place"]);
    for (number, site) in topology.sites().iter().enumerate() {
        let place =
            site.place.map_or_else(String::new, |p| format!("{:.2}, {:.2}", p.latitude_deg, p.longitude_deg));
        let kind = if site.is_switch { "switch" } else { "host" };
        sites.add_row([number.to_string(), printable(&site.name).into_owned(), kind.to_owned(), place]);
    }
    let mut links = rows(&["link", "rate", "delay", "loss", "queue"]);
    for id in topology.link_ids() {
        let p = &topology.link(id).properties;
        let loss = match (p.loss_ppm, p.loss_burst) {
            (0, _) => "-".to_owned(),
            (ppm, 1) => format!("{ppm} ppm"),
            (ppm, burst) => format!("{ppm} ppm, bursts of {burst}"),
        };
        let queue = p.queue.map_or_else(|| "-".to_owned(), |queue| queue.to_string());
        let name = topology.link_name(id);
        links.add_row([
            printable(&name).into_owned(),
            p.capacity.to_string(),
            p.delay.to_string(),
            loss,
            queue,
        ]);
    }
    let (name, counts) = (printable(topology.name()), (topology.sites().len(), topology.links().len()));
    format!("{name}: {} sites, {} links\n\n{sites}\n\n{links}", counts.0, counts.1)
}

fn json(topology: &Topology) -> serde_json::Value {
    let sites = topology.sites().iter().enumerate().map(|(number, site)| {
        serde_json::json!({
            "id": number, "name": site.name, "switch": site.is_switch,
            "latitude_deg": site.place.map(|p| p.latitude_deg), "longitude_deg": site.place.map(|p| p.longitude_deg),
        })
    });
    let links = topology.link_ids().map(|id| {
        let link = topology.link(id);
        let p = &link.properties;
        serde_json::json!({
            "id": id, "name": topology.link_name(id), "from": topology.site(link.from).name,
            "to": topology.site(link.to).name, "rate_bps": p.capacity.as_bps(), "delay_s": p.delay.as_secs_f64(),
            "cost": p.cost, "loss_ppm": p.loss_ppm, "loss_burst": p.loss_burst,
            "queue_bytes": p.queue.map(|queue| queue.as_u64()),
        })
    });
    serde_json::json!({
        "name": topology.name(), "sites": sites.collect::<Vec<_>>(), "links": links.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_network_is_listed_with_its_sites_and_links() {
        let all = all();
        for name in BUILTINS.iter().map(|b| b.name).chain(GENERATED.iter().map(|(name, ..)| *name)) {
            assert!(all.contains(name), "{name}");
        }
        let internet2 = table(&builtin("internet2", BitRate::mbps(10)).expect("built in"));
        assert!(internet2.starts_with("internet2: 9 sites, 26 links\n"), "{internet2}");
        assert!(internet2.contains("seattle-los-angeles"), "{internet2}");
        let links = json(&builtin("b4", BitRate::mbps(10)).expect("built in"));
        assert_eq!(links["links"].as_array().map(Vec::len), Some(44));
        assert_eq!(links["links"][0]["rate_bps"], 10_000_000);
    }
}
