//! Functions for the fuzz targets `replicate_site` and `replicate_control` and the replay of their
//! corpora: one site of an attempt with peers that send arbitrary messages, and the commands of an
//! arbitrary controller.
//!
//! Leaves out: the syntax of messages, which has a target in `msg`.

use crate::control::{Attempt, Command, HopSettings, Priority, Report, Run, SiteProgram, TransferId};
use crate::plan::{FlowId, Planner, Request, Scheme};
use crate::program::{AttemptFacts, programs};
use crate::site::{Packet, Site};
use crate::symbol::CheckedSymbol;
use anabranch_endpoint::{Bytes, Len};
use anabranch_graph::builtin::builtin;
use anabranch_pieces::{ByteRange, GenerationHash};
use anabranch_units::BitRate;
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// Lengths of the file and of a symbol in bytes.
const LENGTH: u64 = 1_000;
const SYMBOL_BYTES: u32 = 16;
/// Maximum number of messages of one input.
const MESSAGES_MAX: usize = 2_000;

/// The programs of all sites of the butterfly, by several schemes, with and without filling groups.
static PROGRAMS: LazyLock<Vec<SiteProgram>> = LazyLock::new(|| {
    let topology = builtin("butterfly", BitRate::mbps(10)).expect("it is built in");
    let site = |name| topology.find_site(name).expect("it is a site of the butterfly");
    let to = [site("t1"), site("t2")];
    let planner = Planner::new(Request::new(&topology, site("s"), to)).expect("they can be reached");
    let attempted = AttemptFacts {
        run: Run { transfer: TransferId(1), attempt: Attempt(1) },
        length: LENGTH,
        snapshot: None,
        source_path: "file",
        path: &|_| "file".to_owned(),
        missing: &|_| vec![ByteRange { start: 0, end: LENGTH }],
        symbol_bytes: SYMBOL_BYTES,
        buffer_packets: 4,
        bandwidth_limit: None,
        submitter: Default::default(),
        hop: &|_| HopSettings { stripes: 1, congestion_control: None, priority: Priority::Bulk },
        address: &|_, _| String::new(),
    };
    let mut all = Vec::new();
    for scheme in [Scheme::Coded, Scheme::Packed, Scheme::SinglePath, Scheme::SteinerStoreAndForward] {
        let plan = planner.plan(scheme).expect("the butterfly has a plan of each").plan;
        let filled = planner.fill(&plan);
        all.extend(
            [plan, filled].iter().flat_map(|plan| programs(&topology, plan, &attempted).into_values()),
        );
    }
    all
});

/// Fuzz target: the first byte selects the site, and the rest determines the actions of its peers
/// and its driver, message by message. Returns true if the site refused no message.
///
/// Panics: if the site does, or if it uses more memory than its program allows.
#[doc(hidden)]
pub fn exercise(bytes: &[u8]) -> bool {
    let [which, rest @ ..] = bytes else { return false };
    let programs = &*PROGRAMS;
    let program = &programs[usize::from(*which >> 1) % programs.len()];
    match which % 2 {
        0 => drive::<Bytes>(program, rest, |length, fill| Bytes::from(vec![fill; length])),
        _ => drive::<Len>(program, rest, |length, _| Len(length)),
    }
}

/// Numbers of an input, zeros after its end.
struct InputNumbers<'a>(&'a [u8]);

impl InputNumbers<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }
    /// Returns a number: mostly small, sometimes near the maximum of the type.
    fn number(&mut self) -> u64 {
        match self.byte() {
            255 => u64::MAX - u64::from(self.byte()),
            254 => u64::from(self.byte()) << 8 | u64::from(self.byte()),
            small => small.into(),
        }
    }
}

fn drive<S: CheckedSymbol>(program: &SiteProgram, bytes: &[u8], symbol: impl Fn(usize, u8) -> S) -> bool {
    let mut site = Site::<S>::new(program).expect("the programs are our own");
    let mut shelves: BTreeMap<(FlowId, u64), Packet<S>> = BTreeMap::new();
    let mut is_any_refused = false;
    let mut drawn = InputNumbers(bytes);
    for _ in 0..MESSAGES_MAX {
        if drawn.0.is_empty() {
            break;
        }
        let act = drawn.byte();
        // One flow more than the site has, so that unknown flows occur.
        let flow = |drawn: &mut InputNumbers<'_>, of: &[FlowId]| {
            let at = usize::from(drawn.byte()) % (of.len() + 1);
            of.get(at).copied().unwrap_or(FlowId(99))
        };
        let incoming: Vec<FlowId> = program.incoming.iter().map(|incoming| incoming.flow).collect();
        let outgoing: Vec<FlowId> = program.outgoing.iter().map(|outgoing| outgoing.flow).collect();
        match act % 8 {
            0..=2 => {
                let (flow, generation) = (flow(&mut drawn, &incoming), drawn.number());
                let length = match act % 8 {
                    0 => SYMBOL_BYTES as usize,
                    1 => usize::from(drawn.byte()),
                    // The last chunk of the file is shorter.
                    _ => (LENGTH % u64::from(SYMBOL_BYTES)) as usize,
                };
                let symbol = symbol(length, act >> 3);
                let has_room = site.has_room(flow, generation);
                let packet = Packet { generation, hash: GenerationHash::default(), symbol };
                is_any_refused |= site.accept(flow, packet).is_err() && has_room;
            }
            3 => is_any_refused |= site.accept_end(flow(&mut drawn, &incoming), drawn.number()).is_err(),
            4 => is_any_refused |= site.confirm(flow(&mut drawn, &outgoing), drawn.number()).is_err(),
            5 => {
                for &flow in &outgoing {
                    drop(site.produce(flow));
                }
            }
            6 => {
                for (number, group) in program.groups.iter().enumerate() {
                    let Some(range) = site.wanted(number as u16) else { continue };
                    let is_coded = group.mode == crate::plan::Mode::Coded;
                    let streams = if is_coded { u64::from(group.streams) } else { 1 };
                    let flushed = group.flush > 0;
                    let length =
                        if flushed { u64::from(SYMBOL_BYTES) } else { range.len().div_ceil(streams) };
                    let symbols = (0..streams).map(|_| symbol(length as usize, act >> 3)).collect();
                    site.supply(number as u16, symbols, GenerationHash::default());
                }
            }
            _ => work(&mut site, &mut shelves),
        }
        let limit = program.memory_bytes();
        assert!(site.live_bytes() <= limit, "{} of {limit} bytes", site.live_bytes());
        assert!(site.verified_bytes() <= LENGTH);
    }
    work(&mut site, &mut shelves);
    !is_any_refused
}

/// Does the driver's work: computes, writes, stores and fetches.
fn work<S: CheckedSymbol>(site: &mut Site<S>, shelves: &mut BTreeMap<(FlowId, u64), Packet<S>>) {
    while let Some(work) = site.poll_work() {
        site.complete(work.run());
    }
    while let Some(write) = site.poll_write() {
        site.handle_written(write.sink, write.range);
    }
    while let Some(store) = site.poll_store() {
        shelves.insert((store.flow, store.index), store.packet);
        site.handle_stored(store.flow);
    }
    while let Some(fetch) = site.poll_fetch() {
        let packet = shelves[&(fetch.flow, fetch.index)].clone();
        site.fetched(fetch, packet);
    }
    while site.poll_event().is_some() {}
}

/// Fuzz target: reads `bytes` as a command of a controller and builds the machine for it. Returns
/// true if both steps succeeded.
pub fn control(bytes: &[u8]) -> bool {
    match serde_json::from_slice::<Command>(bytes) {
        Ok(Command::Install { program }) => program.memory_bytes() > 0 && Site::<Len>::new(&program).is_ok(),
        Ok(_) => true,
        Err(_) => serde_json::from_slice::<Report>(bytes).is_ok(),
    }
}
