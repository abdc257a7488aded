//! Client, servers, disks and network of one random seed, and the checks of their invariants.

mod calm;

use super::disk::{Disk, DiskOrder, File, flip, hash};
use super::network::{ServerPath, TrafficPart};
use super::server::{Conn, Host, Supply};
use anabranch_endpoint::{Bytes, WireMessage as _};
use anabranch_gather_proto::fetch::{EARLY_BYTES, FetchConfig, FetchEvent, ObjectPart, RequestedObject};
use anabranch_gather_proto::msg::{Control, Datagram, Packet};
use anabranch_gather_proto::{ClientConfig, DecoderKind, Fetch, Mode, RateControl, ServerConfig, ServerId};
use anabranch_pieces::Attributes;
use anabranch_testing::faults::{Schedule, ScheduleEnd, some_of};
use anabranch_units::{BitRate, ByteCount, Duration, Instant, RandomStream, Seed};
use calm::framed_bytes;
use std::collections::{BTreeMap, BTreeSet};

/// Duration of the faults.
const CHAOS: Duration = Duration::from_secs(60);
/// Time after the faults by which all objects must be present.
const HEALING: Duration = Duration::from_secs(120);
/// Length of a network cut that ends a connection.
const CUT_MAX: Duration = Duration::from_secs(10);
/// Time until the user restarts the command after the client's process has ended.
const AGAIN: Duration = Duration::from_secs(2);
/// Maximum time from the end of a pull until its server is notified, in addition to a round trip.
const TOLD_WITHIN: Duration = Duration::from_ms(100);
/// Maximum object length in bytes.
const OBJECT_MAX: u64 = 1_200_000;

/// The client's process.
#[derive(Debug)]
struct ClientProcess {
    fetch: Fetch<Bytes>,
    /// Connection of each server.
    conns: Vec<Option<u32>>,
    /// Numbers of the fetched objects, by their index in this fetch.
    objects: Vec<usize>,
    ended: BTreeSet<u32>,
    /// Objects whose files could not be written. The disk skips later orders for these objects.
    broken: BTreeSet<u32>,
    /// Servers asked for each object's hash, in the order of the requests, by the object's name.
    asked: BTreeMap<String, Vec<usize>>,
    /// Names of objects for which another server must be asked for a description now.
    unasked: Vec<String>,
    /// Whether every fault since the process started was one that the client must tolerate.
    is_calm: bool,
}

impl ClientProcess {
    /// Names of objects whose hash this server was the last one asked for. The server has not
    /// answered, and another connected holder has not been asked.
    fn described_by(&self, wanted: &[RequestedObject], server: usize) -> Vec<String> {
        let is_left = |(number, object): (usize, &usize)| {
            let part = &wanted[*object].parts[0];
            let asked = self.asked.get(&part.name)?;
            let of = &self.fetch.objects()[number];
            let is_open = of.hash().is_none() && !self.ended.contains(&(number as u32));
            let mut others = part.holders.iter().map(|holder| holder.0 as usize);
            let is_other = |other: usize| self.conns[other].is_some() && !asked.contains(&other);
            let is_left = is_open && asked.last() == Some(&server) && others.any(is_other);
            is_left.then(|| part.name.clone())
        };
        self.objects.iter().enumerate().filter_map(is_left).collect()
    }
}

#[derive(Clone, Debug)]
enum Event {
    Start,
    Connected { run: u32, server: usize },
    Lost { run: u32, server: usize, conn: Option<u32>, reason: &'static str },
    ToServer { conn: u32, message: Message },
    ToClient { run: u32, conn: u32, message: Message },
    Hashed { conn: u32, object: String },
    Supplied { conn: u32, supply: Supply },
    Disk { run: u32 },
    Fault(Fault),
}

#[derive(Clone, Debug)]
enum Message {
    Control(Control),
    Datagram(Vec<u8>),
}

/// Kinds of faults.
#[derive(Copy, Clone, Debug, PartialEq)]
enum Kind {
    CrashServer,
    FreezeServer,
    Cut,
    CutLane,
    CrashClient,
    FreezeClient,
    FullDisk,
    SlowDisk,
    Rot,
    Weather,
    Reorder,
    StuckDisk,
    SlowReads,
    Flips,
    Replace,
    JumpServer,
    JumpClient,
}

impl Kind {
    /// Faults that must not make an object fail, except in LTTP's mode.
    const GENTLE: [Self; 4] = [Self::SlowDisk, Self::Weather, Self::Reorder, Self::SlowReads];
    const ALL: [Self; 17] = [
        Self::CrashServer,
        Self::FreezeServer,
        Self::Cut,
        Self::CutLane,
        Self::CrashClient,
        Self::FreezeClient,
        Self::FullDisk,
        Self::SlowDisk,
        Self::Rot,
        Self::Weather,
        Self::Reorder,
        Self::StuckDisk,
        Self::SlowReads,
        Self::Flips,
        Self::Replace,
        Self::JumpServer,
        Self::JumpClient,
    ];
}

#[derive(Clone, Debug)]
enum Fault {
    CrashServer(usize, Duration),
    FreezeServer(usize, Duration),
    Cut(usize, Vec<TrafficPart>, Duration),
    CrashClient,
    FreezeClient(Duration),
    FullDisk(Duration),
    SlowDisk(Duration),
    Rot(u32),
    Weather(usize, [u32; 2]),
    Reorder(usize, u32, Duration),
    StuckDisk(usize, Duration),
    SlowReads(usize, Duration),
    Flips(usize, u32),
    Replace(usize),
    JumpServer(usize, Duration),
    JumpClient(Duration),
    Heal,
}

impl Fault {
    /// Whether the fault must not make an object fail. LTTP may wait a minute at high loss rates.
    const fn is_gentle(&self, mode: Mode) -> bool {
        match self {
            Self::Weather(..) | Self::Reorder(..) => matches!(mode, Mode::Counted),
            Self::SlowDisk(_) | Self::SlowReads(..) => true,
            _ => false,
        }
    }
}

pub struct World {
    random: RandomStream,
    /// Random stream for the maximum number of objects under way, and for reads of short objects.
    random_of_turns: RandomStream,
    schedule: Schedule<Event>,
    ways: Vec<ServerPath>,
    hosts: Vec<Host>,
    conns: BTreeMap<u32, Conn>,
    next_conn: u32,
    wanted: Vec<RequestedObject>,
    /// Acceptable contents of each object: one entry for each version.
    right: Vec<Vec<Vec<u8>>>,
    disk: Disk,
    client_frozen_until: Instant,
    /// Time by which the client's clock is ahead of the world's clock.
    client_ahead: Duration,
    getter: Option<ClientProcess>,
    run: u32,
    is_healed: bool,
    /// Whether no fault so far may make an object fail.
    is_gentle: bool,
    config: ClientConfig,
    server_config: ServerConfig,
    /// Whether the client knows the paths' MTU.
    knows_ways: bool,
}

/// Maximum memory of a client for packets. LTTP's generation is the whole requested range.
fn memory_max(config: &ClientConfig) -> ByteCount {
    match config.mode {
        Mode::Counted => config.memory(),
        Mode::Lttp => {
            let blocks_max = OBJECT_MAX.div_ceil(config.block_bytes.into()) as u32;
            ClientConfig { blocks_max, window: 1, ..config.clone() }.memory()
        }
    }
}

impl World {
    pub fn new(seed: u64) -> Self {
        let mut random = Seed::new(seed).stream("faults", 0);
        let servers = 1 + random.below(4) as usize;
        let link = (random.below(2) == 0).then(|| BitRate::mbps(1 + random.below(50)));
        let lttp = [DecoderKind::Standard, DecoderKind::Improved, DecoderKind::Inactivation];
        let (mode, decoder) = match lttp.get(random.below(8) as usize) {
            Some(decoder) => (Mode::Lttp, *decoder),
            None => (Mode::Counted, DecoderKind::Inactivation),
        };
        let rate_control = match mode {
            Mode::Counted if random.below(4) > 0 => RateControl::Bbr,
            _ => RateControl::Tfrc,
        };
        let config = ClientConfig {
            mode,
            rate_control,
            decoder,
            block_bytes: 512 + random.below(600) as u32,
            block_bytes_safe: 300 + random.below(300) as u32,
            blocks_max: 4 + random.below(28) as u32,
            window: 1 + random.below(8) as u32,
            pulls_max: 2 * servers,
            link,
            feedback_every: Duration::from_ms([0, 0, 20][random.below(3) as usize]),
            ..ClientConfig::default()
        };
        let safe = (Packet::<()>::HEADER_BYTES_MAX + config.block_bytes_safe) as usize;
        let mut ways = Vec::new();
        for _ in 0..servers {
            let delay = Duration::from_us(100 + random.below(40_000));
            let is_narrow = random.below(4) == 0;
            let narrow = safe + random.below(400) as usize;
            let mut way = ServerPath::new(delay, if is_narrow { narrow } else { usize::MAX });
            if random.below(4) == 0 {
                way.connecting = Duration::from_ms(random.below(8_000));
            }
            ways.push(way);
        }
        let hosts = (0..servers).map(|_| Host::new(Duration::from_ms(random.below(3_000)))).collect();
        // Server memory for one generation per pull with its bookkeeping, plus a random excess.
        let generation = match config.mode {
            Mode::Lttp => OBJECT_MAX,
            Mode::Counted => u64::from(config.block_bytes * config.blocks_max),
        };
        let generation = generation + 2 * 1_112 + generation / 300 * 32;
        let memory = generation * config.pulls_max as u64 + random.below(generation);
        let server_config = ServerConfig {
            memory_max: ByteCount::new(memory),
            rate_max: (random.below(4) == 0).then(|| BitRate::mbps(1 + random.below(20))),
            quantum: Duration::from_ms([0, 0, 1, 4][random.below(4) as usize]),
            give_up: Duration::from_secs(10),
            block_bytes_min: 1,
            ..ServerConfig::default()
        };
        let knows_ways = random.below(2) == 0;
        let mut world = Self::of(seed, random, ways, config, server_config);
        world.hosts = hosts;
        world.knows_ways = knows_ways;
        world.schedule.say(format!("{:?} {:?}", world.config, world.server_config));
        for object in 0..1 + world.random.below(4) {
            world.add_object(&format!("o{object}"));
        }
        world.plan_faults();
        world.schedule.at(Instant::ZERO, Event::Start);
        world
    }

    fn below(&mut self, n: usize) -> usize {
        self.random.below(n as u64) as usize
    }

    /// Stores a version of an object at each of several random servers. The first holder's version
    /// is the right version, whichever server describes the object.
    fn put(&mut self, name: &str, bytes: &[u8]) -> (Vec<ServerId>, Vec<Vec<u8>>) {
        let mut servers: Vec<usize> = (0..self.hosts.len()).collect();
        self.random.shuffle(&mut servers);
        servers.truncate(1 + self.random.below(servers.len() as u64) as usize);
        let mut versions = vec![bytes.to_vec()];
        let outcomes = [3, 8][self.below(2)];
        for server in &servers[1..] {
            let mut version = bytes.to_vec();
            match self.random.below(outcomes) {
                0 => continue,
                1 => version.push(7),
                2 => flip(&mut self.random, &mut version),
                _ => {}
            }
            self.hosts[*server].put(name, &version);
            versions.push(version);
        }
        self.hosts[servers[0]].put(name, bytes);
        (servers.into_iter().map(|server| ServerId(server as u32)).collect(), versions)
    }

    fn add_object(&mut self, name: &str) {
        let length = [0, 1, 700, 20_000, 60_000, 60_000, OBJECT_MAX - 1][self.below(7)];
        let length = self.random.below(length + 1);
        let bytes: Vec<u8> = (0..length).map(|_| self.random.next_u64() as u8).collect();
        let attributes = Some(Attributes { mode: 0o600, modified_ns: 0 });
        let (size, digest) = (Some(length), Some(hash(&bytes)));
        let (wanted, right) = match self.random.below(3) {
            // The manifest has no description: the describing server determines the version.
            0 => {
                let (holders, versions) = self.put(name, &bytes);
                let part = ObjectPart { name: name.into(), bytes: None, hash: None, holders };
                (
                    RequestedObject {
                        bytes: None,
                        hash: None,
                        attributes: None,
                        may_be_there: false,
                        parts: vec![part],
                    },
                    versions,
                )
            }
            1 => {
                let (holders, _) = self.put(name, &bytes);
                let attributes = attributes.filter(|_| self.random.below(2) == 0);
                let parts = vec![ObjectPart { name: name.into(), bytes: size, hash: digest, holders }];
                (
                    RequestedObject { bytes: size, hash: digest, attributes, may_be_there: false, parts },
                    vec![bytes],
                )
            }
            _ => {
                let cut = self.random.below(length + 1) as usize;
                let parts = [("a", &bytes[..cut]), ("b", &bytes[cut..])].map(|(end, of)| {
                    let name = format!("{name}.{end}");
                    let (holders, _) = self.put(&name, of);
                    let hash = Some(hash(of)).filter(|_| self.random.below(2) == 0);
                    // Without a hash, the wrong part is unknown: all holders get the right version.
                    if hash.is_none() {
                        holders.iter().for_each(|holder| self.hosts[holder.0 as usize].put(&name, of));
                    }
                    ObjectPart { name, bytes: Some(of.len() as u64), hash, holders }
                });
                let parts = parts.into();
                (
                    RequestedObject { bytes: size, hash: digest, attributes, may_be_there: false, parts },
                    vec![bytes],
                )
            }
        };
        self.wanted.push(wanted);
        self.right.push(right);
        self.disk.files.push(File::default());
    }

    /// Draws the kinds of faults, and the time of each fault. A schedule may have no faults.
    fn plan_faults(&mut self) {
        // In a quarter of the schedules, only faults occur that must not make an object fail.
        let is_gentle = self.below(4) == 0;
        let kinds = Kind::ALL.into_iter().filter(|kind| !is_gentle || Kind::GENTLE.contains(kind));
        let kinds = some_of(&mut self.random, kinds);
        let count = if kinds.is_empty() { 0 } else { self.random.below(30) };
        for _ in 0..count {
            let kind = kinds[self.below(kinds.len())];
            let server = self.below(self.hosts.len());
            let time = Duration::from_ms(self.random.below(20_000));
            let short = Duration::from_ms(self.random.below(2_000));
            let ppm = self.random.below(1_000_000) as u32;
            let fault = match kind {
                Kind::CrashServer => Fault::CrashServer(server, time),
                Kind::FreezeServer => Fault::FreezeServer(server, time),
                Kind::Cut => Fault::Cut(server, TrafficPart::ALL.to_vec(), time),
                Kind::CutLane => Fault::Cut(server, some_of(&mut self.random, TrafficPart::ALL), time),
                Kind::CrashClient => Fault::CrashClient,
                Kind::FreezeClient => Fault::FreezeClient(time),
                Kind::FullDisk => Fault::FullDisk(time),
                Kind::SlowDisk => Fault::SlowDisk(short),
                Kind::Rot => Fault::Rot(ppm / 4),
                Kind::Weather => Fault::Weather(server, [ppm / 3, self.random.below(100_000) as u32]),
                Kind::Reorder => Fault::Reorder(server, ppm, short),
                Kind::StuckDisk => Fault::StuckDisk(server, time),
                Kind::SlowReads => Fault::SlowReads(server, short),
                Kind::Flips => Fault::Flips(server, ppm / 2),
                Kind::Replace => Fault::Replace(server),
                Kind::JumpServer => Fault::JumpServer(server, self.jump()),
                Kind::JumpClient => Fault::JumpClient(self.jump()),
            };
            // Most fetches are short, so half of the faults occur in the first second.
            let span = if self.random.below(2) == 0 { 1_000 } else { CHAOS.as_us() / 1_000 };
            let at = Instant::ZERO + Duration::from_ms(self.random.below(span));
            self.schedule.at(at, Event::Fault(fault));
        }
        let heals_at = Instant::ZERO + if count == 0 { Duration::ZERO } else { CHAOS };
        self.schedule.at(heals_at, Event::Fault(Fault::Heal));
    }

    /// Draws a clock jump of at most 1 s, 30 s or 10,000 s.
    fn jump(&mut self) -> Duration {
        let most = [1_000, 30_000, 10_000_000][self.below(3)];
        Duration::from_ms(self.random.below(most))
    }

    /// Runs until all objects are present, at most `HEALING` after the faults' end.
    pub fn run(mut self) -> ScheduleEnd {
        let end = Instant::ZERO + CHAOS + HEALING;
        while !self.is_healed || !self.disk.has_all() {
            let now = self.schedule.now();
            let missing = || self.disk.files.iter().filter(|file| file.named.is_none()).count();
            assert!(now < end, "{} objects have not come", missing());
            self.step();
        }
        self.schedule.ended()
    }

    /// Handles the next event, and then all work that is possible at its time.
    fn step(&mut self) {
        let now = self.schedule.now();
        let client = self.getter.as_ref().and_then(|getter| getter.fetch.poll_timeout());
        let client = client.map(|at| self.by_world(at, self.client_ahead).max(self.client_frozen_until));
        let servers = self.conns.values().filter_map(|conn| {
            let host = &self.hosts[conn.server];
            let at = self.by_world(conn.machine.poll_timeout()?, host.ahead).max(host.frozen_until);
            // Due packets wait until the client has shown its address.
            Some(if conn.knows_where { at } else { at.max(now + Duration::from_ms(100)) })
        });
        let due = servers.chain(client).min();
        if let Some(event) = self.schedule.step(due) {
            self.handle(event);
        }
        self.stir_servers();
        self.stir_client();
        self.check();
    }

    /// Time of the world's clock when a clock with this advance shows `at`.
    fn by_world(&self, at: Instant, ahead: Duration) -> Instant {
        let now = self.schedule.now();
        now + at.saturating_since(now + ahead)
    }

    /// Checks the invariants.
    fn check(&mut self) {
        let Some(getter) = &self.getter else { return };
        let most = memory_max(&self.config).as_u64();
        assert!(getter.fetch.held_bytes() <= most, "the client's memory");
        let most = EARLY_BYTES;
        assert!(getter.fetch.early_bytes() <= most, "what waits for its place");
        let now = self.schedule.now();
        for (id, conn) in &mut self.conns {
            let most = self.server_config.memory_max.as_u64();
            assert!(conn.machine.held_bytes() <= most, "a server's memory");
            let is_pulled = getter.fetch.pulls().any(|(server, _)| server.0 as usize == conn.server);
            let is_its = getter.conns[conn.server] == Some(*id);
            let is_slow = self.ways[conn.server].link.is_some();
            if is_pulled || !is_its || is_slow || !getter.is_calm {
                conn.unpulled_at = None;
                continue;
            }
            let since = *conn.unpulled_at.get_or_insert(now);
            let is_told = now > since + self.ways[conn.server].delay * 2 + TOLD_WITHIN;
            assert!(!is_told || conn.machine.is_idle(), "a server sends what nobody waits for");
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Fault(fault) => self.fault(fault),
            Event::Start => self.start(),
            Event::Connected { run, server } if run == self.run => self.connect(server),
            Event::Lost { run, server, conn, reason } => {
                if self.defer_client(&Event::Lost { run, server, conn, reason }) {
                    return;
                }
                if let Some(conn) = conn {
                    self.conns.remove(&conn);
                }
                let now = self.schedule.now() + self.client_ahead;
                let Some(getter) = self.getter.as_mut().filter(|_| run == self.run) else { return };
                if conn.is_some() && getter.conns[server] != conn {
                    return;
                }
                getter.conns[server] = None;
                getter.is_calm = false;
                getter.unasked = getter.described_by(&self.wanted, server);
                getter.fetch.handle_lost(now, ServerId(server as u32), reason);
                self.schedule.say(format!("lost {server}: {reason}"));
            }
            Event::ToServer { conn, message } => self.on_server(conn, message),
            Event::ToClient { run, conn, message } => {
                if self.defer_client(&Event::ToClient { run, conn, message: message.clone() }) {
                    return;
                }
                let now = self.schedule.now() + self.client_ahead;
                let Some(getter) = self.getter.as_mut().filter(|_| run == self.run) else { return };
                let Some(server) = getter.conns.iter().position(|at| *at == Some(conn)) else { return };
                let server = ServerId(server as u32);
                match message {
                    Message::Control(message) => getter.fetch.handle_control(now, server, message),
                    Message::Datagram(bytes) => match Datagram::decode(&bytes) {
                        Ok(Datagram::Packet(packet)) => getter.fetch.handle_packet(now, server, packet),
                        Ok(Datagram::Accepted(accepted)) => {
                            getter.fetch.handle_control(now, server, Control::Accepted(accepted));
                        }
                        other => panic!("{other:?}"),
                    },
                }
            }
            Event::Hashed { conn, object } => {
                let Some(server) = self.conns.get(&conn).map(|conn| conn.server) else { return };
                let found = self.hosts[server].found(&object, true);
                self.tell_client(conn, Control::Described { object, found });
            }
            Event::Supplied { conn, supply } => {
                if let Some(conn) = self.conns.get_mut(&conn) {
                    conn.machine.supply(supply.pull, supply.generation, supply.blocks);
                }
            }
            Event::Disk { run } if run == self.run => self.on_disk(),
            _ => {}
        }
    }

    /// Returns whether the client is frozen. If so, schedules the event for the freeze's end.
    fn defer_client(&mut self, event: &Event) -> bool {
        let is_frozen = self.client_frozen_until > self.schedule.now();
        if is_frozen {
            self.schedule.at(self.client_frozen_until, event.clone());
        }
        is_frozen
    }

    fn fault(&mut self, fault: Fault) {
        if self.is_healed {
            return;
        }
        self.schedule.say(format!("{fault:?}"));
        let now = self.schedule.now();
        self.is_gentle &= fault.is_gentle(self.config.mode);
        if let Some(getter) = &mut self.getter {
            getter.is_calm &= self.is_gentle || matches!(fault, Fault::Heal);
        }
        match fault {
            Fault::CrashServer(server, time) => {
                self.hosts[server].up_at = now + time;
                let way = &self.ways[server];
                let at = (now + way.delay).max(way.cut_until(TrafficPart::Control));
                for conn in self.lose(server, at, "it went away") {
                    self.conns.remove(&conn);
                }
            }
            Fault::FreezeServer(server, time) => self.hosts[server].frozen_until = now + time,
            Fault::Cut(server, lanes, time) => {
                lanes.iter().for_each(|lane| self.ways[server].cut(*lane, now + time));
                if lanes.contains(&TrafficPart::Control) && time > CUT_MAX {
                    self.lose(server, now + CUT_MAX, "it does not answer any more");
                }
            }
            Fault::CrashClient => self.end_run(true),
            Fault::FreezeClient(time) => self.client_frozen_until = now + time,
            Fault::FullDisk(time) => self.disk.full_until = now + time,
            Fault::SlowDisk(delay) => self.disk.delay = delay,
            Fault::Rot(ppm) => self.disk.rot_ppm = ppm,
            Fault::Weather(server, [loss, repeat]) => {
                (self.ways[server].loss_ppm, self.ways[server].repeat_ppm) = (loss, repeat);
            }
            Fault::Reorder(server, ppm, most) => {
                (self.ways[server].late_ppm, self.ways[server].late_max) = (ppm, most);
            }
            Fault::StuckDisk(server, time) => self.hosts[server].stuck_until = now + time,
            Fault::SlowReads(server, time) => self.hosts[server].reading = time,
            Fault::Flips(server, ppm) => self.hosts[server].flip_ppm = ppm,
            Fault::Replace(server) => {
                let Some((name, Some(bytes))) = self.hosts[server].replace(&mut self.random) else { return };
                // A fetch keeps its described version. Another version is acceptable later.
                for (wanted, right) in self.wanted.iter().zip(&mut self.right) {
                    if wanted.hash.is_none() && wanted.parts[0].name == name {
                        right.push(bytes.clone());
                    }
                }
            }
            Fault::JumpServer(server, time) => self.hosts[server].ahead += time,
            Fault::JumpClient(time) => self.client_ahead += time,
            Fault::Heal => {
                self.is_healed = true;
                self.ways.iter_mut().for_each(ServerPath::heal);
                self.hosts.iter_mut().for_each(|host| host.heal(now));
                self.disk.heal();
                self.client_frozen_until = now;
            }
        }
    }

    /// Schedules the report that the client lost its connections to a server. Returns them.
    fn lose(&mut self, server: usize, at: Instant, reason: &'static str) -> Vec<u32> {
        let its = self.conns.iter().filter(|(_, conn)| conn.server == server);
        let its: Vec<u32> = its.map(|(id, _)| *id).collect();
        for conn in &its {
            self.schedule.at(at, Event::Lost { run: self.run, server, conn: Some(*conn), reason });
        }
        its
    }

    /// Ends the client's process. If the process is killed, the last write may be lost.
    fn end_run(&mut self, is_killed: bool) {
        if self.getter.take().is_none() {
            return;
        }
        self.run += 1;
        self.conns.clear();
        self.disk.end_run(&mut self.random, is_killed);
        self.schedule.after(AGAIN, Event::Start);
    }

    /// Starts the command for all missing objects, as a user would.
    fn start(&mut self) {
        let files = self.disk.files.iter().enumerate().filter(|(_, file)| file.named.is_none());
        let objects: Vec<usize> = files.map(|(object, _)| object).collect();
        if objects.is_empty() || self.getter.is_some() {
            return;
        }
        self.schedule.say("start");
        let wanted = objects.iter().map(|object| self.wanted[*object].clone()).collect();
        // Draws a small number of objects under way, so that some objects must wait.
        let objects_max = 1 + self.random_of_turns.below(4) as usize;
        let config =
            FetchConfig { client: self.config.clone(), streams: false, is_strict: false, objects_max };
        let servers = self.hosts.len();
        let now = self.schedule.now() + self.client_ahead;
        let fetch = Fetch::new(now, config, servers as u32, wanted).expect("a good configuration");
        self.getter = Some(ClientProcess {
            fetch,
            conns: vec![None; servers],
            objects,
            ended: BTreeSet::new(),
            broken: BTreeSet::new(),
            asked: BTreeMap::new(),
            unasked: Vec::new(),
            is_calm: self.is_healed || self.is_gentle,
        });
        let run = self.run;
        for server in 0..servers {
            let way = &self.ways[server];
            self.schedule.after(way.delay * 4 + way.connecting, Event::Connected { run, server });
        }
    }

    fn connect(&mut self, server: usize) {
        let (run, now) = (self.run, self.schedule.now());
        if self.client_frozen_until > now {
            return self.schedule.at(self.client_frozen_until, Event::Connected { run, server });
        }
        let (way, host) = (&self.ways[server], &self.hosts[server]);
        if way.cut_until(TrafficPart::Control) > now || host.frozen_until > now {
            let (conn, reason) = (None, "no answer in 10 s");
            return self.schedule.after(CUT_MAX, Event::Lost { run, server, conn, reason });
        }
        if host.up_at > now {
            let (conn, reason) = (None, "it cannot be reached");
            return self.schedule.at(now, Event::Lost { run, server, conn, reason });
        }
        self.ways[server].connect(now);
        let way = &self.ways[server];
        let conn = self.next_conn;
        self.next_conn += 1;
        self.conns.insert(conn, Conn::new(server, self.server_config.clone()));
        let fits = (way.datagram_max - Packet::<()>::HEADER_BYTES_MAX as usize).min(65_000) as u32;
        let block_bytes = if self.knows_ways { fits } else { self.config.block_bytes };
        let rtt = way.delay * 2;
        let Some(getter) = &mut self.getter else { return };
        getter.conns[server] = Some(conn);
        getter.fetch.handle_connected(
            now + self.client_ahead,
            ServerId(server as u32),
            Some(rtt),
            block_bytes,
        );
    }

    fn tell_client(&mut self, conn: u32, message: Control) {
        let Some(server) = self.conns.get(&conn).map(|conn| conn.server) else { return };
        self.schedule.say(format!("{server} says {message:?}"));
        let (run, now, bytes) = (self.run, self.schedule.now(), framed_bytes(&message));
        let at = self.ways[server].control(now, &mut self.random, false, bytes);
        self.schedule.at(at, Event::ToClient { run, conn, message: Message::Control(message) });
    }

    fn on_server(&mut self, id: u32, message: Message) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let host = &self.hosts[conn.server];
        let now = self.schedule.now();
        if host.frozen_until > now {
            return self.schedule.at(host.frozen_until, Event::ToServer { conn: id, message });
        }
        match message {
            Message::Datagram(bytes) => {
                conn.knows_where = true;
                if let Ok(Datagram::<Bytes>::Feedback(feedback)) = Datagram::decode(&bytes) {
                    conn.machine.handle_feedback(now + host.ahead, &feedback);
                }
            }
            Message::Control(Control::Describe { object, with_hash: false }) => {
                let found = host.found(&object, false);
                self.tell_client(id, Control::Described { object, found });
            }
            Message::Control(Control::Describe { object, with_hash: true }) => {
                if host.stuck_until > now {
                    return;
                }
                self.schedule.after(host.hashing, Event::Hashed { conn: id, object: object.clone() });
                self.tell_client(id, Control::Hashing { object, hashed_bytes: 0 });
            }
            Message::Control(Control::Inspect { object, with_hash, with_content }) => {
                if host.stuck_until > now {
                    return;
                }
                let short = host.short(&mut self.random_of_turns, &object);
                let (is_short, found) = (short.is_some(), host.found(&object, short.is_some()));
                if !is_short && with_hash && found.is_ok() {
                    self.schedule.after(host.hashing, Event::Hashed { conn: id, object: object.clone() });
                }
                self.tell_client(
                    id,
                    match (short, found) {
                        (Some(content), Ok(found)) if with_content => {
                            Control::Short { object, found, content }
                        }
                        (_, found) => Control::Described { object, found },
                    },
                );
            }
            Message::Control(message) => conn.machine.handle_control(now + host.ahead, message),
        }
    }

    /// Performs all possible work of all servers.
    fn stir_servers(&mut self) {
        let (now, run) = (self.schedule.now(), self.run);
        let ids: Vec<u32> = self.conns.keys().copied().collect();
        for id in ids {
            let Some(conn) = self.conns.get_mut(&id) else { continue };
            let (server, host) = (conn.server, &self.hosts[conn.server]);
            if host.frozen_until > now {
                continue;
            }
            let (said, sent, late) = conn.work(now + host.ahead, host, &mut self.random);
            for supply in late {
                self.schedule.after(host.reading, Event::Supplied { conn: id, supply });
            }
            said.into_iter().for_each(|message| self.tell_client(id, message));
            for datagram in sent {
                let mut bytes = Vec::new();
                datagram.encode(&mut bytes);
                for at in self.ways[server].datagram(now, &mut self.random, TrafficPart::Down, bytes.len()) {
                    let message = Message::Datagram(bytes.clone());
                    self.schedule.at(at, Event::ToClient { run, conn: id, message });
                }
            }
        }
    }

    /// Performs all possible work of the client.
    fn stir_client(&mut self) {
        let (now, run) = (self.schedule.now(), self.run);
        if self.client_frozen_until > now {
            return;
        }
        let Some(getter) = &mut self.getter else { return };
        let clock = now + self.client_ahead;
        if getter.fetch.poll_timeout().is_some_and(|at| at <= clock) {
            getter.fetch.handle_timeout(clock);
        }
        let (mut out, mut orders, mut said) = (Vec::new(), Vec::new(), Vec::new());
        while let Some((server, feedback)) = getter.fetch.poll_transmit(clock) {
            let mut bytes = Vec::new();
            Datagram::<Bytes>::Feedback(feedback).encode(&mut bytes);
            out.push((server, Message::Datagram(bytes)));
        }
        let shows = std::iter::from_fn(|| getter.fetch.poll_show());
        out.extend(shows.map(|server| (server, Message::Datagram(Vec::new()))));
        out.extend(std::iter::from_fn(|| getter.fetch.poll_control()).map(|(s, m)| (s, Message::Control(m))));
        while let Some(event) = getter.fetch.poll_event() {
            match event {
                FetchEvent::Open { object, bytes } => orders.push(DiskOrder::Open(object, bytes)),
                FetchEvent::Write { object, range, blocks } => {
                    let mut bytes = blocks.concat();
                    bytes.truncate((range.end - range.start) as usize);
                    orders.push(DiskOrder::Write(object, range, bytes));
                }
                FetchEvent::Finish { object, hash, .. } => orders.push(DiskOrder::Finish(object, hash)),
                FetchEvent::Verified { object } | FetchEvent::Failed { object, .. } => {
                    assert!(getter.ended.insert(object.0), "an object ends once");
                    let number = getter.objects[object.0 as usize];
                    getter.unasked.retain(|name| *name != self.wanted[number].parts[0].name);
                    let has_failed = matches!(event, FetchEvent::Failed { .. });
                    assert!(!has_failed || !getter.is_calm, "nothing made it fail: {event:?}");
                    said.push(format!("{event:?}"));
                }
                other => said.push(format!("{other:?}")),
            }
        }
        let is_done = getter.fetch.is_done();
        let conns = getter.conns.clone();
        said.iter().for_each(|line| self.schedule.say(line));
        for (server, message) in out {
            let server = server.0 as usize;
            let Some(conn) = conns[server] else { continue };
            let way = &mut self.ways[server];
            let arrivals = match &message {
                Message::Control(message) => {
                    self.schedule.say(format!("{server} is told {message:?}"));
                    if let (
                        Control::Describe { object, with_hash: true }
                        | Control::Inspect { object, with_hash: true, .. },
                        Some(getter),
                    ) = (message, &mut self.getter)
                    {
                        getter.asked.entry(object.clone()).or_default().push(server);
                        getter.unasked.retain(|name| name != object);
                    }
                    vec![way.control(now, &mut self.random, true, framed_bytes(message))]
                }
                Message::Datagram(bytes) => way.datagram(now, &mut self.random, TrafficPart::Up, bytes.len()),
            };
            for at in arrivals {
                self.schedule.at(at, Event::ToServer { conn, message: message.clone() });
            }
        }
        for order in orders {
            self.disk.orders.push_back(order);
            self.schedule.after(self.disk.delay.max(Duration::from_us(100)), Event::Disk { run });
        }
        if let Some(getter) = &self.getter {
            assert!(getter.unasked.is_empty(), "nobody is asked what these are: {:?}", getter.unasked);
        }
        if is_done {
            self.end_run(false);
        }
    }

    /// Executes the oldest order of the client's disk.
    fn on_disk(&mut self) {
        if self.defer_client(&Event::Disk { run: self.run }) {
            return;
        }
        let Some(order) = self.disk.orders.pop_front() else { return };
        let (now, object) = (self.schedule.now() + self.client_ahead, order.object());
        let Some(getter) = &mut self.getter else { return };
        if getter.broken.contains(&object.0) {
            return;
        }
        let fetch = &mut getter.fetch;
        if self.disk.full_until > self.schedule.now() {
            getter.broken.insert(object.0);
            return fetch.handle_unwritable(now, object, "no room on the disk".to_owned());
        }
        let number = getter.objects[object.0 as usize];
        let file = &mut self.disk.files[number];
        match order {
            DiskOrder::Open(_, bytes) => fetch.handle_opened(now, object, &file.open(bytes)),
            DiskOrder::Write(_, range, mut bytes) => {
                if self.random.chance_ppm(self.disk.rot_ppm) {
                    flip(&mut self.random, &mut bytes);
                }
                file.write(&range, &bytes);
            }
            DiskOrder::Finish(_, expected) if file.finish(expected) => {
                let is_right = file.named.as_ref().is_some_and(|bytes| self.right[number].contains(bytes));
                assert!(is_right, "object {number} is a version that nobody has");
                fetch.handle_finished(now, object);
            }
            DiskOrder::Finish(..) => fetch.handle_mismatch(now, object),
        }
    }
}
