//! One player and its sockets.

use super::resolve::resolve;
use super::{PlayerReport, PlayerSpec, Progress, wall_clock};
use crate::url::{host, split};
use anabranch_http::origin::{Origin, Security};
use anabranch_live_proto::play::{Action, Get, PlayCounts, Player, PlayerConfig, RequestId};
use anabranch_net::public::{ServerTrust, server_cause};
use anabranch_units::{BitRate, ByteCount, Duration, Instant};
use axum::http::{HeaderMap, HeaderValue, header};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;

/// Maximum number of events of requests that wait for the player.
const NEWS_MAX: usize = 16;
/// Maximum number of servers to which a player keeps connections open.
const SERVERS_MAX: usize = 16;

/// An event of a request, with the time at which it occurred.
struct RequestNews {
    at: tokio::time::Instant,
    event: Event,
}

enum Event {
    Head(RequestId, u16),
    Bytes(RequestId, Bytes),
    End(RequestId),
    Failed(RequestId, String),
    Resolved(Vec<IpAddr>),
}

/// A player of a run.
pub(super) struct Session {
    pub player: usize,
    pub spec: PlayerSpec,
    pub dns: Option<SocketAddr>,
    pub trust: Option<ServerTrust>,
    pub first_patience: Duration,
    pub opens_at: tokio::time::Instant,
    pub progress: Arc<Progress>,
    pub stopped: watch::Receiver<bool>,
}

/// Values of one player that are already counted in the sums over all players.
#[derive(Default)]
struct PlayerSums {
    has_joined: bool,
    stalls: u64,
    stalled: Duration,
    video: ByteCount,
    watched: BitRate,
    counts: PlayCounts,
}

impl PlayerSums {
    /// Adds the changes since the last call to the sums.
    fn count(&mut self, player: &Player, progress: &Progress) {
        let now = Self {
            has_joined: player.has_joined(),
            stalls: player.stalls(),
            stalled: player.stalled(),
            video: player.video_bytes(),
            watched: player.watched().unwrap_or_default(),
            counts: player.counts(),
        };
        progress.joined.fetch_add(usize::from(now.has_joined && !self.has_joined), Relaxed);
        progress.stalls.fetch_add(now.stalls - self.stalls, Relaxed);
        progress.stalled_ps.fetch_add(now.stalled.as_ps() - self.stalled.as_ps(), Relaxed);
        progress.video_bytes.fetch_add(now.video.as_u64() - self.video.as_u64(), Relaxed);
        progress.failed.fetch_add(now.counts.failed - self.counts.failed, Relaxed);
        progress.edge_changes.fetch_add(now.counts.edge_changes - self.counts.edge_changes, Relaxed);
        // The bitrate may have fallen. Wrapping addition then lowers the sum.
        let change = now.watched.as_bps().wrapping_sub(self.watched.as_bps());
        progress.watched_bps.fetch_add(change, Relaxed);
        *self = now;
    }
}

/// Requests and connections of one player.
struct Sockets {
    /// Host in the player's only URL, if DNS is asked for the edges.
    name: Option<String>,
    addresses: Vec<IpAddr>,
    /// Certificate authorities of TLS servers.
    trust: Option<ServerTrust>,
    /// Servers by edge, if DNS is asked for the edges, and by URL.
    servers: BTreeMap<(Option<usize>, String), Origin>,
    requests: BTreeMap<RequestId, AbortHandle>,
    resolving: Option<AbortHandle>,
    news: mpsc::Sender<RequestNews>,
}

impl Session {
    /// Runs the player. Returns `None` if the run stops before the player opens.
    pub(super) async fn run(mut self) -> Option<PlayerReport> {
        tokio::select! {
            () = tokio::time::sleep_until(self.opens_at) => {}
            _ = self.stopped.wait_for(|is_stopped| *is_stopped) => return None,
        }
        let config = PlayerConfig {
            resolves: self.dns.is_some(),
            first_patience: self.first_patience,
            buffer: self.spec.buffer,
            ..PlayerConfig::new(self.spec.kind, self.spec.urls.clone(), wall_clock())
        };
        let epoch = tokio::time::Instant::now();
        let mut player = Player::new(Instant::ZERO, config).expect("the set-up is checked");
        self.progress.started.fetch_add(1, Relaxed);
        let (news, mut inbox) = mpsc::channel(NEWS_MAX);
        let mut sockets = Sockets {
            name: self.dns.and_then(|_| host(&self.spec.urls[0])).map(str::to_owned),
            addresses: Vec::new(),
            trust: self.trust.clone(),
            servers: BTreeMap::new(),
            requests: BTreeMap::new(),
            resolving: None,
            news,
        };
        let mut now = Instant::ZERO;
        let (mut counted, mut edge) = (PlayerSums::default(), None);
        loop {
            while let Some(action) = player.poll(now) {
                match action {
                    Action::Get(get) => {
                        edge = sockets.addresses.get(get.edge).copied();
                        sockets.send(get);
                    }
                    Action::Abort(id) => sockets.abort(id),
                    Action::Resolve => sockets.ask_dns(self.dns, &self.spec),
                }
            }
            counted.count(&player, &self.progress);
            if player.is_over() {
                self.progress.over.fetch_add(1, Relaxed);
                break;
            }
            let due = player.poll_timeout().saturating_since(Instant::ZERO).to_std();
            let news = tokio::select! {
                biased;
                _ = self.stopped.wait_for(|is_stopped| *is_stopped) => break,
                news = inbox.recv() => news,
                () = tokio::time::sleep_until(epoch + due) => None,
            };
            match news {
                Some(news) => {
                    // Events of concurrent requests may be out of order, but the player's time must
                    // not decrease.
                    now = now.max(Instant::from_std(news.at - epoch));
                    self.take(now, &mut player, &mut sockets, news.event);
                }
                None => {
                    now = now.max(Instant::from_std(epoch.elapsed()));
                    player.handle_timeout(now);
                }
            }
        }
        sockets.close();
        let end = Instant::from_std(epoch.elapsed()).max(now);
        let measurements = player.measurements(end);
        Some(PlayerReport { player: self.player, spec: self.spec, edge, measurements })
    }

    fn take(&self, now: Instant, player: &mut Player, sockets: &mut Sockets, event: Event) {
        match event {
            Event::Head(id, status) => player.handle_head(now, id, status),
            Event::Bytes(id, bytes) => {
                self.progress.bytes.fetch_add(bytes.len() as u64, Relaxed);
                player.handle_bytes(now, id, &bytes);
            }
            Event::End(id) => {
                sockets.requests.remove(&id);
                player.handle_end(now, id);
            }
            Event::Failed(id, reason) => {
                sockets.requests.remove(&id);
                player.handle_failure(now, id, reason);
            }
            Event::Resolved(addresses) => {
                if addresses != sockets.addresses {
                    sockets.servers.clear();
                }
                player.handle_resolved(now, addresses.len());
                sockets.addresses = addresses;
            }
        }
    }
}

impl Sockets {
    fn send(&mut self, get: Get) {
        let id = get.id;
        let asked = split(&get.url).and_then(|(url, target)| Some((self.server(&get, url)?, target)));
        let news = self.news.clone();
        let task = tokio::spawn(async move {
            let report = async |event| {
                let at = tokio::time::Instant::now();
                // A player that has ended needs no event.
                let _ = news.send(RequestNews { at, event }).await;
            };
            let Some((origin, target)) = asked else {
                return report(Event::Failed(id, format!("{}: no URL of a server", get.url))).await;
            };
            let mut headers = HeaderMap::new();
            if let Some(range) = get.range {
                let end = range.end().as_u64().saturating_sub(1);
                let text = format!("bytes={}-{end}", range.offset.as_u64());
                headers.insert(header::RANGE, HeaderValue::from_str(&text).expect("digits"));
            }
            let mut reply = match origin.get(&target, &headers).await {
                Ok(reply) => reply,
                Err(error) => return report(Event::Failed(id, server_cause(&error))).await,
            };
            report(Event::Head(id, reply.status().as_u16())).await;
            loop {
                match reply.bytes().await {
                    Ok(Some(bytes)) => report(Event::Bytes(id, bytes)).await,
                    Ok(None) => break,
                    Err(error) => return report(Event::Failed(id, server_cause(&error))).await,
                }
            }
            reply.finish();
            report(Event::End(id)).await;
        });
        self.requests.insert(id, task.abort_handle());
    }

    /// The server for a request, whose connections the player reuses.
    fn server(&mut self, get: &Get, url: &str) -> Option<Origin> {
        let is_named = self.name.is_some() && host(url) == self.name.as_deref();
        let address = self.addresses.get(get.edge).copied().filter(|_| is_named);
        let key = (address.map(|_| get.edge), url.to_owned());
        if let Some(origin) = self.servers.get(&key) {
            return Some(origin.clone());
        }
        let security = match &self.trust {
            Some(trust) if url.starts_with("https://") => Security::Public(trust.clone()),
            _ => Security::Plain,
        };
        let origin = Origin::with(url, security, address);
        if self.servers.len() == SERVERS_MAX {
            self.servers.clear();
        }
        let origin = origin.ok()?;
        self.servers.insert(key, origin.clone());
        Some(origin)
    }

    fn ask_dns(&mut self, dns: Option<SocketAddr>, spec: &PlayerSpec) {
        let (Some(server), Some(name)) = (dns, self.name.clone()) else { return };
        let (subnet, news) = (spec.subnet, self.news.clone());
        let task = tokio::spawn(async move {
            let addresses = resolve(server, &name, subnet).await.unwrap_or_default();
            let at = tokio::time::Instant::now();
            let _ = news.send(RequestNews { at, event: Event::Resolved(addresses) }).await;
        });
        if let Some(former) = self.resolving.replace(task.abort_handle()) {
            former.abort();
        }
    }

    fn abort(&mut self, id: RequestId) {
        if let Some(task) = self.requests.remove(&id) {
            task.abort();
        }
    }

    fn close(self) {
        self.requests.into_values().chain(self.resolving).for_each(|task| task.abort());
    }
}
