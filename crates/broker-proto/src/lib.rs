//! A broker that places clients on the clusters of content networks, and the networks that bid for
//! them, without I/O.
//!
//! Source: VDX, in Mukerjee, *Eliminating Adverse Control Plane Interactions in Independent Network
//! Systems* (2018), chapter 3.
//!
//! A [`Market`] has clusters with capacities and prices, places with the clusters that may serve
//! them, and groups of interchangeable clients. [`Optimiser`] assigns clients to clusters, and
//! bounds the distance of each answer from the best. [`designs`] determine the broker's information
//! about a market; [`Broker`] and [`Agent`] are the two sides of the protocol that conveys it.
//! [`Networks`] and [`AgentSession`] keep the sessions between them; [`evaluate`] measures the
//! outcome in a [`World`], which [`generate`] draws.
//!
//! Invariant: no cluster gets more than the capacity that the broker assumes for it. Leaves out:
//! sockets and clocks. Read [`Market`], then [`Optimiser`], then [`designs::Design`].

mod agent;
pub mod agent_session;
mod branch;
pub mod broker;
pub mod counting;
pub mod delivery;
pub mod designs;
mod draws;
mod dual;
mod evaluation;
#[doc(hidden)]
pub mod exercise;
mod generator;
pub mod limits;
mod market;
pub mod messages;
pub mod networks;
mod optimiser;
mod parties;
mod program;
pub mod replica;
pub mod reports;
pub mod simulated;
pub mod steering;
pub mod study;
mod world;

pub use agent::{Agent, Estimates, Reserve};
pub use agent_session::AgentSession;
pub use broker::Broker;
pub use evaluation::{Account, MARKUP, Outcome, alternatives, evaluate, market};
pub use generator::{WorldShape, generate};
pub use market::{Candidate, Cluster, Group, Market, MarketError};
pub use networks::Networks;
pub use optimiser::{Answer, Optimiser, Placement};
pub use parties::{NetworkKnowledge, Parties};
pub use program::Program;
pub use replica::Replica;
pub use world::{City, Network, Offer, Place, Site, World, WorldParts, considered};
