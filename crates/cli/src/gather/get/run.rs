//! One command's pulls: the client's machine between sockets, the output and the user.

mod report;

use super::connection::{self, Connected, Incoming};
use super::output::{Order, Output, Reply};
use super::progress::{Progress, ServerRow};
use super::targets::Target;
use anabranch_endpoint::{Bytes, Wire as _};
use anabranch_gather::msg::{Control, Datagram, Packet, SEAL_BYTES, WINDOW_MAX};
use anabranch_gather::{Client, ClientConfig, ClientEvent, Failure, Piece, ServerId};
use anabranch_net::datagram::{Batch, DatagramOptions, DatagramSocket, Segments, payload_max, route_mtu};
use anabranch_net::identity::Identity;
use anabranch_net::seal::{self, ChannelId};
use anabranch_net::timer::FineTimer;
use anabranch_net::tls::Credentials;
use anabranch_units::{ByteCount, Duration, Instant};
use anyhow::Context as _;
use std::collections::BTreeMap;
use std::ops::Range;
use std::process::ExitCode;
use tokio::sync::mpsc;

/// The most bytes of a piece that goes to standard output.
const AHEAD_PIECE_BYTES: u64 = 16 << 20;
/// Pulls of a server at once: the next one begins while the last one ends.
const PULLS_PER_SERVER: usize = 2;
/// How far pieces are asked for ahead of what has gone to standard output: what comes early waits in memory.
const AHEAD_BYTES: u64 = 64 << 20;
/// How often a server that has sent nothing yet is shown where packets are taken.
const SHOW_EVERY: std::time::Duration = std::time::Duration::from_millis(50);
/// What a server hashes in a second at the least, in bytes: from a slow disk, and for others as well.
const HASH_BPS: u64 = 20_000_000;
/// The least window, in generations: with one, a loss at its end would halt the pull for a round trip.
const WINDOW_MIN: u32 = 2;

/// How it runs.
pub struct Settings {
    /// Of the machine, but for what depends on how many servers there are.
    pub config: ClientConfig,
    /// For what has come and is not whole, in bytes.
    pub memory: u64,
    /// The longest datagram, in bytes.
    pub datagram: u32,
    /// The one object goes to standard output, in order and as it comes.
    pub streams: bool,
    /// Files are on the disk before they get their names.
    pub syncs: bool,
    /// For programs.
    pub json: bool,
    /// Say nothing but errors.
    pub quiet: bool,
}

/// What has become of an object.
#[derive(Debug, PartialEq, Eq)]
enum Stage {
    /// Its length is asked for.
    Describing,
    /// What lacks is being found out.
    Opening,
    /// Its pieces are coming, so many.
    Getting(usize),
    /// All of it is written; its hash is awaited or checked.
    Finishing,
    Verified,
    Failed {
        reason: String,
        is_integrity: bool,
    },
}

struct Object {
    target: Target,
    stage: Stage,
    /// Holders of the first part that could describe it, the one that was asked last.
    asked: Option<usize>,
    asked_at: std::time::Instant,
    /// Bytes that were not there before.
    fetched_bytes: u64,
    /// Bytes that had come before this command.
    kept_bytes: u64,
    /// Whether a second try has been made after its hash was wrong.
    was_wrong: bool,
    ended_at: Option<std::time::Instant>,
}

struct Link {
    holder: String,
    connected: Option<Box<Connected>>,
    lost: Option<String>,
    received_bytes: u64,
}

struct Run {
    settings: Settings,
    client: Client<Bytes>,
    socket: DatagramSocket,
    links: Vec<Link>,
    /// Which link each channel is.
    channels: BTreeMap<u64, usize>,
    objects: Vec<Object>,
    /// Of each piece, its object and where its part begins there.
    pieces: Vec<(usize, u64)>,
    /// Pieces that are not asked for yet, as they would come too early.
    ahead: std::collections::VecDeque<(u64, Piece)>,
    output: Output,
    begun_at: std::time::Instant,
    progress: Progress,
    done_bytes: u64,
    shown_at: std::time::Instant,
    connected_at: Option<std::time::Instant>,
    /// When the first packet came, and when the last one did.
    packets_at: Option<(std::time::Instant, std::time::Instant)>,
    unknown_datagrams: u64,
    malformed_datagrams: u64,
}

/// Pulls all targets.
///
/// Errors: one line, where nothing can be pulled at all.
pub async fn run(
    targets: Vec<Target>,
    credentials: &Credentials,
    settings: Settings,
) -> anyhow::Result<ExitCode> {
    let identity = Identity::new(credentials)?;
    let mut holders: Vec<&str> = Vec::new();
    for holder in targets.iter().flat_map(|t| &t.parts).flat_map(|p| &p.holders) {
        if !holders.contains(&holder.as_str()) {
            holders.push(holder);
        }
    }
    let config = sized(&settings, holders.len())?;
    let mut client = Client::new(config).map_err(|error| anyhow::anyhow!("{error}"))?;
    let socket = DatagramSocket::bind(
        "[::]:0".parse()?,
        &DatagramOptions { receive_buffer: ByteCount::mib(8), ..DatagramOptions::default() },
    );
    // Without IPv6 there is IPv4.
    let socket = match socket {
        Ok(socket) => socket,
        Err(_) => DatagramSocket::bind("0.0.0.0:0".parse()?, &DatagramOptions::default())?,
    };
    let (incoming_in, incoming) = mpsc::channel(1_024);
    for (server, holder) in holders.iter().enumerate() {
        client.add_server();
        tokio::spawn(connection::run(
            identity.clone(),
            (*holder).to_owned(),
            server as u32,
            incoming_in.clone(),
        ));
    }
    let links: Vec<Link> = holders
        .iter()
        .map(|holder| Link { holder: (*holder).to_owned(), connected: None, lost: None, received_bytes: 0 })
        .collect();
    let (output, replies) = Output::start(settings.syncs)?;
    let now = std::time::Instant::now();
    let objects = targets.into_iter().map(|target| Object {
        target,
        stage: Stage::Describing,
        asked: None,
        asked_at: now,
        fetched_bytes: 0,
        kept_bytes: 0,
        was_wrong: false,
        ended_at: None,
    });
    let progress = Progress::new(settings.json, settings.quiet, links.len());
    let mut run = Run {
        settings,
        client,
        socket,
        links,
        channels: BTreeMap::new(),
        objects: objects.collect(),
        pieces: Vec::new(),
        ahead: std::collections::VecDeque::new(),
        output,
        begun_at: now,
        progress,
        done_bytes: 0,
        shown_at: now,
        connected_at: None,
        packets_at: None,
        unknown_datagrams: 0,
        malformed_datagrams: 0,
    };
    let mut interrupted = std::pin::pin!(crate::process::asked_to_end());
    let ended = tokio::select! {
        result = run.go(incoming, replies) => { result?; true }
        () = &mut interrupted => false,
    };
    run.progress.end();
    let code = run.report(ended);
    run.output.end().await;
    Ok(code)
}

/// The block of a datagram of so many bytes. Long ones are whole chunks of BLAKE3, so that no two generations share one.
pub fn block_bytes(datagram: u32) -> u32 {
    let fits = datagram.saturating_sub(SEAL_BYTES + Packet::<()>::HEADER_BYTES).max(1);
    let chunk = blake3::CHUNK_LEN as u32;
    if fits >= 4 * chunk { fits / chunk * chunk } else { fits }
}

/// The machine's configuration for so many servers.
fn sized(settings: &Settings, servers: usize) -> anyhow::Result<ClientConfig> {
    let mut config = settings.config.clone();
    config.pulls_max = servers * PULLS_PER_SERVER;
    // Of each generation that is open; what is whole waits for the disk.
    let generation = config.generation_memory().as_u64();
    let fitting = settings.memory / generation / config.pulls_max as u64;
    if fitting < WINDOW_MIN.into() {
        // Fewer pulls at once then.
        let pulls = settings.memory / generation / u64::from(WINDOW_MIN);
        anyhow::ensure!(
            pulls > 0,
            "--memory: too little for a pull of datagrams so long: give more, or a shorter --datagram"
        );
        config.pulls_max = pulls as usize;
        config.window = WINDOW_MIN;
    } else {
        config.window = fitting.min(WINDOW_MAX.into()) as u32;
    }
    Ok(config)
}

impl Run {
    fn now(&self) -> Instant {
        Instant::ZERO + Duration::from_std(self.begun_at.elapsed())
    }

    async fn go(
        &mut self,
        mut incoming: mpsc::Receiver<(u32, Incoming)>,
        mut replies: mpsc::UnboundedReceiver<Reply>,
    ) -> anyhow::Result<()> {
        // Where bytes are known from a manifest, files are opened while servers are reached.
        for object in 0..self.objects.len() {
            if let Some(bytes) = self.objects[object].target.bytes {
                self.open(object, bytes).await;
            }
        }
        let mut batch = Batch::new();
        let mut timer = FineTimer::new()?;
        loop {
            self.settle().await;
            if self.objects.iter().all(|o| matches!(o.stage, Stage::Verified | Stage::Failed { .. })) {
                return Ok(());
            }
            let wakes_at = self.wakes_at();
            tokio::select! {
                biased;
                Some((server, message)) = incoming.recv() => self.hear(server as usize, message).await,
                Some(reply) = replies.recv() => self.reply(reply).await,
                result = self.socket.recv(&mut batch) => {
                    result.context("datagrams cannot be received")?;
                    self.receive(&mut batch);
                }
                result = timer.wait(Some(wakes_at)) => {
                    result?;
                    let now = self.now();
                    self.client.handle_timeout(now);
                    self.show_where();
                    if self.progress.next_at() <= std::time::Instant::now() {
                        self.ask_others();
                        self.show();
                    }
                }
            }
        }
    }

    fn wakes_at(&self) -> std::time::Instant {
        let client = self.client.poll_timeout().map(|at| self.begun_at + (at - Instant::ZERO).to_std());
        let is_silent = |link: &Link| link.connected.is_some() && link.received_bytes == 0;
        let show_where = self.links.iter().any(is_silent).then(|| self.shown_at + SHOW_EVERY);
        client.into_iter().chain(show_where).fold(self.progress.next_at(), std::time::Instant::min)
    }

    /// Takes in datagrams.
    fn receive(&mut self, batch: &mut Batch) {
        let now = self.now();
        let clock = std::time::Instant::now();
        self.packets_at = Some((self.packets_at.map_or(clock, |(first, _)| first), clock));
        for datagram in batch.datagrams() {
            let server = ChannelId::of(datagram.bytes).and_then(|id| self.channels.get(&id.0));
            let link = server.map(|server| (*server, &mut self.links[*server]));
            let Some((server, link)) = link else {
                self.unknown_datagrams += 1;
                continue;
            };
            let Some(connected) = &mut link.connected else { continue };
            // What cannot be opened is counted by the opener.
            let length = datagram.bytes.len() as u64;
            let Ok(opened) = connected.channel.opener.open(datagram.bytes) else { continue };
            link.received_bytes += length;
            match Datagram::decode(opened.payload) {
                Ok(Datagram::Packet(packet)) => {
                    self.client.handle_packet(now, ServerId(server as u32), packet)
                }
                _ => self.malformed_datagrams += 1,
            }
        }
    }

    /// Carries out what the machine wants.
    async fn settle(&mut self) {
        let now = self.now();
        let mut buffer = Vec::new();
        loop {
            let mut is_settled = true;
            while let Some((server, feedback)) = self.client.poll_transmit(now) {
                if let Some(connected) = &mut self.links[server.0 as usize].connected {
                    buffer.clear();
                    buffer.resize(seal::HEADER_BYTES, 0);
                    Datagram::<Bytes>::Feedback(feedback).encode(&mut buffer);
                    send(&self.socket, connected, &mut buffer);
                }
            }
            while let Some((server, message)) = self.client.poll_control() {
                if let Some(connected) = &self.links[server.0 as usize].connected {
                    // One that is gone is told nothing more; its loss is heard of.
                    let _ = connected.control.send(message);
                }
            }
            while let Some(event) = self.client.poll_event() {
                is_settled = false;
                self.event(event).await;
            }
            if is_settled {
                return;
            }
        }
    }

    async fn event(&mut self, event: ClientEvent<Bytes>) {
        match event {
            ClientEvent::Accepted { .. } => {}
            ClientEvent::Blocks { piece, range, blocks } => {
                let (object, start) = self.pieces[piece.0 as usize];
                let bytes = range.end - range.start;
                self.done_bytes += bytes;
                self.objects[object].fetched_bytes += bytes;
                let range = start + range.start..start + range.end;
                self.output.order(Order::Write { object, range, parts: blocks }).await;
            }
            ClientEvent::Complete { piece } => {
                let (object, _) = self.pieces[piece.0 as usize];
                if let Stage::Getting(left) = &mut self.objects[object].stage {
                    *left -= 1;
                    if *left == 0 {
                        self.finish(object).await;
                    }
                }
            }
            ClientEvent::Left { piece, failure } => {
                let (object, _) = self.pieces[piece.0 as usize];
                let Failure { server, reason } = failure;
                let (name, holder) =
                    (&self.objects[object].target.name, &self.links[server.0 as usize].holder);
                tracing::info!("{name}: {holder} leaves it to others: {reason}");
                // Nor will it say the hash, perhaps; the next one may.
                let it = &self.objects[object];
                let holders = &it.target.parts[0].holders;
                let was_asked = it.asked.is_some_and(|at| holders[at] == *holder && at + 1 < holders.len());
                if it.target.hash.is_none() && was_asked {
                    self.describe(object, true);
                }
            }
            ClientEvent::Failed { piece, failures } => {
                let (object, _) = self.pieces[piece.0 as usize];
                let each = failures
                    .iter()
                    .map(|f| format!("{}: {}", self.links[f.server.0 as usize].holder, f.reason));
                self.fail(object, each.collect::<Vec<_>>().join("; "), false);
            }
        }
    }

    fn fail(&mut self, object: usize, reason: String, is_integrity: bool) {
        let object = &mut self.objects[object];
        if matches!(object.stage, Stage::Verified | Stage::Failed { .. }) {
            return;
        }
        self.progress.say(&format!("{}: {reason}", object.target.name));
        object.stage = Stage::Failed { reason, is_integrity };
        object.ended_at = Some(std::time::Instant::now());
    }

    async fn open(&mut self, object: usize, bytes: u64) {
        let target = &mut self.objects[object];
        target.target.bytes = Some(bytes);
        target.stage = Stage::Opening;
        let path = (!self.settings.streams).then(|| target.target.path.clone());
        self.output.order(Order::Open { object, path, bytes }).await;
    }

    /// All of an object has come.
    async fn finish(&mut self, object: usize) {
        let it = &mut self.objects[object];
        it.stage = Stage::Finishing;
        if let Some(hash) = it.target.hash {
            self.output.order(Order::Finish { object, hash }).await;
        }
    }

    /// Asks the next holder what an object is.
    fn describe(&mut self, object: usize, with_hash: bool) {
        let it = &mut self.objects[object];
        let from = it.asked.map_or(0, |asked| asked + 1);
        let holders = &it.target.parts[0].holders;
        let mut waits = false;
        for (at, holder) in holders.iter().enumerate().skip(from) {
            let Some(link) = self.links.iter().find(|link| link.holder == *holder) else { continue };
            if let Some(connected) = &link.connected {
                (it.asked, it.asked_at) = (Some(at), std::time::Instant::now());
                let object = it.target.parts[0].name.clone();
                let ask = |with_hash| Control::Describe { object: object.clone(), with_hash };
                if !with_hash {
                    let _ = connected.control.send(ask(false));
                }
                let _ = connected.control.send(ask(true));
                return;
            }
            waits |= link.lost.is_none();
        }
        if !waits {
            let is_known = it.target.bytes.is_some();
            let unsaid = if is_known { "it does not say what its hash is" } else { "no such object" };
            let each = holders.iter().map(|holder| {
                let lost =
                    self.links.iter().find(|link| link.holder == *holder).and_then(|l| l.lost.as_deref());
                format!("{holder}: {}", lost.unwrap_or(unsaid))
            });
            let reason = each.collect::<Vec<_>>().join("; ");
            self.fail(object, reason, false);
        }
    }

    /// Asks others what objects are of which one does not say that in the time that it may need.
    fn ask_others(&mut self) {
        for object in 0..self.objects.len() {
            let it = &self.objects[object];
            let hashing = Duration::from_secs(it.target.bytes.unwrap_or(0) / HASH_BPS);
            let is_late = it.asked_at.elapsed() > (self.settings.config.give_up + hashing).to_std();
            let others = it.asked.map_or(0, |asked| it.target.parts[0].holders.len() - asked - 1);
            match it.stage {
                _ if it.asked.is_none() || !is_late => {}
                // Meanwhile the last one may yet say it.
                Stage::Opening | Stage::Getting(_) if others == 0 => {}
                Stage::Describing => self.describe(object, false),
                Stage::Opening | Stage::Getting(_) | Stage::Finishing if it.target.hash.is_none() => {
                    self.describe(object, true);
                }
                _ => {}
            }
        }
    }

    async fn hear(&mut self, server: usize, incoming: Incoming) {
        let now = self.now();
        match incoming {
            Incoming::Connected(connected) => {
                let to = connected.datagrams_to;
                let rtt = Duration::from_std(connected.rtt);
                // What the way takes, as far as this machine knows; the rest is found out by silence.
                let fits = route_mtu(to).ok().and_then(|mtu| payload_max(mtu, to.ip()));
                let fits =
                    fits.map_or(self.settings.datagram, |fits| self.settings.datagram.min(fits as u32));
                let block = block_bytes(fits);
                let id = ServerId(server as u32);
                self.client.set_block_bytes(id, block);
                self.channels.insert(connected.channel.opener.channel().0, server);
                self.links[server].connected = Some(connected);
                self.connected_at = Some(std::time::Instant::now());
                self.show_where();
                let waiting: Vec<usize> = (0..self.objects.len())
                    .filter(|o| {
                        self.objects[*o].stage == Stage::Describing && self.objects[*o].asked.is_none()
                    })
                    .collect();
                for object in waiting {
                    self.describe(object, false);
                }
                self.client.handle_connected(now, id, Some(rtt));
            }
            Incoming::Control(Control::Described { object: name, found }) => {
                self.described(server, &name, found).await;
            }
            Incoming::Control(message) => {
                self.client.handle_control(now, ServerId(server as u32), message);
            }
            Incoming::Lost(reason) => {
                let link = &mut self.links[server];
                if let Some(connected) = &link.connected {
                    self.channels.remove(&connected.channel.opener.channel().0);
                }
                link.connected = None;
                link.lost = Some(reason.clone());
                tracing::info!("{} is lost: {reason}", link.holder);
                self.client.handle_lost(now, ServerId(server as u32), &reason);
                // Who was to describe an object cannot: the next one is asked.
                let holder = self.links[server].holder.clone();
                for object in 0..self.objects.len() {
                    let it = &self.objects[object];
                    let holders = &it.target.parts[0].holders;
                    let was_asked = it.asked.is_some_and(|asked| holders[asked] == holder);
                    let nobody = it.asked.is_none() && holders.contains(&holder);
                    let lacks_hash = it.target.hash.is_none()
                        && matches!(it.stage, Stage::Opening | Stage::Getting(_) | Stage::Finishing);
                    if it.stage == Stage::Describing && (was_asked || nobody) {
                        self.describe(object, false);
                    } else if lacks_hash && was_asked {
                        self.describe(object, true);
                    }
                }
            }
        }
    }

    async fn described(&mut self, server: usize, name: &str, found: Option<(u64, Option<[u8; 32]>)>) {
        let holder = self.links[server].holder.clone();
        for object in 0..self.objects.len() {
            let it = &mut self.objects[object];
            let part = &it.target.parts[0];
            if part.name != name || it.asked.is_none_or(|asked| part.holders[asked] != holder) {
                continue;
            }
            match found {
                Some((bytes, hash)) => {
                    let is_another = it.target.bytes.is_some_and(|known| known != bytes);
                    if is_another && hash.is_some() && it.target.hash.is_none() {
                        self.describe(object, true);
                        continue;
                    }
                    if let Some(hash) = hash
                        && it.target.hash.is_none()
                    {
                        it.target.hash = Some(hash);
                        if it.stage == Stage::Finishing {
                            self.finish(object).await;
                            continue;
                        }
                    }
                    if self.objects[object].stage == Stage::Describing {
                        self.open(object, bytes).await;
                    }
                }
                None if it.stage == Stage::Describing => self.describe(object, false),
                // It has been taken away meanwhile.
                None if it.target.hash.is_none() => self.describe(object, true),
                None => {}
            }
        }
    }

    async fn reply(&mut self, reply: Reply) {
        match reply {
            Reply::Opened { object, missing } => self.opened(object, missing).await,
            Reply::Flushed { bytes } => self.ask_ahead(bytes),
            Reply::Finished { object } => {
                let it = &mut self.objects[object];
                it.stage = Stage::Verified;
                it.ended_at = Some(std::time::Instant::now());
            }
            Reply::Mismatch { object } if !self.objects[object].was_wrong && !self.settings.streams => {
                let it = &mut self.objects[object];
                it.was_wrong = true;
                let name = it.target.name.clone();
                self.progress.say(&format!("{name}: not what its hash says: what is wrong is pulled again"));
                if let Some(bytes) = self.objects[object].target.bytes {
                    self.open(object, bytes).await;
                }
            }
            Reply::Mismatch { object } => {
                let reason = "what its servers send is not what its hash says".to_owned();
                self.fail(object, reason, true);
            }
            Reply::Failed { object, reason } => self.fail(object, reason, false),
        }
    }

    /// Asks for what an object lacks.
    async fn opened(&mut self, object: usize, missing: Vec<Range<u64>>) {
        let lacks: u64 = missing.iter().map(|range| range.end - range.start).sum();
        let it = &mut self.objects[object];
        let bytes = it.target.bytes.unwrap_or(0);
        if !it.was_wrong {
            it.kept_bytes = bytes - lacks;
            self.done_bytes += bytes - lacks;
        } else {
            self.done_bytes -= lacks;
        }
        let mut wanted = Vec::new();
        let mut start = 0;
        for part in &it.target.parts {
            let end = start + part.bytes.unwrap_or(bytes);
            let holders: Vec<ServerId> = part
                .holders
                .iter()
                .filter_map(|holder| self.links.iter().position(|link| link.holder == *holder))
                .map(|server| ServerId(server as u32))
                .collect();
            let within = |range: &Range<u64>| {
                range.start.clamp(start, end) - start..range.end.clamp(start, end) - start
            };
            let ranges: Vec<Range<u64>> =
                missing.iter().map(within).filter(|range| !range.is_empty()).collect();
            let piece = |ranges| {
                (start, Piece { object: part.name.clone(), ranges: Some(ranges), holders: holders.clone() })
            };
            if self.settings.streams {
                let cut = |range: Range<u64>| {
                    let starts = range.clone().step_by(AHEAD_PIECE_BYTES as usize);
                    starts.map(move |at| at..range.end.min(at + AHEAD_PIECE_BYTES))
                };
                wanted.extend(ranges.into_iter().flat_map(cut).map(|range| piece(vec![range])));
            } else if !ranges.is_empty() {
                wanted.push(piece(ranges));
            }
            start = end;
        }
        it.stage = Stage::Getting(wanted.len());
        if wanted.is_empty() {
            return self.finish(object).await;
        }
        if self.settings.streams {
            self.ahead = wanted.into();
            return self.ask_ahead(0);
        }
        for (start, piece) in wanted {
            self.ask(object, start, piece);
        }
        let now = self.now();
        self.client.begin(now);
    }

    fn ask(&mut self, object: usize, start: u64, piece: Piece) {
        let id = self.client.add(piece);
        debug_assert_eq!(id.0 as usize, self.pieces.len());
        self.pieces.push((object, start));
    }

    /// Asks for what comes next on standard output, to which `flushed` bytes have gone.
    fn ask_ahead(&mut self, flushed: u64) {
        let at =
            |(start, piece): &(u64, Piece)| start + piece.ranges.as_ref().map_or(0, |ranges| ranges[0].start);
        while self.ahead.front().is_some_and(|next| at(next) < flushed + AHEAD_BYTES) {
            if let Some((start, piece)) = self.ahead.pop_front() {
                self.ask(0, start, piece);
            }
        }
        let now = self.now();
        self.client.begin(now);
    }

    /// Shows servers of which nothing has come where packets are taken.
    fn show_where(&mut self) {
        let now = std::time::Instant::now();
        self.shown_at = now;
        for link in self.links.iter_mut().filter(|link| link.received_bytes == 0) {
            if let Some(connected) = &mut link.connected {
                send(&self.socket, connected, &mut vec![0; seal::HEADER_BYTES]);
            }
        }
    }

    fn rows(&self) -> Vec<ServerRow> {
        let mut rows: Vec<ServerRow> = self
            .links
            .iter()
            .map(|link| ServerRow {
                server: link.holder.clone(),
                name: link.connected.as_ref().map(|connected| connected.name.clone()),
                received_bytes: link.received_bytes,
                pulls: 0,
                loss_event_share: 0.0,
                lost: link.lost.clone(),
            })
            .collect();
        for (_, server, loss) in self.client.pulls() {
            let row = &mut rows[server.0 as usize];
            row.pulls += 1;
            row.loss_event_share = row.loss_event_share.max(loss);
        }
        rows
    }

    fn show(&mut self) {
        let total: Option<u64> = self.objects.iter().map(|object| object.target.bytes).sum();
        let rows = self.rows();
        self.progress.show(self.done_bytes, total, &rows);
    }
}

/// Seals what lies in `buffer` behind a header's room, and sends it; what the kernel has no room for is lost, as on any way.
fn send(socket: &DatagramSocket, connected: &mut Connected, buffer: &mut Vec<u8>) {
    buffer.resize(buffer.len() + seal::TAG_BYTES, 0);
    if connected.channel.sealer.seal(buffer).is_ok()
        && let Err(error) = socket.try_send(&Segments::one(connected.datagrams_to, buffer))
    {
        tracing::debug!("{error}");
    }
}
