//! One seed's client, servers, disks and network, and what must always hold of them.

use super::faults::{Ended, Schedule, some_of};
use anabranch_endpoint::{Bytes, Wire as _};
use anabranch_gather_proto::fetch::{FetchConfig, FetchEvent, ObjectId, Part, Wanted};
use anabranch_gather_proto::msg::{Control, Datagram, Found};
use anabranch_gather_proto::{ClientConfig, Fetch, Offer, Server, ServerConfig, ServerEvent, ServerId};
use anabranch_pieces::{Attributes, ByteRange, RangeSet};
use anabranch_units::{BitRate, ByteCount, Duration, Instant, RandomStream, Seed};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

/// How long faults happen, and how long after that all objects have to be there.
const CHAOS: Duration = Duration::from_secs(60);
const HEALING: Duration = Duration::from_secs(300);
/// A connection is over once the network has been cut for so long.
const CUT_MAX: Duration = Duration::from_secs(10);
/// How long the user takes to start the command anew.
const AGAIN: Duration = Duration::from_secs(2);

/// The way between the client and a server.
#[derive(Clone, Debug)]
struct Way {
    delay: Duration,
    loss_ppm: u32,
    repeat_ppm: u32,
    late_ppm: u32,
    cut_until: Instant,
    /// When the last control message arrives, each way: they come in order.
    last: [Instant; 2],
}

/// A server's process and disk.
#[derive(Debug)]
struct Host {
    up_at: Instant,
    frozen_until: Instant,
    objects: BTreeMap<String, Vec<u8>>,
    flip_ppm: u32,
    hashing: Duration,
    /// Until then nothing is hashed: what is asked for meanwhile is never answered.
    stuck_until: Instant,
}

/// A connection, at its server.
#[derive(Debug)]
struct Conn {
    server: usize,
    machine: Server<Bytes>,
    names: BTreeMap<u32, String>,
    knows_where: bool,
}

/// An object's place on the client's disk.
#[derive(Debug, Default)]
struct File {
    bytes: Vec<u8>,
    have: RangeSet,
    last: Option<ByteRange>,
    named: Option<Vec<u8>>,
}

/// The client's process.
#[derive(Debug)]
struct Getter {
    fetch: Fetch<Bytes>,
    /// By server.
    conns: Vec<Option<u32>>,
    /// The objects that are fetched, of all.
    objects: Vec<usize>,
    ended: BTreeSet<u32>,
    /// Whose places could not be written: what is ordered of them later is passed over.
    broken: BTreeSet<u32>,
}

#[derive(Clone, Debug)]
enum Event {
    Start,
    Connected { run: u32, server: usize },
    Lost { run: u32, server: usize, conn: Option<u32>, reason: &'static str },
    ToServer { conn: u32, message: Message },
    ToClient { run: u32, conn: u32, message: Message },
    Hashed { conn: u32, object: String },
    Disk { run: u32 },
    Fault(Fault),
}

#[derive(Clone, Debug)]
enum Message {
    Control(Control),
    Datagram(Vec<u8>),
}

#[derive(Clone, Debug)]
enum Reply {
    Open(ObjectId, u64),
    Write(ObjectId, Range<u64>, Vec<u8>),
    Finish(ObjectId, [u8; 32]),
}

#[derive(Copy, Clone, Debug)]
enum Fault {
    CrashServer(usize, Duration),
    FreezeServer(usize, Duration),
    Cut(usize, Duration),
    CrashClient,
    FreezeClient(Duration),
    FullDisk(Duration),
    SlowDisk(Duration),
    Weather(usize, [u32; 3]),
    Flips(usize, u32),
    StuckDisk(usize, Duration),
    Heal,
}

pub struct World {
    random: RandomStream,
    schedule: Schedule<Event>,
    ways: Vec<Way>,
    hosts: Vec<Host>,
    conns: BTreeMap<u32, Conn>,
    next_conn: u32,
    wanted: Vec<Wanted>,
    /// What may be delivered of each object.
    right: Vec<Vec<Vec<u8>>>,
    disk: Vec<File>,
    disk_full_until: Instant,
    disk_delay: Duration,
    /// What the disk is to do, in order.
    disk_queue: VecDeque<Reply>,
    client_frozen_until: Instant,
    getter: Option<Getter>,
    run: u32,
    is_healed: bool,
    config: ClientConfig,
}

fn noise(random: &mut RandomStream, length: u64) -> Vec<u8> {
    (0..length).map(|_| random.next_u64() as u8).collect()
}

fn hash(bytes: &[u8]) -> [u8; 32] {
    *blake3::hash(bytes).as_bytes()
}

impl World {
    pub fn new(seed: u64) -> Self {
        let mut random = Seed::new(seed).stream("faults", 0);
        let servers = 1 + random.below(4) as usize;
        let ms = Duration::from_ms;
        let ways = (0..servers).map(|_| Way {
            delay: Duration::from_us(100 + random.below(40_000)),
            loss_ppm: 0,
            repeat_ppm: 0,
            late_ppm: 0,
            cut_until: Instant::ZERO,
            last: [Instant::ZERO; 2],
        });
        let ways = ways.collect();
        let hosts = (0..servers).map(|_| Host {
            up_at: Instant::ZERO,
            frozen_until: Instant::ZERO,
            objects: BTreeMap::new(),
            flip_ppm: 0,
            stuck_until: Instant::ZERO,
            hashing: ms(random.below(3_000)),
        });
        let hosts = hosts.collect();
        let link = (random.below(2) == 0).then(|| BitRate::mbps(1 + random.below(50)));
        let config = ClientConfig {
            block_bytes: 512 + random.below(600) as u32,
            blocks_max: 4 + random.below(28) as u32,
            window: 1 + random.below(8) as u32,
            pulls_max: 2 * servers,
            link,
            ..ClientConfig::default()
        };
        let mut world = Self {
            random,
            schedule: Schedule::new(),
            ways,
            hosts,
            conns: BTreeMap::new(),
            next_conn: 0,
            wanted: Vec::new(),
            right: Vec::new(),
            disk: Vec::new(),
            disk_full_until: Instant::ZERO,
            disk_delay: Duration::from_us(100),
            disk_queue: VecDeque::new(),
            client_frozen_until: Instant::ZERO,
            getter: None,
            run: 0,
            is_healed: false,
            config,
        };
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

    /// Puts a version of an object at each of some servers. The first holder's is right, so that it is so whoever decides.
    fn put(&mut self, name: &str, bytes: &[u8]) -> (Vec<ServerId>, Vec<Vec<u8>>) {
        let mut servers: Vec<usize> = (0..self.hosts.len()).collect();
        self.random.shuffle(&mut servers);
        servers.truncate(1 + self.random.below(servers.len() as u64) as usize);
        let mut versions = vec![bytes.to_vec()];
        for server in &servers[1..] {
            let mut version = bytes.to_vec();
            match self.random.below(8) {
                0 => continue,
                1 => version.push(7),
                2 if !version.is_empty() => {
                    let at = self.random.below(version.len() as u64) as usize;
                    version[at] ^= 1;
                }
                _ => {}
            }
            self.hosts[*server].objects.insert(name.to_owned(), version.clone());
            versions.push(version);
        }
        self.hosts[servers[0]].objects.insert(name.to_owned(), bytes.to_vec());
        (servers.into_iter().map(|server| ServerId(server as u32)).collect(), versions)
    }

    fn add_object(&mut self, name: &str) {
        let length = [0, 1, 700, 20_000, 60_000][self.below(5)];
        let length = self.random.below(length + 1);
        let bytes = noise(&mut self.random, length);
        let (attributes, whole) = (Some(Attributes { mode: 0o600, modified_ns: 0 }), hash(&bytes));
        let (wanted, right) = match self.random.below(3) {
            // Nothing is known: whoever describes it decides which version.
            0 => {
                let (holders, versions) = self.put(name, &bytes);
                let part = Part { name: name.into(), bytes: None, hash: None, holders };
                (Wanted { bytes: None, hash: None, attributes: None, parts: vec![part] }, versions)
            }
            1 => {
                let (holders, _) = self.put(name, &bytes);
                let part = Part { name: name.into(), bytes: Some(length), hash: Some(whole), holders };
                let attributes = attributes.filter(|_| self.random.below(2) == 0);
                let parts = vec![part];
                (Wanted { bytes: Some(length), hash: Some(whole), attributes, parts }, vec![bytes])
            }
            _ => {
                let cut = self.random.below(length + 1) as usize;
                let parts = [("a", &bytes[..cut]), ("b", &bytes[cut..])].map(|(end, of)| {
                    let name = format!("{name}.{end}");
                    let (holders, _) = self.put(&name, of);
                    let hash = Some(hash(of)).filter(|_| self.random.below(2) == 0);
                    Part { name, bytes: Some(of.len() as u64), hash, holders }
                });
                // Without hashes of parts nobody can tell whose is wrong: all have the right version then.
                for part in parts.iter().filter(|part| part.hash.is_none()) {
                    let right = if part.name.ends_with('a') { &bytes[..cut] } else { &bytes[cut..] };
                    for holder in &part.holders {
                        self.hosts[holder.0 as usize].objects.insert(part.name.clone(), right.to_vec());
                    }
                }
                let parts = parts.into();
                (Wanted { bytes: Some(length), hash: Some(whole), attributes, parts }, vec![bytes])
            }
        };
        self.wanted.push(wanted);
        self.right.push(right);
        self.disk.push(File::default());
    }

    /// Draws which kinds of faults there are, and when each happens.
    fn plan_faults(&mut self) {
        let kinds = some_of(&mut self.random, 0..10);
        let count = if kinds.is_empty() { 0 } else { self.random.below(30) };
        for _ in 0..count {
            let kind = kinds[self.below(kinds.len())];
            let server = self.below(self.hosts.len());
            let time = Duration::from_ms(self.random.below(20_000));
            let fault = match kind {
                0 => Fault::CrashServer(server, time),
                1 => Fault::FreezeServer(server, time),
                2 => Fault::Cut(server, time),
                3 => Fault::CrashClient,
                4 => Fault::FreezeClient(time),
                5 => Fault::FullDisk(time),
                6 => Fault::SlowDisk(Duration::from_ms(self.random.below(2_000))),
                7 => Fault::Weather(
                    server,
                    [300_000, 100_000, 200_000].map(|most| self.random.below(most) as u32),
                ),
                8 => Fault::StuckDisk(server, time),
                _ => Fault::Flips(server, self.random.below(500_000) as u32),
            };
            // Most fetches are over soon: half of the faults come in the first second.
            let span = if self.random.below(2) == 0 { 1_000 } else { CHAOS.as_us() / 1_000 };
            let at = Instant::ZERO + Duration::from_ms(self.random.below(span));
            self.schedule.at(at, Event::Fault(fault));
        }
        self.schedule.at(Instant::ZERO + CHAOS, Event::Fault(Fault::Heal));
    }

    /// Runs until all objects are there, as they must be some time after the faults have ended.
    pub fn run(mut self) -> Ended {
        let end = Instant::ZERO + CHAOS + HEALING;
        while !self.is_healed || self.disk.iter().any(|file| file.named.is_none()) {
            let now = self.schedule.now();
            let missing = || self.disk.iter().filter(|file| file.named.is_none()).count();
            assert!(now < end, "{} objects have not come", missing());
            let client = self.getter.as_ref().and_then(|getter| getter.fetch.poll_timeout());
            let client = client.map(|at| at.max(self.client_frozen_until));
            let servers = self.conns.values().filter_map(|conn| {
                let host = &self.hosts[conn.server];
                let at = conn.machine.poll_timeout()?.max(host.frozen_until);
                // What is due waits until the client has shown where it takes it.
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
        self.schedule.ended()
    }

    fn check(&self) {
        if let Some(getter) = &self.getter {
            assert!(getter.fetch.held_bytes() <= self.config.memory().as_u64(), "the client's memory");
        }
        for conn in self.conns.values() {
            assert!(
                conn.machine.held_bytes() <= self.server_config().memory_max.as_u64(),
                "a server's memory"
            );
        }
    }

    fn server_config(&self) -> ServerConfig {
        ServerConfig {
            memory_max: ByteCount::kib(512),
            give_up: Duration::from_secs(10),
            block_bytes_min: 1,
            ..ServerConfig::default()
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
                let Some(getter) = self.getter.as_mut().filter(|_| run == self.run) else { return };
                if conn.is_some() && getter.conns[server] != conn {
                    return;
                }
                getter.conns[server] = None;
                getter.fetch.handle_lost(self.schedule.now(), ServerId(server as u32), reason);
                self.schedule.say(format!("lost {server}: {reason}"));
            }
            Event::ToServer { conn, message } => self.on_server(conn, message),
            Event::ToClient { run, conn, message } => {
                if self.defer_client(&Event::ToClient { run, conn, message: message.clone() }) {
                    return;
                }
                let Some(getter) = self.getter.as_mut().filter(|_| run == self.run) else { return };
                let Some(server) = getter.conns.iter().position(|at| *at == Some(conn)) else { return };
                let server = ServerId(server as u32);
                match message {
                    Message::Control(message) => {
                        getter.fetch.handle_control(self.schedule.now(), server, message)
                    }
                    Message::Datagram(bytes) => match Datagram::decode(&bytes) {
                        Ok(Datagram::Packet(packet)) => {
                            getter.fetch.handle_packet(self.schedule.now(), server, packet)
                        }
                        other => panic!("{other:?}"),
                    },
                }
            }
            Event::Hashed { conn, object } => {
                let Some(found) = self.found(conn, &object, true) else { return };
                self.tell_client(conn, Control::Described { object, found });
            }
            Event::Disk { run } if run == self.run => self.on_disk(),
            _ => {}
        }
    }

    /// Whether the client is frozen: the event comes again once it is not.
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
        match fault {
            Fault::CrashServer(server, time) => {
                self.hosts[server].up_at = now + time;
                let run = self.run;
                let its: Vec<u32> =
                    self.conns.iter().filter(|(_, c)| c.server == server).map(|(id, _)| *id).collect();
                for conn in its {
                    self.conns.remove(&conn);
                    let at = (now + self.ways[server].delay).max(self.ways[server].cut_until);
                    self.schedule
                        .at(at, Event::Lost { run, server, conn: Some(conn), reason: "it went away" });
                }
            }
            Fault::FreezeServer(server, time) => self.hosts[server].frozen_until = now + time,
            Fault::Cut(server, time) => {
                self.ways[server].cut_until = now + time;
                if time > CUT_MAX {
                    let run = self.run;
                    let its: Vec<u32> =
                        self.conns.iter().filter(|(_, c)| c.server == server).map(|(id, _)| *id).collect();
                    for conn in its {
                        let reason = "it does not answer any more";
                        self.schedule
                            .at(now + CUT_MAX, Event::Lost { run, server, conn: Some(conn), reason });
                    }
                }
            }
            Fault::CrashClient => self.end_run(true),
            Fault::FreezeClient(time) => self.client_frozen_until = now + time,
            Fault::FullDisk(time) => self.disk_full_until = now + time,
            Fault::SlowDisk(delay) => self.disk_delay = delay,
            Fault::Weather(server, [loss, repeat, late]) => {
                let way = &mut self.ways[server];
                (way.loss_ppm, way.repeat_ppm, way.late_ppm) = (loss, repeat, late);
            }
            Fault::Flips(server, ppm) => self.hosts[server].flip_ppm = ppm,
            Fault::StuckDisk(server, time) => self.hosts[server].stuck_until = now + time,
            Fault::Heal => {
                self.is_healed = true;
                for way in &mut self.ways {
                    (way.loss_ppm, way.repeat_ppm, way.late_ppm, way.cut_until) = (0, 0, 0, now);
                }
                for host in &mut self.hosts {
                    (host.up_at, host.frozen_until, host.stuck_until, host.flip_ppm) = (now, now, now, 0);
                }
                (self.disk_full_until, self.client_frozen_until) = (now, now);
                self.disk_delay = Duration::from_us(100);
            }
        }
    }

    /// The client's process ends; if it is killed, what it wrote last may not have lasted.
    fn end_run(&mut self, is_killed: bool) {
        if self.getter.take().is_none() {
            return;
        }
        self.run += 1;
        self.conns.clear();
        self.disk_queue.clear();
        if is_killed {
            for file in &mut self.disk {
                if let Some(last) = file.last.take().filter(|_| self.random.below(2) == 0) {
                    let left: Vec<ByteRange> = file
                        .have
                        .ranges()
                        .iter()
                        .flat_map(|r| {
                            let before = ByteRange { start: r.start, end: r.end.min(last.start) };
                            let after = ByteRange { start: r.start.max(last.end), end: r.end };
                            [before, after]
                        })
                        .filter(|r| r.start < r.end)
                        .collect();
                    file.have = RangeSet::from_ranges(left);
                }
            }
        }
        self.schedule.after(AGAIN, Event::Start);
    }

    /// The user runs the command, for all objects that are not there.
    fn start(&mut self) {
        let objects: Vec<usize> = (0..self.disk.len()).filter(|o| self.disk[*o].named.is_none()).collect();
        if objects.is_empty() || self.getter.is_some() {
            return;
        }
        self.schedule.say("start");
        let wanted = objects.iter().map(|object| self.wanted[*object].clone()).collect();
        let config = FetchConfig { client: self.config.clone(), streams: false };
        let servers = self.hosts.len();
        let fetch =
            Fetch::new(self.schedule.now(), config, servers as u32, wanted).expect("a good configuration");
        self.getter = Some(Getter {
            fetch,
            conns: vec![None; servers],
            objects,
            ended: BTreeSet::new(),
            broken: BTreeSet::new(),
        });
        let run = self.run;
        for server in 0..servers {
            self.schedule.after(self.ways[server].delay * 4, Event::Connected { run, server });
        }
    }

    fn connect(&mut self, server: usize) {
        let (run, now) = (self.run, self.schedule.now());
        if self.client_frozen_until > now {
            return self.schedule.at(self.client_frozen_until, Event::Connected { run, server });
        }
        if self.ways[server].cut_until > now || self.hosts[server].frozen_until > now {
            let (conn, reason) = (None, "no answer in 10 s");
            return self.schedule.after(CUT_MAX, Event::Lost { run, server, conn, reason });
        }
        if self.hosts[server].up_at > now {
            let (conn, reason) = (None, "it cannot be reached");
            return self.schedule.at(now, Event::Lost { run, server, conn, reason });
        }
        let conn = self.next_conn;
        self.next_conn += 1;
        let machine = Server::new(self.server_config());
        self.conns.insert(conn, Conn { server, machine, names: BTreeMap::new(), knows_where: false });
        let (rtt, block_bytes) = (self.ways[server].delay * 2, self.config.block_bytes);
        let Some(getter) = &mut self.getter else { return };
        getter.conns[server] = Some(conn);
        getter.fetch.handle_connected(now, ServerId(server as u32), Some(rtt), block_bytes);
    }

    /// Sends a message over a server's way: `to` is 0 for the server, 1 for the client.
    fn carry(&mut self, server: usize, to: usize, message: Message, make: impl Fn(Message) -> Event) {
        let way = &mut self.ways[server];
        if let Message::Control(_) = message {
            let at = (self.schedule.now().max(way.cut_until) + way.delay).max(way.last[to]);
            way.last[to] = at;
            return self.schedule.at(at, make(message));
        }
        let (delay, loss, late) = (way.delay, way.loss_ppm, way.late_ppm);
        if way.cut_until > self.schedule.now() {
            return;
        }
        let copies = 1 + u32::from(self.random.chance_ppm(self.ways[server].repeat_ppm));
        for _ in 0..copies {
            if !self.random.chance_ppm(loss) {
                let late = u64::from(self.random.chance_ppm(late));
                self.schedule.after(delay * (1 + late), make(message.clone()));
            }
        }
    }

    fn tell_client(&mut self, conn: u32, message: Control) {
        let Some(server) = self.conns.get(&conn).map(|conn| conn.server) else { return };
        let run = self.run;
        self.carry(server, 1, Message::Control(message), |message| Event::ToClient { run, conn, message });
    }

    /// What a server has of an object.
    fn found(&self, conn: u32, object: &str, with_hash: bool) -> Option<Result<Found, String>> {
        let bytes = self.hosts[self.conns.get(&conn)?.server].objects.get(object);
        Some(bytes.ok_or_else(|| format!("{object}: no such object")).map(|bytes| Found {
            bytes: bytes.len() as u64,
            mode: 0o600,
            modified_ns: 0,
            hash: with_hash.then(|| hash(bytes)),
        }))
    }

    fn on_server(&mut self, id: u32, message: Message) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let (server, now) = (conn.server, self.schedule.now());
        let frozen_until = self.hosts[server].frozen_until;
        if frozen_until > now {
            return self.schedule.at(frozen_until, Event::ToServer { conn: id, message });
        }
        match message {
            Message::Datagram(bytes) => {
                conn.knows_where = true;
                if let Ok(Datagram::<Bytes>::Feedback(feedback)) = Datagram::decode(&bytes) {
                    conn.machine.handle_feedback(now, &feedback);
                }
            }
            Message::Control(Control::Describe { object, with_hash: false }) => {
                let Some(found) = self.found(id, &object, false) else { return };
                self.tell_client(id, Control::Described { object, found });
            }
            Message::Control(Control::Describe { object, with_hash: true }) => {
                if self.hosts[server].stuck_until > now {
                    return;
                }
                let time = self.hosts[server].hashing;
                self.tell_client(id, Control::Hashing { object: object.clone(), hashed_bytes: 0 });
                self.schedule.after(time, Event::Hashed { conn: id, object });
            }
            Message::Control(message) => conn.machine.handle_control(now, message),
        }
    }

    /// Lets all servers do what they can do now.
    fn stir_servers(&mut self) {
        let now = self.schedule.now();
        let ids: Vec<u32> = self.conns.keys().copied().collect();
        for id in ids {
            let Some(conn) = self.conns.get_mut(&id) else { continue };
            let (server, host) = (conn.server, &self.hosts[conn.server]);
            if host.frozen_until > now {
                continue;
            }
            if conn.machine.poll_timeout().is_some_and(|at| at <= now) {
                conn.machine.handle_timeout(now);
            }
            while let Some(event) = conn.machine.poll_event() {
                if let ServerEvent::Asked { pull, object } = event {
                    match host.objects.get(&object) {
                        None => conn.machine.refuse(pull, format!("{object}: no such object")),
                        Some(bytes) => {
                            conn.names.insert(pull.0, object);
                            let offer = Offer { object_bytes: bytes.len() as u64, first_id: 0 };
                            conn.machine.offer(now, pull, offer);
                        }
                    }
                }
            }
            while let Some((pull, generation, range)) = conn.machine.poll_wanted() {
                let Some(length) = conn.machine.block_bytes(pull) else { continue };
                let stored = &host.objects[&conn.names[&pull.0]];
                let mut bytes = stored[range.start as usize..range.end as usize].to_vec();
                if !bytes.is_empty() && self.random.chance_ppm(host.flip_ppm) {
                    let at = self.random.below(bytes.len() as u64) as usize;
                    bytes[at] ^= 0x10;
                }
                let blocks = bytes.chunks(length as usize).map(Bytes::copy_from_slice).collect();
                conn.machine.supply(pull, generation, blocks);
            }
            let control: Vec<Control> = std::iter::from_fn(|| conn.machine.poll_control()).collect();
            let mut packets = Vec::new();
            while conn.knows_where
                && let Some(packet) = conn.machine.poll_transmit(now)
            {
                packets.push(packet);
            }
            control.into_iter().for_each(|message| self.tell_client(id, message));
            let run = self.run;
            for packet in packets {
                let mut bytes = Vec::new();
                Datagram::Packet(packet).encode(&mut bytes);
                let datagram = Message::Datagram(bytes);
                self.carry(server, 1, datagram, |message| Event::ToClient { run, conn: id, message });
            }
        }
    }

    /// Lets the client do what it can do now.
    fn stir_client(&mut self) {
        let (now, run) = (self.schedule.now(), self.run);
        if self.client_frozen_until > now {
            return;
        }
        let Some(getter) = &mut self.getter else { return };
        if getter.fetch.poll_timeout().is_some_and(|at| at <= now) {
            getter.fetch.handle_timeout(now);
        }
        let (mut out, mut replies, mut said) = (Vec::new(), Vec::new(), Vec::new());
        while let Some((server, feedback)) = getter.fetch.poll_transmit(now) {
            let mut bytes = Vec::new();
            Datagram::<Bytes>::Feedback(feedback).encode(&mut bytes);
            out.push((server, Message::Datagram(bytes)));
        }
        out.extend(
            std::iter::from_fn(|| getter.fetch.poll_show()).map(|s| (s, Message::Datagram(Vec::new()))),
        );
        out.extend(std::iter::from_fn(|| getter.fetch.poll_control()).map(|(s, m)| (s, Message::Control(m))));
        while let Some(event) = getter.fetch.poll_event() {
            match event {
                FetchEvent::Open { object, bytes } => replies.push(Reply::Open(object, bytes)),
                FetchEvent::Write { object, range, blocks } => {
                    let mut bytes = blocks.concat();
                    bytes.truncate((range.end - range.start) as usize);
                    replies.push(Reply::Write(object, range, bytes));
                }
                FetchEvent::Finish { object, hash, .. } => replies.push(Reply::Finish(object, hash)),
                FetchEvent::Verified { object } | FetchEvent::Failed { object, .. } => {
                    assert!(getter.ended.insert(object.0), "an object ends once");
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
            if let Some(conn) = conns[server] {
                self.carry(server, 0, message, |message| Event::ToServer { conn, message });
            }
        }
        for reply in replies {
            self.disk_queue.push_back(reply);
            self.schedule.after(self.disk_delay, Event::Disk { run });
        }
        if is_done {
            self.end_run(false);
        }
    }

    /// The client's disk does what it was told.
    fn on_disk(&mut self) {
        if self.defer_client(&Event::Disk { run: self.run }) {
            return;
        }
        let Some(reply) = self.disk_queue.pop_front() else { return };
        let (now, is_full) = (self.schedule.now(), self.disk_full_until > self.schedule.now());
        let Some(getter) = &mut self.getter else { return };
        let fetch = &mut getter.fetch;
        let file = |object: ObjectId| getter.objects[object.0 as usize];
        match reply {
            Reply::Open(object, bytes) => {
                let file = &mut self.disk[file(object)];
                if file.bytes.len() as u64 != bytes {
                    *file = File { bytes: vec![0; bytes as usize], ..File::default() };
                }
                let missing: Vec<Range<u64>> =
                    file.have.missing(bytes).into_iter().map(|r| r.start..r.end).collect();
                fetch.handle_opened(now, object, &missing);
            }
            Reply::Write(object, ..) | Reply::Finish(object, _) if getter.broken.contains(&object.0) => {}
            Reply::Write(object, ..) if is_full => {
                getter.broken.insert(object.0);
                fetch.handle_unwritable(now, object, "no room on the disk".to_owned());
            }
            Reply::Write(object, range, bytes) => {
                let file = &mut self.disk[file(object)];
                file.bytes[range.start as usize..range.end as usize].copy_from_slice(&bytes);
                let range = ByteRange { start: range.start, end: range.end };
                file.have.insert(range);
                file.last = Some(range);
            }
            Reply::Finish(object, expected) => {
                let number = file(object);
                let file = &mut self.disk[number];
                let length = file.bytes.len() as u64;
                assert!(file.have.missing(length).is_empty(), "all of it was written before it is finished");
                assert!(file.named.is_none(), "it is named once");
                if hash(&file.bytes) == expected {
                    let is_right = self.right[number].contains(&file.bytes);
                    assert!(is_right, "object {number} is a version that nobody has");
                    file.named = Some(file.bytes.clone());
                    fetch.handle_finished(now, object);
                } else {
                    (file.have, file.last) = (RangeSet::default(), None);
                    fetch.handle_mismatch(now, object);
                }
            }
        }
    }
}
