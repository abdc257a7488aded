//! Handshakes in memory between expected and unexpected parties.

use super::*;
use crate::cause::explain;
use crate::keys::{KeyFile, KeySet, SetRequest, make_set_at, more_of};
use crate::party::examples::{HAUL, PULL};
use std::io::Error;
use time::OffsetDateTime;

fn set(days_ago: i64) -> KeySet {
    let request = SetRequest {
        system: HAUL,
        sites: vec!["seattle".into(), "controller".into(), "New York".into()],
        operators: vec!["operator".into()],
        controller_hosts: vec![],
        valid_days: 10,
    };
    make_set_at(&request, OffsetDateTime::now_utc() - time::Duration::days(days_ago)).expect("a good request")
}

fn load(set: &KeySet, authority: &KeySet, stem: &str) -> Result<Credentials, TlsError> {
    let file = set.files.iter().find(|f| f.stem == Path::new(stem)).expect("it is in the set");
    let files = CredentialFiles {
        ca: "ca.pem".into(),
        certificate: "x.pem".into(),
        key: "x.key".into(),
        holder: None,
    };
    Credentials::from_pem(
        authority.files[0].certificate_pem.as_bytes(),
        file.certificate_pem.as_bytes(),
        file.key_pem.as_bytes(),
        &files,
        RevocationList::default(),
    )
}

fn party(set: &KeySet, stem: &str) -> Credentials {
    load(set, set, stem).expect("a good set")
}

/// The identity that the server sees, or the error of the end that fails first.
fn shake(client: &Credentials, server: &Credentials, expected: (Role, &str)) -> Result<PeerIdentity, String> {
    let name = server_name(HAUL, expected.0, expected.1).expect("a good name");
    shake_named(client, server, name)
}

fn shake_named(
    client: &Credentials,
    server: &Credentials,
    name: ServerName<'static>,
) -> Result<PeerIdentity, String> {
    shake_with(client.client_config().expect("loaded"), server, name)
}

fn shake_with(
    client: Arc<ClientConfig>,
    server: &Credentials,
    name: ServerName<'static>,
) -> Result<PeerIdentity, String> {
    let mut c = rustls::ClientConnection::new(client, name).expect("a good name");
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
fn both_ends_learn_the_identity_of_the_peer() {
    let set = set(0);
    let (site, controller) = (party(&set, "sites/New%20York"), party(&set, "controller"));
    let seen = shake(&site, &controller, (Role::Controller, "controller")).expect("one set");
    assert_eq!(seen, PeerIdentity { system: HAUL, role: Role::Site, name: "New York".into() });
    let (a, b) = (party(&set, "sites/seattle"), party(&set, "sites/New%20York"));
    let seen = shake(&a, &b, (Role::Site, "New York")).expect("sites listen too");
    assert_eq!(seen.name, "seattle");
}

#[test]
fn site_cannot_act_as_another_or_as_controller() {
    let set = set(0);
    let client = party(&set, "sites/seattle");
    for (server, expected) in [
        ("sites/seattle", (Role::Site, "New York")),
        ("sites/seattle", (Role::Controller, "controller")),
        ("sites/controller", (Role::Controller, "controller")),
        ("controller", (Role::Site, "controller")),
    ] {
        let error = shake(&client, &party(&set, server), expected).expect_err("somebody else");
        assert!(error.contains("another party answers there"), "{error}");
    }
    let seen =
        shake(&party(&set, "sites/controller"), &party(&set, "controller"), (Role::Controller, "controller"));
    assert_eq!(seen.map(|s| s.role), Ok(Role::Site));
    let error = shake(&client, &party(&set, "operators/operator"), (Role::Operator, "operator"));
    assert!(error.is_err(), "an operator's certificate is no server's: {error:?}");
}

/// #17: a client of one system was an operator of another if one authority had signed both systems'
/// keys.
#[test]
fn party_of_another_system_is_refused_from_both_ends() {
    let ours = set(0);
    let authority = ours.files[0].clone();
    for system in System::all().filter(|s| *s != HAUL) {
        // Keys of the same authority with the other system's names; no tool makes such keys.
        let request = SetRequest {
            system,
            sites: vec!["seattle".into()],
            operators: vec!["operator".into()],
            controller_hosts: vec![],
            valid_days: 10,
        };
        let theirs = KeySet {
            files: [authority.clone()]
                .into_iter()
                .chain(more_of(&authority, &request))
                .collect::<Vec<KeyFile>>(),
        };
        let controller = party(&ours, "controller");
        let name = server_name(HAUL, Role::Controller, "controller").expect("a good name");
        for (stem, who) in [
            (
                "operators/operator",
                // This also applies to a system without operators, for which no operator's key can
                // be made.
                format!("{} `operator`", system.role_name(Role::Operator).unwrap_or("operator")),
            ),
            ("sites/seattle", format!("{} `seattle`", system.role_name(Role::Site).expect("all have"))),
        ] {
            let error = shake_named(&party(&theirs, stem), &controller, name.clone()).expect_err("not ours");
            let said = format!("{system} {who} has no business here: this is haul");
            assert!(error.contains(&said), "{error}");
        }
        let caller = party(&ours, "operators/operator");
        let wanted = server_name(HAUL, Role::Site, "seattle").expect("a good name");
        let error = shake_named(&caller, &party(&theirs, "sites/seattle"), wanted).expect_err("not ours");
        assert!(error.contains("and not haul site `seattle`"), "{error}");
        let any = caller.client_config_for(Role::Site).expect("loaded");
        let error = shake_with(any, &party(&theirs, "sites/seattle"), name).expect_err("not ours");
        assert!(error.contains("and not a haul site"), "{error}");
    }
}

#[test]
fn certificate_of_an_unexpected_holder_is_named() {
    let set = set(0);
    let file = |stem: &str| set.files.iter().find(|f| f.stem == Path::new(stem)).expect("it is in the set");
    let (ca, own) = (file("ca"), file("sites/seattle"));
    let files = |system, role, name: &str| CredentialFiles {
        holder: Some(PeerIdentity { system, role, name: name.into() }),
        ..CredentialFiles::in_set(Path::new("keys"), system, Role::Site, "seattle")
    };
    let load = |files| {
        let pem = (ca.certificate_pem.as_bytes(), own.certificate_pem.as_bytes(), own.key_pem.as_bytes());
        Credentials::from_pem(pem.0, pem.1, pem.2, &files, RevocationList::default())
    };
    load(files(HAUL, Role::Site, "seattle")).expect("its own");
    for wrong in [
        files(PULL, Role::Site, "seattle"),
        files(HAUL, Role::Operator, "seattle"),
        files(HAUL, Role::Site, "New York"),
    ] {
        let expected = wrong.holder.clone().expect("just set");
        let error = load(wrong).expect_err("somebody else's").to_string();
        let said = format!("is the certificate of haul site `seattle`, and one of {expected} is needed");
        assert!(error.contains("keys/sites/seattle.pem") && error.contains(&said), "{error}");
    }
}

#[test]
fn peer_of_another_authority_is_refused_from_both_ends() {
    let (ours, theirs) = (set(0), set(0));
    let error = shake(
        &party(&theirs, "sites/seattle"),
        &party(&ours, "controller"),
        (Role::Controller, "controller"),
    );
    assert!(error.as_ref().is_err_and(|e| e.contains("another authority")), "{error:?}");
    // A client that trusts our authority but has a certificate of another passes its own check, and
    // fails the server's.
    let mut stranger = party(&theirs, "sites/seattle");
    stranger.trust = party(&ours, "controller").trust;
    let error = shake(&stranger, &party(&ours, "controller"), (Role::Controller, "controller"));
    assert!(error.as_ref().is_err_and(|e| e.contains("another authority")), "{error:?}");
}

#[test]
fn bad_credential_files_are_named_with_the_fault() {
    let (good, old, other) = (set(0), set(11), set(0));
    let text = |r: Result<Credentials, TlsError>| r.expect_err("refused").to_string();
    assert!(load(&set(9), &set(9), "controller").is_err(), "two sets");
    assert!(text(load(&old, &old, "sites/seattle")).contains("x.pem: the certificate expired on 2"));
    assert!(
        text(load(&good, &other, "sites/seattle"))
            .contains("x.pem: the certificate was not made by the authority ca.pem")
    );
    let files = CredentialFiles {
        ca: "ca.pem".into(),
        certificate: "x.pem".into(),
        key: "x.key".into(),
        holder: None,
    };
    let pem = |i: usize| good.files[i].certificate_pem.as_bytes();
    let key = |i: usize| good.files[i].key_pem.as_bytes();
    let mixed = Credentials::from_pem(pem(0), pem(1), key(2), &files, RevocationList::default());
    assert!(text(mixed).contains("x.key: the key belongs to another certificate"));
    assert!(
        text(Credentials::from_pem(b"", pem(1), key(1), &files, RevocationList::default()))
            .contains("ca.pem: holds no certificate")
    );
    assert!(
        text(Credentials::from_pem(pem(0), pem(1), pem(1), &files, RevocationList::default()))
            .contains("x.key: holds no private key")
    );
    let nowhere = CredentialFiles::in_set(Path::new("/nowhere"), HAUL, Role::Site, "a b");
    let missing = text(Credentials::load(&nowhere));
    assert!(missing.contains("/nowhere/ca.pem: cannot be read") && missing.contains("--keys"), "{missing}");
    assert_eq!(nowhere.key, Path::new("/nowhere/sites/a%20b.key"));
    for system in System::all() {
        let files = CredentialFiles::in_set(Path::new("/nowhere"), system, Role::Site, "a");
        let said = text(Credentials::load(&files));
        assert!(said.contains(&format!("make keys (`{}`)", system.keys_command())), "{said}");
    }
}

/// #17: a resumed session continued although the certificate had expired meanwhile.
#[test]
fn server_never_resumes_a_session() {
    let set = set(0);
    let (client, server) = (party(&set, "sites/seattle"), party(&set, "sites/New%20York"));
    // A modified client that tries to resume the session.
    let mut eager = ClientConfig::clone(&client.client_config().expect("loaded"));
    eager.resumption = rustls::client::Resumption::in_memory_sessions(8);
    let (eager, server) = (Arc::new(eager), server.server_config().expect("loaded"));
    for _ in 0..2 {
        let name = server_name(HAUL, Role::Site, "New York").expect("a good name");
        let mut c = rustls::ClientConnection::new(eager.clone(), name).expect("a good name");
        let mut s = rustls::ServerConnection::new(server.clone()).expect("loaded");
        for _ in 0..5 {
            let mut wire = Vec::new();
            while c.wants_write() {
                c.write_tls(&mut wire).expect("a vector takes everything");
            }
            if !wire.is_empty() {
                s.read_tls(&mut wire.as_slice()).expect("a slice is read");
                s.process_new_packets().expect("a good peer");
            }
            let mut wire = Vec::new();
            while s.wants_write() {
                s.write_tls(&mut wire).expect("a vector takes everything");
            }
            if !wire.is_empty() {
                c.read_tls(&mut wire.as_slice()).expect("a slice is read");
                c.process_new_packets().expect("a good peer");
            }
        }
        assert!(!c.is_handshaking() && !s.is_handshaking());
        assert_eq!(c.tls13_tickets_received(), 0);
        assert_eq!(s.handshake_kind(), Some(rustls::HandshakeKind::Full));
    }
}

#[test]
fn future_certificate_prints_when_it_becomes_valid() {
    let (tomorrow, today) = (set(-1), set(0));
    let error = load(&tomorrow, &tomorrow, "sites/seattle").expect_err("not yet").to_string();
    assert!(error.contains("is valid from 20") && error.contains("here it is 20"), "{error}");
    assert!(load(&today, &today, "sites/seattle").is_ok());
}
