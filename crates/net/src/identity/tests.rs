//! Identities that expire, are revoked or renewed while connections are open.

use super::*;
use crate::cause::explain;
use crate::keys::{SetRequest, add_to_set, holders, make_set_at, renew, replace_in_set, revoke, write_set};
use crate::party::examples::HAUL;
use std::path::PathBuf;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const DAYS: u32 = 10;

fn request(sites: &[&str]) -> SetRequest {
    SetRequest {
        system: HAUL,
        sites: sites.iter().map(|s| (*s).to_owned()).collect(),
        operators: vec!["operator".into()],
        controller_hosts: vec!["control.example".into(), "10.1.2.3".into()],
        valid_days: DAYS,
    }
}

/// A set in a separate folder, with certificates that expire after `left`.
fn set(name: &str, left: time::Duration) -> Folder {
    let folder =
        Folder(std::env::temp_dir().join(format!("anabranch-identity-{}-{name}", std::process::id())));
    let _ = std::fs::remove_dir_all(&folder.0);
    let made = OffsetDateTime::now_utc() + left + time::Duration::HOUR - time::Duration::days(DAYS.into());
    let set = make_set_at(&request(&["a", "b"]), made).expect("a good request");
    write_set(&folder.0, &set).expect("an empty folder");
    folder
}

const LONG: time::Duration = time::Duration::days(5);

fn identity(folder: &Folder, role: Role, name: &str) -> Identity {
    let files = CredentialFiles::in_set(&folder.0, HAUL, role, name);
    Identity::load(&files).expect("a good set")
}

/// Both ends of a connection from site a to site b, or the reason for its failure.
async fn connected(
    a: &Identity,
    b: &Identity,
) -> Result<(TlsStream<TcpStream>, TlsStream<TcpStream>), (String, String)> {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let to = listener.local_addr().expect("bound");
    let calls = async {
        let tcp = TcpStream::connect(to).await.expect("it listens");
        let mut stream = a.connect(tcp, Role::Site, "b").await?;
        // A client learns of its certificate's refusal only after its own handshake.
        stream.write_all(b"?").await?;
        stream.read_u8().await?;
        io::Result::Ok(stream)
    };
    let answers = async {
        let (tcp, _) = listener.accept().await.expect("somebody calls");
        let (mut stream, _) = b.accept(tcp).await?;
        stream.read_u8().await?;
        stream.write_all(b"!").await?;
        io::Result::Ok(stream)
    };
    let said = |r: &io::Result<_>| match r {
        Ok(_) => "nothing".to_owned(),
        Err(e) => explain("peer", e),
    };
    match tokio::join!(calls, answers) {
        (Ok(a), Ok(b)) => Ok((a, b)),
        (a, b) => Err((said(&a), said(&b))),
    }
}

/// #17: a connection continued indefinitely after its peer's certificate had expired.
#[tokio::test]
async fn guard_reports_a_certificates_end_and_refuses_later_handshakes() {
    let folder = set("ends", time::Duration::seconds(2));
    let (a, b) = (identity(&folder, Role::Site, "a"), identity(&folder, Role::Site, "b"));
    let (client, server) = connected(&a, &b).await.expect("not over yet");
    for (identity, stream) in [(&a, &client), (&b, &server)] {
        let guard = identity.guard(stream.get_ref().1);
        let over = guard.during(std::future::pending::<()>()).await.expect_err("it ends");
        assert!(over.starts_with("its certificate expired on 20"), "{over}");
    }
    let (said, heard) = connected(&a, &b).await.expect_err("over");
    assert!(said.contains("its certificate expired on 20"), "{said} {heard}");
    let files = CredentialFiles::in_set(&folder.0, HAUL, Role::Site, "a");
    let error = Credentials::load(&files).expect_err("over").to_string();
    assert!(error.contains("sites/a.pem: the certificate expired on 20"), "{error}");
}

thread_local! {
    /// Seconds by which the wall clock of this test's guards is ahead of the machine's.
    static AHEAD_S: std::cell::Cell<i64> = const { std::cell::Cell::new(0) };
}

fn set_clock() -> SystemTime {
    let now = OffsetDateTime::now_utc() + time::Duration::seconds(AHEAD_S.get());
    now.into()
}

/// #48: a connection outlived its peer's certificate after the wall clock was set, because no timer
/// follows that clock.
#[tokio::test]
async fn guards_follow_a_wall_clock_that_is_set() {
    const DAY_S: i64 = 24 * 3_600;
    let folder = set("jumps", LONG);
    let (a, b) = (identity(&folder, Role::Site, "a"), identity(&folder, Role::Site, "b"));
    let (client, _server) = connected(&a, &b).await.expect("one set");
    for (ahead_s, reason) in [(100_000 * DAY_S, "expired on"), (-6 * DAY_S, "the clock was set")] {
        AHEAD_S.set(0);
        let mut guard = a.guard(client.get_ref().1);
        assert_eq!(guard.every, CLOCK_EVERY);
        (guard.clock, guard.every) = (set_clock, Duration::from_millis(20));
        let mut withdrawn = std::pin::pin!(guard.withdrawn());
        let stays = tokio::time::timeout(Duration::from_millis(50), &mut withdrawn).await;
        assert!(stays.is_err(), "{stays:?}");
        // The guard now sleeps until a time long before the certificate expires.
        AHEAD_S.set(ahead_s);
        let over = tokio::time::timeout(Duration::from_secs(60), withdrawn).await;
        assert!(over.as_ref().is_ok_and(|over| over.contains(reason)), "{ahead_s}: {over:?}");
    }
}

/// #17: only a new set of keys could lock out the holder of a stolen key.
#[tokio::test]
async fn revoked_peer_is_dropped_until_its_new_certificate() {
    let folder = set("revoked", LONG);
    let (a, b) = (identity(&folder, Role::Site, "a"), identity(&folder, Role::Site, "b"));
    let (_client, server) = connected(&a, &b).await.expect("nobody is revoked");
    let mut guard = b.guard(server.get_ref().1);
    let stays = tokio::time::timeout(Duration::from_millis(50), guard.withdrawn()).await;
    assert!(stays.is_err(), "nobody is revoked");
    assert!(!b.has_changed());

    revoke(&folder.0, HAUL, std::slice::from_ref(a.own())).expect("the set is there");
    assert!(b.has_changed());
    b.reload().expect("a good list");
    assert_eq!((b.revoked(), b.has_changed()), (1, false));
    assert_eq!(guard.withdrawn().await, "its certificate was revoked");
    let (said, heard) = connected(&a, &b).await.expect_err("revoked");
    assert!(said.contains("refused our certificate: it was revoked"), "{said}");
    assert!(heard.contains("its certificate was revoked"), "{heard}");
    // As a client, b also refuses a; a notices the revocation when it reads the list.
    let error = a.reload().expect_err("its own").to_string();
    assert!(error.contains("a.pem: the certificate was revoked") && error.contains("keys renew"), "{error}");

    // The new certificate is made in the same second, but is dated later than the revoked one.
    let new = renew(&folder.0, HAUL, std::slice::from_ref(a.own()), DAYS).expect("the set is there");
    replace_in_set(&folder.0, &new).expect("ours");
    a.reload().expect("a new certificate");
    let (_client, server) = connected(&a, &b).await.expect("made later");
    let mut guard = b.guard(server.get_ref().1);
    assert!(tokio::time::timeout(Duration::from_millis(50), guard.withdrawn()).await.is_err());
}

#[tokio::test]
async fn new_certificate_replaces_the_old_during_connections() {
    let folder = set("renewed", LONG);
    let (a, b) = (identity(&folder, Role::Site, "a"), identity(&folder, Role::Site, "b"));
    let (mut client, mut server) = connected(&a, &b).await.expect("one set");
    let old = a.current().validity;
    let all = holders(&folder.0, HAUL).expect("a set");
    assert_eq!(all.len(), 4, "the controller, an operator, two sites: {all:?}");
    replace_in_set(&folder.0, &renew(&folder.0, HAUL, &all, DAYS).expect("a set")).expect("ours");
    a.reload().expect("a good set");
    b.reload().expect("a good set");
    let new = a.current().validity;
    assert!(new.0 > old.0 && new.1 > old.1);
    assert!(a.expires().1 > Duration::from_secs(9 * 24 * 3_600), "{:?}", a.expires());
    // The established connection continues.
    client.write_all(b"x").await.expect("it stands");
    assert_eq!(server.read_u8().await.expect("it stands"), b'x');
    let mut guard = b.guard(server.get_ref().1);
    assert!(tokio::time::timeout(Duration::from_millis(50), guard.withdrawn()).await.is_err());
    connected(&a, &b).await.expect("new ones");
    // The controller's certificate keeps its host names.
    let controller = std::fs::read(folder.0.join("controller.pem")).expect("renewed");
    let der =
        <CertificateDer<'_> as rustls::pki_types::pem::PemObject>::from_pem_slice(&controller).expect("PEM");
    let facts = crate::certificate::CertificateFacts::of(&der).expect("a certificate");
    assert!(facts.addresses.contains(&"10.1.2.3".parse().expect("an address")));
    let leaf = webpki::EndEntityCert::try_from(&der).expect("a certificate");
    assert!(leaf.valid_dns_names().any(|name| name == "control.example"));

    // With half of a change, or keys of another party, the earlier credentials stay in use.
    let path = |end: &str| folder.0.join(format!("sites/a.{end}"));
    let good = std::fs::read(path("key")).expect("renewed");
    std::fs::copy(folder.0.join("sites/b.key"), path("key")).expect("ours");
    assert!(a.has_changed());
    let error = a.reload().expect_err("another's key").to_string();
    assert!(error.contains("a.key: the key belongs to another certificate"), "{error}");
    connected(&a, &b).await.expect("as before");
    std::fs::write(path("key"), good).expect("ours");
    std::fs::write(folder.0.join("revoked"), "nonsense").expect("ours");
    let error = a.reload().expect_err("no list").to_string();
    assert!(error.contains("revoked: line 1: begins with no holder"), "{error}");
    connected(&a, &b).await.expect("as before");
}

#[tokio::test]
async fn peers_of_a_removed_authority_are_dropped() {
    let (folder, other) = (set("authority", LONG), set("authority-other", LONG));
    let (a, b) = (identity(&folder, Role::Site, "a"), identity(&folder, Role::Site, "b"));
    let (_client, server) = connected(&a, &b).await.expect("one set");
    let mut guard = b.guard(server.get_ref().1);
    for file in ["ca.pem", "sites/b.pem", "sites/b.key"] {
        std::fs::copy(other.0.join(file), folder.0.join(file)).expect("ours");
    }
    b.reload().expect("a set of the other authority");
    assert_eq!(guard.withdrawn().await, "its authority is trusted no more");
}

/// #17: keys that every user could read or replace were used without a warning.
#[cfg(unix)]
#[test]
fn keys_exposed_to_other_users_are_refused_with_remedy() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = set("modes", LONG);
    let files = CredentialFiles::in_set(&folder.0, HAUL, Role::Site, "a");
    let mode = |path: &Path| path.metadata().expect("written").permissions().mode() & 0o777;
    let chmod = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("ours");
    };
    assert_eq!((mode(&folder.0), mode(&folder.0.join("sites"))), (0o700, 0o700));
    std::fs::write(folder.0.join("revoked"), "").expect("ours");
    for (path, good, bad, say) in [
        (files.key.clone(), 0o600, [0o640, 0o604, 0o602], "others may read or write it"),
        (files.ca.clone(), 0o664, [0o646, 0o666, 0o602], "others may write it"),
        (files.revoked(), 0o644, [0o646, 0o666, 0o602], "others may write it"),
    ] {
        for wrong in bad {
            chmod(&path, wrong);
            let error = Credentials::load(&files).expect_err("open to others").to_string();
            let fix =
                format!("run `chmod {} {}`", if say.contains("read") { 600 } else { 644 }, path.display());
            assert!(error.contains(say) && error.contains(&fix), "{error}");
        }
        chmod(&path, good);
        Credentials::load(&files).expect("as it should be");
    }
    // A world-writable folder is refused.
    chmod(&folder.0.join("sites"), 0o777);
    let more = add_to_set(&folder.0, &SetRequest { operators: vec![], ..request(&["c"]) })
        .expect("the set is there");
    let error = write_set(&folder.0, &more).expect_err("anybody may write there").to_string();
    assert!(error.contains("sites: anybody may write there: run `chmod 700 "), "{error}");
}
