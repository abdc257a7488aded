//! Laws of the codes: whatever packets come in whatever order, what decodes is what was encoded; and how many packets that takes.

use super::*;
use anabranch_endpoint::{Bytes, Len};
use proptest::prelude::*;

fn blocks(count: usize, len: usize) -> Vec<Bytes> {
    let mut state = 7u64;
    let mut byte = || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 56) as u8
    };
    (0..count).map(|_| (0..len).map(|_| byte()).collect::<Vec<u8>>().into()).collect()
}

/// Packets that a decoder takes until it is complete, ids from `first` on.
fn needed<D: Decoder<Len>>(mut decoder: D, first: u32) -> usize {
    (0..).position(|n| decoder.push(first + n, Len(1))).expect("it ends") + 1
}

/// Mean and 99th percentile of the packets needed, over so many draws.
fn overhead<D: Decoder<Len>>(draws: u32, make: impl Fn() -> D) -> (f64, usize) {
    let mut all: Vec<usize> = (0..draws).map(|draw| needed(make(), 1_000_000 + draw * 10_000)).collect();
    all.sort_unstable();
    (all.iter().sum::<usize>() as f64 / f64::from(draws), all[all.len() * 99 / 100])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn what_decodes_is_what_was_encoded(
        count in 1usize..120, len in 0usize..40, first: u32, systematic: bool, lost in 0u32..900, tuned: bool,
    ) {
        let params = Params { systematic, ..if tuned { Params::tuned(count) } else { Params::LTTP } };
        let code = Code::new(count, &params).expect("a good code");
        let file = blocks(count, len);
        let mut decoders: [Decoding; 3] = [
            with(Peeling::standard(code.clone(), len)),
            with(Peeling::improved(code.clone(), len)),
            with(Inactivation::new(code.clone(), len)),
        ];
        let mut done_at = [0; 3];
        // From the first on where the code is systematic, so that blocks themselves are among them.
        let first = if systematic { 0 } else { first };
        for n in 0..40_000u32 {
            let id = first.wrapping_add(n);
            if n.wrapping_mul(2_654_435_761) >> 22 < lost {
                continue;
            }
            let packet = code.encode(&file, id, len);
            for (decoder, at) in decoders.iter_mut().zip(&mut done_at).filter(|(_, at)| **at == 0) {
                if let Some(found) = decoder(id, packet.clone()) {
                    prop_assert_eq!(&found, &file);
                    *at = n + 1;
                }
            }
            if done_at.iter().all(|at| *at > 0) {
                break;
            }
        }
        prop_assert!(done_at.iter().all(|at| *at > 0), "{:?}", done_at);
        prop_assert!(done_at[2] <= done_at[1] && done_at[1] <= done_at[0], "{:?}", done_at);
    }
}

proptest! {
    #[test]
    fn packets_made_in_place_are_those_made_of_symbols(
        count in prop_oneof![1usize..200, 1_000usize..1_100], len in 0usize..200, id: u32, systematic: bool,
        short in 0usize..200, tuned: bool,
    ) {
        let params = Params { systematic, ..if tuned { Params::tuned(count) } else { Params::LTTP } };
        let code = Code::new(count, &params).expect("a good code");
        let mut file = blocks(count, len);
        // The last block of a file, and here its first too, may be shorter.
        for block in [0, count - 1] {
            file[block].truncate(short);
        }
        for id in [id, id % (2 * count as u32)] {
            let mut packet = vec![7; len];
            code.encode_into(&file, id, &mut packet);
            prop_assert_eq!(&packet, &code.encode(&file, id, len)[..]);
        }
    }
}

/// A packet in, the blocks out once they are known.
type Decoding = Box<dyn FnMut(u32, Bytes) -> Option<Vec<Bytes>>>;

/// The decoder as a function: a packet in, the blocks out once they are known. Each packet goes in twice.
fn with<D: Decoder<Bytes> + Clone + 'static>(mut decoder: D) -> Decoding {
    Box::new(move |id, packet| {
        let lacked = decoder.lacks();
        let is_complete = decoder.push(id, packet.clone());
        assert_eq!(decoder.push(id, packet), is_complete, "the same packet again changes nothing");
        assert!(is_complete == (decoder.lacks() == 0) && (!is_complete || lacked <= 1), "{lacked} lacked");
        is_complete.then(|| decoder.clone().into_blocks().expect("complete"))
    })
}

#[test]
fn a_systematic_code_without_loss_needs_no_packet_more_than_blocks() {
    let code = Code::new(64, &Params { systematic: true, ..Params::tuned(64) }).expect("a good code");
    assert_eq!(needed(Inactivation::new(code.clone(), 1), 0), 64);
    assert_eq!(needed(Peeling::improved(code, 1), 0), 64);
}

#[test]
fn elimination_needs_few_packets_more_than_blocks() {
    for (count, lttp, tuned, tuned_p99) in
        [(64, 71.6, 67.0, 74), (128, 137.6, 132.0, 139), (256, 267.6, 260.0, 266)]
    {
        let decoder = |params: &Params| Inactivation::new(Code::new(count, params).expect("a good code"), 1);
        let (mean, p99) = overhead(400, || decoder(&Params::tuned(count)));
        assert!(mean <= tuned && p99 <= tuned_p99, "{count} blocks: {mean} packets, 99 % {p99}");
        let (mean, _) = overhead(400, || decoder(&Params::LTTP));
        assert!((mean / lttp - 1.0f64).abs() < 0.02, "{count} blocks, LTTP's parameters: {mean} packets");
    }
}

#[test]
fn peeling_needs_a_third_more() {
    for (count, published) in [(64, 87.0), (128, 171.0), (256, 336.0)] {
        let code = || Code::new(count, &Params::LTTP).expect("a good code");
        let (improved, _) = overhead(400, || Peeling::improved(code(), 1));
        let (standard, _) = overhead(400, || Peeling::standard(code(), 1));
        assert!((improved / published - 1.0f64).abs() < 0.04, "{count} blocks: {improved} packets");
        assert!(standard > improved, "{count} blocks: {standard} and {improved} packets");
    }
}

#[test]
fn a_packets_blocks_are_part_of_the_format() {
    let code = Code::new(64, &Params::LTTP).expect("a good code");
    let of = |id| {
        let mut found = Vec::new();
        code.neighbours(id, &mut found);
        found
    };
    assert_eq!([of(0), of(1), of(1_000_000)], [vec![3, 38], vec![50, 54, 57, 47, 7], vec![13, 49, 36]]);
}

#[test]
fn what_is_no_code_is_refused_in_one_line() {
    let error = Code::new(0, &Params::LTTP).expect_err("no blocks");
    assert_eq!(error.to_string(), "0 blocks: must be 1 to 65536");
    assert!(Code::new(BLOCKS_MAX + 1, &Params::LTTP).is_err());
}
