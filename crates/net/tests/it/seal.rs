//! Channels of real TLS sessions, and the corpus of the fuzz target.

use super::{GATHER, REPLICATE};
use anabranch_net::identity::Identity;
use anabranch_net::keys::{Role, SetRequest, System, make_set, write_set};
use anabranch_net::seal::{
    Aead, Channel, ChannelId, HEADER_BYTES, OVERHEAD_BYTES, OpenError, SealError, TAG_BYTES, channel,
    client_channel,
};
use anabranch_net::tls::{CredentialFiles, Credentials};
use anabranch_testing::replay;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsStream;

/// A folder that is removed at the end of its test.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("anabranch-net-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// An operator's session with a site.
async fn session(name: &str) -> (TlsStream<TcpStream>, TlsStream<TcpStream>) {
    let folder = Folder::new(name);
    let request = SetRequest {
        system: REPLICATE,
        sites: vec!["seattle".into()],
        operators: vec!["operator".into()],
        controller_hosts: vec![],
        valid_days: 2,
    };
    write_set(&folder.0, &make_set(&request).expect("good names")).expect("a new folder");
    let identity = |role, name| {
        let credentials = Credentials::load(&CredentialFiles::in_set(&folder.0, REPLICATE, role, name))
            .expect("a good set");
        Identity::new(&credentials).expect("a good set")
    };
    let (site, operator) = (identity(Role::Site, "seattle"), identity(Role::Operator, "operator"));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let to = listener.local_addr().expect("bound");
    let (client, server) = tokio::join!(
        async {
            let tcp = TcpStream::connect(to).await.expect("it listens");
            operator.connect(tcp, Role::Site, "seattle").await.expect("one authority")
        },
        async {
            let (tcp, _) = listener.accept().await.expect("somebody calls");
            site.accept(tcp).await.expect("one authority").0
        }
    );
    (client, server)
}

fn sealed(channel: &mut Channel, payload: &[u8]) -> Vec<u8> {
    let mut datagram = vec![0; HEADER_BYTES];
    datagram.extend_from_slice(payload);
    datagram.extend_from_slice(&[0; TAG_BYTES]);
    channel.sealer.seal(&mut datagram).expect("a fresh key");
    datagram
}

#[tokio::test]
async fn both_ends_open_only_what_the_peer_sealed() {
    let (client, server) = session("pair").await;
    let id = ChannelId::random().expect("the system has randomness");
    let mut near = channel(&client, id).expect("established");
    let mut far = channel(&server, id).expect("established");
    assert_eq!(near.sealer.aead(), far.opener.aead());
    assert_ne!(ChannelId::random().expect("the system has randomness"), id);

    let mut to_far = sealed(&mut near, b"feedback");
    assert_eq!(to_far.len(), b"feedback".len() + OVERHEAD_BYTES);
    assert_eq!(far.opener.open(&mut to_far.clone()).expect("the other end's").payload, b"feedback");
    let mut to_near = sealed(&mut far, b"data");
    assert_eq!(near.opener.open(&mut to_near.clone()).expect("the other end's").payload, b"data");

    // Reflected to its sender, the datagram is forged: its number is unused in that direction, and
    // the key differs.
    let mut back = sealed(&mut near, b"more");
    assert_eq!(near.opener.open(&mut back), Err(OpenError::Forged));
    assert_eq!(near.opener.open(&mut to_near), Err(OpenError::Replayed { number: 0 }));

    // Another channel of the session has other keys, and so has the same channel of another
    // session.
    let other = ChannelId(id.0 ^ 1);
    let mut next = channel(&server, other).expect("established");
    assert_eq!(next.opener.open(&mut to_far), Err(OpenError::OtherChannel { channel: id }));
    let mut to_next = sealed(&mut near, b"data");
    to_next[..8].copy_from_slice(&other.0.to_be_bytes());
    assert_eq!(next.opener.open(&mut to_next), Err(OpenError::Forged));
    let (_, server) = session("another").await;
    let mut stranger = channel(&server, id).expect("established");
    assert_eq!(stranger.opener.open(&mut sealed(&mut near, b"data")), Err(OpenError::Forged));
}

#[tokio::test]
async fn channel_uses_the_aead_of_the_session() {
    let (client, server) = session("suite").await;
    let suite = client.get_ref().1.negotiated_cipher_suite().expect("established").suite();
    let aead = channel(&server, ChannelId(1)).expect("established").sealer.aead();
    let expected = match aead {
        Aead::Aes128Gcm => "TLS13_AES_128_GCM_SHA256",
        Aead::Aes256Gcm => "TLS13_AES_256_GCM_SHA384",
        Aead::ChaCha20Poly1305 => "TLS13_CHACHA20_POLY1305_SHA256",
    };
    assert_eq!(suite.as_str(), Some(expected));
}

#[test]
fn unestablished_session_gives_no_channel() {
    let folder = Folder::new("early");
    let request = SetRequest {
        system: REPLICATE,
        sites: vec!["seattle".into()],
        operators: vec![],
        controller_hosts: vec![],
        valid_days: 2,
    };
    write_set(&folder.0, &make_set(&request).expect("good names")).expect("a new folder");
    let files = CredentialFiles::in_set(&folder.0, REPLICATE, Role::Site, "seattle");
    let config = Credentials::load(&files).expect("a good set").client_config().expect("a good set");
    let name = anabranch_net::tls::server_name(REPLICATE, Role::Site, "seattle").expect("a good name");
    let connection = rustls::ClientConnection::new(config, name).expect("a good name");
    let error = client_channel(&connection, ChannelId(1)).expect_err("nobody has answered");
    assert_eq!(error, SealError::UnfitSession { suite: None });
    assert!(error.to_string().contains("handshake is not done"), "{error}");
}

#[test]
fn fuzz_corpora_are_accepted_unless_named_bad() {
    assert!(System::all().eq([GATHER, REPLICATE]));
    assert!(replay("net_seal", anabranch_net::seal::exercise) >= 6);
    assert!(replay("net_window", anabranch_net::seal::exercise_window) >= 4);
    assert!(replay("net_keys", anabranch_net::keys::exercise) >= 6);
    assert!(replay("net_certificate", anabranch_net::certificate::exercise) >= 12);
}
