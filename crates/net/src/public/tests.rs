//! Valid and invalid certificate files, and a handshake over loopback.

use super::*;
use std::fs::Permissions;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_rustls::TlsAcceptor;

const PROTOCOLS: &[&str] = &["h2", "http/1.1"];

fn write(folder: &Path, year: i32) -> CertificateFiles {
    write_self_signed(folder, &["localhost"], year)
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

fn refused(files: &CertificateFiles) -> String {
    ServerCertificate::load(files.clone(), PROTOCOLS).expect_err("a bad file").to_string()
}

#[test]
fn bad_certificate_files_are_refused_in_one_line() {
    let folder = folder();
    let mut files = write(folder.path(), 2100);
    files.chain = folder.path().join("none");
    assert!(refused(&files).contains("none: cannot be read"));
    let files = write(folder.path(), 2001);
    assert!(refused(&files).contains("expired on 2001-01-01"));
    let files = write(folder.path(), 2100);
    std::fs::set_permissions(&files.key, Permissions::from_mode(0o644)).expect("an own file");
    assert!(refused(&files).contains("key.pem: every user may read or write this key (mode 0644)"));
    std::fs::set_permissions(&files.key, Permissions::from_mode(0o640)).expect("an own file");
    assert!(ServerCertificate::load(files.clone(), PROTOCOLS).is_ok());
    let other = tempfile::tempdir().expect("a folder");
    let mixed = CertificateFiles { key: write(other.path(), 2100).key, ..files.clone() };
    assert!(refused(&mixed).contains("is not the key of the certificate in"));
    std::fs::write(&files.chain, "no PEM").expect("an own file");
    assert!(refused(&files).contains("holds no certificate in PEM"));
    std::fs::write(&files.chain, vec![b'a'; PEM_BYTES_MAX as usize + 1]).expect("an own file");
    assert!(refused(&files).contains("more than"));
}

/// Performs one handshake, and returns the protocol and the certificate that the client sees.
async fn shake(
    server: &ServerCertificate,
    trust: &ServerTrust,
    host: &str,
) -> io::Result<(Vec<u8>, Vec<u8>)> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let tcp = TcpStream::connect(listener.local_addr()?).await?;
    let (accepted, _) = listener.accept().await?;
    let acceptor = TlsAcceptor::from(server.server_config());
    let serves = async {
        // A client that refuses the certificate ends the handshake.
        if let Ok(mut stream) = acceptor.accept(accepted).await {
            let _ = stream.write_all(b"x").await;
        }
    };
    let asks = async {
        let mut stream = trust.connect(tcp, host).await?;
        stream.read_exact(&mut [0]).await?;
        let session = stream.get_ref().1;
        let protocol = session.alpn_protocol().unwrap_or_default().to_vec();
        let leaf = session.peer_certificates().and_then(|chain| chain.first());
        Ok((protocol, leaf.map(|leaf| leaf.to_vec()).unwrap_or_default()))
    };
    tokio::join!(serves, asks).1
}

#[tokio::test]
async fn new_connections_see_the_changed_certificate() {
    let folder = folder();
    let files = write(folder.path(), 2100);
    let server = ServerCertificate::load(files.clone(), PROTOCOLS).expect("good files");
    let trust = ServerTrust::load(&files.chain, &["http/1.1"]).expect("an authority");
    let (protocol, first) = shake(&server, &trust, "localhost").await.expect("a trusted server");
    assert_eq!(protocol, b"http/1.1");
    assert!(shake(&server, &trust, "example.org").await.is_err(), "a certificate of another host");
    assert!(!server.has_changed());

    std::fs::write(&files.key, "half a key").expect("an own file");
    assert!(server.has_changed());
    assert!(server.reload().is_err());
    let (_, kept) = shake(&server, &trust, "localhost").await.expect("the last good certificate");
    assert!(first == kept);

    let earlier = ServerTrust::load(&files.chain, PROTOCOLS).expect("an authority");
    write(folder.path(), 2101);
    server.reload().expect("good files");
    assert!(!server.has_changed());
    assert!(shake(&server, &earlier, "localhost").await.is_err(), "it trusts the old certificate alone");
    assert!(shake(&server, &trust, "localhost").await.is_ok(), "a resumed session goes on");
    let trust = ServerTrust::load(&files.chain, PROTOCOLS).expect("an authority");
    let (protocol, changed) = shake(&server, &trust, "localhost").await.expect("a trusted server");
    assert!(first != changed);
    assert_eq!(protocol, b"h2");
}

#[tokio::test]
async fn refused_certificates_are_named_without_the_library() {
    let folder = folder();
    let (files, ca) = write_signed(folder.path(), &["localhost"], 2100);
    let server = ServerCertificate::load(files, PROTOCOLS).expect("good files");
    let trust = ServerTrust::load(&ca, &["h2"]).expect("an authority");
    shake(&server, &trust, "localhost").await.expect("the authority's server");
    let error = shake(&server, &trust, "127.0.0.1").await.expect_err("another name");
    assert!(server_cause(&error).starts_with("its certificate has another name"), "{error}");
    let other = tempfile::tempdir().expect("a folder");
    let trust = ServerTrust::load(&write(other.path(), 2100).chain, &["h2"]).expect("an authority");
    let error = shake(&server, &trust, "localhost").await.expect_err("another authority");
    let line = server_cause(&error);
    assert!(line.starts_with("its certificate is of an authority that is not trusted"), "{error}");
    let at = |s| rustls::pki_types::UnixTime::since_unix_epoch(std::time::Duration::from_secs(s));
    let old = CertificateError::ExpiredContext { time: at(2_000_000_000), not_after: at(978_307_200) };
    let old = io::Error::new(io::ErrorKind::InvalidData, rustls::Error::InvalidCertificate(old));
    assert_eq!(server_cause(&old), "its certificate expired on 2001-01-01T00:00:00Z");
}
