//! Whole attempts between machines in memory, in random order.

use super::*;
use crate::control::{
    Attempt, GroupProgram, HopSettings, IncomingSpec as Arriving, OutgoingSpec, Priority, Run, SinkProgram,
    SiteProgram, TransferId,
};
use crate::plan::{DecodeMap, Input, Term};
use anabranch_endpoint::Bytes;
use anabranch_pieces::ByteRange;
use anabranch_units::{LinkId, RandomStream, Seed, SiteId};
use proptest::prelude::*;

/// A flow of a hand-made plan: its sender, receiver and terms.
struct HandFlow {
    from: u16,
    to: u16,
    terms: Vec<Term>,
}

/// A hand-made plan with one group.
struct HandPlan {
    mode: Mode,
    streams: u16,
    flush: u16,
    flows: Vec<HandFlow>,
    sinks: Vec<(u16, Vec<u32>, Option<DecodeMap>)>,
    fill: Vec<HandFill>,
}

/// A second group, which fills the first group.
struct HandFill {
    streams: u16,
    /// Flows of the filling group, numbered after the flows of the previous groups.
    flows: Vec<HandFlow>,
    sinks: Vec<(u16, Vec<u32>)>,
}

impl HandPlan {
    fn filled_by(mut self, streams: u16, flows: Vec<HandFlow>, sinks: &[(u16, &[u32])]) -> Self {
        let sinks = sinks.iter().map(|(site, inputs)| (*site, inputs.to_vec())).collect();
        self.fill.push(HandFill { streams, flows, sinks });
        self
    }
    /// All flows with their groups.
    fn all_flows(&self) -> Vec<(FlowId, u16, &HandFlow)> {
        let fill = (1..).zip(&self.fill).flat_map(|(group, fill)| fill.flows.iter().map(move |f| (group, f)));
        let both = self.flows.iter().map(|f| (0, f)).chain(fill).enumerate();
        both.map(|(i, (group, f))| (FlowId(i as u32), group, f)).collect()
    }
    /// All sinks with their groups.
    fn all_sinks(&self) -> Vec<(u16, u16, &Vec<u32>, Option<DecodeMap>)> {
        let fill = (1..).zip(&self.fill);
        let fill = fill.flat_map(|(group, f)| f.sinks.iter().map(move |(at, i)| (group, *at, i, None)));
        self.sinks.iter().map(|(site, inputs, d)| (0, *site, inputs, d.clone())).chain(fill).collect()
    }
}

/// The butterfly network's plan, with one tree of filler flows to both destinations.
fn filled_butterfly() -> HandPlan {
    let tree = vec![
        hand_flow(0, 1, &[stream(0)]),
        hand_flow(1, 5, &[flow(9)]),
        hand_flow(0, 2, &[stream(0)]),
        hand_flow(2, 6, &[flow(11)]),
    ];
    butterfly().filled_by(1, tree, &[(5, &[10]), (6, &[12])])
}

/// The butterfly network's plan, with filler flows only to destination 5.
fn half_filled_butterfly() -> HandPlan {
    let path = vec![hand_flow(0, 1, &[stream(0)]), hand_flow(1, 5, &[flow(9)])];
    butterfly().filled_by(1, path, &[(5, &[10])])
}

/// The butterfly network's plan, with a separate path of filler flows to each destination.
fn twice_filled_butterfly() -> HandPlan {
    let path = vec![hand_flow(0, 2, &[stream(0)]), hand_flow(2, 6, &[flow(11)])];
    half_filled_butterfly().filled_by(1, path, &[(6, &[12])])
}

/// A plan of two trees, with two trees of filler flows.
fn filled_trees() -> HandPlan {
    let trees = vec![
        hand_flow(0, 1, &[stream(0)]),
        hand_flow(1, 2, &[flow(4)]),
        hand_flow(0, 2, &[stream(1)]),
        hand_flow(2, 1, &[flow(6)]),
    ];
    two_trees().filled_by(2, trees, &[(1, &[4, 7]), (2, &[5, 6])])
}

/// The code on a cycle, filled by a path through both sites.
fn filled_cycle() -> HandPlan {
    let path = vec![hand_flow(0, 1, &[stream(0)]), hand_flow(1, 2, &[flow(4)])];
    cycle().filled_by(1, path, &[(1, &[4]), (2, &[5])])
}

fn stream(n: u16) -> Term {
    Term { input: Input::Stream(n), coefficient: 1, delayed: false }
}
fn flow(n: u32) -> Term {
    Term { input: Input::Flow(FlowId(n)), coefficient: 1, delayed: false }
}
fn hand_flow(from: u16, to: u16, terms: &[Term]) -> HandFlow {
    HandFlow { from, to, terms: terms.to_vec() }
}

/// The butterfly: 0 sends A through 1 and B through 2, 3 adds them, and 5 and 6 need both streams.
fn butterfly() -> HandPlan {
    let decode = |rows: [[u8; 2]; 2]| {
        Some(DecodeMap { lookahead: 0, state: 0, output: rows.map(|r| r.to_vec()).to_vec(), next: vec![] })
    };
    HandPlan {
        mode: Mode::Coded,
        streams: 2,
        flush: 0,
        flows: vec![
            hand_flow(0, 1, &[stream(0)]),
            hand_flow(0, 2, &[stream(1)]),
            hand_flow(1, 5, &[flow(0)]),
            hand_flow(1, 3, &[flow(0)]),
            hand_flow(2, 3, &[flow(1)]),
            hand_flow(2, 6, &[flow(1)]),
            hand_flow(3, 4, &[flow(3), flow(4)]),
            hand_flow(4, 5, &[flow(6)]),
            hand_flow(4, 6, &[flow(6)]),
        ],
        sinks: vec![(5, vec![2, 7], decode([[1, 0], [1, 1]])), (6, vec![5, 8], decode([[1, 1], [1, 0]]))],
        fill: vec![],
    }
}

/// Two trees from 0: one to 1 and on to 2, the other to 2 and on to 1.
fn two_trees() -> HandPlan {
    HandPlan {
        mode: Mode::Routed,
        streams: 2,
        flush: 0,
        flows: vec![
            hand_flow(0, 1, &[stream(0)]),
            hand_flow(1, 2, &[flow(0)]),
            hand_flow(0, 2, &[stream(1)]),
            hand_flow(2, 1, &[flow(2)]),
        ],
        sinks: vec![(1, vec![0, 3], None), (2, vec![1, 2], None)],
        fill: vec![],
    }
}

/// Two trees of different depth: one is a chain over all sites, the other branches at the source's
/// first relay. Site 1 relays the first tree and also feeds a branch.
fn deep_trees() -> HandPlan {
    HandPlan {
        mode: Mode::Routed,
        streams: 2,
        flush: 0,
        flows: vec![
            hand_flow(0, 1, &[stream(0)]),
            hand_flow(1, 2, &[flow(0)]),
            hand_flow(1, 4, &[flow(0)]),
            hand_flow(2, 3, &[flow(1)]),
            hand_flow(0, 4, &[stream(1)]),
            hand_flow(4, 3, &[flow(4)]),
            hand_flow(4, 2, &[flow(4)]),
        ],
        sinks: vec![(2, vec![1, 6], None), (3, vec![3, 5], None), (4, vec![2, 4], None)],
        fill: vec![],
    }
}

/// A code on a cycle: sites 1 and 2 each add the other's data of the previous generation. The
/// decoder is Massey and Sain's, derived by hand.
///
/// Flow 2 (1 to 2) carries a(g) + f3(g-1), flow 3 (2 to 1) carries b(g) + f2(g). Site 1 needs both
/// streams and receives a(g) and f3(g) = b(g) + a(g) + f3(g-1), so b(g) = f3(g) - a(g) - s with s =
/// f3(g-1) as its state. Site 2 receives b(g) and f2(g) = a(g) + f3(g-1), where f3(g-1) = b(g-1) +
/// f2(g-1) is its state.
fn cycle() -> HandPlan {
    let decoder = |output: [[u8; 3]; 2], next: [u8; 3]| {
        Some(DecodeMap {
            lookahead: 0,
            state: 1,
            output: output.map(|r| r.to_vec()).to_vec(),
            next: vec![next.to_vec()],
        })
    };
    let delayed = |n| Term { delayed: true, ..flow(n) };
    HandPlan {
        mode: Mode::Coded,
        streams: 2,
        flush: 2,
        flows: vec![
            hand_flow(0, 1, &[stream(0)]),
            hand_flow(0, 2, &[stream(1)]),
            hand_flow(1, 2, &[flow(0), delayed(3)]),
            hand_flow(2, 1, &[flow(1), flow(2)]),
        ],
        // state f3(g) = b(g) + a(g) + f3(g-1), at both sites.
        sinks: vec![
            (1, vec![0, 3], decoder([[1, 0, 0], [1, 1, 1]], [1, 1, 1])),
            (2, vec![1, 2], decoder([[0, 1, 1], [1, 0, 0]], [1, 1, 1])),
        ],
        fill: vec![],
    }
}

fn programs(
    hand: &HandPlan,
    work: &[ByteRange],
    length: u64,
    symbol_bytes: u32,
    buffer: u16,
) -> Vec<SiteProgram> {
    let sites = 1 + hand.flows.iter().map(|f| f.from.max(f.to)).max().expect("a plan has flows");
    let run = Run { transfer: TransferId(1), attempt: Attempt(1) };
    let first = GroupProgram {
        streams: hand.streams,
        ceilings: vec![],
        mode: hand.mode,
        work: work.to_vec(),
        flush: hand.flush,
        fills: None,
        filled: hand.fill.iter().map(|f| f.sinks.len()).sum::<usize>() == hand.sinks.len(),
    };
    let fill = hand.fill.iter().map(|f| GroupProgram {
        streams: f.streams,
        mode: Mode::Routed,
        flush: 0,
        fills: Some(0),
        filled: false,
        ..first.clone()
    });
    let groups: Vec<GroupProgram> = [first.clone()].into_iter().chain(fill).collect();
    let priority = |group: u16| if group == 0 { Priority::Bulk } else { Priority::Fill };
    let numbered = || hand.all_flows().into_iter();
    (0..sites)
        .map(|site| SiteProgram {
            run,
            site: SiteId(site),
            length,
            snapshot: None,
            symbol_bytes,
            buffer_packets: buffer,
            groups: groups.clone(),
            source_path: (site == 0).then(|| "file".into()),
            incoming: numbered()
                .filter(|(_, _, f)| f.to == site)
                .map(|(flow, group, f)| Arriving {
                    flow,
                    group,
                    from: SiteId(f.from),
                    from_name: f.from.to_string(),
                    link: LinkId(flow.0),
                    stripes: 1,
                })
                .collect(),
            outgoing: numbered()
                .filter(|(_, _, f)| f.from == site)
                .map(|(flow, group, f)| OutgoingSpec {
                    flow,
                    group,
                    to: SiteId(f.to),
                    to_name: f.to.to_string(),
                    link: LinkId(flow.0),
                    address: String::new(),
                    terms: f.terms.clone(),
                    hop: HopSettings { stripes: 1, congestion_control: None, priority: priority(group) },
                    padding_bytes: 0,
                })
                .collect(),
            sinks: hand
                .all_sinks()
                .into_iter()
                .filter(|(_, at, ..)| *at == site)
                .map(|(group, _, inputs, decode)| SinkProgram {
                    group,
                    inputs: inputs.iter().map(|i| FlowId(*i)).collect(),
                    decode,
                    path: "copy".into(),
                })
                .collect(),
            store_and_forward: false,
            bandwidth_limit: None,
            submitter: Default::default(),
        })
        .collect()
}

/// Result of a run in memory.
struct Outcome {
    copies: Vec<Option<Vec<u8>>>,
    corrupt: usize,
    live_bytes_max: Vec<u64>,
    /// Number of packets that each flow has sent.
    sent: BTreeMap<FlowId, u64>,
}

/// Pace of a flow: it may move in `quarters` of four draws, and stops after `packets` packets.
#[derive(Copy, Clone, Debug)]
struct FlowPace {
    quarters: u64,
    packets: u64,
}

const ALWAYS: FlowPace = FlowPace { quarters: 4, packets: u64::MAX };

type Wire = VecDeque<Frame<Bytes>>;

/// Runs all machines in random steps until none of them can continue.
fn run(
    programs: &[SiteProgram],
    file: &[u8],
    random: &mut RandomStream,
    spoil: impl FnMut(FlowId, &mut Packet<Bytes>),
) -> Outcome {
    run_at(programs, file, random, |_| ALWAYS, spoil)
}

/// Runs the programs as [`run`] does, with a pace for each flow.
fn run_at(
    programs: &[SiteProgram],
    file: &[u8],
    random: &mut RandomStream,
    pace: impl Fn(FlowId) -> FlowPace,
    mut spoil: impl FnMut(FlowId, &mut Packet<Bytes>),
) -> Outcome {
    let fills = |flow: FlowId| {
        let flows = programs.iter().flat_map(|p| p.outgoing.iter().map(move |o| (p, o)));
        let (program, o) = flows.into_iter().find(|(_, o)| o.flow == flow).expect("a flow of the plan");
        program.groups[usize::from(o.group)].fills.is_some()
    };
    let mut sent: BTreeMap<FlowId, u64> = BTreeMap::new();
    let mut sites: Vec<Site<Bytes>> =
        programs.iter().map(|p| Site::new(p).expect("a good program")).collect();
    let mut wires: BTreeMap<FlowId, (usize, usize, Wire)> = BTreeMap::new();
    for (from, p) in programs.iter().enumerate() {
        for o in &p.outgoing {
            wires.insert(o.flow, (from, o.to.index(), Wire::new()));
        }
    }
    let mut shelves: BTreeMap<(usize, FlowId, u64), Packet<Bytes>> = BTreeMap::new();
    let mut storing: Vec<Vec<Store<Bytes>>> = programs.iter().map(|_| vec![]).collect();
    let mut fetching: Vec<Vec<Fetch>> = programs.iter().map(|_| vec![]).collect();
    let mut working: Vec<Vec<WorkResult<Bytes>>> = programs.iter().map(|_| vec![]).collect();
    let mut writing: Vec<Vec<Write<Bytes>>> = programs.iter().map(|_| vec![]).collect();
    let mut copies: Vec<_> =
        programs.iter().map(|p| (!p.sinks.is_empty()).then(|| vec![0u8; file.len()])).collect();
    let (mut corrupt, mut sinks_done) = (0, 0);
    let mut live_bytes_max = vec![0; sites.len()];
    loop {
        let mut moved = false;
        let mut order: Vec<usize> = (0..sites.len()).collect();
        random.shuffle(&mut order);
        for at in order {
            let site = &mut sites[at];
            for group in 0..programs[at].groups.len() as u16 {
                if let Some(range) = site.wanted(group) {
                    let bytes = &file[range.start as usize..range.end as usize];
                    let mode = programs[at].groups[usize::from(group)].mode;
                    let program = &programs[at].groups[usize::from(group)];
                    let parts = if mode == Mode::Coded { usize::from(program.streams) } else { 1 };
                    let size = if program.flush > 0 {
                        programs[at].symbol_bytes as usize
                    } else {
                        bytes.len().div_ceil(parts)
                    };
                    let symbols: Vec<Bytes> = (0..parts)
                        .map(|i| {
                            let mut s = bytes[(i * size).min(bytes.len())..((i + 1) * size).min(bytes.len())]
                                .to_vec();
                            s.resize(size, 0);
                            s.into()
                        })
                        .collect();
                    let hash = Bytes::hash_piece(&[Bytes::copy_from_slice(bytes)], range).hash;
                    site.supply(group, symbols, hash);
                    moved = true;
                }
            }
            while let Some(work) = site.poll_work() {
                working[at].push(work.run());
                moved = true;
            }
            while !working[at].is_empty() && random.below(3) > 0 {
                let pick = random.below(working[at].len() as u64) as usize;
                site.complete(working[at].swap_remove(pick));
                moved = true;
            }
            moved |= !working[at].is_empty();
            while let Some(write) = site.poll_write() {
                writing[at].push(write);
            }
            moved |= !writing[at].is_empty();
            if !writing[at].is_empty() && random.below(2) > 0 {
                let pick = random.below(writing[at].len() as u64) as usize;
                let write = writing[at].swap_remove(pick);
                let bytes: Vec<u8> = write.parts.iter().flat_map(|p| p.iter().copied()).collect();
                let copy = copies[at].as_mut().expect("only sinks write");
                copy[write.range.start as usize..write.range.end as usize]
                    .copy_from_slice(&bytes[..write.range.len() as usize]);
                site.handle_written(write.sink, write.range);
            }
            while let Some(store) = site.poll_store() {
                storing[at].push(store);
            }
            while let Some(fetch) = site.poll_fetch() {
                fetching[at].push(fetch);
            }
            moved |= !storing[at].is_empty() || !fetching[at].is_empty();
            if !storing[at].is_empty() && random.below(2) > 0 {
                let pick = random.below(storing[at].len() as u64) as usize;
                let Store { flow, index, packet } = storing[at].swap_remove(pick);
                assert!(shelves.insert((at, flow, index), packet).is_none(), "a packet is stored once");
                site.handle_stored(flow);
            }
            if !fetching[at].is_empty() && random.below(2) > 0 {
                let pick = random.below(fetching[at].len() as u64) as usize;
                let fetch = fetching[at].swap_remove(pick);
                let packet = shelves[&(at, fetch.flow, fetch.index)].clone();
                site.fetched(fetch, packet);
            }
            while let Some(event) = site.poll_event() {
                match event {
                    Event::Corrupt { .. } => corrupt += 1,
                    Event::SinkDone { .. } => sinks_done += 1,
                    Event::SourceDone { .. } => {}
                }
            }
            let live = site.live_bytes();
            live_bytes_max[at] = live_bytes_max[at].max(live);
        }
        for (flow, (from, to, wire)) in &mut wires {
            let pace = pace(*flow);
            let sent = sent.entry(*flow).or_default();
            let confirmed = sites[*to].confirmed(*flow);
            if fills(*flow) && random.below(4) < pace.quarters {
                sites[*from].confirm(*flow, confirmed).expect("no more than was sent");
            }
            if *sent >= pace.packets {
                continue;
            }
            if random.below(4) >= pace.quarters {
                let may = match wire.front() {
                    Some(Frame::Data(packet)) => sites[*to].has_room(*flow, packet.generation),
                    Some(Frame::End { .. }) => true,
                    None => sites[*from].can_produce(*flow),
                };
                moved |= may;
                continue;
            }
            // A connection holds one frame: the smallest possible socket buffer.
            if wire.is_empty()
                && random.below(3) > 0
                && let Some(mut frame) = sites[*from].produce(*flow)
            {
                if let Frame::Data(packet) = &mut frame {
                    let program = &programs[*from];
                    let out = program.outgoing.iter().find(|o| o.flow == *flow).expect("it leaves here");
                    for term in out.terms.iter().filter(|_| program.store_and_forward && !fills(*flow)) {
                        if let Input::Flow(input) = term.input {
                            assert!(sites[*from].has_ended(input), "all is stored before it is passed on");
                        }
                    }
                    *sent += 1;
                    spoil(*flow, packet);
                }
                wire.push_back(frame);
                moved = true;
            } else {
                moved |= sites[*from].can_produce(*flow) && wire.is_empty();
            }
            match wire.pop_front() {
                Some(Frame::Data(packet)) => match sites[*to].accept(*flow, packet) {
                    Ok(()) => moved = true,
                    Err(AcceptError::Full(packet)) => wire.push_front(Frame::Data(packet)),
                    Err(error) => panic!("flow {flow:?}: {error}"),
                },
                Some(Frame::End { packets }) => {
                    sites[*to]
                        .accept_end(*flow, packets)
                        .unwrap_or_else(|e| panic!("end of flow {flow:?}: {e}"));
                    moved = true;
                }
                None => {}
            }
        }
        if !moved {
            break;
        }
    }
    let sinks: usize = programs.iter().map(|p| p.sinks.len()).sum();
    assert_eq!(sinks_done, sinks, "every sink ends: no deadlock");
    if wires.keys().all(|flow| pace(*flow).packets == u64::MAX) {
        assert!(sites.iter().all(Site::is_sent), "every flow ends");
    }
    Outcome { copies, corrupt, live_bytes_max, sent }
}

fn file(length: usize) -> Vec<u8> {
    let mut random = Seed::new(5).stream("file", length as u64);
    (0..length).map(|_| random.next_u64() as u8).collect()
}

/// Checks that every copy equals the file, no data arrived wrong, and no site exceeded its
/// program's bound.
fn all_whole(programs: &[SiteProgram], file: &[u8], outcome: &Outcome) -> Result<(), TestCaseError> {
    prop_assert_eq!(outcome.corrupt, 0);
    for copy in outcome.copies.iter().flatten() {
        prop_assert_eq!(copy, file);
    }
    for (program, live) in programs.iter().zip(&outcome.live_bytes_max) {
        prop_assert!(*live <= program.memory_bytes());
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn destinations_receive_the_file_at_any_order_and_buffers(
        seed: u64, length in 1usize..4000, symbol_bytes in 1u32..300, buffer in 1u16..4, which in 0usize..4,
    ) {
        let hand = [butterfly, two_trees, deep_trees, cycle][which]();
        let file = file(length);
        let work = [ByteRange { start: 0, end: length as u64 }];
        let programs = programs(&hand, &work, length as u64, symbol_bytes, buffer);
        let outcome = run(&programs, &file, &mut Seed::new(seed).stream("order", 0), |_, _| {});
        all_whole(&programs, &file, &outcome)?;
    }

    #[test]
    fn stored_then_forwarded_data_arrives_whole(
        seed: u64, length in 1usize..4000, symbol_bytes in 1u32..300, buffer in 1u16..4, which in 0usize..3,
    ) {
        let hand = [two_trees, deep_trees, filled_trees][which]();
        let file = file(length);
        let work = [ByteRange { start: 0, end: length as u64 }];
        let mut programs = programs(&hand, &work, length as u64, symbol_bytes, buffer);
        programs.iter_mut().for_each(|p| p.store_and_forward = true);
        let outcome = run(&programs, &file, &mut Seed::new(seed).stream("order", 0), |_, _| {});
        all_whole(&programs, &file, &outcome)?;
    }

    #[test]
    fn filling_flows_of_any_pace_leave_the_file_intact(
        seed: u64, length in 1usize..4000, symbol_bytes in 1u32..300, buffer in 1u16..4, which in 0usize..5,
        paces in proptest::collection::vec((0u64..5, prop_oneof![0u64..20, Just(u64::MAX)]), 4),
    ) {
        let hand = [filled_butterfly, half_filled_butterfly, twice_filled_butterfly, filled_trees, filled_cycle];
        let hand = hand[which]();
        let file = file(length);
        let work = [ByteRange { start: 0, end: length as u64 }];
        let programs = programs(&hand, &work, length as u64, symbol_bytes, buffer);
        let first = hand.flows.len();
        let pace = |flow: FlowId| flow.index().checked_sub(first).map_or(ALWAYS, |i| {
            let (quarters, packets) = paces[i];
            FlowPace { quarters, packets: if quarters == 0 { 0 } else { packets } }
        });
        let outcome = run_at(&programs, &file, &mut Seed::new(seed).stream("order", 0), pace, |_, _| {});
        all_whole(&programs, &file, &outcome)?;
    }

    #[test]
    fn corrupt_fill_is_repaired_by_the_filled_group(
        seed: u64, which in 0usize..3, at in 0u64..3,
    ) {
        let (hand, spoiled) =
            [(filled_butterfly(), 9), (filled_trees(), 4), (filled_cycle(), 4)].into_iter().nth(which).expect("three");
        let file = file(4000);
        let work = [ByteRange { start: 0, end: 1500 }, ByteRange { start: 1600, end: 4000 }];
        let programs = programs(&hand, &work, 4000, 64, 2);
        // A filling group sends the last chunks first.
        let mut seen = 0;
        let outcome = run(&programs, &file, &mut Seed::new(seed).stream("order", 0), |flow, packet| {
            if flow == FlowId(spoiled) {
                if seen == at {
                    let mut bytes = packet.symbol.to_vec();
                    bytes[0] ^= 1;
                    packet.symbol = bytes.into();
                }
                seen += 1;
            }
        });
        prop_assert!(outcome.corrupt >= usize::from(seen > at));
        for copy in outcome.copies.iter().flatten() {
            prop_assert_eq!(&copy[..1500], &file[..1500]);
            prop_assert_eq!(&copy[1600..], &file[1600..]);
            prop_assert!(copy[1500..1600].iter().all(|b| *b == 0));
        }
    }

    #[test]
    fn only_missing_ranges_are_sent(seed: u64, which in 0usize..3) {
        let hand = [butterfly, two_trees, cycle][which]();
        let file = file(2000);
        let work = [ByteRange { start: 100, end: 350 }, ByteRange { start: 1990, end: 2000 }];
        let programs = programs(&hand, &work, 2000, 64, 2);
        let outcome = run(&programs, &file, &mut Seed::new(seed).stream("order", 0), |_, _| {});
        for copy in outcome.copies.iter().flatten() {
            for (at, byte) in copy.iter().enumerate() {
                let wanted = work.iter().any(|r| (r.start..r.end).contains(&(at as u64)));
                prop_assert_eq!(*byte, if wanted { file[at] } else { 0 });
            }
        }
    }

    #[test]
    fn flipped_bit_is_found_and_never_written(seed: u64, at in 0u64..10) {
        let file = file(10 * 2 * 64);
        let work = [ByteRange { start: 0, end: file.len() as u64 }];
        let programs = programs(&butterfly(), &work, file.len() as u64, 64, 2);
        // Flow 6 is the sum that both destinations need to decode.
        let outcome = run(&programs, &file, &mut Seed::new(seed).stream("order", 0), |flow, packet| {
            if flow == FlowId(6) && packet.generation == at {
                let mut bytes = packet.symbol.to_vec();
                bytes[7] ^= 0x10;
                packet.symbol = bytes.into();
            }
        });
        prop_assert_eq!(outcome.corrupt, 2, "both destinations notice");
        for copy in outcome.copies.iter().flatten() {
            let damaged = at as usize * 128..(at as usize + 1) * 128;
            prop_assert_eq!(&copy[..damaged.start], &file[..damaged.start]);
            prop_assert!(copy[damaged.clone()].iter().all(|b| *b == 0), "nothing of it was written");
            prop_assert_eq!(&copy[damaged.end..], &file[damaged.end..]);
        }
    }
}

#[test]
fn filled_group_ends_where_it_meets_the_fill() {
    let hands =
        [(filled_butterfly(), 2), (twice_filled_butterfly(), 2), (filled_trees(), 1), (filled_cycle(), 2)];
    for (hand, per_generation) in hands {
        let file = file(64 * 200);
        let work = [ByteRange { start: 0, end: file.len() as u64 }];
        let programs = programs(&hand, &work, file.len() as u64, 64, 2);
        let first = hand.flows.len();
        let pace =
            |flow: FlowId| if flow.index() < first { FlowPace { quarters: 1, ..ALWAYS } } else { ALWAYS };
        let outcome = run_at(&programs, &file, &mut Seed::new(1).stream("order", 0), pace, |_, _| {});
        assert!(outcome.copies.iter().flatten().all(|copy| *copy == file));
        // Packets into the first destination, by group.
        let input = |flows: &[u32]| flows.iter().map(|f| outcome.sent[&FlowId(*f)]).sum::<u64>();
        let bulk = input(&hand.sinks[0].1);
        let fill = input(&hand.fill[0].sinks[0].1);
        let all = 200 * u64::from(hand.streams) / per_generation;
        assert!(fill > 50, "{fill} chunks of 200 filled");
        // Data in transit when the groups met arrived twice. It is less than the buffers hold.
        let flush = u64::from(hand.flush * hand.streams);
        assert!(bulk + fill < all + flush + 40, "{bulk} and {fill} of {all}");
    }
}

#[test]
fn stalled_tree_delays_the_other_by_one_retransmission() {
    let hand = filled_trees();
    let file = file(64 * 200);
    let work = [ByteRange { start: 0, end: file.len() as u64 }];
    let programs = programs(&hand, &work, file.len() as u64, 64, 2);
    // The last chunk is one of the chunks that the first tree takes and never delivers.
    let pace = |flow: FlowId| match flow.0 {
        0..4 => FlowPace { quarters: 1, ..ALWAYS },
        4 => FlowPace { packets: 3, ..ALWAYS },
        _ => ALWAYS,
    };
    let outcome = run_at(&programs, &file, &mut Seed::new(1).stream("order", 0), pace, |_, _| {});
    assert!(outcome.copies.iter().flatten().all(|copy| *copy == file));
    let bulk = outcome.sent[&FlowId(0)] + outcome.sent[&FlowId(3)];
    assert!(bulk < 150, "{bulk} chunks of 200 by the filled group");
}

#[test]
fn destination_without_fill_receives_all_data_from_code() {
    let file = file(64 * 200);
    let hand = half_filled_butterfly();
    let work = [ByteRange { start: 0, end: file.len() as u64 }];
    let programs = programs(&hand, &work, file.len() as u64, 64, 2);
    let pace = |flow: FlowId| if flow.index() < 9 { FlowPace { quarters: 1, ..ALWAYS } } else { ALWAYS };
    let outcome = run_at(&programs, &file, &mut Seed::new(1).stream("order", 0), pace, |_, _| {});
    assert!(outcome.copies.iter().flatten().all(|copy| *copy == file));
    assert_eq!(outcome.sent[&FlowId(5)], 100, "6 gets all of the file from the code alone");
    assert!(outcome.sent[&FlowId(10)] > 50, "5 is filled");
}

#[test]
fn program_with_an_invalid_filling_group_is_refused() {
    let work = [ByteRange { start: 0, end: 100 }];
    let good = programs(&filled_butterfly(), &work, 100, 10, 1);
    let refused = |site: usize, change: fn(&mut SiteProgram)| {
        let mut program = good[site].clone();
        change(&mut program);
        Site::<Bytes>::new(&program).expect_err("must be refused")
    };
    assert!(Site::<Bytes>::new(&good[0]).is_ok() && Site::<Bytes>::new(&good[5]).is_ok());
    assert_eq!(refused(0, |p| p.groups[1].fills = Some(2)), ProgramError::Group(2));
    assert_eq!(refused(0, |p| p.groups[1].fills = Some(1)), ProgramError::Fill(1));
    assert_eq!(refused(0, |p| p.groups[1].work[0].end = 99), ProgramError::Fill(1));
    assert_eq!(refused(0, |p| p.groups[1].mode = Mode::Coded), ProgramError::Fill(1));
    assert_eq!(refused(5, |p| drop(p.sinks.remove(0))), ProgramError::Fill(1));
    let two = |e| matches!(e, ProgramError::OutOfRange { what: "stripes", value: 2, allowed: (1, 1) });
    assert!(two(refused(0, |p| p.outgoing.last_mut().expect("a flow").hop.stripes = 2)));
    assert!(two(refused(5, |p| p.incoming.last_mut().expect("a flow").stripes = 2)));
}

#[test]
fn confirmation_of_unsent_packets_is_refused() {
    let work = [ByteRange { start: 0, end: 100 }];
    let programs = programs(&filled_butterfly(), &work, 100, 10, 2);
    let mut site = Site::<Bytes>::new(&programs[0]).expect("a good program");
    assert_eq!(site.confirm(FlowId(9), 0), Ok(()));
    assert_eq!(site.confirm(FlowId(9), 1), Err(AcceptError::Confirmed { packets: 1 }));
    assert_eq!(site.confirm(FlowId(10), 0), Err(AcceptError::UnknownFlow(FlowId(10))));
    assert_eq!(site.wanted(1), Some(ByteRange { start: 90, end: 100 }), "the last chunk first");
    let symbol = Bytes::from(vec![0; 10]);
    site.supply(1, vec![symbol], GenerationHash::default());
    while let Some(work) = site.poll_work() {
        site.complete(work.run());
    }
    assert!(matches!(site.produce(FlowId(9)), Some(Frame::Data(p)) if p.generation == 9));
    assert_eq!(site.confirm(FlowId(9), 1), Ok(()));
    assert_eq!(site.confirm(FlowId(9), 0), Err(AcceptError::Confirmed { packets: 0 }), "it was confirmed");
}

#[test]
fn inconsistent_program_is_refused() {
    let work = [ByteRange { start: 0, end: 100 }];
    let good = programs(&butterfly(), &work, 100, 10, 1);
    let refused = |site: usize, change: fn(&mut SiteProgram)| {
        let mut program = good[site].clone();
        change(&mut program);
        Site::<Bytes>::new(&program).expect_err("must be refused")
    };
    assert!(matches!(
        refused(0, |p| p.symbol_bytes = 0),
        ProgramError::OutOfRange { what: "symbol_bytes", .. }
    ));
    assert!(matches!(
        refused(0, |p| p.buffer_packets = 0),
        ProgramError::OutOfRange { what: "buffer_packets", .. }
    ));
    assert!(matches!(refused(0, |p| p.length = 99), ProgramError::Work(0)));
    assert!(matches!(refused(0, |p| p.length = 1 << 63), ProgramError::OutOfRange { what: "length", .. }));
    assert!(matches!(refused(0, |p| p.store_and_forward = true), ProgramError::StoreAndForward(0)));
    let held = refused(0, |p| p.groups[0].ceilings = vec![None; 2]);
    assert!(matches!(held, ProgramError::OutOfRange { what: "ceilings", .. }), "coded streams go in step");
    assert!(matches!(refused(1, |p| p.incoming.clear()), ProgramError::Flow(FlowId(0))));
    assert!(matches!(refused(1, |p| p.outgoing[0].group = 9), ProgramError::Group(9)));
    assert!(matches!(refused(5, |p| p.sinks[0].inputs.truncate(1)), ProgramError::Decode(0)));
}

#[test]
fn forbidden_packet_of_a_peer_is_refused_with_reason() {
    let work = [ByteRange { start: 0, end: 100 }];
    let programs = programs(&butterfly(), &work, 100, 10, 1);
    let mut site = Site::<Bytes>::new(&programs[1]).expect("a good program");
    let packet = |generation, length| Packet {
        generation,
        hash: GenerationHash::default(),
        symbol: Bytes::from(vec![0; length]),
    };
    assert!(matches!(site.accept(FlowId(9), packet(0, 10)), Err(AcceptError::UnknownFlow(_))));
    assert!(matches!(site.accept(FlowId(0), packet(5, 10)), Err(AcceptError::Generation { limit: 5, .. })));
    assert!(matches!(site.accept(FlowId(0), packet(0, 11)), Err(AcceptError::Length { want: 10, got: 11 })));
    assert!(
        matches!(site.accept(FlowId(0), packet(1, 10)), Err(AcceptError::Full(_))),
        "one slot, for generation 0"
    );
    assert!(!site.has_room(FlowId(0), 1), "it waits");
    assert!(site.has_room(FlowId(0), 5), "to be refused, it need not wait");
    assert_eq!(site.accept(FlowId(0), packet(0, 10)), Ok(()));
    assert!(matches!(site.accept(FlowId(0), packet(0, 10)), Err(AcceptError::Generation { .. })), "twice");
    assert!(
        matches!(site.accept_end(FlowId(0), 4), Err(AcceptError::AfterEnd)),
        "five generations, not four"
    );
    assert_eq!(site.accept_end(FlowId(0), 5), Ok(()));
}

#[test]
fn routed_flow_carries_at_most_one_packet_per_chunk() {
    let work = [ByteRange { start: 0, end: 30 }];
    let programs = programs(&two_trees(), &work, 30, 10, 8);
    let relay = programs.iter().find(|p| p.source_path.is_none() && !p.incoming.is_empty());
    let program = relay.expect("somebody receives");
    let mut site = Site::<Bytes>::new(program).expect("a good program");
    let flow = program.incoming[0].flow;
    let chunk =
        || Packet { generation: 0, hash: GenerationHash::default(), symbol: Bytes::from(vec![0; 10]) };
    for _ in 0..3 {
        assert_eq!(site.accept(flow, chunk()), Ok(()));
    }
    assert_eq!(site.accept(flow, chunk()), Err(AcceptError::AfterEnd), "the same chunk for ever");
}
