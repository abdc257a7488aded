//! Properties of sealing over random datagrams, orders and damage.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

const ALL: [Aead; 3] = [Aead::Aes128Gcm, Aead::Aes256Gcm, Aead::ChaCha20Poly1305];
const ID: ChannelId = ChannelId(0x0123_4567_89ab_cdef);

fn sealed(sealer: &mut Sealer, payload: &[u8]) -> Vec<u8> {
    let mut datagram = vec![0; HEADER_BYTES];
    datagram.extend_from_slice(payload);
    datagram.extend_from_slice(&[0; TAG_BYTES]);
    sealer.seal(&mut datagram).expect("a fresh key");
    datagram
}

fn any_aead() -> impl Strategy<Value = Aead> {
    prop::sample::select(ALL.to_vec())
}

proptest! {
    #[test]
    fn open_after_seal_is_identity(aead in any_aead(), payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..2_000), 1..8)) {
        let (mut sealer, mut opener) = pair_for_measurement(aead, ID);
        for (number, payload) in payloads.iter().enumerate() {
            let mut datagram = sealed(&mut sealer, payload);
            prop_assert_eq!(datagram.len(), payload.len() + OVERHEAD_BYTES);
            prop_assert_eq!(ChannelId::of(&datagram), Some(ID));
            // Up to four bytes may be equal by chance.
            prop_assert!(payload.len() < 8 || datagram[HEADER_BYTES..][..payload.len()] != payload[..]);
            let opened = opener.open(&mut datagram).expect("it is authentic");
            prop_assert_eq!((opened.number, &*opened.payload), (number as u64, payload.as_slice()));
        }
        prop_assert_eq!(opener.counters(), OpenCounters { opened: payloads.len() as u64, ..OpenCounters::default() });
    }

    #[test]
    fn flipped_bits_and_cut_datagrams_are_refused(aead in any_aead(), payload in prop::collection::vec(any::<u8>(), 0..64), at: prop::sample::Index, bit in 0..8u8) {
        let (mut sealer, mut opener) = pair_for_measurement(aead, ID);
        let good = sealed(&mut sealer, &payload);
        let at = at.index(good.len());
        let mut flipped = good.clone();
        flipped[at] ^= 1 << bit;
        let error = opener.open(&mut flipped).expect_err("changed on the way");
        match at {
            0..8 => prop_assert_eq!(error, OpenError::OtherChannel { channel: ChannelId::of(&flipped).expect("as long as before") }),
            _ => prop_assert_eq!(error, OpenError::Forged),
        }
        let error = opener.open(&mut good[..at].to_vec()).expect_err("cut short");
        prop_assert_eq!(error, if at < OVERHEAD_BYTES { OpenError::Malformed } else { OpenError::Forged });
        // The two forgeries do not affect the authentic datagram.
        prop_assert!(opener.open(&mut good.clone()).is_ok());
    }

    #[test]
    fn random_bytes_are_refused_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..128)) {
        prop_assert!(!exercise(&bytes));
        let mut ours = 7u64.to_be_bytes().to_vec();
        ours.extend(bytes);
        prop_assert!(!exercise(&ours));
    }

    /// The window against its plain twin: the set of all seen numbers, and the highest.
    #[test]
    fn window_decides_like_a_set_of_all_numbers(steps in prop::collection::vec((0..3u8, 0..3 * REPLAY_WINDOW), 1..400)) {
        let (mut window, mut seen, mut highest) = (Window::new(), BTreeSet::new(), 0u64);
        for (kind, by) in steps {
            let number = match kind {
                0 => highest + by % 70,
                1 => highest + by,
                _ => highest.saturating_sub(by),
            };
            let expected = if seen.last().is_some_and(|last| last - number.min(*last) >= REPLAY_WINDOW) {
                Err(OpenError::TooOld { number })
            } else if seen.contains(&number) {
                Err(OpenError::Replayed { number })
            } else {
                Ok(())
            };
            prop_assert_eq!(window.check(number), expected);
            if expected.is_ok() {
                window.mark(number);
                seen.insert(number);
                highest = highest.max(number);
            }
        }
    }

    #[test]
    fn numbers_are_delivered_at_most_once_in_any_order(order in prop::collection::vec(0..40usize, 1..200)) {
        let (mut sealer, mut opener) = pair_for_measurement(Aead::Aes128Gcm, ID);
        let datagrams: Vec<_> = (0..40u8).map(|n| sealed(&mut sealer, &[n])).collect();
        let mut delivered = BTreeSet::new();
        for n in order {
            match opener.open(&mut datagrams[n].clone()) {
                Ok(opened) => {
                    prop_assert_eq!((opened.number, &*opened.payload), (n as u64, &[n as u8][..]));
                    prop_assert!(delivered.insert(n));
                }
                Err(error) => {
                    prop_assert_eq!(error, OpenError::Replayed { number: n as u64 });
                    prop_assert!(delivered.contains(&n));
                }
            }
        }
    }
}

#[test]
fn datagram_opens_at_the_window_edge_not_past_it() {
    for late in [REPLAY_WINDOW - 1, REPLAY_WINDOW] {
        let (mut sealer, mut opener) = pair_for_measurement(Aead::Aes128Gcm, ID);
        let mut first = sealed(&mut sealer, b"first");
        for _ in 1..late {
            sealed(&mut sealer, b"");
        }
        opener.open(&mut sealed(&mut sealer, b"newest")).expect("it is new");
        let opened = opener.open(&mut first);
        if late < REPLAY_WINDOW {
            assert_eq!(opened.expect("it is in the window").payload, b"first");
        } else {
            assert_eq!(opened, Err(OpenError::TooOld { number: 0 }));
            assert_eq!(opener.counters().too_old, 1);
        }
    }
}

#[test]
fn last_bytes_give_the_number_nearest_to_the_expected() {
    let half = 1u64 << 31;
    for expected in
        [0, 1, half - 1, half, half + 1, 1 << 32, (1 << 32) + 1, 3 * half, (1 << 40) + 12_345, 1 << 61]
    {
        for number in
            [expected.saturating_sub(half - 1), expected.saturating_sub(1), expected, expected + half]
        {
            assert_eq!(whole(number as u32, expected), number, "{number} where {expected} is next");
        }
        // A number one further on is reconstructed only if no nearer number exists.
        let is_told = whole((expected + half + 1) as u32, expected) == expected + half + 1;
        assert_eq!(is_told, expected + half + 1 < 1 << 32, "{expected}");
    }
}

#[test]
fn packet_numbers_above_32_bits_open_in_any_order() {
    let (mut sealer, mut opener) = pair_for_measurement(Aead::ChaCha20Poly1305, ID);
    sealer.next = (1 << 32) - 2;
    // The first number may be at most half of the 2^32 values ahead.
    opener.window.mark((1 << 32) - 3);
    let mut all: Vec<Vec<u8>> = (0..4).map(|_| sealed(&mut sealer, b"across")).collect();
    let late = all.remove(1);
    for (mut datagram, number) in all.into_iter().zip([(1 << 32) - 2, 1 << 32, (1 << 32) + 1]) {
        assert_eq!(opener.open(&mut datagram).map(|opened| opened.number), Ok(number));
    }
    assert_eq!(opener.open(&mut late.clone()).map(|opened| opened.number), Ok((1 << 32) - 1));
    assert_eq!(opener.open(&mut late.clone()), Err(OpenError::Replayed { number: (1 << 32) - 1 }));
}

#[test]
fn forged_number_does_not_move_the_window() {
    let (mut sealer, mut opener) = pair_for_measurement(Aead::Aes128Gcm, ID);
    let good = sealed(&mut sealer, b"good");
    let mut far = good.clone();
    far[8..12].copy_from_slice(&(u32::MAX / 2).to_be_bytes());
    assert_eq!(opener.open(&mut far), Err(OpenError::Forged));
    assert!(opener.open(&mut good.clone()).is_ok());
}

#[test]
fn sealer_stops_at_the_key_limit() {
    let (mut sealer, _) = pair_for_measurement(Aead::Aes256Gcm, ID);
    // 91 blocks of payload and one block of header.
    let payload = 1_452;
    let max = AES_BLOCKS_MAX / 92;
    assert_eq!(sealer.packets_left(payload), max);
    sealer.next = max - 1;
    let mut datagram = vec![7; payload + OVERHEAD_BYTES];
    assert_eq!(sealer.seal(&mut datagram), Ok(max - 1));
    assert_eq!(sealer.packets_left(payload), 0);
    let mut datagram = vec![7; payload + OVERHEAD_BYTES];
    assert_eq!(sealer.seal(&mut datagram), Err(SealError::WornOut { channel: ID, packets: max }));
    assert!(datagram.iter().all(|&b| b == 7), "what is refused goes nowhere");
    // A shorter datagram does not lower the longest length so far.
    assert!(sealer.seal(&mut [0; OVERHEAD_BYTES]).is_err());
    // A longer datagram that is refused does not count towards the longest length.
    let (mut sealer, _) = pair_for_measurement(Aead::Aes128Gcm, ID);
    sealer.next = max;
    assert!(sealer.seal(&mut vec![0; payload + OVERHEAD_BYTES]).is_err());
    assert_eq!(sealer.seal(&mut [0; OVERHEAD_BYTES]), Ok(max));
}

#[test]
fn key_limits_match_rfc_9001() {
    // The RFC's two examples, plus the header's block, which lowers the limit by at most one
    // percent.
    for aead in [Aead::Aes128Gcm, Aead::Aes256Gcm] {
        for (payload, packets) in [(1 << 11, 1u64 << 28), (1 << 16, 1 << 23)] {
            let ours = pair_for_measurement(aead, ID).0.packets_left(payload);
            assert!(ours < packets && ours > packets / 100 * 99, "{ours} {packets}");
        }
    }
    assert_eq!(pair_for_measurement(Aead::ChaCha20Poly1305, ID).0.packets_left(65_535), NUMBERS_END);
}

#[test]
fn key_opens_no_datagram_after_too_many_forgeries() {
    let (mut sealer, mut opener) = pair_for_measurement(Aead::ChaCha20Poly1305, ID);
    let good = sealed(&mut sealer, b"good");
    opener.counters.forged = (1 << 36) - 1;
    let mut bad = good.clone();
    *bad.last_mut().expect("it has a tag") ^= 1;
    assert_eq!(opener.open(&mut bad), Err(OpenError::Forged));
    assert_eq!(opener.open(&mut good.clone()), Err(OpenError::WornOut));
}

#[test]
fn short_buffer_is_refused_with_the_required_size() {
    let (mut sealer, mut opener) = pair_for_measurement(Aead::Aes128Gcm, ID);
    let error = sealer.seal(&mut [0; OVERHEAD_BYTES - 1]).expect_err("no room");
    assert_eq!(error, SealError::TooShort { need: OVERHEAD_BYTES, got: OVERHEAD_BYTES - 1 });
    let mut empty = sealed(&mut sealer, b"");
    assert_eq!(opener.open(&mut empty).expect("an empty payload is one").payload, b"");
}
