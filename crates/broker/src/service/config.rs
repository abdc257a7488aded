//! Configuration of a broker, and errors at its start.
//!
//! Leaves out: the running broker. Read [`BrokerServiceConfig`].

use crate::contracts::Contracts;
use anabranch_broker_proto::broker::Settings;
use anabranch_http::lease::{EtcdConfig, EtcdConfigError, LeaseError};
use anabranch_media::steering::TTL_S;
use anabranch_net::identity::Identity;
use std::path::PathBuf;

/// Configuration of a broker.
pub struct BrokerServiceConfig {
    /// Settings of the decisions.
    pub settings: Settings,
    /// The networks, and the contract with each.
    pub contracts: Contracts,
    /// Store of the last decision.
    pub store: StoreConfig,
    /// Interval between two steering requests of a player, in seconds.
    pub ttl_s: u32,
    /// True if players' reports affect the trust in networks. Anybody can send such reports.
    pub believes_players: bool,
}

/// Kind of store for the last decision.
#[non_exhaustive]
pub enum StoreConfig {
    /// A file, created if it does not exist.
    File(PathBuf),
    /// Memory only, for tests: the decision is lost when the broker ends.
    Memory,
    /// An etcd cluster that several brokers share; one of them leads.
    Etcd {
        /// Address and settings of etcd.
        etcd: EtcdConfig,
        /// Keys with which this broker reports its viewer counts to the leader.
        identity: Identity,
    },
}

impl std::fmt::Display for StoreConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(path) => write!(f, "file {}", path.display()),
            Self::Memory => write!(f, "memory"),
            Self::Etcd { etcd, .. } => write!(f, "etcd {}", etcd.members.join(",")),
        }
    }
}

impl BrokerServiceConfig {
    /// Creates a configuration with a decision file and defaults for all other settings.
    pub fn new(settings: Settings, contracts: Contracts, file: impl Into<PathBuf>) -> Self {
        let store = StoreConfig::File(file.into());
        Self { settings, contracts, store, ttl_s: TTL_S, believes_players: false }
    }
}

/// Error at the start of a broker.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// The broker's file is unusable.
    Store(LeaseError),
    /// The settings of etcd are unusable.
    Etcd(EtcdConfigError),
}

impl std::fmt::Display for OpenError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Store(error) => write!(f, "{error}"),
            Self::Etcd(error) => write!(f, "{error}"),
        }
    }
}
impl std::error::Error for OpenError {}
