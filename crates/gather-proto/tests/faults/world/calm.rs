//! Worlds without random faults, for tests of one condition.

use super::{CHAOS, Event, Fault, World};
use crate::disk::{Disk, File};
use crate::network::ServerPath;
use crate::server::Host;
use anabranch_gather_proto::fetch::{ObjectPart, RequestedObject};
use anabranch_gather_proto::msg::Control;
use anabranch_gather_proto::{ClientConfig, ServerConfig, ServerId};
use anabranch_testing::faults::Schedule;
use anabranch_units::{Duration, Instant, RandomStream, Seed};
use std::collections::BTreeMap;

/// Length of a control message on its stream, in bytes.
pub(super) fn framed_bytes(message: &Control) -> usize {
    let mut bytes = Vec::new();
    message.encode_framed(&mut bytes);
    bytes.len()
}

impl World {
    /// A client and the servers behind the paths `ways`, without objects and faults.
    pub(super) fn of(
        seed: u64,
        random: RandomStream,
        ways: Vec<ServerPath>,
        config: ClientConfig,
        server_config: ServerConfig,
    ) -> Self {
        Self {
            random,
            random_of_turns: Seed::new(seed).stream("turns", 0),
            schedule: Schedule::new(),
            hosts: ways.iter().map(|_| Host::new(Duration::ZERO)).collect(),
            ways,
            conns: BTreeMap::new(),
            next_conn: 0,
            wanted: Vec::new(),
            right: Vec::new(),
            disk: Disk::new(),
            client_frozen_until: Instant::ZERO,
            client_ahead: Duration::ZERO,
            getter: None,
            run: 0,
            is_healed: false,
            is_gentle: true,
            config,
            server_config,
            knows_ways: true,
        }
    }

    /// A world with undescribed objects of these lengths in bytes at one server behind `way`,
    /// without faults. `knows_mtu` is whether the client knows the path's MTU.
    pub fn calm(seed: u64, way: ServerPath, lengths: &[u64], config: ClientConfig, knows_mtu: bool) -> Self {
        let random = Seed::new(seed).stream("faults", 0);
        let server_config = ServerConfig { give_up: Duration::from_secs(30), ..ServerConfig::default() };
        let mut world = Self::of(seed, random, vec![way], config, server_config);
        for (number, length) in lengths.iter().enumerate() {
            let content: Vec<u8> = (0..*length).map(|_| world.random.next_u64() as u8).collect();
            let name = format!("o{number}");
            world.hosts[0].put(&name, &content);
            let parts = vec![ObjectPart { name, bytes: None, hash: None, holders: vec![ServerId(0)] }];
            let (bytes, hash, attributes) = (None, None, None);
            world.wanted.push(RequestedObject { bytes, hash, attributes, may_be_there: false, parts });
            world.right.push(vec![content]);
            world.disk.files.push(File::default());
        }
        (world.is_healed, world.knows_ways) = (true, knows_mtu);
        world.schedule.at(Instant::ZERO, Event::Start);
        world
    }

    /// Freezes the server permanently at `at`. Returns the time until the client fails, from the
    /// freeze or from the arrival of the last control message: TCP delivers earlier ones after the
    /// freeze.
    pub fn fail_by_freezing(mut self, at: Duration) -> Duration {
        let at = Instant::ZERO + at;
        self.is_healed = false;
        self.schedule.at(at, Event::Fault(Fault::FreezeServer(0, CHAOS * 100)));
        while self.run == 0 {
            self.step();
        }
        assert!(!self.disk.has_all(), "it fails");
        self.schedule.now().saturating_since(at.max(self.ways[0].last_control_down()))
    }
}
