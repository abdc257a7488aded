//! A content network's agent: it waits for calls, bids, and answers proposals from its network's
//! files.
//!
//! Clusters are in a TOML file, scores in a CSV table. Both files are read again in each round, so
//! the agent needs no signal after a change. `broker_proto::AgentSession` decides when to send
//! which request. Leaves out: the contents of bids (`broker_proto::Agent`). Read [`NetworkAgent`]
//! and [`Files`] first.
#![allow(clippy::disallowed_methods, reason = "a driver: reads files and the clock")]

mod metrics;

use crate::client::Client;
use crate::file_error::FileError;
use anabranch_broker_proto::agent_session::{AgentAction, Answer, Event, Failure, WITHIN};
use anabranch_broker_proto::limits::{check_capacity, check_price, check_score};
use anabranch_broker_proto::{AgentSession, Estimates, Offer, Site, considered};
use anabranch_http::ClientError;
use anabranch_net::identity::Identity;
use anabranch_net::random;
use anabranch_units::text::decode;
use anabranch_units::{BitRate, Duration, Instant};
use metrics::AgentMetrics;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use toml::Spanned;

/// Provider name that matches every provider without a row.
const ANY: &str = "*";

/// Paths of a network's estimates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// TOML file with one `[[cluster]]` table for each cluster: `number`, `cost` (per Mbit/s),
    /// `capacity` and `background`.
    pub clusters: PathBuf,
    /// CSV file with the columns `location`, `isp`, `cluster` and `score`; `*` matches every
    /// provider without a row.
    pub scores: PathBuf,
}

/// Clusters and scores as read from the files.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NetworkFiles {
    sites: BTreeMap<u32, Site>,
    /// Offers by city and provider.
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
    /// Reads both files.
    ///
    /// Errors: the first error, with its file and line.
    pub fn read(&self) -> Result<NetworkFiles, FileError> {
        let mut read = NetworkFiles::default();
        self.read_clusters(&mut read)?;
        self.read_scores(&mut read)?;
        Ok(read)
    }

    fn read_clusters(&self, into: &mut NetworkFiles) -> Result<(), FileError> {
        let wrong = |what: String| FileError(format!("{}: {what}", self.clusters.display()));
        let bytes = std::fs::read(&self.clusters).map_err(|error| wrong(error.to_string()))?;
        let text = decode(bytes).map_err(|error| wrong(error.to_string()))?;
        let file: ClustersFile =
            toml::from_str(&text).map_err(|error| wrong(FileError::of_toml(&text, &error)))?;
        if file.cluster.is_empty() {
            return Err(wrong("no [[cluster]] table: there must be one for each cluster".to_owned()));
        }
        for table in file.cluster {
            let number = table.number;
            let ClusterTable { cost, capacity, background, .. } = table;
            check_price("cost", *cost.as_ref())
                .map_err(|error| wrong(FileError::of_value(&text, &cost, error)))?;
            let rates = [("capacity", Some(&capacity)), ("background", background.as_ref())];
            for (what, rate) in rates.into_iter().filter_map(|(what, rate)| Some((what, rate?))) {
                check_capacity(what, *rate.as_ref())
                    .map_err(|error| wrong(FileError::of_value(&text, rate, error)))?;
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

    fn read_scores(&self, into: &mut NetworkFiles) -> Result<(), FileError> {
        let wrong = |what: String| FileError(format!("{}: {what}", self.scores.display()));
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

impl Estimates for NetworkFiles {
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

/// Configuration of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkConfig {
    /// Name of the network, as in its certificate.
    pub name: String,
    /// Addresses of all brokers that share a store, as `HOST:PORT` or `https://HOST:PORT`.
    pub brokers: Vec<String>,
    /// Files with the network's estimates.
    pub files: Files,
}

/// A network's agent.
pub struct NetworkAgent {
    name: String,
    /// One client for each broker.
    clients: Vec<Client>,
    files: Files,
    machine: AgentSession,
    metrics: Arc<AgentMetrics>,
}

/// Reason for the end of an agent.
#[derive(Debug)]
#[non_exhaustive]
pub enum NetworkAgentError {
    /// The broker's address or the keys are unusable.
    Client(ClientError),
    /// The configuration names no broker.
    NoBroker,
    /// The files with estimates are unusable.
    Files(FileError),
    /// The broker refuses this agent for good.
    Refused(String),
    /// The system provides no random numbers.
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

fn failure(error: ClientError) -> Failure {
    let line = error.to_string();
    match error {
        ClientError::Refused { status: 409, .. } => Failure::NotJoined(line),
        ClientError::Refused { status: 421, .. } => Failure::NotLeading(line),
        ClientError::Refused { status: 400 | 403, .. } | ClientError::Settings(_) => Failure::Refused(line),
        _ => Failure::Away(line),
    }
}

impl NetworkAgent {
    /// Creates an agent. Reads the network's files once, to report errors early.
    ///
    /// Errors: files or keys that are unusable.
    pub fn new(config: NetworkConfig, identity: &Identity) -> Result<Self, NetworkAgentError> {
        let NetworkConfig { name, brokers, files } = config;
        files.read().map_err(NetworkAgentError::Files)?;
        let clients = brokers.iter().map(|broker| Client::new(broker, identity, WITHIN.to_std()));
        let clients: Vec<Client> = clients.collect::<Result<_, _>>().map_err(NetworkAgentError::Client)?;
        if clients.is_empty() {
            return Err(NetworkAgentError::NoBroker);
        }
        let random = random().map_err(NetworkAgentError::Random)?;
        let machine = AgentSession::new(Instant::ZERO, clients.len(), random);
        let addresses = clients.iter().map(|client| client.address().to_owned()).collect();
        Ok(Self { name, clients, files, machine, metrics: Arc::new(AgentMetrics::new(addresses)) })
    }

    /// Addresses of the brokers, as `host:port`.
    pub fn brokers(&self) -> Vec<&str> {
        self.clients.iter().map(Client::address).collect()
    }

    /// Returns a function that writes the agent's metrics in Prometheus' text format, also while
    /// the agent runs.
    pub fn metrics(&self) -> impl Fn() -> String + Clone + Send + Sync + use<> {
        let metrics = Arc::clone(&self.metrics);
        move || metrics.text()
    }

    /// Runs until `end` completes, then deregisters.
    ///
    /// Errors: the broker refuses this agent for good.
    pub async fn run(mut self, end: impl Future<Output = ()>) -> Result<(), NetworkAgentError> {
        let ended = tokio::select! {
            refused = self.work() => Some(refused),
            () = end => None,
        };
        if let Some(line) = ended {
            return Err(NetworkAgentError::Refused(line));
        }
        let _ = self.client().leave(&self.name, self.machine.session(), WITHIN.to_std() / 4).await;
        Ok(())
    }

    /// Client of the broker that currently receives the requests.
    fn client(&self) -> &Client {
        &self.clients[self.machine.broker()]
    }

    /// Runs the session's requests until the session gives up. Returns the reason in one line.
    async fn work(&mut self) -> String {
        // The session's clock restarts at each answer, because [`Instant`] ends after 213 days. No
        // deadline of the session outlives an answer.
        let mut epoch = std::time::Instant::now();
        loop {
            while let Some(event) = self.machine.poll_event() {
                if let Event::GivenUp(line) = event {
                    return line;
                }
                self.log(event);
            }
            match self.machine.poll_ask() {
                Some((number, AgentAction::Estimate)) => {
                    self.machine.handle_estimates(number, &self.estimates())
                }
                Some((number, ask)) => {
                    let broker = self.machine.broker();
                    let answer = self.send(ask).await.map_err(failure);
                    match &answer {
                        Ok(Answer::Bids(reply)) => self.metrics.note_refused_bids(broker, reply.refused),
                        Ok(_) => {}
                        Err(failure) => self.metrics.note_failure(broker, failure),
                    }
                    epoch = std::time::Instant::now();
                    self.machine.handle_answer(Instant::ZERO, number, answer);
                }
                None => {
                    let due = self.machine.poll_timeout().expect("an agent that asks for nothing pauses");
                    let now = || Instant::from_std(epoch.elapsed());
                    // Timers round down, so one millisecond is added; otherwise the loop would
                    // spin.
                    let pause = due.saturating_since(now()) + Duration::from_ms(1);
                    tokio::time::sleep(pause.to_std()).await;
                    self.machine.handle_timeout(now());
                }
            }
        }
    }

    fn log(&self, event: Event) {
        self.metrics.note(self.machine.broker(), &event);
        match event {
            Event::Joined => tracing::info!("joined broker {}", self.client().address()),
            Event::Away(line, true) => {
                tracing::warn!("the broker is away, and will be tried again: {line}");
            }
            Event::Away(line, false) | Event::NotLeading(line) => tracing::debug!("{line}"),
            Event::UnknownDesign { round, design } => {
                tracing::error!("round {round}: design `{design}` is not known here: update this agent");
            }
            Event::BidRefused { round, reason } => tracing::warn!("round {round}: refused: {reason}"),
            Event::Accepted { round, sessions, rate } => {
                tracing::info!("round {round}: {sessions} clients, {rate}");
            }
            Event::GivenUp(_) => {}
        }
    }

    /// Reads the network's estimates. If the files are unreadable, the network bids nothing in this
    /// round.
    fn estimates(&self) -> NetworkFiles {
        self.files.read().unwrap_or_else(|error| {
            tracing::error!("{error}: nothing is bid in this round");
            self.metrics.note_bad_files();
            NetworkFiles::default()
        })
    }

    /// Sends a request and returns the broker's answer.
    async fn send(&self, ask: AgentAction) -> Result<Answer, ClientError> {
        let (client, name, session) = (self.client(), &*self.name, self.machine.session());
        let (begun, waits) = (std::time::Instant::now(), matches!(ask, AgentAction::Messages { .. }));
        let answer = match ask {
            AgentAction::Join { within } => {
                client.join(name, session, within.to_std()).await.map(|()| Answer::Taken)
            }
            AgentAction::Messages { after, wait, within } => {
                let messages = client.messages(name, session, after, wait.to_std(), within.to_std()).await?;
                let messages = messages.into_iter().map(|(number, message)| (number, message.into()));
                Ok(Answer::Messages(messages.collect()))
            }
            AgentAction::Bids(bids) => {
                let sent: usize = bids.shares.iter().map(|share| share.clusters.len()).sum();
                self.metrics.bids.inc_by(sent as u64);
                client.bids(name, session, &bids, WITHIN.to_std()).await.map(Answer::Bids)
            }
            AgentAction::Assent(assent) => {
                client.assent(name, session, &assent, WITHIN.to_std()).await.map(|()| Answer::Taken)
            }
            AgentAction::Estimate => unreachable!("the caller reads the files"),
        };
        if !waits {
            self.metrics.request_seconds.observe(begun.elapsed().as_secs_f64());
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn network_considers_the_clusters_in_its_files() {
        let (_folder, files) =
            files(CLUSTERS, "location,isp,cluster,score\nberlin,*,1,10\nberlin,*,2,19\nberlin,x,1,5\n");
        let read = files.read().expect("they can be used");
        let of = |location: &str, isp: &str| -> Vec<u32> {
            read.considered(location, isp).iter().map(|offer| offer.cluster).collect()
        };
        assert_eq!((of("berlin", "y"), of("berlin", "x"), of("paris", "x")), (vec![2, 1], vec![1], vec![]));
        assert_eq!(read.site(2).map(|site| site.room()), Some(BitRate::mbps(700)));
    }

    /// #52: a byte order mark was refused as an unexpected character.
    #[test]
    fn files_with_byte_order_mark_and_crlf_are_read() {
        let other = |text: &str| format!("\u{feff}{}", text.replace('\n', "\r\n"));
        let scores = "location,isp,cluster,score\nberlin,*,1,10\n";
        let (_folder, files) = files(&other(CLUSTERS), &other(scores));
        assert_eq!(files.read().expect("they can be used").considered("berlin", "y").len(), 1);
    }

    #[test]
    fn errors_name_file_and_line() {
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
}
