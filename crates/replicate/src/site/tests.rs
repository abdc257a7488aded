//! Whole attempts between machines in memory, with the order of everything drawn at random.

use super::*;
use crate::control::{
    Attempt, ByteRange, GroupProgram, HopSettings, Incoming as Arriving, Outgoing, Priority, Run,
    SinkProgram, SiteProgram, TransferId,
};
use crate::plan::{Decode, Term};
use anabranch_endpoint::Bytes;
use anabranch_units::{LinkId, RandomStream, Seed, SiteId};
use proptest::prelude::*;

/// A flow of a hand-made plan: who sends it to whom, and what it is made of.
struct HandFlow {
    from: u16,
    to: u16,
    terms: Vec<Term>,
}

/// A hand-made plan with one group.
struct Hand {
    mode: Mode,
    streams: u16,
    flush: u16,
    flows: Vec<HandFlow>,
    sinks: Vec<(u16, Vec<u32>, Option<Decode>)>,
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

/// The butterfly: 0 sends A by 1 and B by 2, 3 adds them, 5 and 6 want both.
fn butterfly() -> Hand {
    let decode = |rows: [[u8; 2]; 2]| {
        Some(Decode { lookahead: 0, state: 0, output: rows.map(|r| r.to_vec()).to_vec(), next: vec![] })
    };
    Hand {
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
    }
}

/// Two trees from 0: to 1 and on to 2, and to 2 and on to 1.
fn two_trees() -> Hand {
    Hand {
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
    }
}

/// A code on a cycle: 1 and 2 each add what the other sent one generation ago (Massey and Sain's decoder by hand).
///
/// Flow 2 (1 to 2) carries a(g) + f3(g-1), flow 3 (2 to 1) carries b(g) + f2(g). Site 1 wants both streams and sees
/// a(g) and f3(g) = b(g) + a(g) + f3(g-1), so b(g) = f3(g) - a(g) - s with s = f3(g-1) as its state. Site 2 sees b(g)
/// and f2(g) = a(g) + f3(g-1), where f3(g-1) = b(g-1) + f2(g-1) is its state.
fn cycle() -> Hand {
    let decoder = |output: [[u8; 3]; 2], next: [u8; 3]| {
        Some(Decode {
            lookahead: 0,
            state: 1,
            output: output.map(|r| r.to_vec()).to_vec(),
            next: vec![next.to_vec()],
        })
    };
    let delayed = |n| Term { delayed: true, ..flow(n) };
    Hand {
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
    }
}

fn programs(
    hand: &Hand,
    work: &[ByteRange],
    length: u64,
    symbol_bytes: u32,
    buffer: u16,
) -> Vec<SiteProgram> {
    let sites = 1 + hand.flows.iter().map(|f| f.from.max(f.to)).max().expect("a plan has flows");
    let run = Run { transfer: TransferId(1), attempt: Attempt(1) };
    let numbered = || hand.flows.iter().enumerate().map(|(i, f)| (FlowId(i as u32), f));
    (0..sites)
        .map(|site| SiteProgram {
            run,
            site: SiteId(site),
            length,
            symbol_bytes,
            buffer_packets: buffer,
            groups: vec![GroupProgram {
                streams: hand.streams,
                mode: hand.mode,
                work: work.to_vec(),
                flush: hand.flush,
            }],
            source_path: (site == 0).then(|| "file".into()),
            incoming: numbered()
                .filter(|(_, f)| f.to == site)
                .map(|(flow, f)| Arriving {
                    flow,
                    group: 0,
                    from: SiteId(f.from),
                    from_name: f.from.to_string(),
                    link: LinkId(flow.0),
                    stripes: 1,
                })
                .collect(),
            outgoing: numbered()
                .filter(|(_, f)| f.from == site)
                .map(|(flow, f)| Outgoing {
                    flow,
                    group: 0,
                    to: SiteId(f.to),
                    to_name: f.to.to_string(),
                    link: LinkId(flow.0),
                    address: String::new(),
                    terms: f.terms.clone(),
                    hop: HopSettings { stripes: 1, congestion_control: None, priority: Priority::Bulk },
                })
                .collect(),
            sinks: hand
                .sinks
                .iter()
                .filter(|s| s.0 == site)
                .map(|(_, inputs, decode)| SinkProgram {
                    group: 0,
                    inputs: inputs.iter().map(|i| FlowId(*i)).collect(),
                    decode: decode.clone(),
                    path: "copy".into(),
                })
                .collect(),
            store_and_forward: false,
            bandwidth_limit: None,
        })
        .collect()
}

/// What a run in memory leaves behind.
struct Outcome {
    copies: Vec<Option<Vec<u8>>>,
    corrupt: usize,
    live_bytes_max: Vec<u64>,
}

type Wire = VecDeque<Frame<Bytes>>;

/// Runs all machines, taking random steps, until nothing moves any more.
fn run(
    programs: &[SiteProgram],
    file: &[u8],
    random: &mut RandomStream,
    mut spoil: impl FnMut(FlowId, &mut Packet<Bytes>),
) -> Outcome {
    let mut sites: Vec<Site<Bytes>> =
        programs.iter().map(|p| Site::new(p).expect("a good program")).collect();
    let mut wires: BTreeMap<FlowId, (usize, usize, Wire)> = BTreeMap::new();
    for (from, p) in programs.iter().enumerate() {
        for o in &p.outgoing {
            wires.insert(o.flow, (from, o.to.index(), Wire::new()));
        }
    }
    let mut working: Vec<Vec<Done<Bytes>>> = programs.iter().map(|_| vec![]).collect();
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
                    let parts =
                        if mode == Mode::Coded { usize::from(programs[at].groups[0].streams) } else { 1 };
                    let size = if programs[at].groups[0].flush > 0 {
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
                    let hash = Bytes::generation_hash(&[Bytes::copy_from_slice(bytes)], range);
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
            // A connection holds one frame: the smallest socket buffer there is.
            if wire.is_empty()
                && random.below(3) > 0
                && let Some(mut frame) = sites[*from].produce(*flow)
            {
                if let Frame::Data(packet) = &mut frame {
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
    assert!(sites.iter().all(Site::is_sent), "every flow ends");
    Outcome { copies, corrupt, live_bytes_max }
}

fn file(length: usize) -> Vec<u8> {
    let mut random = Seed::new(5).stream("file", length as u64);
    (0..length).map(|_| random.next_u64() as u8).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_destination_gets_the_file_whatever_the_order_and_however_small_the_buffers(
        seed: u64, length in 1usize..4000, symbol_bytes in 1u32..300, buffer in 1u16..4, which in 0usize..3,
    ) {
        let hand = [butterfly, two_trees, cycle][which]();
        let file = file(length);
        let work = [ByteRange { start: 0, end: length as u64 }];
        let programs = programs(&hand, &work, length as u64, symbol_bytes, buffer);
        let outcome = run(&programs, &file, &mut Seed::new(seed).stream("order", 0), |_, _| {});
        prop_assert_eq!(outcome.corrupt, 0);
        for copy in outcome.copies.iter().flatten() {
            prop_assert_eq!(copy, &file);
        }
        for (program, live) in programs.iter().zip(&outcome.live_bytes_max) {
            prop_assert!(*live <= program.memory_bytes());
        }
    }

    #[test]
    fn only_the_missing_ranges_travel(seed: u64, which in 0usize..3) {
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
    fn a_flipped_bit_on_the_way_is_found_and_never_written(seed: u64, at in 0u64..10) {
        let file = file(10 * 2 * 64);
        let work = [ByteRange { start: 0, end: file.len() as u64 }];
        let programs = programs(&butterfly(), &work, file.len() as u64, 64, 2);
        // Flow 6 is the sum that both destinations decode with.
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
fn a_program_that_contradicts_itself_is_refused() {
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
    assert!(matches!(refused(0, |p| p.store_and_forward = true), ProgramError::StoreAndForward));
    assert!(matches!(refused(1, |p| p.incoming.clear()), ProgramError::Flow(FlowId(0))));
    assert!(matches!(refused(1, |p| p.outgoing[0].group = 9), ProgramError::Group(9)));
    assert!(matches!(refused(5, |p| p.sinks[0].inputs.truncate(1)), ProgramError::Decode(0)));
}

#[test]
fn what_a_peer_may_not_send_is_refused_with_the_reason() {
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
fn a_routed_flow_carries_no_more_packets_than_there_are_chunks() {
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
