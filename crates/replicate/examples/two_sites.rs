//! A controller, two sites' relays and a transfer between them, in a single program. Run it with
//! `cargo run -p anabranch-replicate --example two_sites`.
#![allow(clippy::disallowed_methods, reason = "an example: it opens files and sockets")]

use anabranch_disk::folder::{Folder, Links};
use anabranch_graph::{LinkProperties, Topology};
use anabranch_net::identity::Identity;
use anabranch_net::keys::{Role, SetRequest, VALID_DAYS, make_set, write_set};
use anabranch_net::tls::CredentialFiles;
use anabranch_replicate::wire::{DestinationRequest, SubmitRequest};
use anabranch_replicate::{
    Client, Controller, ControllerConfig, DefaultPlanner, Outcome, Relay, RelayConfig, ServeConfig, Server,
};
use anabranch_units::{BitRate, Duration as Span};
use std::time::Duration;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let temporary = tempfile::tempdir()?;
    let here = temporary.path();

    let mut topology = Topology::new("two");
    let (paris, lima) = (topology.add_site("paris", None)?, topology.add_site("lima", None)?);
    topology.add_cable(paris, lima, LinkProperties::new(BitRate::gbps(1), Span::from_ms(1)))?;

    let request = SetRequest {
        system: anabranch_replicate::SYSTEM,
        sites: vec!["paris".into(), "lima".into()],
        operators: vec!["operator".into()],
        controller_hosts: vec![],
        valid_days: VALID_DAYS,
    };
    write_set(&here.join("keys"), &make_set(&request)?)?;
    let key = |role, name| {
        Identity::load(&CredentialFiles::in_set(&here.join("keys"), anabranch_replicate::SYSTEM, role, name))
    };

    let config = ControllerConfig::new(topology.clone(), DefaultPlanner, here.join("store"));
    let serve = ServeConfig { address: "127.0.0.1:0".parse()?, ..ServeConfig::default() };
    let server =
        Server::bind(Controller::open(config)?, &key(Role::Controller, "controller")?, serve).await?;
    let controller = server.local_addr()?.to_string();
    tokio::spawn(server.run());

    for (site, name) in [(paris, "paris"), (lima, "lima")] {
        std::fs::create_dir(here.join(name))?;
        let folder = Folder::open(&here.join(name), Links::Refused)?;
        let config = RelayConfig::new(&topology, site, folder, &controller);
        tokio::spawn(Relay::bind(config, &key(Role::Site, name)?).await?.run());
    }

    std::fs::write(here.join("paris/hello"), "Hello, Lima")?;
    let client = Client::new(&controller, &key(Role::Operator, "operator")?, Duration::from_secs(10))?;
    let to = DestinationRequest { site: "lima".into(), path: "hello".into() };
    let sent = client.send(&SubmitRequest::new("paris", "hello", vec![to])).await?.end().await?;
    assert_eq!(sent.outcome, Some(Outcome::Done), "{sent:?}");
    println!("lima has: {}", std::fs::read_to_string(here.join("lima/hello"))?);
    Ok(())
}
