//! Error messages about failed connections: no message quotes a library.

#![allow(clippy::disallowed_methods, reason = "tests of drivers: processes, files and clocks")]

use crate::net::{KilledOnDrop, Lines, PATIENCE, TWO, anabranch, run};
use anabranch_net::identity::Identity;
use anabranch_net::keys::{Role, System};
use anabranch_net::tls::CredentialFiles;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// Texts that appear in libraries' messages.
const FOREIGN: [&str; 6] = ["docs.rs", "rustls", "close_notify", "os error", "hyper", "corrupt message"];

/// Way in which a server ends its connections.
#[derive(Copy, Clone, Debug, PartialEq)]
enum ConnectionEnd {
    /// Right after the connection is accepted.
    AtOnce,
    /// During the handshake, after the client's first message.
    InTheHandshake,
    /// Sends bytes that are not TLS.
    InPlainText,
    /// Presents a certificate of another authority.
    AsAStranger,
    /// After the handshake and the client's first bytes, without TLS's `close_notify`.
    AfterTheHandshake,
    /// After the handshake, sends bytes that are not our protocol.
    WithGarbage,
}

const ALL: [ConnectionEnd; 6] = [
    ConnectionEnd::AtOnce,
    ConnectionEnd::InTheHandshake,
    ConnectionEnd::InPlainText,
    ConnectionEnd::AsAStranger,
    ConnectionEnd::AfterTheHandshake,
    ConnectionEnd::WithGarbage,
];

async fn end(mut tcp: TcpStream, own: &Identity, stranger: &Identity, how: ConnectionEnd) {
    let mut heard = [0; 1_024];
    match how {
        ConnectionEnd::AtOnce => {}
        ConnectionEnd::InTheHandshake => drop(tcp.read(&mut heard).await),
        ConnectionEnd::InPlainText => {
            let _ = tcp.read(&mut heard).await;
            let _ = tcp.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        }
        ConnectionEnd::AsAStranger => drop(stranger.accept(tcp).await),
        ConnectionEnd::AfterTheHandshake => {
            if let Ok((mut tls, _)) = own.accept(tcp).await {
                let _ = tls.read(&mut heard).await;
            }
        }
        ConnectionEnd::WithGarbage => {
            if let Ok((mut tls, _)) = own.accept(tcp).await {
                let _ = tls.read(&mut heard).await;
                let _ = tls.write_all(&[0xff; 64]).await;
                let _ = tls.flush().await;
            }
        }
    }
}

/// A folder with two sets of keys of a system.
struct TwoKeySets {
    folder: tempfile::TempDir,
    system: System,
}

impl TwoKeySets {
    fn new(system: System) -> Self {
        let room = Self { folder: tempfile::tempdir().expect("a temporary folder"), system };
        std::fs::write(room.path("network.toml"), TWO).expect("the folder is ours");
        for out in ["keys", "others"] {
            let words: &[&str] = match system.word() {
                "replicate" => &["replicate", "keys", "init", "--topology", "network.toml"],
                "shuffle" => &["shuffle", "keys", "--hosts", "h1", "--operators", "operator"],
                _ => &["gather", "keys"],
            };
            let (code, said) = run(room.command(&[words, &["--out", out]].concat()));
            assert_eq!(code, Some(0), "{said}");
        }
        room
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = anabranch();
        command.current_dir(self.folder.path()).args(words).stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    /// Identity of the server in a set of keys.
    fn identity(&self, keys: &str) -> Identity {
        let (role, name) = match self.system.word() {
            "gather" => (Role::Site, "server"),
            _ => (Role::Controller, "controller"),
        };
        let files = CredentialFiles::in_set(&self.path(keys), self.system, role, name);
        Identity::load(&files).expect("the set was just made")
    }

    /// Calls `with` with the address of a server that ends every connection in this way.
    fn beside<T>(&self, how: ConnectionEnd, with: impl FnOnce(SocketAddr) -> T) -> T {
        let (own, stranger) = (self.identity("keys"), self.identity("others"));
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a free port");
        let at = listener.local_addr().expect("bound");
        runtime.spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                let _ = tokio::time::timeout(PATIENCE, end(tcp, &own, &stranger, how)).await;
            }
        });
        with(at)
    }
}

fn assert_ours(said: &str, how: ConnectionEnd) {
    assert!(!said.trim().is_empty(), "{how:?}: nothing is said");
    for foreign in FOREIGN {
        assert!(!said.contains(foreign), "{how:?}: {said}");
    }
}

/// #48: `shuffle agent` and `shuffle status` quoted rustls, including the address of its
/// documentation.
#[test]
fn failed_connections_of_clients_quote_no_library() {
    let verbs: [(System, &[&str]); 4] = [
        (anabranch_replicate::SYSTEM, &["replicate", "status", "--keys", "keys", "--controller"]),
        (anabranch_shuffle::SYSTEM, &["shuffle", "status", "--keys", "keys", "--coordinator"]),
        (anabranch_gather::SYSTEM, &["gather", "ls", "--keys", "keys"]),
        (anabranch_gather::SYSTEM, &["gather", "get", "--keys", "keys", "-o"]),
    ];
    // Clients retry with pauses, so running all cases at once takes as long as the slowest case.
    std::thread::scope(|scope| {
        for (system, words) in verbs {
            let room = Arc::new(TwoKeySets::new(system));
            for how in ALL {
                let room = Arc::clone(&room);
                scope.spawn(move || assert_client_in_our_words(&room, words, how));
            }
        }
    });
}

fn assert_client_in_our_words(room: &TwoKeySets, words: &[&str], how: ConnectionEnd) {
    let said = room.beside(how, |at| {
        // Each pull has its own file, because a second pull into one file is refused.
        let to = match words[1] {
            "get" => vec![format!("{how:?}"), format!("{at}/object")],
            _ => vec![at.to_string()],
        };
        let to: Vec<&str> = to.iter().map(String::as_str).collect();
        let (code, said) = run(room.command(&[words, &to].concat()));
        assert!(code.is_some_and(|code| code != 0), "{words:?} {how:?}: {said}");
        said
    });
    println!("{} {}: {how:?}: {}", words[0], words[1], said.trim());
    assert_ours(&said, how);
}

/// #52: a refused connection was reported only after 9.5 s.
#[test]
fn unreachable_controllers_are_reported_during_retries() {
    for (system, words) in [
        (anabranch_replicate::SYSTEM, ["replicate", "status", "--controller"]),
        (anabranch_shuffle::SYSTEM, ["shuffle", "status", "--coordinator"]),
    ] {
        let room = TwoKeySets::new(system);
        let mut client = room.command(&[&words[..], &["127.0.0.1:1", "--keys", "keys"]].concat());
        let mut client = client.stderr(Stdio::piped()).spawn().expect("it starts");
        let lines = Lines::of(client.stderr.take().expect("it is piped"));
        let mut client = KilledOnDrop(client);
        let said = lines.until("trying on for").unwrap_or_else(|said| panic!("{words:?}: {said}"));
        assert!(said.contains("127.0.0.1:1: connection refused"), "{said}");
        assert!(client.0.try_wait().expect("it runs").is_none(), "{words:?} has given up: {said}");
    }
}

/// #48: daemons that are clients quoted libraries, too, as a relay does with its controller.
#[test]
fn failed_connections_of_a_relay_quote_no_library() {
    let room = TwoKeySets::new(anabranch_replicate::SYSTEM);
    std::thread::scope(|scope| {
        for how in ALL {
            let room = &room;
            scope.spawn(move || assert_relay_in_our_words(room, how));
        }
    });
}

fn assert_relay_in_our_words(room: &TwoKeySets, how: ConnectionEnd) {
    let folder = format!("{how:?}");
    std::fs::create_dir(room.path(&folder)).expect("the folder is ours");
    let said = room.beside(how, |at| {
        let at = at.to_string();
        let words = ["replicate", "relay", "--topology", "network.toml", "--keys", "keys"];
        let more = ["--site", "d", "--dir", &folder, "--listen", "127.0.0.1:0", "--controller", &at];
        let mut relay = room.command(&[&words[..], &more].concat());
        let mut relay = relay.stderr(Stdio::piped()).spawn().expect("it starts");
        let lines = Lines::of(relay.stderr.take().expect("it is piped"));
        let _relay = KilledOnDrop(relay);
        lines.until(" WARN ").unwrap_or_else(|said| panic!("{how:?}: {said}"))
    });
    println!("relay: {how:?}: {}", said.trim());
    assert_ours(&said, how);
}
