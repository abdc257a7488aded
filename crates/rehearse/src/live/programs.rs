//! Real programs of a `live` network in the emulator: keys, controller, nodes and publishers.
//!
//! Leaves out: viewers (`audience`), faults. Read [`Overlay`] and [`Daemons`] first.

use super::Mode;
use crate::fleet::{Fleet, Programs, program, quiet_program};
use anabranch_emu::Emulation;
use anabranch_live::controller::client::ControllerClient;
pub(super) use anabranch_live_proto::Tier;
use anabranch_net::identity::Identity;
use anabranch_net::keys::{Role, SetRequest, VALID_DAYS};
use anabranch_net::tls::CredentialFiles;
use anabranch_units::{BitRate, Duration as Span, SiteId};
use std::fmt::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Ports of all programs.
pub(super) const MEDIA_PORT: u16 = 7201;
pub(super) const CONTROL_PORT: u16 = 7301;
pub(super) const CONTROLLER_PORT: u16 = 7200;
pub(super) const DNS_PORT: u16 = 7253;
/// Zone of the channels' names.
const ZONE: &str = "live.test";
/// Token of the publishers.
const TOKEN: &str = "0123456789abcdef";
/// Interval between two plans of a controller whose plans no node follows: the maximum that the
/// controller accepts.
const EVERY_MAX: Span = Span::from_secs(3_600);

#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) name: String,
    pub(super) tier: Tier,
    pub(super) site: SiteId,
}

/// A link between two nodes.
#[derive(Clone, Debug)]
pub(super) struct Link {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) capacity: BitRate,
    pub(super) cost: f64,
}

/// A network of `live`, as described to its controller.
#[derive(Clone, Debug)]
pub(super) struct Overlay {
    pub(super) controller: SiteId,
    pub(super) nodes: Vec<Node>,
    pub(super) links: Vec<Link>,
    /// By site: its viewers' edges, the nearest first, each with its price.
    pub(super) groups: Vec<(SiteId, Vec<(usize, f64)>)>,
    pub(super) channels: u64,
    pub(super) bitrates: Vec<BitRate>,
    pub(super) segment: Span,
    pub(super) part: Span,
    pub(super) mode: Mode,
    /// Interval between two plans.
    pub(super) every: Span,
}

/// Name of a channel, as `live publish` names it.
pub(super) fn channel_name(channels: u64, channel: u64) -> String {
    if channels == 1 { "c".to_owned() } else { format!("c-{channel}") }
}

/// URL of a channel at the edge in `site`.
pub(super) fn playlist_url(emulation: &Emulation, site: SiteId, channel: &str) -> String {
    format!("http://{}:{MEDIA_PORT}/{channel}/index.m3u8", emulation.site_address(site))
}

/// URL of a channel at the edge that DNS answers.
pub(super) fn named_url(channel: &str) -> String {
    format!("http://{channel}.{ZONE}:{MEDIA_PORT}/{channel}/index.m3u8")
}

impl Overlay {
    /// The controller's description of the network.
    fn description(&self, emulation: &Emulation) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        for Node { name, tier, site } in &self.nodes {
            let at = emulation.site_address(*site);
            let word = format!("{tier:?}").to_lowercase();
            writeln!(
                text,
                "[[node]]\nname = \"{name}\"\ntier = \"{word}\"\nmedia = \"http://{at}:{MEDIA_PORT}\""
            )?;
            if *tier != Tier::Edge {
                writeln!(text, "control = \"{at}:{CONTROL_PORT}\"")?;
            }
        }
        for Link { from, to, capacity, cost } in &self.links {
            let (from, to, rate) = (&self.nodes[*from].name, &self.nodes[*to].name, capacity.as_bps());
            writeln!(
                text,
                "[[link]]\nfrom = \"{from}\"\nto = \"{to}\"\ncapacity = \"{rate}bit/s\"\ncost = {cost:?}"
            )?;
        }
        for (number, (site, edges)) in self.groups.iter().enumerate() {
            let edge = |(edge, cost): &(usize, f64)| {
                format!("{{ edge = \"{}\", cost = {cost:?} }}", self.nodes[*edge].name)
            };
            let edges: Vec<String> = edges.iter().map(edge).collect();
            let at = emulation.site_address(*site);
            write!(text, "[[group]]\nname = \"g{number}\"\nprefixes = [\"{at}/32\"]\n")?;
            writeln!(text, "edges = [{}]", edges.join(", "))?;
        }
        for channel in 0..self.channels {
            let renditions = self.bitrates.iter().enumerate();
            let renditions: Vec<String> =
                renditions.map(|(at, rate)| format!("b{at} = \"{}bit/s\"", rate.as_bps())).collect();
            let name = channel_name(self.channels, channel);
            writeln!(text, "[[channel]]\nname = \"{name}\"\nrenditions = {{ {} }}", renditions.join(", "))?;
        }
        Ok(text)
    }

    /// Writes the keys, the description and the tokens to the fleet's folder.
    ///
    /// Errors: names that are invalid in keys; an error of the operating system.
    pub(super) fn prepare(&self, fleet: &Fleet, emulation: &Emulation) -> anyhow::Result<()> {
        let request = SetRequest {
            system: anabranch_live::SYSTEM,
            sites: self.nodes.iter().map(|node| node.name.clone()).collect(),
            operators: vec!["operator".into()],
            controller_hosts: vec![],
            valid_days: VALID_DAYS,
        };
        fleet.make_keys(&request)?;
        std::fs::write(fleet.path("live.toml"), self.description(emulation)?)?;
        Ok(std::fs::write(fleet.path("tokens"), format!("* {TOKEN}\n"))?)
    }

    /// Builds the command of a controller that listens at `address`. The caller adds the options of
    /// its store.
    pub(super) fn controller(&self, fleet: &Fleet, address: &str) -> Command {
        let every = if self.mode == Mode::Distributed { EVERY_MAX } else { self.every };
        let mut command = quiet_program();
        command.args(["live", "controller", "--listen", address]);
        command.args(["--every", &option(every)]);
        command.arg("--network").arg(fleet.path("live.toml")).arg("--keys").arg(fleet.keys());
        command
    }

    /// Path of the file in which a node stores its last known network.
    fn cache(&self, fleet: &Fleet, node: usize) -> std::path::PathBuf {
        fleet.path(&format!("{}.network.json", self.nodes[node].name))
    }

    fn node(&self, fleet: &Fleet, emulation: &Emulation, node: usize, controllers: &[String]) -> Command {
        let Node { name, tier, site } = &self.nodes[node];
        let at = emulation.site_address(*site);
        let listen = format!("{at}:{MEDIA_PORT}");
        let mut command = quiet_program();
        if *tier == Tier::Source {
            command.args(["live", "source", "--listen", &listen, "--segment", &option(self.segment)]);
            command.args(["--part", &option(self.part), "--renditions", "10000", "--window", "8"]);
            command.arg("--token-file").arg(fleet.path("tokens"));
        } else {
            command.args(["live", "node", "--listen", &listen]);
        }
        command.args(["--name", name, "--controller", &controllers.join(",")]);
        command.args(["--mode", self.mode.name()]).arg("--keys").arg(fleet.keys());
        command.arg("--cache").arg(self.cache(fleet, node));
        if *tier != Tier::Edge {
            command.args(["--control", &format!("{at}:{CONTROL_PORT}")]);
        }
        command
    }
}

/// A duration in the form that options accept.
fn option(time: Span) -> String {
    format!("{}us", time.as_us())
}

/// Running nodes and publishers, and a client of their controllers.
pub(super) struct Daemons {
    pub(super) overlay: Overlay,
    pub(super) fleet: Fleet,
    /// Index of each node's program in the fleet.
    pub(super) nodes: Vec<usize>,
    addresses: Vec<String>,
    _publishers: Programs,
    pub(super) operator: ControllerClient,
}

impl Daemons {
    /// Starts the nodes and publishers; the controllers at `addresses` already run. `elects` is
    /// true if the controllers elect a leader first.
    ///
    /// Errors: an error of the operating system; programs that do not start.
    pub(super) fn start(
        overlay: Overlay,
        mut fleet: Fleet,
        emulation: &Emulation,
        addresses: Vec<String>,
        elects: bool,
    ) -> anyhow::Result<Self> {
        let mut nodes = Vec::new();
        for node in 0..overlay.nodes.len() {
            let command = overlay.node(&fleet, emulation, node, &addresses);
            nodes.push(fleet.start(emulation, overlay.nodes[node].site, command)?);
        }
        let identity =
            CredentialFiles::in_set(&fleet.keys(), anabranch_live::SYSTEM, Role::Operator, "operator");
        let operator =
            ControllerClient::of(&addresses, &Identity::load(&identity)?, Duration::from_secs(10))?;
        Fleet::wait_ready("nodes", nodes.len(), || {
            let client = operator.clone();
            let asked = ask(emulation, overlay.controller, async move { client.nodes().await });
            match asked {
                Ok(nodes) => Ok(nodes.iter().filter(|node| node.is_up).count()),
                Err(_) if elects => Ok(0),
                Err(error) => Err(error),
            }
        })?;
        let mut publishers = Programs::default();
        let renditions = overlay.bitrates.iter().enumerate();
        let renditions: Vec<String> =
            renditions.map(|(at, rate)| format!("b{at}={}bit/s", rate.as_bps())).collect();
        for node in overlay.nodes.iter().filter(|node| node.tier == Tier::Source) {
            let mut command = program();
            let url = format!("http://{}:{MEDIA_PORT}", emulation.site_address(node.site));
            command.args(["live", "publish", &url, "--token", TOKEN, "--channel", "c"]);
            command.args(["--channels", &overlay.channels.to_string()]);
            command.args(["--fragment", &option(overlay.part), "--key", &option(overlay.segment)]);
            command.args(["--renditions", &renditions.join(",")]);
            command.stdout(Stdio::null()).stderr(Stdio::null());
            publishers.0.push(emulation.spawn(node.site, command)?);
        }
        Ok(Self { overlay, fleet, nodes, addresses, _publishers: publishers, operator })
    }

    /// Starts a DNS server in the site of each edge.
    ///
    /// Errors: an error of the operating system; programs that do not start.
    pub(super) fn start_dns(&mut self, emulation: &Emulation) -> anyhow::Result<()> {
        for node in self.overlay.nodes.iter().filter(|node| node.tier == Tier::Edge) {
            let mut command = quiet_program();
            command.args(["live", "dns", "--zone", ZONE, "--controller", &self.addresses.join(",")]);
            command.args(["--listen", &format!("{}:{DNS_PORT}", emulation.site_address(node.site))]);
            command.arg("--keys").arg(self.fleet.keys());
            self.fleet.start(emulation, node.site, command)?;
        }
        Ok(())
    }

    /// Kills a node, and starts it again without its stored network.
    ///
    /// Errors: an error of the operating system; a program that does not start.
    pub(super) fn restart_node(&mut self, emulation: &Emulation, node: usize) -> anyhow::Result<()> {
        // The file does not exist if the node has not stored a network.
        let _ = std::fs::remove_file(self.overlay.cache(&self.fleet, node));
        let command = self.overlay.node(&self.fleet, emulation, node, &self.addresses);
        self.fleet.restart(self.nodes[node], emulation, self.overlay.nodes[node].site, command)
    }

    /// Begins or ends the drain of a node.
    ///
    /// Errors: an error of the controller.
    pub(super) fn drain(&self, emulation: &Emulation, node: usize, is_drained: bool) -> anyhow::Result<()> {
        let (client, name) = (self.operator.clone(), self.overlay.nodes[node].name.clone());
        let drained = async move { client.drain(&name, is_drained).await };
        ask(emulation, self.overlay.controller, drained).map(drop)
    }
}

/// Sends a request to a program in `site`, from the same site.
pub(super) fn ask<T: Send + 'static, E: Into<anyhow::Error>>(
    emulation: &Emulation,
    site: SiteId,
    question: impl Future<Output = Result<T, E>> + Send + 'static,
) -> anyhow::Result<T> {
    let enter = emulation.enter(site);
    let asked = std::thread::spawn(move || -> anyhow::Result<T> {
        enter()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(question).map_err(Into::into)
    });
    asked.join().map_err(|_| anyhow::anyhow!("the client's thread has panicked"))?
}
