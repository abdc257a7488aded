//! The files of a command of `replicate`, and the sites between which they are sent or compared.
//!
//! Leaves out: settings of a transfer (`send`). Read [`Ends`] first.

use super::watch::{Output, broken_off, may_go_on};
use crate::filters::FilterArgs;
use crate::metadata::MetadataArgs;
use crate::network;
use anabranch_graph::Topology;
use anabranch_net::identity::Identity;
use anabranch_net::keys::Role;
use anabranch_net::tls::CredentialFiles;
use anabranch_pieces::name::{directory, normal, normal_entry};
use anabranch_replicate::Client;
use anabranch_replicate::wire::{DestinationRequest, SubmitRequest};
use anabranch_replicate_proto::control::{DirectoryRules, TransferId};
use anabranch_replicate_proto::coordinator::{FILTER_BYTES_MAX, SubmitResult};
use anabranch_sets::filter::Rules;
use anabranch_sets::metadata::MetadataRules;
use anabranch_units::text::printable;
use anyhow::Context as _;
use std::path::PathBuf;
use std::time::Duration;

/// The controller, and the operator's keys.
#[derive(clap::Args)]
pub struct ControllerArgs {
    /// The controller; https://HOST:PORT is the same.
    #[arg(long, value_name = "HOST:PORT", env = "ANABRANCH_CONTROLLER", default_value = "127.0.0.1:7171")]
    pub controller: String,
    /// The folder with the operator's keys (and ca.pem) that `keys init` made.
    #[arg(long, value_name = "DIR", env = "ANABRANCH_KEYS", default_value = "keys/replicate")]
    pub keys: PathBuf,
    /// Name of the operator, as in its files in `operators` below --keys.
    #[arg(long, value_name = "NAME", default_value = "operator")]
    pub operator: String,
}

impl ControllerArgs {
    /// Creates a client with the operator's keys.
    ///
    /// Errors: keys that are unusable, an address without a port.
    pub fn client(&self) -> anyhow::Result<Client> {
        let files =
            CredentialFiles::in_set(&self.keys, anabranch_replicate::SYSTEM, Role::Operator, &self.operator);
        Ok(Client::new(&self.controller, &Identity::load(&files)?, Duration::from_secs(10))?)
    }
}

/// The files, and the sites between which they are sent or compared.
#[derive(clap::Args)]
pub(super) struct Ends {
    #[command(flatten)]
    controller: ControllerArgs,
    #[command(flatten)]
    sent: Sent,
    /// The site that holds the file or the directory.
    #[arg(long, value_name = "SITE")]
    pub(super) from: String,
    /// The destinations, such as `tokyo,lima`.
    #[arg(long, value_name = "SITE,SITE", value_delimiter = ',', required = true)]
    pub(super) to: Vec<String>,
    /// Name of the file or the directory at the destinations. Without: the name at the source.
    #[arg(long = "as", value_name = "NAME", value_parser = FileName)]
    name: Option<String>,
    /// Print JSON: a line for each event, and one object at the end.
    #[arg(long)]
    pub(super) json: bool,
}

/// The file or the directory that is sent.
#[derive(clap::Args)]
struct Sent {
    /// Name of a file (`data/big.tar`), or of a directory with a slash at its end (`data/`), below
    /// the source relay's --dir. `sync` and `check` take directories only.
    #[arg(value_name = "FILE|DIR/", value_parser = FileName)]
    file: String,
    #[command(flatten)]
    metadata: MetadataArgs,
    #[command(flatten)]
    filters: FilterArgs,
}

impl Ends {
    /// The file or the directory, as the user named it.
    pub(super) fn file(&self) -> &str {
        &self.sent.file
    }

    /// A client with the operator's keys.
    ///
    /// Errors: see [`ControllerArgs::client`].
    pub(super) fn client(&self) -> anyhow::Result<Client> {
        self.controller.client()
    }

    /// The rules of the filter options.
    ///
    /// Errors: a wrong option; filters of a file; more rules than a request can carry.
    pub(super) fn filter_rules(&self) -> anyhow::Result<Rules> {
        let rules = self.sent.filters.rules()?;
        if !rules.is_open() {
            ensure_usage!(
                directory(&self.sent.file).is_some(),
                "`{}`: filter options are for a directory, whose name ends with a slash",
                printable(&self.sent.file)
            );
            let bytes = rules.bytes();
            ensure_usage!(
                bytes <= FILTER_BYTES_MAX,
                "filter options of {bytes} bytes: must be at most {FILTER_BYTES_MAX}, since they go to each site"
            );
        }
        Ok(rules)
    }

    /// The rules of the options about metadata.
    ///
    /// Errors: metadata of a file.
    pub(super) fn metadata_rules(&self) -> anyhow::Result<MetadataRules> {
        let rules = self.sent.metadata.rules();
        ensure_usage!(
            rules.is_none() || directory(&self.sent.file).is_some(),
            "`{}`: --owners and --xattrs are for a directory, whose name ends with a slash",
            printable(&self.sent.file)
        );
        Ok(rules)
    }

    /// A request between these ends, with these rules.
    ///
    /// Errors: a site that the network lacks, a name that no file can have.
    pub(super) fn request(
        &self,
        rules: DirectoryRules,
        topology: &Topology,
    ) -> anyhow::Result<SubmitRequest> {
        let file = &self.sent.file;
        normal_entry(file)?;
        let mut path = self.name.clone().unwrap_or_else(|| file.clone());
        if directory(file).is_some() && directory(&path).is_none() {
            path.push('/');
        }
        if directory(file).is_some() { normal_entry(&path) } else { normal(&path) }.context("--as")?;
        let to = self.to.iter().map(|site| {
            anyhow::Ok(DestinationRequest { site: site_name(topology, site)?, path: path.clone() })
        });
        let to = to.collect::<Result<Vec<_>, _>>()?;
        let mut request = SubmitRequest::new(site_name(topology, &self.from)?, file, to);
        request.symbol_bytes = symbol_bytes(topology);
        request.rules = rules;
        Ok(request)
    }
}

/// Name of a site as the topology spells it.
pub(super) fn site_name(topology: &Topology, text: &str) -> anyhow::Result<String> {
    Ok(topology.site(network::site(topology, text)?).name.clone())
}

/// A file's name, which must be valid text.
#[derive(Clone)]
struct FileName;

impl clap::builder::TypedValueParser for FileName {
    type Value = String;
    fn parse_ref(
        &self,
        _: &clap::Command,
        _: Option<&clap::Arg>,
        value: &std::ffi::OsStr,
    ) -> Result<String, clap::Error> {
        value.to_str().map(str::to_owned).ok_or_else(|| {
            let shown = value.to_string_lossy();
            let reason =
                format!("`{}`: this name is not UTF-8: rename the file to send it\n", printable(&shown));
            clap::Error::raw(clap::error::ErrorKind::InvalidUtf8, reason)
        })
    }
}

/// Waits for `following` to end, which watches a submitted transfer. An interrupt cancels the
/// transfer, unless another command started it; then the result is `None`.
///
/// Errors: `following` fails; the transfer cannot be cancelled.
pub(super) async fn follow<T>(
    client: &Client,
    submitted: SubmitResult,
    output: Output,
    following: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<Option<T>> {
    let (SubmitResult::New(id) | SubmitResult::Attached(id)) = submitted;
    let is_attached = submitted == SubmitResult::Attached(id);
    if is_attached {
        say_attached(id, output);
    }
    let mut following = std::pin::pin!(following);
    tokio::select! {
        result = &mut following => return result.map(Some),
        () = crate::process::asked_to_end() => {}
    }
    if is_attached {
        // Another command started the transfer, so an interrupt does not cancel it.
        let stop = format!("`anabranch replicate status {id} --cancel` stops it");
        errln!("\ntransfer {id} goes on; {stop}");
        return Ok(None);
    }
    let stop = async {
        // The sites stop once asked; their data is kept for the next attempt.
        if !client.cancel(id).await.map_err(|error| broken_off(id, true, error))? {
            // It was already over.
            return following.await.map(Some);
        }
        errln!("\ntransfer {id} stopped; run the same command again and it goes on from there");
        Ok(None)
    };
    tokio::select! {
        result = stop => result,
        () = crate::process::asked_to_end() => {
            errln!("\n{}", may_go_on(id));
            Ok(None)
        }
    }
}

fn say_attached(id: TransferId, output: Output) {
    if output.json {
        outln!("{}", serde_json::json!({ "event": "attached", "transfer": id }));
    } else if !output.quiet {
        errln!("transfer {id} does this already: following it");
    }
}

/// Default size of a packet: relays forward whole packets, so large ones lengthen a slow network's
/// pipeline, and small ones add headers and system calls on a fast one.
fn symbol_bytes(topology: &Topology) -> u32 {
    let slowest = topology.links().iter().map(|l| l.properties.capacity.as_bps()).min().unwrap_or(0);
    let ten_ms = slowest / 8 / 100;
    (ten_ms / 4096 * 4096).clamp(4 << 10, 64 << 10) as u32
}
