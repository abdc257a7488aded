//! How pulls are numbered, and how far away servers seem. Leaves out: whole pulls, with servers (`tests/it`).

use super::*;
use anabranch_endpoint::Bytes;

/// Numbers of the pulls that are asked for by now.
fn asked(client: &mut Client<Bytes>) -> Vec<u16> {
    std::iter::from_fn(|| client.poll_control())
        .filter_map(|(_, message)| match message {
            Control::Pull(request) => Some(request.pull.0),
            _ => None,
        })
        .collect()
}

#[test]
fn of_two_pulls_the_older_one_has_the_lower_number_though_numbers_end() {
    let now = Instant::ZERO;
    let mut client: Client<Bytes> = Client::new(ClientConfig::default()).expect("its settings are in range");
    let server = client.add_server();
    client.handle_connected(now, server, None);
    client.next_pull = u16::MAX - 1;
    let pieces: Vec<PieceId> = (0..4)
        .map(|_| {
            let ranges = Some(std::iter::once(0..100).collect());
            client.add(Piece { object: "object".into(), ranges, holders: vec![server] })
        })
        .collect();
    client.begin(now);
    assert_eq!(asked(&mut client), [u16::MAX - 1, u16::MAX]);
    client.cancel(now, pieces[0]);
    assert_eq!(asked(&mut client), [] as [u16; 0], "one of them goes on");
    client.cancel(now, pieces[1]);
    assert_eq!(asked(&mut client), [0, 1]);
}

/// #19: of 32 servers one had lost a packet as it connected, and what the link carries was measured once in two seconds.
#[test]
fn a_server_that_was_slow_to_connect_is_not_far_away() {
    let farthest = |ms: &[u64]| {
        let mut client: Client<Bytes> =
            Client::new(ClientConfig::default()).expect("its settings are in range");
        for ms in ms {
            let server = client.add_server();
            client.handle_connected(Instant::ZERO, server, Some(Duration::from_ms(*ms)));
        }
        client.farthest()
    };
    assert_eq!(farthest(&[]), Duration::ZERO);
    assert_eq!(farthest(&[1_020]), Duration::from_ms(1_020));
    assert_eq!(farthest(&[20, 1_020, 30, 70]), Duration::from_ms(70));
}
