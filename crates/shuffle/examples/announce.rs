//! A coordinator, two hosts' agents and an announced flow that gets a limit, in a single program.
//! Run it with `cargo run -p anabranch-shuffle --example announce`.
#![allow(clippy::disallowed_methods, reason = "an example: it opens files and sockets")]

use anabranch_announce::Announcer;
use anabranch_net::identity::Identity;
use anabranch_net::keys::{Role, SetRequest, make_set, write_set};
use anabranch_net::tls::CredentialFiles;
use anabranch_pace::pacing_limit;
use anabranch_shuffle::{
    Agent, AgentConfig, CoordinatorService, CoordinatorServiceConfig, ListenConfig, Scheduler, ServeConfig,
    Server,
};
use anabranch_units::{BitRate, ByteCount};
use std::future::pending;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let temporary = tempfile::tempdir()?;
    let path = |name: &str| temporary.path().join(name);
    let request = SetRequest {
        system: anabranch_shuffle::SYSTEM,
        sites: vec!["a".into(), "b".into()],
        operators: vec!["me".into()],
        controller_hosts: vec![],
        valid_days: 1,
    };
    write_set(&path("keys"), &make_set(&request)?)?;
    let identity = |role, name: &str| {
        Identity::load(&CredentialFiles::in_set(&path("keys"), anabranch_shuffle::SYSTEM, role, name))
    };

    let config = CoordinatorServiceConfig::new(|| Scheduler::default().make(), path("store.redb"));
    let serve = ServeConfig { address: "127.0.0.1:0".parse()?, ..ServeConfig::default() };
    let coordinator = identity(Role::Controller, "controller")?;
    let server = Server::bind(CoordinatorService::open(config)?, &coordinator, serve).await?;
    let coordinator = server.local_addr()?.to_string();
    tokio::spawn(server.run());

    // This machine has both hosts, each with one of its addresses.
    for (host, address) in [("a", "127.0.0.1"), ("b", "127.0.0.2")] {
        let mut config = AgentConfig::new(host, &coordinator, path(&format!("{host}.jsonl")));
        (config.addresses, config.link_rate) = (vec![address.parse()?], Some(BitRate::mbps(80)));
        config.listen = Some(ListenConfig { path: path(&format!("{host}.sock")), group: None });
        // One process sets the limits of both hosts, so the BPF program is not used.
        (config.pacer.bpf, config.has_small_bursts) = (false, false);
        tokio::spawn(Agent::start(config, &identity(Role::Site, host)?)?.run(pending()));
    }

    let listener = TcpListener::bind("127.0.0.2:0")?;
    let stream = TcpStream::connect(listener.local_addr()?)?;
    let flow = Announcer::new(path("a.sock")).announce(&stream, "job-7", ByteCount::new(10_000_000))?;
    let began = Instant::now();
    let limit = loop {
        if let Some(limit) = pacing_limit(&stream)? {
            break limit;
        }
        assert!(began.elapsed() < Duration::from_secs(20), "no limit came");
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    println!("job-7 may send at {limit}");
    drop(flow);
    Ok(())
}
