//! One command's pulls: the client's machine between sockets, the output and the user.

mod report;

use super::connection::{self, Connected, Incoming};
use super::output::{Order, Output, Reply};
use super::progress::{Progress, ServerRow};
use super::targets::Target;
use anabranch_endpoint::{Bytes, Wire as _};
use anabranch_gather::msg::{Control, Datagram, Found, Packet, SEAL_BYTES, WINDOW_MAX};
use anabranch_gather::{Client, ClientConfig, ClientEvent, Failure, Piece, ServerId};
use anabranch_net::datagram::{Batch, DatagramOptions, DatagramSocket, Segments, payload_max, route_mtu};
use anabranch_net::identity::Identity;
use anabranch_net::seal::{self, Channel, ChannelId};
use anabranch_net::timer::FineTimer;
use anabranch_replicate::control::Attributes;
use anabranch_units::{ByteCount, Duration, Instant};
use anyhow::Context as _;
use std::collections::{BTreeMap, BTreeSet};
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
/// How long the server that was named first is waited for to say what an object is, where another answers before.
const FIRST_WAIT: std::time::Duration = std::time::Duration::from_millis(500);
/// How long a server that says that it is busy hashing is waited for, beside the time that the object itself takes.
const BUSY_MAX: Duration = Duration::from_secs(600);
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
    /// Files that are there are replaced.
    pub replace: bool,
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
    /// It is not what its hash says: these servers are to say what they have of these parts.
    Comparing(BTreeSet<(usize, String)>),
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
    /// When, or when it was last heard that the answer takes longer.
    asked_at: std::time::Instant,
    first_asked_at: Option<std::time::Instant>,
    /// Bytes that the server has hashed, as it says.
    hashed_bytes: u64,
    /// Nobody says who may read it, nor when it was changed.
    lacks_attributes: bool,
    /// What other servers have instead, by server.
    others: BTreeMap<String, String>,
    /// Why servers say nothing of it.
    refusals: BTreeMap<String, String>,
    /// Parts that are not asked for at a server, as it has another version of them.
    spoilt: BTreeSet<(usize, String)>,
    /// Bytes that were not there before.
    fetched_bytes: u64,
    /// Bytes that had come before this command.
    kept_bytes: u64,
    /// Whether a second try has been made after its hash was wrong.
    was_wrong: bool,
    ended_at: Option<std::time::Instant>,
}

impl Object {
    /// Whether nobody was asked what it is, and that must be known.
    fn waits_to_be_described(&self) -> bool {
        self.stage == Stage::Describing && self.asked.is_none()
    }
    /// Whether it failed, and some of it is kept.
    const fn can_go_on(&self) -> bool {
        matches!(self.stage, Stage::Failed { is_integrity: false, .. })
            && self.fetched_bytes + self.kept_bytes > 0
    }
    /// Whether something may become of it.
    const fn is_under_way(&self) -> bool {
        !matches!(self.stage, Stage::Verified | Stage::Failed { .. })
    }
}

/// A piece, where it begins in its object, and how many bytes its servers' object has.
struct Wanted {
    start: u64,
    bytes: u64,
    piece: Piece,
}

struct Link {
    holder: String,
    connected: Option<Box<Connected>>,
    lost: Option<String>,
    received_bytes: u64,
    /// How often the keys of its datagrams were changed.
    key_changes: u64,
}

struct Run {
    settings: Settings,
    client: Client<Bytes>,
    socket: DatagramSocket,
    links: Vec<Link>,
    /// Which link each channel is.
    channels: BTreeMap<u64, usize>,
    objects: Vec<Object>,
    /// Which objects are made of what servers call so.
    by_name: BTreeMap<String, Vec<usize>>,
    /// Of each piece, its object and where its part begins there.
    pieces: Vec<(usize, u64)>,
    /// Pieces that are not asked for yet, as they would come too early.
    ahead: std::collections::VecDeque<Wanted>,
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
pub async fn run(targets: Vec<Target>, identity: &Identity, settings: Settings) -> anyhow::Result<ExitCode> {
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
        .map(|holder| Link {
            holder: (*holder).to_owned(),
            connected: None,
            lost: None,
            received_bytes: 0,
            key_changes: 0,
        })
        .collect();
    let (output, replies) = Output::start(settings.syncs, settings.replace)?;
    let now = std::time::Instant::now();
    let mut by_name: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (object, target) in targets.iter().enumerate() {
        for part in &target.parts {
            let objects = by_name.entry(part.name.clone()).or_default();
            if objects.last() != Some(&object) {
                objects.push(object);
            }
        }
    }
    let objects = targets.into_iter().map(|target| Object {
        target,
        stage: Stage::Describing,
        asked: None,
        asked_at: now,
        first_asked_at: None,
        hashed_bytes: 0,
        lacks_attributes: false,
        others: BTreeMap::new(),
        refusals: BTreeMap::new(),
        spoilt: BTreeSet::new(),
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
        by_name,
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
        never = crate::keys::follow_files(identity) => match never {},
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
                    self.describe_waiting();
                    if self.progress.next_at() <= std::time::Instant::now() {
                        self.ask_others().await;
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
        let first_at = self.begun_at + FIRST_WAIT;
        let waits =
            first_at > std::time::Instant::now() && self.objects.iter().any(Object::waits_to_be_described);
        let first_at = waits.then_some(first_at);
        client
            .into_iter()
            .chain(show_where)
            .chain(first_at)
            .fold(self.progress.next_at(), std::time::Instant::min)
    }

    /// Takes in datagrams.
    fn receive(&mut self, batch: &mut Batch) {
        let now = self.now();
        let clock = std::time::Instant::now();
        self.packets_at = Some((self.packets_at.map_or(clock, |(first, _)| first), clock));
        for datagram in batch.datagrams() {
            let id = ChannelId::of(datagram.bytes);
            let server = id.and_then(|id| self.channels.get(&id.0));
            let link = server.map(|server| (*server, &mut self.links[*server]));
            let Some((server, link)) = link else {
                self.unknown_datagrams += 1;
                continue;
            };
            let Some(connected) = link.connected.as_deref_mut() else { continue };
            // What cannot be opened is counted by the opener.
            let length = datagram.bytes.len() as u64;
            let Some(opener) = connected.opener(id) else { continue };
            let Ok(opened) = opener.open(datagram.bytes) else { continue };
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
            ClientEvent::OtherVersion { piece, server, object_bytes } => {
                let (object, _) = self.pieces[piece.0 as usize];
                let holder = self.links[server.0 as usize].holder.clone();
                self.note_other(object, holder, format!("{object_bytes} bytes"));
            }
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
                    self.describe(object);
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
        self.objects[object].stage = Stage::Finishing;
        self.finish_if_known(object).await;
    }

    /// Has an object checked and named, once all is known of it.
    async fn finish_if_known(&mut self, object: usize) {
        let it = &self.objects[object];
        let (Stage::Finishing, Some(hash)) = (&it.stage, it.target.hash) else { return };
        // Of an object of parts servers know nothing more.
        let lacks = it.target.attributes.is_none() && !self.settings.streams && it.target.parts.len() == 1;
        if lacks && !it.lacks_attributes {
            if it.asked.is_none() {
                self.describe(object);
            }
            let it = &mut self.objects[object];
            if it.asked.is_some() && it.target.attributes.is_none() {
                return;
            }
        }
        let attributes = self.objects[object].target.attributes;
        self.output.order(Order::Finish { object, hash, attributes }).await;
    }

    /// Asks what objects are that wait for that: of the server that was named first, if it comes soon.
    fn describe_waiting(&mut self) {
        let may_wait = self.begun_at.elapsed() < FIRST_WAIT;
        for object in 0..self.objects.len() {
            let it = &self.objects[object];
            if !it.waits_to_be_described() {
                continue;
            }
            let first = it.target.parts[0].holders.first();
            let first = first.and_then(|first| self.links.iter().find(|link| link.holder == *first));
            let comes = first.is_some_and(|link| link.connected.is_none() && link.lost.is_none());
            if !(comes && may_wait) {
                self.describe(object);
            }
        }
    }

    /// Asks the next holder what an object is.
    fn describe(&mut self, object: usize) {
        let it = &mut self.objects[object];
        let from = it.asked.map_or(0, |asked| asked + 1);
        let holders = &it.target.parts[0].holders;
        let mut waits = false;
        for (at, holder) in holders.iter().enumerate().skip(from) {
            let Some(link) = self.links.iter().find(|link| link.holder == *holder) else { continue };
            if let Some(connected) = &link.connected {
                let now = std::time::Instant::now();
                (it.asked, it.asked_at, it.hashed_bytes) = (Some(at), now, 0);
                it.first_asked_at.get_or_insert(now);
                let object = it.target.parts[0].name.clone();
                let ask = |with_hash| Control::Describe { object: object.clone(), with_hash };
                if it.target.bytes.is_none() || it.target.attributes.is_none() {
                    let _ = connected.control.send(ask(false));
                }
                if it.target.hash.is_none() {
                    let _ = connected.control.send(ask(true));
                }
                return;
            }
            waits |= link.lost.is_none();
        }
        if it.target.bytes.is_some() && it.target.hash.is_some() {
            // The rest is not worth a failure.
            it.lacks_attributes = true;
        } else if !waits {
            let is_known = it.target.bytes.is_some();
            let unsaid =
                if is_known { "it does not say what its hash is" } else { "it does not say what it has" };
            let each = holders.iter().map(|holder| {
                let lost =
                    self.links.iter().find(|link| link.holder == *holder).and_then(|l| l.lost.as_deref());
                let said = it.refusals.get(holder).or(it.others.get(holder)).map(String::as_str);
                let why = lost.or(said).unwrap_or(unsaid);
                format!("{holder}: {why}")
            });
            let reason = each.collect::<Vec<_>>().join("; ");
            self.fail(object, reason, false);
        }
    }

    /// Asks others what objects are of which one does not say that in the time that it may need.
    async fn ask_others(&mut self) {
        for object in 0..self.objects.len() {
            let it = &mut self.objects[object];
            let hashing = Duration::from_secs(it.target.bytes.unwrap_or(0) / HASH_BPS);
            let is_late = it.asked_at.elapsed() > (self.settings.config.give_up + hashing).to_std();
            let others = it.asked.map_or(0, |asked| it.target.parts[0].holders.len() - asked - 1);
            match &mut it.stage {
                // Who does not say what it has may yet bring it.
                Stage::Comparing(waiting) if is_late => {
                    waiting.clear();
                    self.compared(object).await;
                }
                _ if it.asked.is_none() || !is_late => {}
                // Meanwhile the last one may yet say it.
                Stage::Opening | Stage::Getting(_) if others == 0 => {}
                Stage::Describing => self.describe(object),
                Stage::Opening | Stage::Getting(_) | Stage::Finishing if it.target.hash.is_none() => {
                    self.describe(object);
                }
                Stage::Finishing => {
                    it.lacks_attributes = true;
                    self.finish_if_known(object).await;
                }
                _ => {}
            }
        }
    }

    /// A server has another version of an object than the one that is pulled.
    fn note_other(&mut self, object: usize, holder: String, what: String) {
        let it = &mut self.objects[object];
        let name = &it.target.name;
        let line = format!("{name}: {holder} has another version, which is not taken: {what}");
        if it.others.insert(holder, what).is_none() {
            self.progress.say(&line);
        }
    }

    /// An object is not what its hash says: asks its servers which of them have something else.
    async fn compare(&mut self, object: usize) {
        let it = &mut self.objects[object];
        let mut waiting = BTreeSet::new();
        for (number, part) in it.target.parts.iter().enumerate() {
            for holder in &part.holders {
                let link = self.links.iter().find(|link| link.holder == *holder);
                let Some(connected) = link.and_then(|link| link.connected.as_ref()) else { continue };
                if !it.spoilt.contains(&(number, holder.clone())) {
                    let ask = Control::Describe { object: part.name.clone(), with_hash: true };
                    let _ = connected.control.send(ask);
                    waiting.insert((number, holder.clone()));
                }
            }
        }
        let name = it.target.name.clone();
        it.stage = Stage::Comparing(waiting);
        it.asked_at = std::time::Instant::now();
        it.first_asked_at = Some(it.asked_at);
        self.progress
            .say(&format!("{name}: not what its hash says: its servers are asked which has another version"));
        self.compared(object).await;
    }

    /// Goes on once all have said what they have: what is wrong is pulled again, from the others.
    async fn compared(&mut self, object: usize) {
        let it = &mut self.objects[object];
        if !matches!(&it.stage, Stage::Comparing(waiting) if waiting.is_empty()) {
            return;
        }
        let spoilt = |number: usize, holder: &String| it.spoilt.contains(&(number, holder.clone()));
        let is_held = |(number, part): (usize, &super::targets::Part)| {
            part.holders.iter().any(|holder| !spoilt(number, holder))
        };
        let is_held = it.target.parts.iter().enumerate().all(is_held);
        if it.was_wrong || self.settings.streams || !is_held {
            let mut reason = "what its servers send is not what its hash says".to_owned();
            for (holder, what) in &it.others {
                reason.push_str(&format!("; {holder} has another version: {what}"));
            }
            return self.fail(object, reason, true);
        }
        it.was_wrong = true;
        if let Some(bytes) = it.target.bytes {
            self.open(object, bytes).await;
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
                (0..self.objects.len()).for_each(|object| self.ask_length(object, server));
                self.describe_waiting();
                self.client.handle_connected(now, id, Some(rtt));
            }
            Incoming::Control(Control::Described { object: name, found }) => {
                self.described(server, &name, &found).await;
            }
            Incoming::Control(Control::Hashing { object: name, hashed_bytes }) => {
                self.hashing(server, &name, hashed_bytes);
            }
            Incoming::Channel(channel) => self.change_keys(server, *channel),
            Incoming::Control(message) => {
                self.client.handle_control(now, ServerId(server as u32), message);
            }
            Incoming::Lost(reason) => {
                let link = &mut self.links[server];
                self.channels.retain(|_, link| *link != server);
                link.connected = None;
                link.lost = Some(reason.clone());
                let line = format!("{}: {reason}; the others go on", link.holder);
                // The loss of the last one is what its objects fail of.
                if self.links.iter().any(|link| link.lost.is_none()) {
                    self.progress.say(&line);
                }
                self.client.handle_lost(now, ServerId(server as u32), &reason);
                // Who was to describe an object cannot: the next one is asked.
                let holder = self.links[server].holder.clone();
                for object in 0..self.objects.len() {
                    let it = &mut self.objects[object];
                    if let Stage::Comparing(waiting) = &mut it.stage {
                        waiting.retain(|(_, of)| *of != holder);
                        self.compared(object).await;
                        continue;
                    }
                    let holders = &it.target.parts[0].holders;
                    let was_asked = it.asked.is_some_and(|asked| holders[asked] == holder);
                    let nobody = it.asked.is_none() && holders.contains(&holder);
                    let lacks_hash = it.target.hash.is_none()
                        && matches!(it.stage, Stage::Opening | Stage::Getting(_) | Stage::Finishing);
                    if it.stage == Stage::Describing && (was_asked || nobody) || lacks_hash && was_asked {
                        self.describe(object);
                    } else if it.stage == Stage::Finishing && was_asked {
                        it.lacks_attributes = true;
                        self.finish_if_known(object).await;
                    }
                }
            }
        }
    }

    /// Asks a server how long an object is there, where another is asked for the rest.
    fn ask_length(&self, object: usize, server: usize) {
        let (it, link) = (&self.objects[object], &self.links[server]);
        let part = &it.target.parts[0];
        let at = part.holders.iter().position(|holder| *holder == link.holder);
        // A manifest says it.
        let is_unsure = it.asked.is_some() && it.asked != at && part.bytes.is_none() && it.is_under_way();
        if let (Some(connected), Some(_), true) = (&link.connected, at, is_unsure) {
            let _ = connected.control.send(Control::Describe { object: part.name.clone(), with_hash: false });
        }
    }

    /// A server says that a hash takes longer.
    fn hashing(&mut self, server: usize, name: &str, hashed_bytes: u64) {
        let holder = self.links[server].holder.clone();
        let mut line = None;
        for it in &mut self.objects {
            let is_comparing =
                matches!(&it.stage, Stage::Comparing(waiting) if waiting.iter().any(|(_, of)| *of == holder));
            let part = &it.target.parts[0];
            let is_asked =
                it.target.hash.is_none() && it.asked.is_some_and(|asked| part.holders[asked] == holder);
            if !(is_comparing || is_asked) {
                continue;
            }
            let own = Duration::from_secs(it.target.bytes.unwrap_or(0) / HASH_BPS);
            let most = (BUSY_MAX + own).to_std();
            // It hashes one after the other: who waits for another object waits with it.
            if it.first_asked_at.is_some_and(|at| at.elapsed() < most) {
                it.asked_at = std::time::Instant::now();
            }
            if part.name == name && it.hashed_bytes == 0 && it.stage == Stage::Finishing {
                line = Some(format!(
                    "{}: all has come; {holder} is still reading it for its hash",
                    it.target.name
                ));
                it.hashed_bytes = hashed_bytes.max(1);
            }
        }
        if let Some(line) = line {
            self.progress.say(&line);
        }
    }

    /// The keys of a server's datagrams have worn out: takes the next ones.
    fn change_keys(&mut self, server: usize, channel: Channel) {
        let link = &mut self.links[server];
        let Some(connected) = link.connected.as_deref_mut() else { return };
        self.channels.insert(channel.opener.channel().0, server);
        let last = std::mem::replace(&mut connected.channel, channel);
        // What is on its way can be opened still, for as long as these last.
        if let Some(older) = connected.last_channel.replace(last) {
            self.channels.remove(&older.opener.channel().0);
        }
        link.key_changes += 1;
        send(&self.socket, connected, &mut vec![0; seal::HEADER_BYTES]);
    }

    async fn described(&mut self, server: usize, name: &str, found: &Result<Found, String>) {
        let holder = self.links[server].holder.clone();
        for object in self.by_name.get(name).cloned().unwrap_or_default() {
            if matches!(self.objects[object].stage, Stage::Comparing(_)) {
                self.compare_with(object, &holder, name, found).await;
                continue;
            }
            let it = &mut self.objects[object];
            let part = &it.target.parts[0];
            if part.name != name || !part.holders.contains(&holder) || !it.is_under_way() {
                continue;
            }
            let is_asked = it.asked.is_some_and(|asked| part.holders[asked] == holder);
            let lacks_something = it.target.hash.is_none() || it.target.attributes.is_none();
            let expected = if it.target.parts.len() == 1 { it.target.bytes } else { part.bytes };
            match found {
                Ok(found) if expected.is_some_and(|bytes| bytes != found.bytes) => {
                    self.note_other(object, holder.clone(), format!("{} bytes", found.bytes));
                    if is_asked && lacks_something {
                        self.describe(object);
                        self.finish_if_known(object).await;
                    }
                }
                Ok(found) if is_asked => {
                    let attributes = Attributes { mode: found.mode.into(), modified_ns: found.modified_ns };
                    it.target.attributes.get_or_insert(attributes);
                    it.target.hash = it.target.hash.or(found.hash);
                    if it.stage == Stage::Describing {
                        self.open(object, found.bytes).await;
                        (0..self.links.len()).for_each(|link| self.ask_length(object, link));
                    } else {
                        self.finish_if_known(object).await;
                    }
                }
                Err(reason) => {
                    let is_unknown = it.stage == Stage::Describing || it.target.hash.is_none();
                    it.refusals.insert(holder.clone(), reason.clone());
                    if is_asked && is_unknown {
                        self.describe(object);
                    }
                }
                Ok(_) => {}
            }
        }
    }

    /// A server says what it has of a part that is compared.
    async fn compare_with(&mut self, object: usize, holder: &str, name: &str, found: &Result<Found, String>) {
        let it = &mut self.objects[object];
        let Stage::Comparing(waiting) = &mut it.stage else { return };
        // What it said to another question has no hash.
        if matches!(found, Ok(Found { hash: None, .. })) {
            return;
        }
        let mut other = None;
        for (number, part) in it.target.parts.iter().enumerate() {
            if part.name != name || !waiting.remove(&(number, holder.to_owned())) {
                continue;
            }
            let whole = if it.target.parts.len() == 1 { it.target.hash } else { None };
            let of_part = part.blake3.as_ref().and_then(|hash| blake3::Hash::from_hex(hash).ok());
            let expected = of_part.map(|hash| *hash.as_bytes()).or(whole);
            let what = match (found, expected) {
                (Ok(Found { hash: Some(hash), bytes, .. }), Some(expected)) if *hash != expected => {
                    format!("{name} of {bytes} bytes, BLAKE3 {}", blake3::Hash::from(*hash).to_hex())
                }
                (Err(reason), _) => reason.clone(),
                _ => continue,
            };
            it.spoilt.insert((number, holder.to_owned()));
            other = Some(what);
        }
        if let Some(what) = other {
            self.note_other(object, holder.to_owned(), what);
        }
        self.compared(object).await;
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
            Reply::Mismatch { object } => self.compare(object).await,
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
        for (number, part) in it.target.parts.iter().enumerate() {
            let end = start + part.bytes.unwrap_or(bytes);
            let holders: Vec<ServerId> = part
                .holders
                .iter()
                .filter(|holder| !it.spoilt.contains(&(number, (*holder).clone())))
                .filter_map(|holder| self.links.iter().position(|link| link.holder == *holder))
                .map(|server| ServerId(server as u32))
                .collect();
            let within = |range: &Range<u64>| {
                range.start.clamp(start, end) - start..range.end.clamp(start, end) - start
            };
            let ranges: Vec<Range<u64>> =
                missing.iter().map(within).filter(|range| !range.is_empty()).collect();
            let piece = |ranges| {
                let piece =
                    Piece { object: part.name.clone(), ranges: Some(ranges), holders: holders.clone() };
                Wanted { start, bytes: end - start, piece }
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
        for wanted in wanted {
            self.ask(object, wanted);
        }
        let now = self.now();
        self.client.begin(now);
    }

    fn ask(&mut self, object: usize, wanted: Wanted) {
        let id = self.client.add(wanted.piece);
        self.client.expect_bytes(id, wanted.bytes);
        debug_assert_eq!(id.0 as usize, self.pieces.len());
        self.pieces.push((object, wanted.start));
    }

    /// Asks for what comes next on standard output, to which `flushed` bytes have gone.
    fn ask_ahead(&mut self, flushed: u64) {
        let at = |next: &Wanted| next.start + next.piece.ranges.as_ref().map_or(0, |ranges| ranges[0].start);
        while self.ahead.front().is_some_and(|next| at(next) < flushed + AHEAD_BYTES) {
            if let Some(next) = self.ahead.pop_front() {
                self.ask(0, next);
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
