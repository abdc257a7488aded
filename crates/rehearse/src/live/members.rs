//! Three members of etcd in the controllers' site.
//!
//! Leaves out: the controllers. Read [`Members`] first.

use super::programs::ask;
use super::testbed::{CONTROLLER, Testbed};
use crate::fleet::Fleet;
use anabranch_emu::Emulation;
use anabranch_http::origin::{Origin, Reply};
use anyhow::{Context as _, ensure};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const COUNT: u16 = 3;
const CLIENT_PORT: u16 = 7400;
const PEER_PORT: u16 = 7410;
/// Maximum time until a member leads.
const READY_MAX: Duration = Duration::from_secs(20);
/// Maximum bytes of a member's metrics.
const METRICS_MAX: usize = 1 << 20;

/// Members of one etcd, in the controllers' site.
pub(super) struct Members {
    /// Index of each member's program in the fleet.
    programs: Vec<usize>,
    urls: Vec<String>,
}

impl Members {
    /// Starts the members, and waits until one of them leads.
    ///
    /// Errors: no etcd on this machine (Debian: etcd-server); no leader within 20 s.
    pub(super) fn start(fleet: &mut Fleet, testbed: &Testbed, emulation: &Emulation) -> anyhow::Result<Self> {
        let site = testbed.sites[CONTROLLER];
        let at = emulation.site_address(site);
        let url = |port: u16, member: u16| format!("http://{at}:{}", port + member);
        let cluster: Vec<String> =
            (0..COUNT).map(|member| format!("m{member}={}", url(PEER_PORT, member))).collect();
        let (mut programs, mut urls) = (Vec::new(), Vec::new());
        for member in 0..COUNT {
            let (clients, peers) = (url(CLIENT_PORT, member), url(PEER_PORT, member));
            let mut command = Command::new("etcd");
            command.args(["--name", &format!("m{member}"), "--initial-cluster", &cluster.join(",")]);
            command.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
            command.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
            command.arg("--data-dir").arg(fleet.path(&format!("etcd-m{member}")));
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            fleet.spawn(emulation, site, command).context("etcd (Debian: etcd-server)")?;
            programs.push(fleet.agents() - 1);
            urls.push(clients);
        }
        let members = Self { programs, urls };
        let began = Instant::now();
        while members.leader(testbed, emulation)?.is_none() {
            ensure!(began.elapsed() < READY_MAX, "no member of etcd leads within {READY_MAX:?}");
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(members)
    }

    /// URLs of the members, for the controllers' options.
    pub(super) fn urls(&self) -> String {
        self.urls.join(",")
    }

    /// Index in the fleet of the leading member; `None` if no member leads.
    ///
    /// Errors: an error of the operating system.
    pub(super) fn leader(&self, testbed: &Testbed, emulation: &Emulation) -> anyhow::Result<Option<usize>> {
        let urls = self.urls.clone();
        let leader = ask(emulation, testbed.sites[CONTROLLER], async move {
            for (member, url) in urls.iter().enumerate() {
                let metrics = metrics(&Origin::new(url)?).await.unwrap_or_default();
                if metrics.lines().any(|line| line == "etcd_server_is_leader 1") {
                    return anyhow::Ok(Some(member));
                }
            }
            Ok(None)
        })?;
        Ok(leader.map(|member| self.programs[member]))
    }
}

/// Fetches a member's metrics.
async fn metrics(member: &Origin) -> anyhow::Result<String> {
    let mut reply: Reply = member.get("/metrics", &hyper::HeaderMap::new()).await?;
    let mut text = Vec::new();
    while let Some(bytes) = reply.bytes().await? {
        text.extend_from_slice(&bytes);
        ensure!(text.len() <= METRICS_MAX, "metrics of more than {METRICS_MAX} B");
    }
    Ok(String::from_utf8(text)?)
}
