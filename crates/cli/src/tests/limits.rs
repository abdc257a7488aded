//! Limits in documents, compared with the code: each row of the table in docs/security.md, and some
//! numbers in docs/operations.md.
//!
//! `ANABRANCH_WRITE=1 cargo test -p anabranch-cli --lib limits` rewrites the table.

use crate::gather::serve;
use crate::replicate::relay;
use anabranch_broker::contracts::NETWORKS_MAX;
use anabranch_broker::{COUNTED_BYTES_MAX, COUNTED_MAX, PublicConfig};
use anabranch_broker_proto::broker::{BIDS_BYTES, Contract};
use anabranch_broker_proto::counting::{NAMES_BYTES_MAX, PLACES_MAX, WINDOW_BYTES_MAX};
use anabranch_http::lease::PARTS_MAX;
use anabranch_http::plain::{ADDRESS_REQUESTS_PER_S, CONNECTIONS_MAX};
use anabranch_http::{BODY_BYTES_MAX, SMALL_BODY_BYTES, ServeConfig};
use anabranch_media::cmcd::REPORTS_MAX;
use anabranch_media::steering::{OTHERS_BYTES_MAX, QUERY_BYTES_MAX};
use anabranch_net::admission::AdmissionLimits;
use anabranch_net::{keys, resolve, revoked, tls};
use anabranch_replicate::{CONNECTIONS_MAX as RELAY_CONNECTIONS_MAX, PEER_CONNECTIONS_MAX};
use anabranch_replicate_proto::coordinator::{
    CoordinatorConfig, QUESTIONS_MAX, SITE_QUESTIONS_MAX, SITES_QUESTIONS_MAX,
};
use anabranch_replicate_proto::daemon::{self, room};
use anabranch_shuffle::agent::announce;
use anabranch_units::ByteCount;
use std::path::PathBuf;

const BEGIN: &str = "<!-- limits: from crates/cli/src/tests/limits.rs -->\n";
const END: &str = "<!-- end of limits -->\n";

fn document(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name)
}

/// Formats a number with thousands separators.
fn n(number: impl TryInto<u64>) -> String {
    let Ok(number) = number.try_into() else { panic!("a count") };
    let digits = number.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().map(|group| std::str::from_utf8(group).expect("digits")).collect();
    groups.join(",")
}

fn bytes(count: impl TryInto<u64>) -> String {
    let Ok(count) = count.try_into() else { panic!("a count") };
    ByteCount::new(count).to_string()
}

/// Default value of a command's option.
fn default_of<A: clap::Args>(option: &str) -> String {
    let command = A::augment_args(clap::Command::new("any"));
    let argument = command.get_arguments().find(|argument| argument.get_id() == option);
    let values = argument.unwrap_or_else(|| panic!("no --{option}")).get_default_values();
    values[0].to_str().expect("plain").to_owned()
}

fn rows() -> Vec<(&'static str, String, &'static str)> {
    let half_open = AdmissionLimits::default();
    let (contract, players) = (Contract::default(), PublicConfig::default());
    let serve = ServeConfig::default();
    let transfers = CoordinatorConfig::default();
    let memory = default_of::<relay::Args>("memory");
    let clients = default_of::<serve::Args>("clients_max");
    let pulls = default_of::<serve::Args>("pulls_max");
    let client_memory = default_of::<serve::Args>("memory");
    vec![
        (
            "half-open connections that have said nothing",
            format!("{}, oldest of the busiest address goes", n(half_open.silent_max)),
            "net::admission",
        ),
        ("half-open connections in their handshake", n(half_open.speaking_max), "net::admission"),
        (
            "time for the first message; for the rest of a handshake",
            format!("{} s; {} s", half_open.silent_time.as_secs(), half_open.speaking_time.as_secs()),
            "net::admission",
        ),
        (
            "connections of one peer at a controller or coordinator",
            format!("{} of {}", n(serve.peer_connections_max), n(serve.connections_max)),
            "http::server",
        ),
        (
            "requests of one peer under way there",
            format!("{}, one of them above {}", n(serve.peer_requests_max), bytes(SMALL_BODY_BYTES)),
            "http::server",
        ),
        (
            "a request's body; a submitted transfer",
            format!("{}; {}", bytes(BODY_BYTES_MAX), bytes(transfers.request_bytes_max)),
            "http::answer, replicate::coordinator",
        ),
        (
            "open transfers; of all that sites submitted; of one site",
            format!(
                "{}; {}; {}",
                n(transfers.transfers_max),
                n(transfers.sites_transfers_max),
                n(transfers.site_transfers_max)
            ),
            "replicate::coordinator",
        ),
        (
            "open questions about files; of all that sites asked; of one site",
            format!("{}; {}; {}", n(QUESTIONS_MAX), n(SITES_QUESTIONS_MAX), n(SITE_QUESTIONS_MAX)),
            "replicate::coordinator",
        ),
        (
            "remembered transfers; of one site",
            format!("{}; {}", n(transfers.finished_max), n(transfers.site_transfers_max)),
            "replicate::coordinator",
        ),
        ("destinations of a transfer", n(transfers.destinations_max), "replicate::coordinator"),
        (
            "data connections of one site at a relay",
            format!("{} of {}", n(PEER_CONNECTIONS_MAX), n(RELAY_CONNECTIONS_MAX)),
            "replicate::service",
        ),
        ("attempts at a relay", n(daemon::ATTEMPTS_MAX), "replicate::daemon"),
        (
            "a relay's memory",
            format!(
                "`--memory`, {memory}; {}/{of} for what sites submitted, {}/{of} for one site's",
                room::SITES_MEMORY_PARTS,
                room::SITE_MEMORY_PARTS,
                of = room::MEMORY_PARTS
            ),
            "replicate::daemon",
        ),
        (
            "host names that a relay looks up at once; of one site",
            format!("{}; {}", n(resolve::LOOKUPS_MAX), n(resolve::OWNER_LOOKUPS_MAX)),
            "net::resolve",
        ),
        (
            "disk that is taken ahead of arrived bytes",
            bytes(anabranch_disk::partial::AHEAD_BYTES),
            "disk::partial",
        ),
        (
            "connections of one client at a `gather` server",
            format!("1/{} of `--clients-max`, {clients}", anabranch_gather::CLIENT_SHARE),
            "gather::server",
        ),
        (
            "pulls, memory of one client there",
            format!("`--pulls-max` {pulls}, `--memory` {client_memory}"),
            "gather::server",
        ),
        ("a least block there", bytes(anabranch_gather_proto::BLOCK_BYTES_MIN), "gather_proto::layout"),
        (
            "bytes that a grant has it send before the client proves that it receives any",
            bytes(anabranch_gather_proto::ServerConfig::default().unproven_max.as_u64()),
            "gather_proto::config",
        ),
        (
            "packets that count as received there for each one that is proven",
            anabranch_gather_proto::receipt::CREDIT_FACTOR.to_string(),
            "gather_proto::receipt",
        ),
        (
            "flows, coflows that one host reports",
            format!(
                "{}, {}",
                n(anabranch_shuffle_proto::coordinator::HOST_FLOWS_MAX),
                n(anabranch_shuffle_proto::coordinator::HOST_COFLOWS_MAX)
            ),
            "shuffle::coordinator",
        ),
        ("programs at an agent's socket", n(announce::CONNECTIONS_MAX), "shuffle::agent"),
        (
            "flows that one user announces there",
            n(anabranch_shuffle_proto::announced_flows::USER_FLOWS_MAX),
            "shuffle::book",
        ),
        (
            "a line at an agent's socket",
            format!("{} B", n(anabranch_shuffle_proto::announcement::LINE_BYTES_MAX)),
            "shuffle::announcement",
        ),
        ("peers of a `spray` agent", n(anabranch_spray::PEERS_MAX), "spray"),
        (
            "flows of one peer that it remembers; packets of one that wait for another",
            format!(
                "{}; {}",
                n(anabranch_spray_proto::PEER_FLOWS_MAX),
                n(anabranch_spray_proto::AGENT_HELD_MAX)
            ),
            "spray_proto::memory, spray_proto::config",
        ),
        (
            "memory for packets and flows of one peer; of all peers: the largest gives up half",
            format!(
                "{}; {}",
                bytes(anabranch_spray_proto::PEER_MEMORY_MAX.as_u64()),
                bytes(anabranch_spray::MEMORY_MAX.as_u64())
            ),
            "spray_proto::memory, spray",
        ),
        (
            "packets to one peer that are kept to be sent again",
            n(anabranch_spray_proto::UNHEARD_MAX),
            "spray_proto::repeats",
        ),
        (
            "networks of a broker; clusters of one; bids of one in a round, and their memory",
            format!(
                "{}; {}; {}, {}",
                n(NETWORKS_MAX as u64),
                n(contract.clusters_max),
                n(contract.bids_max),
                bytes(BIDS_BYTES)
            ),
            "broker::contracts, broker_proto::broker",
        ),
        (
            "counts of other brokers that are kept, and their memory; parts of a decision in etcd",
            format!("{}, {}; {}", n(COUNTED_MAX as u64), bytes(COUNTED_BYTES_MAX as u64), n(PARTS_MAX)),
            "broker::service, http::lease",
        ),
        (
            "connections of players; connections without a question yet",
            format!(
                "`--players-max`, {}, within the free descriptors; a quarter; the one with the oldest question goes, of the busiest address",
                n(CONNECTIONS_MAX as u64)
            ),
            "http::plain",
        ),
        (
            "time for a player's first question; between two; for a body; to read some of an answer",
            format!(
                "{} s; {} s; {} s; {} s",
                players.limits.admission.silent_time.as_secs(),
                players.limits.admission.speaking_time.as_secs(),
                players.limits.body_time.as_secs(),
                players.limits.write_time.as_secs()
            ),
            "http::plain",
        ),
        (
            "bodies of players under way; one of them; reports in it",
            format!(
                "{}, oldest of the busiest address goes; {}; {}",
                n(players.limits.bodies_max as u64),
                bytes(players.limits.body_bytes_max as u64),
                n(REPORTS_MAX as u64)
            ),
            "http::plain, media::cmcd",
        ),
        (
            "answers to players in a second; of one address whatever others ask; a question's query; its parameters for other servers",
            format!(
                "{}; {}; {}",
                n(players.answers_per_s_max),
                n(ADDRESS_REQUESTS_PER_S),
                [QUERY_BYTES_MAX, OTHERS_BYTES_MAX].map(|most| bytes(most as u64)).join("; ")
            ),
            "broker::public, http::plain, media::steering",
        ),
        (
            "memory for counts of players' questions, in each of two windows; places of a round, and their names",
            format!(
                "{}; {}, {}",
                bytes(WINDOW_BYTES_MAX as u64),
                n(PLACES_MAX as u64),
                bytes(NAMES_BYTES_MAX as u64)
            ),
            "broker_proto::counting",
        ),
        (
            "a key file; a list of revoked certificates",
            format!("{}; {}", bytes(tls::PEM_BYTES_MAX), bytes(revoked::FILE_BYTES_MAX)),
            "net::tls, net::revoked",
        ),
        (
            "a certificate's validity; an authority's",
            format!("{} days; {} days", n(keys::VALID_DAYS), n(keys::VALID_DAYS_MAX)),
            "net::keys",
        ),
    ]
}

fn table() -> String {
    let mut text = "| limit | value | in |\n| --- | --- | --- |\n".to_owned();
    for (limit, value, place) in rows() {
        let places: Vec<_> = place.split(", ").map(|place| format!("`{place}`")).collect();
        text += &format!("| {limit} | {value} | {} |\n", places.join(", "));
    }
    text
}

/// #17: the code's limits had changed, but not the documents.
#[test]
fn limits_in_security_document_equal_those_in_code() {
    let path = document("security.md");
    let text = std::fs::read_to_string(&path).expect("a document");
    let (before, rest) = text.split_once(BEGIN).expect("where the table begins");
    let (found, after) = rest.split_once(END).expect("where the table ends");
    let table = table();
    if std::env::var_os("ANABRANCH_WRITE").is_some() {
        std::fs::write(&path, format!("{before}{BEGIN}{table}{END}{after}"))
            .expect("the document can be written");
        return;
    }
    assert_eq!(
        found, table,
        "ANABRANCH_WRITE=1 cargo test -p anabranch-cli --lib limits writes the table anew"
    );
}

#[test]
fn numbers_in_documents_equal_those_in_code() {
    let days = keys::VALID_DAYS;
    let look = crate::keys::LOOK_EVERY.as_secs();
    let warn = crate::keys::WARN_BEFORE.as_secs() / 86_400;
    let kept = default_of::<relay::Args>("keep_partial");
    assert_eq!(kept, "168 h", "said as days below");
    let listens = [
        default_of::<crate::replicate::controller::Args>("listen"),
        default_of::<relay::Args>("listen"),
        default_of::<serve::Args>("listen"),
        default_of::<crate::shuffle::coordinator::Args>("listen"),
    ];
    let [controller, relay, server, coordinator] =
        listens.map(|at| at.strip_prefix("127.0.0.1:").expect("loopback by default").to_owned());
    for (name, said) in [
        ("operations.md", format!("| `replicate controller` | TCP {controller} |")),
        ("operations.md", format!("| `replicate relay` | TCP {relay} |")),
        ("operations.md", format!("| `gather serve` | TCP and UDP {server} |")),
        ("operations.md", format!("| `shuffle coordinator` | TCP {coordinator} |")),
        ("operations.md", format!("at most {} ahead of them", bytes(anabranch_disk::partial::AHEAD_BYTES))),
        ("operations.md", "`--keep-partial` (7 days by default)".to_owned()),
        ("operations.md", format!("Certificates last {days} days")),
        ("operations.md", format!("each day from {warn} days")),
        ("operations.md", format!("look at their files every {look} s")),
        ("security.md", format!("Certificates last {days} days")),
    ] {
        let text = std::fs::read_to_string(document(name)).expect("a document");
        assert!(text.contains(&said), "{name} says not `{said}`");
    }
}
