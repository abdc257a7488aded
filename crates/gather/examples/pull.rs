//! Two servers of one file, and a pull from both servers, in one program: `cargo run -p
//! anabranch-gather --example pull`.
#![allow(clippy::disallowed_methods, reason = "an example: it opens files and sockets")]

use anabranch_gather::keys::{Role, SetRequest, make_set, write_set};
use anabranch_gather::{CredentialFiles, GetConfig, Identity, ServeConfig, Server, Target, get};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let temporary = tempfile::tempdir()?;
    let here = temporary.path();
    let request = SetRequest {
        system: anabranch_gather::SYSTEM,
        sites: vec!["s1".into(), "s2".into()],
        operators: vec!["me".into()],
        controller_hosts: vec![],
        valid_days: 1,
    };
    write_set(&here.join("keys"), &make_set(&request)?)?;
    let files =
        |role, name| CredentialFiles::in_set(&here.join("keys"), anabranch_gather::SYSTEM, role, name);

    let content: Vec<u8> = (0..8 << 20).map(|byte: u32| byte.to_le_bytes()[1]).collect();
    let mut servers = Vec::new();
    for name in ["s1", "s2"] {
        std::fs::create_dir(here.join(name))?;
        std::fs::write(here.join(name).join("data.bin"), &content)?;
        servers.push(Server::start(ServeConfig::new(here.join(name), files(Role::Site, name))).await?);
    }

    let holders: Vec<String> = servers.iter().map(|server| server.address().to_string()).collect();
    let target = Target::parse(&format!("{}/data.bin", holders.join(",")))?.at(here.join("copy.bin"));
    let identity = Identity::load(&files(Role::Operator, "me"))?;
    let report = get(&identity, vec![target], &GetConfig::default()).await?;
    assert!(report.is_verified(), "{report:?}");
    assert!(std::fs::read(here.join("copy.bin"))? == content);
    println!("{} bytes from {} servers, verified", content.len(), servers.len());
    for server in servers {
        server.stop().await;
    }
    Ok(())
}
