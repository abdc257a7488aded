//! Handshakes between right and wrong parties, in memory.

use super::*;
use crate::keys::{KeySet, SetRequest, make_set_at};
use std::io::Error;
use time::OffsetDateTime;

fn set(days_ago: i64) -> KeySet {
    let request = SetRequest {
        sites: vec!["seattle".into(), "controller".into(), "New York".into()],
        operators: vec!["operator".into()],
        controller_hosts: vec![],
        valid_days: 10,
    };
    make_set_at(&request, OffsetDateTime::now_utc() - time::Duration::days(days_ago)).expect("a good request")
}

fn load(set: &KeySet, authority: &KeySet, stem: &str) -> Result<Credentials, TlsError> {
    let file = set.files.iter().find(|f| f.stem == Path::new(stem)).expect("it is in the set");
    let files = CredentialFiles { ca: "ca.pem".into(), certificate: "x.pem".into(), key: "x.key".into() };
    Credentials::from_pem(
        authority.files[0].certificate_pem.as_bytes(),
        file.certificate_pem.as_bytes(),
        file.key_pem.as_bytes(),
        &files,
    )
}

fn party(set: &KeySet, stem: &str) -> Credentials {
    load(set, set, stem).expect("a good set")
}

/// Whom the server saw, or the first end's error.
fn shake(client: &Credentials, server: &Credentials, expected: (Role, &str)) -> Result<PeerIdentity, String> {
    let name = server_name(expected.0, expected.1).expect("a good name");
    let mut c =
        rustls::ClientConnection::new(client.client_config().expect("loaded"), name).expect("a good name");
    let mut s = rustls::ServerConnection::new(server.server_config().expect("loaded")).expect("loaded");
    let fail = |e: rustls::Error| explain("peer at 10.0.0.1:7", &Error::other(e));
    for _ in 0..10 {
        let mut wire = Vec::new();
        while c.wants_write() {
            c.write_tls(&mut wire).expect("a vector takes everything");
        }
        let mut rest = wire.as_slice();
        while !rest.is_empty() {
            s.read_tls(&mut rest).expect("a slice is read");
            s.process_new_packets().map_err(fail)?;
        }
        let mut wire = Vec::new();
        while s.wants_write() {
            s.write_tls(&mut wire).expect("a vector takes everything");
        }
        let mut rest = wire.as_slice();
        while !rest.is_empty() {
            c.read_tls(&mut rest).expect("a slice is read");
            c.process_new_packets().map_err(fail)?;
        }
    }
    assert!(!s.is_handshaking() && !c.is_handshaking());
    Ok(peer_identity(s.peer_certificates().expect("it was verified")).expect("our certificates say who"))
}

#[test]
fn both_ends_know_each_other() {
    let set = set(0);
    let (site, controller) = (party(&set, "sites/New%20York"), party(&set, "controller"));
    let seen = shake(&site, &controller, (Role::Controller, "controller")).expect("one set");
    assert_eq!(seen, PeerIdentity { role: Role::Site, name: "New York".into() });
    let (a, b) = (party(&set, "sites/seattle"), party(&set, "sites/New%20York"));
    let seen = shake(&a, &b, (Role::Site, "New York")).expect("sites listen too");
    assert_eq!(seen.name, "seattle");
}

#[test]
fn a_site_cannot_act_as_another_or_as_the_controller() {
    let set = set(0);
    let client = party(&set, "sites/seattle");
    for (server, expected) in [
        ("sites/seattle", (Role::Site, "New York")),
        ("sites/seattle", (Role::Controller, "controller")),
        ("sites/controller", (Role::Controller, "controller")),
        ("controller", (Role::Site, "controller")),
    ] {
        let error = shake(&client, &party(&set, server), expected).expect_err("somebody else");
        assert!(error.contains("somebody else answers there"), "{error}");
    }
    let seen =
        shake(&party(&set, "sites/controller"), &party(&set, "controller"), (Role::Controller, "controller"));
    assert_eq!(seen.map(|s| s.role), Ok(Role::Site));
    let error = shake(&client, &party(&set, "operators/operator"), (Role::Operator, "operator"));
    assert!(error.is_err(), "an operator's certificate is no server's: {error:?}");
}

#[test]
fn another_authority_is_refused_from_both_ends() {
    let (ours, theirs) = (set(0), set(0));
    let error = shake(
        &party(&theirs, "sites/seattle"),
        &party(&ours, "controller"),
        (Role::Controller, "controller"),
    );
    assert!(error.as_ref().is_err_and(|e| e.contains("another authority")), "{error:?}");
    // A client that trusts us but is not of ours gets through its own check, and not through the server's.
    let mut stranger = party(&theirs, "sites/seattle");
    stranger.roots = party(&ours, "controller").roots;
    let error = shake(&stranger, &party(&ours, "controller"), (Role::Controller, "controller"));
    assert!(error.as_ref().is_err_and(|e| e.contains("another authority")), "{error:?}");
}

#[test]
fn bad_files_are_named_with_what_is_wrong() {
    let (good, old, other) = (set(0), set(11), set(0));
    let text = |r: Result<Credentials, TlsError>| r.expect_err("refused").to_string();
    assert!(load(&set(9), &set(9), "controller").is_err(), "two sets");
    assert!(text(load(&old, &old, "sites/seattle")).contains("x.pem: the certificate has expired"));
    assert!(
        text(load(&good, &other, "sites/seattle"))
            .contains("x.pem: the certificate was not made by the authority ca.pem")
    );
    let files = CredentialFiles { ca: "ca.pem".into(), certificate: "x.pem".into(), key: "x.key".into() };
    let pem = |i: usize| good.files[i].certificate_pem.as_bytes();
    let key = |i: usize| good.files[i].key_pem.as_bytes();
    let mixed = Credentials::from_pem(pem(0), pem(1), key(2), &files);
    assert!(text(mixed).contains("x.key: the key belongs to another certificate"));
    assert!(
        text(Credentials::from_pem(b"", pem(1), key(1), &files)).contains("ca.pem: holds no certificate")
    );
    assert!(
        text(Credentials::from_pem(pem(0), pem(1), pem(1), &files)).contains("x.key: holds no private key")
    );
    let nowhere = CredentialFiles::in_set(Path::new("/nowhere"), Role::Site, "a b");
    assert!(text(Credentials::load(&nowhere)).contains("/nowhere/ca.pem: cannot be read"));
    assert_eq!(nowhere.key, Path::new("/nowhere/sites/a%20b.key"));
}
