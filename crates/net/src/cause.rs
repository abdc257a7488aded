//! Reasons for failed connections, in an operator's words rather than a library's.
//!
//! The words for TLS's own errors are [`crate::tls::words`]. Read [`cause`] first.

use std::io;

/// Prefix of the resolver's errors, which have no separate `ErrorKind`.
const LOOKUP: &str = "failed to lookup address information";

/// Describes in a few words, to follow a colon, why the peer is unreachable, untrusted or gone.
///
/// Every client and daemon uses this function, so that no message quotes a library.
pub fn cause(error: &io::Error) -> String {
    use io::ErrorKind as Kind;
    if let Some(tls) = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        return crate::tls::words(tls);
    }
    let text = error.to_string();
    if text.contains(LOOKUP) {
        let passing = text.contains("Temporary failure");
        return if passing { "its name cannot be looked up now" } else { "no such host" }.into();
    }
    match error.kind() {
        Kind::ConnectionRefused => "connection refused".into(),
        Kind::UnexpectedEof | Kind::ConnectionReset | Kind::ConnectionAborted | Kind::BrokenPipe => {
            "it went away".into()
        }
        Kind::HostUnreachable | Kind::NetworkUnreachable => "no route to it".into(),
        Kind::TimedOut if error.get_ref().is_none() => "no answer in time".into(),
        _ => match text.split_once(" (os error") {
            Some((before, _)) => before.to_owned(),
            None => text,
        },
    }
}

/// Explains a failed connection to `peer` in one line, with the remedy. `peer` is a phrase like
/// `controller at 127.0.0.1:7171`.
pub fn explain(peer: &str, error: &io::Error) -> String {
    format!("{peer}: {}", cause(error))
}

/// Returns true if a retry will most likely fail again, so that waiting is useless: a closed port,
/// or an unknown host.
pub fn is_firm(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    matches!(
        error.kind(),
        Kind::ConnectionRefused | Kind::HostUnreachable | Kind::NetworkUnreachable | Kind::InvalidData
    ) || error.to_string().contains(LOOKUP)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// #48: every TLS failure is reported in our own words.
    #[test]
    fn tls_errors_quote_no_library() {
        use rustls::{
            AlertDescription, CertificateError, Error, InvalidMessage, PeerIncompatible, PeerMisbehaved,
        };
        let all = [
            Error::InvalidMessage(InvalidMessage::InvalidContentType),
            Error::PeerIncompatible(PeerIncompatible::ServerSentHelloRetryRequestWithUnknownExtension),
            Error::PeerMisbehaved(PeerMisbehaved::IllegalMiddleboxChangeCipherSpec),
            Error::InvalidCertificate(CertificateError::BadEncoding),
            Error::InvalidCertificate(CertificateError::InvalidPurpose),
            Error::AlertReceived(AlertDescription::HandshakeFailure),
            Error::DecryptError,
            Error::EncryptError,
            Error::General("rustls: see https://docs.rs".into()),
        ];
        for error in all {
            let library = error.to_string();
            let said = explain("peer", &io::Error::new(io::ErrorKind::InvalidData, error));
            assert!(said.starts_with("peer: ") && !said.contains(&library), "{said}");
            assert!(!said.contains("rustls") && !said.contains("docs.rs"), "{said}");
        }
    }

    /// #17: a message about a disconnected peer quoted rustls, with the address of its
    /// documentation.
    #[test]
    fn connection_errors_quote_no_library() {
        let gone = io::Error::new(
            io::ErrorKind::UnexpectedEof,
            "peer closed connection without close_notify: https://x",
        );
        assert_eq!(cause(&gone), "it went away");
        let refused =
            io::Error::new(io::ErrorKind::ConnectionRefused, "10.0.0.1:7: Connection refused (os error 111)");
        assert_eq!(cause(&refused), "connection refused");
        assert!(is_firm(&refused) && !is_firm(&gone));
        let unknown = io::Error::other("failed to lookup address information: Name or service not known");
        assert_eq!(cause(&unknown), "no such host");
        assert!(is_firm(&unknown));
        assert_eq!(cause(&io::Error::from_raw_os_error(28)), "No space left on device");
        assert_eq!(cause(&io::Error::other("silent for 8 s")), "silent for 8 s");
    }
}
