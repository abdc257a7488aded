//! `anabranch live network`: shows the controller's network, or changes it while it runs.

use super::controller::OperatorArgs;
use crate::exit::OrUsage as _;
use anabranch_live::controller::wire::NetworkView;
use anabranch_live::description::{Change, DESCRIPTION_BYTES_MAX, Description};
use anyhow::Context as _;
use std::path::PathBuf;
use std::process::ExitCode;

/// The network, or changes of it.
#[derive(clap::Args)]
pub struct Args {
    /// Add the entries of this file, or change the entries of the same name (links: of the same
    /// ends): [[node]], [[link]], [[group]] and [[channel]] tables, as in the controller's
    /// --network.
    #[arg(long, value_name = "FILE")]
    set: Option<PathBuf>,
    /// Remove these nodes: their streams move, and they take no new streams. End a node once `live
    /// status` shows that it carries no stream.
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    remove_node: Vec<String>,
    /// Remove these links, as FROM:TO.
    #[arg(long, value_name = "FROM:TO,...", value_delimiter = ',', value_parser = ends)]
    remove_link: Vec<(String, String)>,
    /// Remove these groups of viewers.
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    remove_group: Vec<String>,
    /// Remove these channels: their streams end.
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    remove_channel: Vec<String>,
    /// Change this version only, as `live network` shows it. By default the present one.
    #[arg(long, value_name = "NUMBER")]
    if_version: Option<u64>,
    /// Print one JSON object with lead, version and network, as the API has it.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    operator: OperatorArgs,
}

fn ends(text: &str) -> Result<(String, String), String> {
    let ends = text.split_once(':').filter(|(from, to)| !from.is_empty() && !to.is_empty());
    ends.map(|(from, to)| (from.to_owned(), to.to_owned())).ok_or_else(|| "must be FROM:TO".to_owned())
}

/// Shows the network, or changes it.
///
/// Errors: a one-line message for the user.
pub fn run(args: &Args, quiet: bool) -> anyhow::Result<ExitCode> {
    let changes = changes(args)?;
    ensure_usage!(
        !changes.is_empty() || args.if_version.is_none(),
        "--if-version without a change: give --set FILE or one of the --remove options"
    );
    let client = args.operator.client()?;
    crate::process::runtime()?.block_on(async {
        if changes.is_empty() {
            let view = client.network().await?;
            outln!("{}", if args.json { serde_json::to_string(&view)? } else { text(&view)? });
            return Ok(ExitCode::SUCCESS);
        }
        let version = match args.if_version {
            Some(version) => version,
            None => client.network().await?.version,
        };
        let version = client.change(version, changes).await?;
        if args.json {
            outln!("{}", serde_json::json!({ "version": version }));
        } else if !quiet {
            errln!("the network has version {version}; nodes follow within seconds");
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// Formats the description as TOML, with its version in a comment.
fn text(view: &NetworkView) -> anyhow::Result<String> {
    let text = toml::to_string(&view.network).context("the network as TOML")?;
    Ok(format!("# version {}\n\n{}", view.version, text.trim_end()))
}

/// Returns the changes. Additions are first, so that no addition refers to a removed entry.
fn changes(args: &Args) -> anyhow::Result<Vec<Change>> {
    let mut changes = Vec::new();
    if let Some(path) = &args.set {
        let shown = || format!("--set {}", path.display());
        let text = super::read_text(path, DESCRIPTION_BYTES_MAX).with_context(shown).or_usage()?;
        let read = Description::from_toml(&text).with_context(shown).or_usage()?;
        ensure_usage!(read.removed.is_empty(), "{}: [removed]: give the --remove options instead", shown());
        changes.extend(read.nodes.into_iter().map(Change::SetNode));
        changes.extend(read.links.into_iter().map(Change::SetLink));
        changes.extend(read.groups.into_iter().map(Change::SetGroup));
        changes.extend(read.channels.into_iter().map(Change::SetChannel));
        ensure_usage!(!changes.is_empty(), "{}: no [[node]], [[link]], [[group]] or [[channel]]", shown());
    }
    changes.extend(args.remove_node.iter().cloned().map(Change::RemoveNode));
    let link = |(from, to): (String, String)| Change::RemoveLink { from, to };
    changes.extend(args.remove_link.iter().cloned().map(link));
    changes.extend(args.remove_group.iter().cloned().map(Change::RemoveGroup));
    changes.extend(args.remove_channel.iter().cloned().map(Change::RemoveChannel));
    Ok(changes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_network_can_be_applied_again() {
        let text = "[[node]]\nname = \"e\"\ntier = \"edge\"\nmedia = \"http://127.0.0.1:7202\"\n";
        let network = Description::from_toml(text).expect("a good description");
        let view = NetworkView { lead: 1, version: 3, network };
        let shown = super::text(&view).expect("plain data");
        assert!(shown.starts_with("# version 3\n"), "{shown}");
        assert_eq!(Description::from_toml(&shown), Ok(view.network));
        assert_eq!(ends("a:b"), Ok(("a".to_owned(), "b".to_owned())));
        assert!(ends("ab").is_err() && ends(":b").is_err());
    }
}
