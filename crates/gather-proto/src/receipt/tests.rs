//! Properties of receipts: true receipts pass, false receipts do not, and counts are bounded by the
//! proven packets.

use super::*;
use proptest::prelude::*;

/// The receipt for these packets, received in this order.
fn receipt_of(nonces: &mut Nonces, packets: &[u32]) -> (u32, Receipt) {
    let mut received = ReceivedPackets::default();
    packets.iter().for_each(|sequence| received.handle_packet(*sequence, nonces.nonce(*sequence)));
    (received.next, received.receipt())
}

proptest! {
    /// Issue #48.
    #[test]
    fn receipt_is_true_for_any_arrivals_in_any_order(
        secret: u64, first in 0u32..1 << 20, packets in proptest::collection::vec(0u32..300, 1..400),
    ) {
        let mut nonces = Nonces::new(secret);
        let packets: Vec<u32> = packets.into_iter().map(|packet| first + packet).collect();
        let (next, receipt) = receipt_of(&mut nonces, &packets);
        prop_assert!(nonces.is_true(next, receipt));
        // Any single wrong bit makes the digest false.
        for bit in 0..16 {
            let wrong = Receipt { digest: receipt.digest ^ 1 << bit, ..receipt };
            prop_assert!(!nonces.is_true(next, wrong));
        }
    }
}

/// Issue #48.
#[test]
fn guessed_nonce_passes_once_in_eight_times() {
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

/// Issue #48.
#[test]
fn receipt_must_name_the_highest_packet() {
    let mut nonces = Nonces::new(1);
    assert!(nonces.is_true(0, Receipt::default()));
    assert!(!nonces.is_true(1, Receipt::default()), "the highest one has come");
    let (next, receipt) = receipt_of(&mut nonces, &[0, 2]);
    assert_eq!((next, receipt.came), (3, 0b101));
    assert!(nonces.is_true(3, receipt));
    assert!(!nonces.is_true(2, receipt) && !nonces.is_true(4, receipt));
    assert!(!nonces.is_true(3, Receipt { came: 0b1101, ..receipt }), "a packet below the first");
}

/// Issue #48: beyond an initial credit, a client's counts are accepted up to twice the packets that
/// it proves.
#[test]
fn counts_are_accepted_up_to_twice_the_proven_packets() {
    let mut credit = Credit::default();
    let (mut next, mut counted) = (0, 0);
    for _ in 0..1_000 {
        // One of twenty packets arrives, and the client counts all twenty.
        next += 20;
        credit.handle_receipt(next, Receipt { came: 1, digest: 0 });
        counted += credit.take(20);
    }
    assert_eq!(credit.proven(), 1_000);
    assert_eq!(u64::from(counted), CREDIT_FIRST + 2 * 1_000);
}

/// Issue #48.
#[test]
fn receipt_after_a_long_gap_still_measures_loss() {
    let mut credit = Credit::default();
    credit.handle_receipt(100_000, Receipt { came: u32::MAX, digest: 0 });
    assert_eq!((credit.proven(), credit.take(100_000)), (100_000, 100_000));
    credit.handle_receipt(200_000, Receipt { came: u32::MAX >> 16, digest: 0 });
    assert_eq!((credit.proven(), credit.share()), (150_000, 0.5));
    // A late packet that no earlier receipt named is proven once.
    credit.handle_receipt(200_000, Receipt { came: u32::MAX >> 15, digest: 0 });
    credit.handle_receipt(200_001, Receipt { came: u32::MAX >> 14, digest: 0 });
    assert_eq!(credit.proven(), 150_002);
}
