//! How a broker is set up, and why it cannot begin.
//!
//! Leaves out: what it then does. Read [`BrokerServiceConfig`].

use crate::contracts::Contracts;
use anabranch_broker_proto::broker::Settings;
use anabranch_http::lease::{EtcdConfig, EtcdConfigError, LeaseError};
use anabranch_media::steering::TTL_S;
use anabranch_net::identity::Identity;
use std::path::PathBuf;

/// How a broker is set up.
pub struct BrokerServiceConfig {
    /// How it decides.
    pub settings: Settings,
    /// The networks, and what is agreed with them.
    pub contracts: Contracts,
    /// Where the last decision is kept.
    pub store: StoreConfig,
    /// Seconds after which players ask again.
    pub ttl_s: u32,
    /// Whether what players report of networks counts: anybody may report anything.
    pub believes_players: bool,
}

/// Where a broker keeps the last decision.
#[non_exhaustive]
pub enum StoreConfig {
    /// In a file of its own; made if it is not there.
    File(PathBuf),
    /// Nowhere: it is gone when the broker ends. For tests.
    Memory,
    /// In etcd, with other brokers, of which one leads.
    Etcd {
        /// Where etcd is.
        etcd: EtcdConfig,
        /// The keys by which this one says to the one that leads how many viewers it has counted.
        identity: Identity,
    },
}

impl BrokerServiceConfig {
    /// A broker with a file, and every other setting at its default.
    pub fn new(settings: Settings, contracts: Contracts, file: impl Into<PathBuf>) -> Self {
        let store = StoreConfig::File(file.into());
        Self { settings, contracts, store, ttl_s: TTL_S, believes_players: false }
    }
}

/// Why a broker cannot begin.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// The broker's file cannot be used.
    Store(LeaseError),
    /// The settings of etcd cannot be used.
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
