//! A client of an HTTP/1.1 server that streams the bodies of answers, over kept connections.
//!
//! Leaves out: HTTP/2, redirects, request bodies. Read [`Origin`] first, then [`Security`] and
//! [`Reply`].

use anabranch_net::identity::{Guard, Identity};
use anabranch_net::keys::Role;
use anabranch_net::public::ServerTrust;
use anabranch_net::socket::{TcpOptions, connect};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Maximum number of idle connections that are kept.
const IDLE_MAX: usize = 64;
/// Maximum time to establish a connection.
const CONNECT_TIME: Duration = Duration::from_secs(3);
/// Maximum bytes that a connection reads at once, and so the bytes that wait for a slow reader of a
/// body.
const READ_BYTES_MAX: usize = 256 << 10;

/// Protection of a client's connections.
#[derive(Clone, Debug)]
pub enum Security {
    /// No protection, for URLs that begin with `http://`.
    Plain,
    /// TLS with a server whose certificate a public authority has issued, for `https://`.
    Public(ServerTrust),
    /// Mutual TLS with one party of our system, for `https://`.
    Mutual {
        /// The client's keys.
        identity: Identity,
        /// Role of the server.
        role: Role,
        /// Name of the server in its certificate.
        name: String,
    },
}

/// An HTTP/1.1 server to fetch objects from; clones share its connections.
#[derive(Clone)]
pub struct Origin {
    inner: Arc<Inner>,
}

struct Inner {
    /// Host and port of the server, as `host:port`.
    authority: String,
    host: HeaderValue,
    /// Address of the server. `None`: the system's resolver resolves the name.
    address: Option<SocketAddr>,
    security: Security,
    /// Idle connections, longest unused first.
    idle: Mutex<VecDeque<Connection>>,
}

/// A connection to the server.
struct Connection {
    sender: SendRequest<Empty<Bytes>>,
    /// Bytes that the server has sent on the connection.
    bytes_read: Arc<AtomicU64>,
}

/// A stream that counts the bytes read from it.
struct CountedStream<T> {
    stream: T,
    bytes_read: Arc<AtomicU64>,
}

impl<T: AsyncRead + Unpin> AsyncRead for CountedStream<T> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self { stream, bytes_read } = self.get_mut();
        let before = buf.filled().len();
        let result = Pin::new(stream).poll_read(cx, buf);
        bytes_read.fetch_add((buf.filled().len() - before) as u64, Relaxed);
        result
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for CountedStream<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// A URL that names no server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginUrlError {
    url: String,
    /// Scheme that the URL must have.
    scheme: &'static str,
}

impl fmt::Display for OriginUrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { url, scheme } = self;
        write!(f, "origin `{url}`: must be {scheme}://HOST or {scheme}://HOST:PORT, without a path")
    }
}

impl std::error::Error for OriginUrlError {}

impl fmt::Debug for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Origin").field(&self.inner.authority).finish()
    }
}

impl Origin {
    /// Creates a client of the server at a URL such as `http://10.0.0.1:8080`, without TLS.
    ///
    /// Errors: [`OriginUrlError`].
    pub fn new(url: &str) -> Result<Self, OriginUrlError> {
        Self::with(url, Security::Plain, None)
    }

    /// Creates a client of the server at a URL, with `security`. If an `ip` is given, the client
    /// connects to this address and the URL's port, and does not resolve the name.
    ///
    /// Errors: [`OriginUrlError`].
    pub fn with(url: &str, security: Security, ip: Option<IpAddr>) -> Result<Self, OriginUrlError> {
        let (scheme, default_port) =
            if matches!(security, Security::Plain) { ("http", 80) } else { ("https", 443) };
        let refuse = || OriginUrlError { url: url.to_owned(), scheme };
        let rest = url.strip_prefix(scheme).and_then(|rest| rest.strip_prefix("://")).ok_or_else(refuse)?;
        let given = rest.strip_suffix('/').unwrap_or(rest);
        let has_port = given.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let is_plain = !given.is_empty() && !given.contains(['/', '?', '#', '@', ' ']);
        let host = HeaderValue::from_str(given).map_err(|_| refuse())?;
        if !is_plain || (!has_port && given.contains(':') && !given.ends_with(']')) {
            return Err(refuse());
        }
        let authority = if has_port { given.to_owned() } else { format!("{given}:{default_port}") };
        let port = authority.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        let address = ip.map(|ip| SocketAddr::new(ip, port.expect("the authority ends with its port")));
        let inner = Inner { authority, host, address, security, idle: Mutex::default() };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The server's `host:port`.
    pub fn authority(&self) -> &str {
        &self.inner.authority
    }

    /// Requests `target`, a path with query. Returns once the headers of the answer have arrived.
    ///
    /// Errors: an invalid target; the connection's errors.
    pub async fn get(&self, target: &str, headers: &HeaderMap) -> io::Result<Reply> {
        if let Some(mut kept) = self.kept() {
            let before = kept.bytes_read.load(Relaxed);
            match kept.sender.try_send_request(self.request(target, headers)?).await {
                Ok(response) => return Ok(self.reply(response, kept)),
                // The server may have closed the kept connection meanwhile. So a request without
                // any byte of an answer is sent once more on a new connection (RFC 9112, section
                // 9.3.1).
                Err(_) if kept.bytes_read.load(Relaxed) == before => {}
                Err(error) => return Err(io::Error::other(error.into_error())),
            }
        }
        let mut fresh = timeout(CONNECT_TIME, self.connect()).await??;
        let request = self.request(target, headers)?;
        let response = fresh.sender.send_request(request).await.map_err(io::Error::other)?;
        Ok(self.reply(response, fresh))
    }

    fn request(&self, target: &str, headers: &HeaderMap) -> io::Result<Request<Empty<Bytes>>> {
        let mut request = Request::get(target).body(Empty::new()).map_err(io::Error::other)?;
        request.headers_mut().clone_from(headers);
        request.headers_mut().insert(header::HOST, self.inner.host.clone());
        Ok(request)
    }

    fn reply(&self, response: Response<Incoming>, connection: Connection) -> Reply {
        let (head, body) = response.into_parts();
        let connection = Some(connection);
        Reply { status: head.status, headers: head.headers, body, connection, origin: self.clone() }
    }

    async fn connect(&self) -> io::Result<Connection> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        let addresses: Vec<SocketAddr> = match self.inner.address {
            Some(address) => vec![address],
            None => tokio::net::lookup_host(&self.inner.authority).await?.collect(),
        };
        for address in addresses {
            match connect(address, &TcpOptions::default()).await {
                Ok(stream) => return self.secure(stream).await,
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    async fn secure(&self, stream: TcpStream) -> io::Result<Connection> {
        match &self.inner.security {
            Security::Plain => begin(stream, None).await,
            Security::Public(trust) => {
                let host = self.inner.authority.rsplit_once(':').map_or("", |(host, _)| host);
                begin(trust.connect(stream, host).await?, None).await
            }
            Security::Mutual { identity, role, name } => {
                let stream = identity.connect(stream, *role, name).await?;
                let guard = identity.guard(stream.get_ref().1);
                begin(stream, Some(guard)).await
            }
        }
    }

    fn kept(&self) -> Option<Connection> {
        let mut idle = self.inner.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|kept| !kept.sender.is_closed());
        // The most recently used connection is the least likely to be closed by its peer.
        let at = idle.iter().rposition(|kept| kept.sender.is_ready())?;
        idle.remove(at)
    }

    fn keep(&self, connection: Connection) {
        let mut idle = self.inner.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.push_back(connection);
        if idle.len() > IDLE_MAX {
            idle.pop_front();
        }
    }
}

/// Begins HTTP on a connection. If there is a guard, the connection ends once its peer is no longer
/// trusted.
async fn begin<T>(stream: T, guard: Option<Guard>) -> io::Result<Connection>
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let bytes_read = Arc::new(AtomicU64::new(0));
    let stream = CountedStream { stream, bytes_read: Arc::clone(&bytes_read) };
    let (sender, connection) = Builder::new()
        .max_buf_size(READ_BYTES_MAX)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(io::Error::other)?;
    tokio::spawn(async move {
        // A request in flight gets the connection's error from its own call.
        match guard {
            Some(guard) => drop(guard.during(connection).await),
            None => drop(connection.await),
        }
    });
    Ok(Connection { sender, bytes_read })
}

/// An answer whose body is still arriving. Dropping it before the end closes its connection.
pub struct Reply {
    status: StatusCode,
    headers: HeaderMap,
    body: Incoming,
    connection: Option<Connection>,
    origin: Origin,
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply").field("status", &self.status).finish_non_exhaustive()
    }
}

impl Reply {
    /// HTTP status of the answer.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// Headers of the answer.
    pub fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// The next bytes of the body; `None` after its end.
    ///
    /// Errors: the body breaks off.
    pub async fn bytes(&mut self) -> io::Result<Option<Bytes>> {
        loop {
            let Some(frame) = self.body.frame().await else { return Ok(None) };
            let frame = frame.map_err(io::Error::other)?;
            // Trailers are not part of the body, so they are skipped.
            if let Ok(bytes) = frame.into_data()
                && !bytes.is_empty()
            {
                return Ok(Some(bytes));
            }
        }
    }

    /// Keeps the connection for a later request, if the body has been read to its end.
    pub fn finish(mut self) {
        if self.body.is_end_stream()
            && let Some(connection) = self.connection.take()
        {
            self.origin.keep(connection);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_net::public::write_self_signed;
    use axum::Router;
    use axum::extract::ConnectInfo;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    #[test]
    fn urls_are_parsed_into_host_and_port() {
        for (url, authority) in [
            ("http://a.example", "a.example:80"),
            ("http://a.example:81/", "a.example:81"),
            ("http://[::1]", "[::1]:80"),
            ("http://[::1]:81", "[::1]:81"),
        ] {
            assert_eq!(Origin::new(url).expect(url).authority(), authority);
        }
        for url in ["a.example", "https://a.example", "http://", "http://a/b", "http://a:x", "http://a b"] {
            assert!(Origin::new(url).is_err(), "{url}");
        }
        let folder = tempfile::tempdir().expect("a folder");
        let files = write_self_signed(folder.path(), &["a.example"], 2100);
        let trust = ServerTrust::load(&files.chain, &[]).expect("an authority");
        let secure = |url| Origin::with(url, Security::Public(trust.clone()), None);
        assert_eq!(secure("https://a.example").expect("a URL").authority(), "a.example:443");
        let error = secure("http://a.example").expect_err("another scheme").to_string();
        assert!(error.contains("must be https://HOST"), "{error}");
    }

    #[tokio::test]
    async fn given_address_replaces_the_name_lookup() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let port = listener.local_addr().expect("bound").port();
        let host = |headers: HeaderMap| async move { format!("{:?}", headers.get(header::HOST)) };
        let server =
            tokio::spawn(async move { axum::serve(listener, Router::new().route("/host", get(host))).await });
        let url = format!("http://no-such-host.invalid:{port}");
        let ip = IpAddr::from([127, 0, 0, 1]);
        let origin = Origin::with(&url, Security::Plain, Some(ip)).expect("a URL");
        let mut reply = origin.get("/host", &HeaderMap::new()).await.expect("an answer");
        let said = reply.bytes().await.expect("a body").expect("not empty");
        assert_eq!(said, format!("Some(\"no-such-host.invalid:{port}\")").as_bytes());
        server.abort();
    }

    #[tokio::test]
    async fn connection_is_kept_after_a_whole_body() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let origin =
            Origin::new(&format!("http://{}", listener.local_addr().expect("bound"))).expect("a URL");
        let port = |ConnectInfo(from): ConnectInfo<SocketAddr>| async move { from.port().to_string() };
        let app = Router::new().route("/port", get(port)).into_make_service_with_connect_info::<SocketAddr>();
        let server = tokio::spawn(async move { axum::serve(listener, app).await });
        let mut ports = Vec::new();
        for read_all in [true, true, false, true] {
            let mut reply = origin.get("/port", &HeaderMap::new()).await.expect("an answer");
            if read_all {
                ports.push(reply.bytes().await.expect("a body").expect("not empty"));
                assert_eq!(reply.bytes().await.expect("a body"), None);
                reply.finish();
            } else {
                drop(reply);
            }
            tokio::task::yield_now().await;
        }
        assert_eq!(ports[0], ports[1], "the second request came by the same connection");
        server.abort();
    }

    /// Serves one request on each connection, and writes `rest` to the second connection instead of
    /// an answer.
    async fn second_request(rest: &'static [u8]) -> io::Result<StatusCode> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        let server = tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.expect("loopback");
                let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
                for answer in [&answer[..], rest] {
                    let mut request = [0; 1_024];
                    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
                        assert_ne!(stream.read(&mut request).await.expect("loopback"), 0);
                    }
                    stream.write_all(answer).await.expect("loopback");
                }
            }
        });
        let origin = Origin::new(&url).expect("a URL");
        let mut first = origin.get("/", &HeaderMap::new()).await?;
        while first.bytes().await?.is_some() {}
        first.finish();
        tokio::task::yield_now().await;
        let second = origin.get("/", &HeaderMap::new()).await.map(|reply| reply.status());
        server.abort();
        second
    }

    #[tokio::test]
    async fn closed_kept_connection_is_replaced_before_an_answer() {
        assert_eq!(second_request(b"").await.expect("the second connection"), StatusCode::OK);
        assert!(second_request(b"HTTP/1.1 2").await.is_err());
    }
}
