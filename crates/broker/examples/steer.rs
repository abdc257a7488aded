//! A broker, the agent of one content network and one player request in a single program. Run it
//! with `cargo run -p anabranch-broker --example steer`.
#![allow(clippy::disallowed_methods, reason = "an example: it opens files and sockets")]

use anabranch_broker::{
    BrokerService, BrokerServiceConfig, NetworkAgent, NetworkConfig, NetworkFiles, PublicConfig,
    PublicServer, ServeConfig, Server, Settings, designs,
};
use anabranch_net::identity::Identity;
use anabranch_net::keys::{Role, SetRequest, make_set, write_set};
use anabranch_net::tls::CredentialFiles;
use anabranch_units::Duration as Span;
use std::future::pending;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let temporary = tempfile::tempdir()?;
    let path = |name: &str| temporary.path().join(name);
    let request = SetRequest {
        system: anabranch_broker::SYSTEM,
        sites: vec!["near".into()],
        operators: vec!["me".into()],
        controller_hosts: vec![],
        valid_days: 1,
    };
    write_set(&path("keys"), &make_set(&request)?)?;
    let identity = |role, name: &str| {
        Identity::load(&CredentialFiles::in_set(&path("keys"), anabranch_broker::SYSTEM, role, name))
    };
    std::fs::write(path("near.toml"), "[[cluster]]\nnumber = 7\ncost = 9.0\ncapacity = \"1 Gbit/s\"\n")?;
    std::fs::write(path("near.csv"), "location,isp,cluster,score\nparis,*,7,5\n")?;

    let contracts =
        "[[network]]\nname = \"near\"\n[[network.cluster]]\nnumber = 7\nhost = \"near-7.example\"\n";
    let design = designs::by_name("marketplace").ok_or("no such design")?;
    let settings = Settings { every: Span::from_secs(1), ..Settings::new(design) };
    let service =
        BrokerService::open(BrokerServiceConfig::new(settings, contracts.parse()?, path("broker.redb")))?;
    let public = PublicConfig { address: "127.0.0.1:0".parse()?, ..PublicConfig::default() };
    let public = PublicServer::bind(service.clone(), public)?;
    let players = public.local_addr()?;
    let serve = ServeConfig { address: "127.0.0.1:0".parse()?, ..ServeConfig::default() };
    let server = Server::bind(service, &identity(Role::Controller, "controller")?, serve).await?;
    let broker = server.local_addr()?.to_string();
    tokio::spawn(public.run());
    tokio::spawn(server.run());

    let files = NetworkFiles { clusters: path("near.toml"), scores: path("near.csv") };
    let config = NetworkConfig { name: "near".into(), brokers: vec![broker], files };
    tokio::spawn(NetworkAgent::new(config, &identity(Role::Site, "near")?)?.run(pending()));

    let began = Instant::now();
    let answer = loop {
        let mut player = TcpStream::connect(players)?;
        let question = "GET /steering/hls?location=paris&isp=x&viewer=5 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        player.write_all(question.as_bytes())?;
        let mut answer = String::new();
        player.read_to_string(&mut answer)?;
        if answer.contains("\"near\"") && answer.contains("near-7.example") {
            break answer;
        }
        assert!(began.elapsed() < Duration::from_secs(20), "{answer}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    println!("{}", answer.split("\r\n\r\n").nth(1).unwrap_or_default());
    Ok(())
}
