//! Properties of receipts: true ones pass, false ones do not, and counts are bounded by the proven
//! packets.

use super::*;
use proptest::prelude::*;

/// The receipt for these packets, in order of arrival.
fn receipt_of(nonces: &mut Nonces, packets: &[u32]) -> (u32, Receipt) {
    let mut received = ReceivedPackets::default();
    packets.iter().for_each(|sequence| received.handle_packet(*sequence, nonces.nonce(*sequence)));
    (received.next, received.receipt())
}

proptest! {
    /// #48
    #[test]
    fn whatever_comes_in_whatever_order_has_a_true_receipt(
        secret: u64, first in 0u32..1 << 20, packets in proptest::collection::vec(0u32..300, 1..400),
    ) {
        let mut nonces = Nonces::new(secret);
        let packets: Vec<u32> = packets.into_iter().map(|packet| first + packet).collect();
        let (next, receipt) = receipt_of(&mut nonces, &packets);
        prop_assert!(nonces.is_true(next, receipt));
        // Any single wrong bit makes it false.
        for bit in 0..16 {
            let wrong = Receipt { digest: receipt.digest ^ 1 << bit, ..receipt };
            prop_assert!(!nonces.is_true(next, wrong));
        }
    }
}

/// #48
#[test]
fn a_guessed_nonce_passes_once_in_eight_times() {
    for guessed in 1..=4 {
        let tries = 40_000;
        let passed = (0..tries).filter(|secret| {
            let mut nonces = Nonces::new(*secret);
            let mut received = ReceivedPackets::default();
            for sequence in 0..32 {
                let nonce = if sequence < guessed { 5 } else { nonces.nonce(sequence) };
                received.handle_packet(sequence, nonce);
            }
            nonces.is_true(32, received.receipt())
        });
        let (passed, expected) = (passed.count() as f64, tries as f64 / 8f64.powi(guessed as i32));
        assert!((passed - expected).abs() < 5.0 * expected.sqrt(), "{passed} of {tries}: {expected}");
    }
}

/// #48
#[test]
fn receipt_covers_the_highest_packet_and_starts_at_first() {
    let mut nonces = Nonces::new(1);
    assert!(nonces.is_true(0, Receipt::default()));
    assert!(!nonces.is_true(1, Receipt::default()), "the highest one has come");
    let (next, receipt) = receipt_of(&mut nonces, &[0, 2]);
    assert_eq!((next, receipt.came), (3, 0b101));
    assert!(nonces.is_true(3, receipt));
    assert!(!nonces.is_true(2, receipt) && !nonces.is_true(4, receipt));
    assert!(!nonces.is_true(3, Receipt { came: 0b1101, ..receipt }), "a packet below the first");
}

/// #48: beyond an initial credit a client's counts are worth twice the packets that it proves.
#[test]
fn counts_are_worth_twice_what_is_proven() {
    let mut credit = Credit::default();
    let (mut next, mut counted) = (0, 0);
    for _ in 0..1_000 {
        // One of twenty packets arrives, and all are counted.
        next += 20;
        credit.handle_receipt(next, Receipt { came: 1, digest: 0 });
        counted += credit.take(20);
    }
    assert_eq!(credit.proven(), 1_000);
    assert_eq!(u64::from(counted), CREDIT_FIRST + 2 * 1_000);
}

/// #48
#[test]
fn a_receipt_after_a_long_time_is_a_sample() {
    let mut credit = Credit::default();
    credit.handle_receipt(100_000, Receipt { came: u32::MAX, digest: 0 });
    assert_eq!((credit.proven(), credit.take(100_000)), (100_000, 100_000));
    credit.handle_receipt(200_000, Receipt { came: u32::MAX >> 16, digest: 0 });
    assert_eq!((credit.proven(), credit.share()), (150_000, 0.5));
    // A packet that a receipt has passed counts once when it arrives late.
    credit.handle_receipt(200_000, Receipt { came: u32::MAX >> 15, digest: 0 });
    credit.handle_receipt(200_001, Receipt { came: u32::MAX >> 14, digest: 0 });
    assert_eq!(credit.proven(), 150_002);
}
