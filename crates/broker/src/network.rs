//! A content network's agent: it waits for calls, bids, and answers proposals, by its network's own files.
//!
//! Clusters are in a TOML file, scores in a CSV table; both are read again for each round, so that whoever keeps them need not tell. Where the broker
//! is away it tries again, ever more seldom. Leaves out: what is bid (`broker_proto::Agent`). Read [`NetworkAgent`] and [`Files`] first.
#![allow(clippy::disallowed_methods, reason = "a driver: reads files and the clock")]

use crate::client::Client;
use crate::mistake::Mistake;
use crate::wire::{Accepted, Bids, NetworkMessage};
use anabranch_broker_proto::designs::{self, Design};
use anabranch_broker_proto::limits::{check_capacity, check_price, check_score};
use anabranch_broker_proto::{Agent, Estimates, Offer, Site, considered};
use anabranch_http::{BACKOFF_MAX, BACKOFF_MIN, ClientError};
use anabranch_net::identity::Identity;
use anabranch_net::random;
use anabranch_units::{BitRate, PeerId};
use serde::Deserialize;
use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use toml::Spanned;

/// How long one request may take.
const WITHIN: Duration = Duration::from_secs(20);
/// How long the agent waits for a message before it asks again: that tells the broker that it is there.
const WAIT: Duration = Duration::from_secs(8);
/// The same where there are other brokers, and how long one may take to answer then: of one that stands still, as of a machine that is cut off, nothing
/// else tells.
const WAIT_OF_SEVERAL: Duration = Duration::from_secs(3);
const WITHIN_OF_SEVERAL: Duration = Duration::from_secs(10);
/// Bids of one message: with them it stays well below the most that a request may have.
const BIDS_PER_MESSAGE: usize = 100_000;
/// A provider that stands for all that are not named.
const ANY: &str = "*";
/// An agent has one broker, which it calls so.
const BROKER: PeerId = PeerId(0);

/// Where a network's own estimates are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// TOML: a `[[cluster]]` table each, with `number`, `cost` (for each Mbit/s), `capacity` and `background`.
    pub clusters: PathBuf,
    /// CSV with the columns `location`, `isp`, `cluster` and `score`; `*` stands for any provider that is not named.
    pub scores: PathBuf,
}

/// Clusters and scores, as files have them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FromFiles {
    sites: BTreeMap<u32, Site>,
    /// By city and provider.
    scores: BTreeMap<String, BTreeMap<String, Vec<Offer>>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClustersFile {
    #[serde(default)]
    cluster: Vec<ClusterTable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClusterTable {
    number: u32,
    cost: Spanned<f64>,
    capacity: Spanned<BitRate>,
    background: Option<Spanned<BitRate>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ScoreLine {
    location: String,
    isp: String,
    cluster: u32,
    score: f64,
}

impl Files {
    /// Reads both.
    ///
    /// Errors: the first mistake, with its file and line.
    pub fn read(&self) -> Result<FromFiles, Mistake> {
        let mut read = FromFiles::default();
        self.read_clusters(&mut read)?;
        self.read_scores(&mut read)?;
        Ok(read)
    }

    fn read_clusters(&self, into: &mut FromFiles) -> Result<(), Mistake> {
        let wrong = |what: String| Mistake(format!("{}: {what}", self.clusters.display()));
        let text = std::fs::read_to_string(&self.clusters).map_err(|error| wrong(error.to_string()))?;
        let file: ClustersFile =
            toml::from_str(&text).map_err(|error| wrong(Mistake::of_toml(&text, &error)))?;
        if file.cluster.is_empty() {
            return Err(wrong("no [[cluster]] table: there must be one for each cluster".to_owned()));
        }
        for table in file.cluster {
            let number = table.number;
            let ClusterTable { cost, capacity, background, .. } = table;
            check_price("cost", *cost.as_ref())
                .map_err(|error| wrong(Mistake::of_value(&text, &cost, error)))?;
            let rates = [("capacity", Some(&capacity)), ("background", background.as_ref())];
            for (what, rate) in rates.into_iter().filter_map(|(what, rate)| Some((what, rate?))) {
                check_capacity(what, *rate.as_ref())
                    .map_err(|error| wrong(Mistake::of_value(&text, rate, error)))?;
            }
            let site = Site {
                network: 0,
                city: 0,
                cost_per_mbps: cost.into_inner(),
                capacity: capacity.into_inner(),
                background: background.map_or(BitRate::bps(0), Spanned::into_inner),
            };
            if into.sites.insert(number, site).is_some() {
                return Err(wrong(format!("cluster {number}: is there twice")));
            }
        }
        Ok(())
    }

    fn read_scores(&self, into: &mut FromFiles) -> Result<(), Mistake> {
        let wrong = |what: String| Mistake(format!("{}: {what}", self.scores.display()));
        let mut reader = csv::Reader::from_path(&self.scores).map_err(|error| wrong(error.to_string()))?;
        for (number, line) in (2u64..).zip(reader.deserialize::<ScoreLine>()) {
            let line = line.map_err(|error| wrong(format!("line {number}: {error}")))?;
            check_score(line.score).map_err(|error| wrong(format!("line {number}: {error}")))?;
            if !into.sites.contains_key(&line.cluster) {
                let clusters = self.clusters.display();
                return Err(wrong(format!("line {number}: cluster {}: is not in {clusters}", line.cluster)));
            }
            let offers = into.scores.entry(line.location).or_default().entry(line.isp).or_default();
            offers.push(Offer { cluster: line.cluster, score: line.score });
        }
        Ok(())
    }
}

impl Estimates for FromFiles {
    fn site(&self, cluster: u32) -> Option<Site> {
        self.sites.get(&cluster).copied()
    }
    fn considered(&self, location: &str, isp: &str) -> Vec<Offer> {
        let cost = |cluster: u32| self.sites.get(&cluster).map_or(f64::INFINITY, |site| site.cost_per_mbps);
        considered(self.all(location, isp), cost)
    }
    fn all(&self, location: &str, isp: &str) -> Vec<Offer> {
        let isps = self.scores.get(location);
        let found = isps.and_then(|isps| isps.get(isp).or_else(|| isps.get(ANY)));
        found.cloned().unwrap_or_default()
    }
}

/// How an agent is set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkConfig {
    /// The network's name, as its certificate has it.
    pub name: String,
    /// Where the broker listens, as `HOST:PORT` or `https://HOST:PORT`; of several that share a store, all.
    pub brokers: Vec<String>,
    /// The network's own estimates.
    pub files: Files,
}

/// A network's agent.
pub struct NetworkAgent {
    name: String,
    /// Of each broker; the first leads, as far as that is known.
    clients: VecDeque<Client>,
    files: Files,
    agent: Agent,
}

/// Why an agent ends.
#[derive(Debug)]
#[non_exhaustive]
pub enum NetworkAgentError {
    /// Its settings or keys are none.
    Client(ClientError),
    /// It has no broker.
    NoBroker,
    /// Its files cannot be used.
    Files(Mistake),
    /// The broker says that it may never join.
    Refused(String),
    /// There are no random numbers.
    Random(std::io::Error),
}

impl std::fmt::Display for NetworkAgentError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Client(error) => write!(f, "{error}"),
            Self::NoBroker => f.write_str("no broker: name at least one, as HOST:PORT"),
            Self::Files(error) => write!(f, "{error}"),
            Self::Refused(line) => f.write_str(line),
            Self::Random(error) => write!(f, "/dev/urandom: {error}"),
        }
    }
}
impl std::error::Error for NetworkAgentError {}

/// What one session with a broker comes to.
enum Ended {
    /// It has to join again, now.
    Rejoin,
    /// The broker is away.
    Away(String),
    /// Another broker leads.
    Follows(String),
    /// It may never join.
    Refused(String),
}

fn ended(error: ClientError) -> Ended {
    let line = error.to_string();
    match error {
        ClientError::Refused { status: 409, .. } => Ended::Rejoin,
        ClientError::Refused { status: 421, .. } => Ended::Follows(line),
        ClientError::Refused { status: 400 | 403, .. } | ClientError::Settings(_) => Ended::Refused(line),
        _ => Ended::Away(line),
    }
}

impl NetworkAgent {
    /// Reads the network's files once, so that mistakes are said now.
    ///
    /// Errors: files or keys that cannot be used.
    pub fn new(config: NetworkConfig, identity: &Identity) -> Result<Self, NetworkAgentError> {
        let NetworkConfig { name, brokers, files } = config;
        files.read().map_err(NetworkAgentError::Files)?;
        let clients = brokers.iter().map(|broker| Client::new(broker, identity, WITHIN));
        let clients: VecDeque<Client> =
            clients.collect::<Result<_, _>>().map_err(NetworkAgentError::Client)?;
        if clients.is_empty() {
            return Err(NetworkAgentError::NoBroker);
        }
        Ok(Self { name, clients, files, agent: Agent::default() })
    }

    /// Where the brokers are: `host:port`.
    pub fn brokers(&self) -> Vec<&str> {
        self.clients.iter().map(Client::address).collect()
    }

    /// Works until `end` is there; then it takes its leave.
    ///
    /// Errors: the broker says that this agent may never join.
    pub async fn run(mut self, end: impl Future<Output = ()>) -> Result<(), NetworkAgentError> {
        let session = random().map_err(NetworkAgentError::Random)?;
        let ended = tokio::select! {
            refused = self.work(session) => Some(refused),
            () = end => None,
        };
        if let Some(line) = ended {
            return Err(NetworkAgentError::Refused(line));
        }
        let _ = self.clients[0].leave(&self.name, session, WITHIN / 4).await;
        Ok(())
    }

    /// Joins again and again, until it may not: why, in one line.
    async fn work(&mut self, session: u64) -> String {
        let (mut backoff, mut is_away) = (BACKOFF_MIN, false);
        loop {
            let client = self.clients[0].clone();
            let (_, within) = self.patience();
            let joined = client.join(&self.name, session, within / 2).await;
            let ended = match joined {
                Ok(()) => {
                    tracing::info!("joined broker {}", client.address());
                    (backoff, is_away) = (BACKOFF_MIN, false);
                    self.take_part(&client, session).await
                }
                Err(error) => ended(error),
            };
            match ended {
                Ended::Refused(line) => return line,
                Ended::Rejoin => {}
                Ended::Follows(line) => {
                    tracing::debug!("{line}");
                    self.clients.rotate_left(1);
                }
                Ended::Away(line) if is_away => {
                    tracing::debug!("{line}");
                    self.clients.rotate_left(1);
                }
                Ended::Away(line) => {
                    is_away = true;
                    tracing::warn!("the broker is away, and will be tried again: {line}");
                    self.clients.rotate_left(1);
                }
            }
            tokio::time::sleep(backoff).await;
            backoff = (backoff * 2).min(BACKOFF_MAX);
        }
    }

    /// How long to wait for a message, and how much longer for an answer.
    fn patience(&self) -> (Duration, Duration) {
        if self.clients.len() > 1 { (WAIT_OF_SEVERAL, WITHIN_OF_SEVERAL) } else { (WAIT, WITHIN) }
    }

    /// Answers messages, until something is in the way.
    async fn take_part(&mut self, client: &Client, session: u64) -> Ended {
        let mut after = 0;
        loop {
            let (wait, within) = self.patience();
            let messages = match client.messages(&self.name, session, after, wait, within).await {
                Ok(messages) => messages,
                Err(error) => return ended(error),
            };
            for (number, message) in messages {
                after = number;
                if let Err(error) = self.answer(client, session, message).await {
                    return ended(error);
                }
            }
        }
    }

    /// What the network knows now; of files that cannot be read, nothing: it sits a round out.
    fn estimates(&self) -> FromFiles {
        self.files.read().unwrap_or_else(|error| {
            tracing::error!("{error}: nothing is bid in this round");
            FromFiles::default()
        })
    }

    async fn answer(
        &mut self,
        client: &Client,
        session: u64,
        message: NetworkMessage,
    ) -> Result<(), ClientError> {
        match message {
            NetworkMessage::Call(call) => {
                let Some(design) = designs::by_name(&call.design) else {
                    tracing::error!(
                        "round {}: design `{}` is not known here: update this agent",
                        call.round,
                        call.design
                    );
                    return Ok(());
                };
                let bids = self.bid(design, &call);
                for part in parts(bids) {
                    let reply = client.bids(&self.name, session, &part, WITHIN).await?;
                    for reason in &reply.reasons {
                        tracing::warn!("round {}: refused: {reason}", part.round);
                    }
                }
            }
            NetworkMessage::Proposal(proposal) => {
                let assent = self.agent.handle_proposal(&self.estimates(), BROKER, &proposal);
                client.assent(&self.name, session, &assent, WITHIN).await?;
            }
            NetworkMessage::Accepted(accepted) => {
                self.agent.handle_accepted(BROKER, &accepted);
                let (sessions, rate) = totals(&accepted);
                tracing::info!("round {}: {sessions} clients, {rate}", accepted.round);
            }
        }
        Ok(())
    }

    fn bid(&self, design: Arc<dyn Design>, call: &crate::wire::Call) -> Bids {
        self.agent.handle_call(BROKER, &*design, &self.estimates(), call)
    }
}

/// The clients of all clusters, and what they get together.
pub(crate) fn totals(accepted: &Accepted) -> (u64, BitRate) {
    let (sessions, bps) = accepted.clusters.iter().fold((0u64, 0u64), |(sessions, bps), cluster| {
        (sessions.saturating_add(cluster.sessions), bps.saturating_add(cluster.rate_bps))
    });
    (sessions, BitRate::bps(bps))
}

/// Bids in messages that are not too long, all but the last with more to follow.
pub(crate) fn parts(bids: Bids) -> Vec<Bids> {
    let mut parts = vec![Bids { round: bids.round, clusters: bids.clusters, ..Bids::default() }];
    let mut count = 0;
    for share in bids.shares {
        if count + share.clusters.len() > BIDS_PER_MESSAGE && count > 0 {
            count = 0;
            parts.push(Bids { round: bids.round, ..Bids::default() });
        }
        count += share.clusters.len();
        let last = parts.len() - 1;
        parts[last].shares.push(share);
    }
    let last = parts.len() - 1;
    parts[..last].iter_mut().for_each(|part| part.more = true);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_broker_proto::messages::ShareBids;

    fn files(clusters: &str, scores: &str) -> (tempfile::TempDir, Files) {
        let folder = tempfile::tempdir().expect("a folder");
        let files =
            Files { clusters: folder.path().join("clusters.toml"), scores: folder.path().join("scores.csv") };
        std::fs::write(&files.clusters, clusters).expect("room");
        std::fs::write(&files.scores, scores).expect("room");
        (folder, files)
    }

    const CLUSTERS: &str = "[[cluster]]\nnumber = 1\ncost = 2.0\ncapacity = \"1 Gbit/s\"\n[[cluster]]\nnumber = 2\ncost = 1.0\ncapacity = \"1 Gbit/s\"\nbackground = \"300 Mbit/s\"\n";

    #[test]
    fn a_network_considers_what_its_files_say() {
        let (_folder, files) =
            files(CLUSTERS, "location,isp,cluster,score\nberlin,*,1,10\nberlin,*,2,19\nberlin,x,1,5\n");
        let read = files.read().expect("they can be used");
        let of = |location: &str, isp: &str| -> Vec<u32> {
            read.considered(location, isp).iter().map(|offer| offer.cluster).collect()
        };
        assert_eq!((of("berlin", "y"), of("berlin", "x"), of("paris", "x")), (vec![2, 1], vec![1], vec![]));
        assert_eq!(read.site(2).map(|site| site.room()), Some(BitRate::mbps(700)));
    }

    #[test]
    fn mistakes_are_said_with_their_files_and_lines() {
        let said = |clusters: &str, scores: &str| {
            let (folder, files) = files(clusters, scores);
            let line = files.read().expect_err("it is wrong").to_string();
            line.replace(&format!("{}/", folder.path().display()), "")
        };
        let scores = "location,isp,cluster,score\nberlin,*,1,-1\n";
        assert_eq!(
            said(CLUSTERS, scores),
            "scores.csv: line 2: score -1: must be 0 to 10^9: choose a larger unit, or leave the cluster out"
        );
        let cluster = |cost: &str, capacity: &str| {
            format!("[[cluster]]\nnumber = 1\ncost = {cost}\ncapacity = \"{capacity}\"\n")
        };
        assert_eq!(
            said(&cluster("1000001.0", "1 Gbit/s"), scores),
            "clusters.toml: line 3: cost 1000001: must be 0 to 10^6 for each Mbit/s: choose a larger unit of money"
        );
        assert_eq!(
            said(&cluster("1e6", "1000001 Gbit/s"), scores),
            "clusters.toml: line 4: capacity 1000001000000000 bit/s: must be 0 to 10^15 bit/s: split the cluster into several"
        );
        let (_folder, at_the_limit) =
            files(&cluster("1e6", "1000000 Gbit/s"), "location,isp,cluster,score\nberlin,*,1,1e9\n");
        assert!(at_the_limit.read().is_ok());
        assert!(
            said("[[cluster]]\nnumber = 1\ncosts = 1\n", scores)
                .starts_with("clusters.toml: line 3: unknown field `costs`")
        );
        assert_eq!(
            said("", scores),
            "clusters.toml: no [[cluster]] table: there must be one for each cluster"
        );
        assert!(said(CLUSTERS, "location,isp,cluster,score\nberlin,*,9,1\n").ends_with("clusters.toml"));
    }

    #[test]
    fn many_bids_go_in_parts() {
        let share = |share| ShareBids { share, clusters: vec![(1, 1.0); 40_000] };
        let bids = Bids { round: 3, shares: (0..5).map(share).collect(), ..Bids::default() };
        let parts = parts(bids);
        assert_eq!(parts.iter().map(|part| part.shares.len()).collect::<Vec<_>>(), [2, 2, 1]);
        assert_eq!(parts.iter().map(|part| part.more).collect::<Vec<_>>(), [true, true, false]);
    }
}
