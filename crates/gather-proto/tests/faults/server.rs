//! A server: its process, its disk with its versions of the objects, and its connections.

use super::disk::{flip, hash};
use anabranch_endpoint::Bytes;
use anabranch_gather_proto::msg::{Control, Datagram, ObjectDescription, PullId, SHORT_BYTES_MAX};
use anabranch_gather_proto::{Offer, Server, ServerConfig, ServerEvent};
use anabranch_units::{Duration, Instant, RandomStream};
use std::collections::BTreeMap;
use std::ops::Range;

/// A server's process and disk.
#[derive(Debug)]
pub struct Host {
    pub up_at: Instant,
    pub frozen_until: Instant,
    /// Time by which the server's clock is ahead of the world's clock.
    pub ahead: Duration,
    pub objects: BTreeMap<String, Vec<u8>>,
    /// The objects before any fault, which a repair restores.
    originals: BTreeMap<String, Vec<u8>>,
    pub flip_ppm: u32,
    pub hashing: Duration,
    /// Time to read a generation's blocks.
    pub reading: Duration,
    /// End of a period in which the server does not hash. Requests for hashes in this period are
    /// never answered.
    pub stuck_until: Instant,
}

impl Host {
    pub fn new(hashing: Duration) -> Self {
        let (up_at, frozen_until, stuck_until) = (Instant::ZERO, Instant::ZERO, Instant::ZERO);
        let (objects, originals) = (BTreeMap::new(), BTreeMap::new());
        let (ahead, reading) = (Duration::ZERO, Duration::ZERO);
        Self { up_at, frozen_until, ahead, objects, originals, flip_ppm: 0, hashing, reading, stuck_until }
    }

    pub fn put(&mut self, name: &str, bytes: &[u8]) {
        self.objects.insert(name.to_owned(), bytes.to_vec());
        self.originals.insert(name.to_owned(), bytes.to_vec());
    }

    /// Replaces or removes an object's file at random. Returns the object's name and its new
    /// content; `None` for a removed file.
    pub fn replace(&mut self, random: &mut RandomStream) -> Option<(String, Option<Vec<u8>>)> {
        let names: Vec<String> = self.originals.keys().cloned().collect();
        let name = names.get(random.below(names.len().max(1) as u64) as usize)?.clone();
        let mut bytes = self.originals[&name].clone();
        match random.below(4) {
            0 => {
                self.objects.remove(&name);
                return Some((name, None));
            }
            1 => bytes.push(1),
            2 => bytes.truncate(bytes.len() / 2),
            _ => flip(random, &mut bytes),
        }
        self.objects.insert(name.clone(), bytes.clone());
        Some((name, Some(bytes)))
    }

    pub fn heal(&mut self, now: Instant) {
        (self.up_at, self.frozen_until, self.stuck_until) = (now, now, now);
        (self.flip_ppm, self.reading) = (0, Duration::ZERO);
        self.objects = self.originals.clone();
    }

    /// The server's answer to a request for an object's description.
    pub fn found(&self, name: &str, with_hash: bool) -> Result<ObjectDescription, String> {
        let bytes = self.objects.get(name).ok_or_else(|| format!("{name}: no such object"))?;
        let hash = with_hash.then(|| hash(bytes));
        Ok(ObjectDescription { bytes: bytes.len() as u64, mode: 0o600, modified_ns: 0, hash })
    }

    /// Content of a short object as the disk reads it at present, possibly with a flipped bit.
    pub fn short(&self, random: &mut RandomStream, name: &str) -> Option<Bytes> {
        let length = self.objects.get(name)?.len();
        if length > SHORT_BYTES_MAX {
            return None;
        }
        self.read(random, name, 0..length as u64).map(Bytes::from)
    }

    fn read(&self, random: &mut RandomStream, name: &str, range: Range<u64>) -> Option<Vec<u8>> {
        let mut bytes = self.objects.get(name)?.get(range.start as usize..range.end as usize)?.to_vec();
        if random.chance_ppm(self.flip_ppm) {
            flip(random, &mut bytes);
        }
        Some(bytes)
    }
}

/// Blocks that were read from the disk for a pull.
#[derive(Clone, Debug)]
pub struct Supply {
    pub pull: PullId,
    pub generation: u32,
    pub blocks: Vec<Bytes>,
}

/// A connection at its server.
#[derive(Debug)]
pub struct Conn {
    pub server: usize,
    pub machine: Server<Bytes>,
    /// Name of each pull's object.
    names: BTreeMap<PullId, String>,
    /// Whether the client has shown its address for packets.
    pub knows_where: bool,
    /// Start of the current period without pulls and without faults that excuse their absence.
    pub unpulled_at: Option<Instant>,
}

impl Conn {
    pub const fn new(server: usize, config: ServerConfig) -> Self {
        let machine = Server::new(config);
        Self { server, machine, names: BTreeMap::new(), knows_where: false, unpulled_at: None }
    }

    /// Does all work that is possible by the server's clock. Returns control messages, datagrams,
    /// and blocks read from the disk.
    pub fn work(
        &mut self,
        now: Instant,
        host: &Host,
        random: &mut RandomStream,
    ) -> (Vec<Control>, Vec<Datagram<Bytes>>, Vec<Supply>) {
        let machine = &mut self.machine;
        if machine.poll_timeout().is_some_and(|at| at <= now) {
            machine.handle_timeout(now);
        }
        while let Some(event) = machine.poll_event() {
            assert!(!matches!(event, ServerEvent::FalseReceipt { .. }), "an honest client: {event:?}");
            if let ServerEvent::Asked { pull, object } = event {
                match host.objects.get(&object) {
                    None => machine.refuse(pull, format!("{object}: no such object")),
                    Some(bytes) => {
                        let drawn = random.next_u64();
                        let (first_id, secret) = (drawn as u32, drawn);
                        machine.offer(
                            now,
                            pull,
                            Offer { object_bytes: bytes.len() as u64, first_id, secret },
                        );
                        self.names.insert(pull, object);
                    }
                }
            }
        }
        let mut late = Vec::new();
        while let Some((pull, generation, range)) = machine.poll_wanted() {
            let Some(length) = machine.block_bytes(pull) else { continue };
            let Some(bytes) = host.read(random, &self.names[&pull], range) else {
                machine.fail(pull, "the object has become shorter".to_owned());
                continue;
            };
            let blocks = bytes.chunks(length as usize).map(Bytes::copy_from_slice).collect();
            if host.reading > Duration::ZERO {
                late.push(Supply { pull, generation, blocks });
            } else {
                machine.supply(pull, generation, blocks);
            }
        }
        let said = std::iter::from_fn(|| machine.poll_control()).collect();
        let send = || {
            let unsaid = machine.poll_unsaid().map(Datagram::Accepted);
            unsaid.or_else(|| machine.poll_transmit(now).map(Datagram::Packet))
        };
        let sent = if self.knows_where { std::iter::from_fn(send).collect() } else { Vec::new() };
        (said, sent, late)
    }
}
