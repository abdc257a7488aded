//! Requests to an origin: redirects, other servers, timeouts and size limits.
//!
//! A source publishes what it fetches. So only the server of the configured URL may be at any
//! address. Redirects and playlists may lead to other servers only at public addresses, and from
//! HTTPS only to HTTPS. Read [`OriginClient`].

use crate::url::{host, split};
use anabranch_http::origin::{Origin, Reply, Security};
use anabranch_live_proto::origin::ImportError;
use anabranch_live_proto::play::join_url;
use anabranch_media::hls::{ByteRange, PLAYLIST_BYTES_MAX, PlaylistError};
use anabranch_net::public::{ServerTrust, server_cause};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::timeout;

/// Longest wait for the headers of an answer. A blocking reload waits for the next part.
const HEAD_TIME: Duration = Duration::from_secs(20);
/// Longest time without a byte of a body.
const SILENCE_TIME: Duration = Duration::from_secs(10);
/// Maximum number of redirects that one request follows.
const REDIRECTS_MAX: usize = 3;
/// Maximum number of known servers besides the configured one.
const SERVERS_MAX: usize = 16;

/// Reason why a request to an origin has failed.
#[derive(Debug)]
pub(super) enum FetchError {
    /// The URL is not of an HTTP server.
    NoUrl(String),
    /// The server uses HTTPS, but no certificate authorities are configured.
    NoTrust(String),
    /// An HTTPS server has led to a plain HTTP server.
    NotSecure(String),
    /// More than [`REDIRECTS_MAX`] redirects.
    Redirects,
    /// Another server whose address is not public.
    NotPublic(String, IpAddr),
    Status(StatusCode),
    /// Media whose content type is text.
    ContentType(String),
    Silent(Duration),
    Io(io::Error),
    /// The importer refuses the answer.
    Import(ImportError),
    /// The entry playlist is invalid.
    Playlist(PlaylistError),
    /// The entry playlist does not contain the pulled rendition any more.
    RenditionGone,
}

impl fmt::Display for FetchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoUrl(url) => {
                let shown: String = url.chars().take(200).collect();
                write!(f, "URL `{shown}`: must be http://HOST:PORT/PATH or https://HOST:PORT/PATH")
            }
            Self::NoTrust(server) => {
                write!(f, "{server}: no authority is known for HTTPS: name a file of authorities")
            }
            Self::NotSecure(server) => {
                write!(f, "{server}: an HTTPS origin may lead to HTTPS only; pull from that URL itself")
            }
            Self::Redirects => write!(f, "more than {REDIRECTS_MAX} redirects: pull from the last URL"),
            Self::NotPublic(server, ip) => write!(
                f,
                "{server} at {ip}: redirects and playlists may lead to public addresses only; pull from \
                 that URL itself"
            ),
            Self::Status(status) => write!(f, "status {status}"),
            Self::ContentType(kind) => write!(f, "media of content type `{kind}`: must be video or audio"),
            Self::Silent(time) => write!(f, "no byte for {} s", time.as_secs()),
            Self::Io(error) => f.write_str(&server_cause(error)),
            Self::Import(error) => write!(f, "{error}"),
            Self::Playlist(error) => write!(f, "{error}"),
            Self::RenditionGone => write!(f, "the multivariant playlist has lost this rendition"),
        }
    }
}

/// An answer with a success status.
pub(super) struct Answer {
    reply: Reply,
    /// URL after all redirects: the base of the URIs in a playlist.
    pub url: String,
    /// Bytes to skip and bytes to pass on, if the server has ignored the requested range.
    slice: Option<(u64, u64)>,
}

impl Answer {
    /// Next bytes of the body. `None` at the end.
    pub async fn bytes(&mut self) -> Result<Option<Bytes>, FetchError> {
        loop {
            let next = timeout(SILENCE_TIME, self.reply.bytes());
            let next = next.await.map_err(|_| FetchError::Silent(SILENCE_TIME))?;
            let Some(mut bytes) = next.map_err(FetchError::Io)? else { return Ok(None) };
            let Some((skip, left)) = &mut self.slice else { return Ok(Some(bytes)) };
            let skipped = usize::try_from(*skip).unwrap_or(usize::MAX).min(bytes.len());
            *skip -= skipped as u64;
            let mut bytes = bytes.split_off(skipped);
            bytes.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
            *left -= bytes.len() as u64;
            if !bytes.is_empty() || *left == 0 {
                return Ok(Some(bytes).filter(|bytes| !bytes.is_empty()));
            }
        }
    }

    /// Returns the connection to the pool after the end of the body.
    pub fn finish(self) {
        self.reply.finish();
    }

    /// Reads the whole body of a playlist. Also returns the URL after redirects.
    pub async fn text(mut self) -> Result<(Vec<u8>, String), FetchError> {
        let mut text = Vec::new();
        while let Some(bytes) = self.bytes().await? {
            text.extend_from_slice(&bytes);
            let got = text.len();
            if got > PLAYLIST_BYTES_MAX {
                return Err(FetchError::Playlist(PlaylistError::TooLong { got }));
            }
        }
        let url = self.url.clone();
        self.finish();
        Ok((text, url))
    }

    /// Refuses media whose content type is text, as error pages with a success status have.
    pub fn check_media(&self) -> Result<(), FetchError> {
        let kind = self.reply.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let is_text = |kind: &&str| {
            let kind = kind.to_ascii_lowercase();
            kind.starts_with("text/") || ["json", "html", "xml"].iter().any(|word| kind.contains(word))
        };
        match kind.filter(is_text) {
            Some(kind) => Err(FetchError::ContentType(kind.chars().take(80).collect())),
            None => Ok(()),
        }
    }
}

/// Client of one origin.
pub(super) struct OriginClient {
    /// Scheme and authority of the configured URL.
    home: String,
    /// Certificate authorities for HTTPS servers.
    trust: Option<ServerTrust>,
    servers: Mutex<BTreeMap<String, Origin>>,
}

impl OriginClient {
    /// Creates the client of a URL, with the certificate authorities for HTTPS servers.
    ///
    /// Errors: a URL that is not of an HTTP server; an HTTPS server without certificate
    /// authorities.
    pub fn new(url: &str, trust: Option<ServerTrust>) -> Result<Self, FetchError> {
        let (home, _) = split(url).ok_or_else(|| FetchError::NoUrl(url.to_owned()))?;
        let client = Self { home: home.to_owned(), trust, servers: Mutex::default() };
        let origin = client.origin(home, None)?;
        client.servers().insert(home.to_owned(), origin);
        Ok(client)
    }

    /// The server at `http://HOST:PORT` or `https://HOST:PORT`, reached at `ip` if given.
    fn origin(&self, server: &str, ip: Option<IpAddr>) -> Result<Origin, FetchError> {
        let security = match &self.trust {
            _ if !server.starts_with("https://") => Security::Plain,
            Some(trust) => Security::Public(trust.clone()),
            None => return Err(FetchError::NoTrust(server.to_owned())),
        };
        Origin::with(server, security, ip).map_err(|_| FetchError::NoUrl(server.to_owned()))
    }

    /// Requests a URL, and follows redirects.
    pub async fn get(&self, url: &str, range: Option<ByteRange>) -> Result<Answer, FetchError> {
        let mut url = url.to_owned();
        let mut headers = HeaderMap::new();
        if let Some(range) = range {
            let last = range.end().as_u64().saturating_sub(1);
            let value = format!("bytes={}-{last}", range.offset.as_u64());
            headers.insert(header::RANGE, HeaderValue::from_str(&value).expect("digits"));
        }
        for _ in 0..=REDIRECTS_MAX {
            let (server, target) = split(&url).ok_or_else(|| FetchError::NoUrl(url.clone()))?;
            let origin = self.server(server).await?;
            let reply = timeout(HEAD_TIME, origin.get(&target, &headers)).await;
            let reply = reply.map_err(|_| FetchError::Silent(HEAD_TIME))?.map_err(FetchError::Io)?;
            let status = reply.status();
            if status.is_redirection() {
                let location = reply.headers().get(header::LOCATION).and_then(|to| to.to_str().ok());
                let to = location.and_then(|to| join_url(&url, to));
                url = to.ok_or(FetchError::Status(status))?;
                continue;
            }
            if !status.is_success() {
                return Err(FetchError::Status(status));
            }
            let whole = range.filter(|_| status != StatusCode::PARTIAL_CONTENT);
            let slice = whole.map(|range| (range.offset.as_u64(), range.length.as_u64()));
            return Ok(Answer { reply, url, slice });
        }
        Err(FetchError::Redirects)
    }

    /// The server of a URL. A server other than the configured one must have public addresses, and
    /// is reached at the address that was checked.
    async fn server(&self, server: &str) -> Result<Origin, FetchError> {
        if let Some(known) = self.servers().get(server) {
            return Ok(known.clone());
        }
        if self.home.starts_with("https://") && !server.starts_with("https://") {
            return Err(FetchError::NotSecure(server.to_owned()));
        }
        let named = self.origin(server, None)?;
        let addresses = timeout(HEAD_TIME, tokio::net::lookup_host(named.authority())).await;
        let addresses = addresses.map_err(|_| FetchError::Silent(HEAD_TIME))?.map_err(FetchError::Io)?;
        let addresses: Vec<IpAddr> = addresses.map(|address| address.ip()).collect();
        if let Some(ip) = addresses.iter().find(|ip| !is_public(**ip)) {
            return Err(FetchError::NotPublic(server.to_owned(), *ip));
        }
        let first = addresses.first().ok_or_else(|| {
            let name = host(server).unwrap_or(server);
            FetchError::Io(io::Error::new(io::ErrorKind::NotFound, format!("{name} has no address")))
        })?;
        let origin = self.origin(server, Some(*first))?;
        let mut servers = self.servers();
        if servers.len() > SERVERS_MAX {
            servers.retain(|known, _| *known == self.home);
        }
        servers.insert(server.to_owned(), origin.clone());
        Ok(origin)
    }

    fn servers(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Origin>> {
        self.servers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether an address belongs to the public Internet.
///
/// Source: the special-purpose registries of RFC 6890.
fn is_public(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => is_public_v4(ip),
        IpAddr::V6(ip) => match ip.to_ipv4_mapped() {
            Some(ip) => is_public_v4(ip),
            None => is_public_v6(ip),
        },
    }
}

fn is_public_v4(ip: Ipv4Addr) -> bool {
    let [a, b, c, _] = ip.octets();
    let is_shared = a == 100 && (64..128).contains(&b);
    let is_protocols = (a, b, c) == (192, 0, 0);
    let is_benchmark = a == 198 && (18..20).contains(&b);
    let is_special = is_shared || is_protocols || is_benchmark || a == 0 || a >= 240;
    let is_local = ip.is_private() || ip.is_loopback() || ip.is_link_local();
    !(is_special || is_local || ip.is_multicast() || ip.is_documentation())
}

/// Global unicast (2000::/3), except documentation, Teredo and 6to4, which embed other addresses.
fn is_public_v6(ip: Ipv6Addr) -> bool {
    let [a, b, ..] = ip.segments();
    let hides_another = (a, b) == (0x2001, 0) || a == 0x2002;
    (0x2000..0x4000).contains(&a) && !hides_another && (a, b) != (0x2001, 0xdb8)
}

#[cfg(test)]
mod tests {
    use super::*;

    use anabranch_net::public::write_signed;

    fn trust(folder: &std::path::Path) -> ServerTrust {
        let (_, ca) = write_signed(folder, &["localhost"], 2100);
        ServerTrust::load(&ca, &[]).expect("an authority")
    }

    #[test]
    fn https_url_needs_an_authority() {
        let folder = tempfile::tempdir().expect("a folder");
        let url = "https://a.example/x.m3u8";
        let error = OriginClient::new(url, None).err().expect("no authority").to_string();
        assert!(error.starts_with("https://a.example: no authority is known for HTTPS"), "{error}");
        assert!(OriginClient::new(url, Some(trust(folder.path()))).is_ok());
        let error = OriginClient::new("ftp://a.example/x", None).err().expect("no URL").to_string();
        assert!(error.contains("must be http://HOST:PORT/PATH or https://HOST:PORT/PATH"), "{error}");
    }

    #[tokio::test]
    async fn https_origin_cannot_lead_to_http_or_private_servers() {
        let folder = tempfile::tempdir().expect("a folder");
        let client = OriginClient::new("https://a.example/x.m3u8", Some(trust(folder.path())));
        let client = client.expect("a URL");
        let plain = client.server("http://1.1.1.1").await;
        assert!(matches!(plain, Err(FetchError::NotSecure(_))), "{:?}", plain.err());
        let inner = client.server("https://127.0.0.1").await;
        assert!(matches!(inner, Err(FetchError::NotPublic(..))), "{:?}", inner.err());
    }

    #[test]
    fn special_purpose_addresses_are_not_public() {
        for ip in ["1.1.1.1", "100.128.0.1", "172.32.0.1", "2606:4700::1111", "::ffff:1.1.1.1"] {
            assert!(is_public(ip.parse().expect(ip)), "{ip}");
        }
        for ip in [
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.0.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "192.0.0.1",
            "198.18.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "::1",
            "::",
            "fe80::1",
            "fd00::1",
            "ff02::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "2001::1",
            "::ffff:10.0.0.1",
            "64:ff9b::7f00:1",
        ] {
            assert!(!is_public(ip.parse().expect(ip)), "{ip}");
        }
    }
}
