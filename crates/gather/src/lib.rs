//! `gather` for programs that embed it: a server of the files below a folder, and a client that
//! pulls from many servers at once.
//!
//! [`Server`] serves files, [`get`] pulls objects and reports the outcome of each [`Target`],
//! [`list()`] lists a server's objects, and [`stripe()`] cuts a file for many servers.
//! [`GetDirectory`] pulls a directory. Both ends authenticate with certificates of one authority
//! ([`keys`]). Every error is an enum whose text is
//! fit for a user. Events are passed on as [`GetEvent`]s and [`ServeEvent`]s, and logged
//! ([`tracing`]).
//!
//! The crate `anabranch_gather_proto` makes the decisions, in state machines without I/O. This
//! crate adds sockets, files and the clock. Leaves out: arguments, printing and exit codes (`cli`),
//! and the reloading of keys when their files change ([`Identity::reload`] reloads them once). Read
//! [`ServeConfig`], [`GetConfig`] and [`Report`] first.
//!
//! A server, and a pull from it, in one program:
//!
//! ```
//! use anabranch_gather::keys::{Role, SetRequest, make_set, write_set};
//! use anabranch_gather::{CredentialFiles, GetConfig, Identity, ServeConfig, Server, Target, get};
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let at = |name: &str| folder.path().join(name);
//! # std::fs::create_dir(at("served"))?;
//! # std::fs::write(at("served/hello.txt"), "hello")?;
//! # let request = SetRequest { system: anabranch_gather::SYSTEM, sites: vec!["s1".into()], operators: vec!["me".into()], controller_hosts: vec![], valid_days: 1 };
//! write_set(&at("keys"), &make_set(&request)?)?;
//! let files = |role, name| CredentialFiles::in_set(&at("keys"), anabranch_gather::SYSTEM, role, name);
//! let server = Server::start(ServeConfig::new(at("served"), files(Role::Site, "s1"))).await?;
//!
//! let identity = Identity::load(&files(Role::Operator, "me"))?;
//! let target = Target::parse(&format!("{}/hello.txt", server.address()))?.at(at("copy.txt"));
//! let report = get(&identity, vec![target], &GetConfig::default()).await?;
//! assert!(report.is_verified() && std::fs::read(at("copy.txt"))? == b"hello");
//! server.stop().await;
//! # Ok(())
//! # }
//! ```

#![allow(clippy::disallowed_methods, reason = "a service: opens files")]

mod connection;
mod control;
mod directory;
mod get;
mod list;
mod server;
mod stripe;
mod targets;

pub use connection::ConnectError;
pub use directory::{DirectoryReport, DirectoryTarget, DirectoryVersion, GetDirectory, describe_directory};
pub use get::report::{Counters, GetEvent, Note, ObjectFailure, ObjectReport, Report, ServerReport, Verdict};
pub use get::{Get, GetConfig, GetError, get, holders};
pub use list::{Entry, ListError, list};
#[doc(hidden)]
pub use server::exercise_cache;
pub use server::{CLIENT_SHARE, CacheError, ServeConfig, ServeError, ServeEvent, Server};
pub use stripe::{Stripe, StripeError, StripeResult, stripe};
pub use targets::{
    Manifest, ManifestError, ManifestPart, Object, ObjectError, ObjectListError, Target, TargetError,
    check_holder, parse_manifest, place, read_manifest, read_object_list,
};

pub use anabranch_disk::tree::unpack::Unpacked;
pub use anabranch_gather_proto::snapshot::parse_id;
pub use anabranch_gather_proto::{ConfigError, Mode, RateControl};
pub use anabranch_net::identity::Identity;
pub use anabranch_net::keys;
pub use anabranch_net::tls::CredentialFiles;
pub use anabranch_sets::comparison::Comparison;
pub use anabranch_sets::deletes::MaxDelete;
pub use anabranch_sets::publication::Publication;

const _: () = assert!(
    anabranch_gather_proto::msg::SEAL_BYTES as usize == anabranch_net::seal::OVERHEAD_BYTES,
    "what the system reckons with is what sealing adds"
);

anabranch_net::system! {
    /// The parties of `gather`, and their rights.
    pub SYSTEM = anabranch_net::keys::SystemSpec {
        word: "gather",
        site: "server",
        controller: None,
        operator: Some("client"),
        controller_dials: false,
        keys_arguments: "--servers NAME,NAME --clients NAME",
    };
}
