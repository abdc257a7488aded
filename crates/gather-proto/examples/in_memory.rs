//! A client and a server connected by hand, without sockets and without a clock. See the crate's
//! documentation.

use anabranch_endpoint::Bytes;
use anabranch_gather_proto::{
    Client, ClientConfig, ClientEvent, Offer, Piece, Server, ServerConfig, ServerEvent,
};
use anabranch_units::{Duration, Instant};

fn main() {
    let object: Vec<u8> = (0..100_000u32).flat_map(u32::to_be_bytes).collect();
    assert!(pull(&object) == object);
}

/// Pulls `object` from a server that holds it.
fn pull(object: &[u8]) -> Vec<u8> {
    let mut client = Client::<Bytes>::new(ClientConfig::default()).expect("the defaults are good");
    let mut server = Server::<Bytes>::new(ServerConfig::default());
    let holder = client.add_server();
    client.add(Piece { object: "numbers".into(), ranges: None, holders: vec![holder] });
    let (mut now, mut got) = (Instant::ZERO, vec![0; object.len()]);
    client.handle_connected(now, holder, Some(Duration::from_us(100)));
    while !client.is_done() {
        while let Some((_, message)) = client.poll_control() {
            server.handle_control(now, message);
        }
        while let Some((_, feedback)) = client.poll_transmit(now) {
            server.handle_feedback(now, &feedback);
        }
        while let Some(ServerEvent::Asked { pull, .. }) = server.poll_event() {
            server.offer(now, pull, Offer { object_bytes: object.len() as u64, first_id: 0, secret: 0 });
        }
        while let Some((pull, generation, range)) = server.poll_wanted() {
            let bytes = &object[range.start as usize..range.end as usize];
            let blocks = bytes.chunks(server.block_bytes(pull).expect("it is wanted") as usize);
            server.supply(pull, generation, blocks.map(Bytes::copy_from_slice).collect());
        }
        while let Some(message) = server.poll_control() {
            client.handle_control(now, holder, message);
        }
        while let Some(packet) = server.poll_transmit(now) {
            client.handle_packet(now, holder, packet);
        }
        while let Some(event) = client.poll_event() {
            if let ClientEvent::Blocks { range, blocks, .. } = event {
                let bytes: Vec<u8> = blocks.into_iter().flatten().collect();
                let length = (range.end - range.start) as usize;
                got[range.start as usize..range.end as usize].copy_from_slice(&bytes[..length]);
            }
        }
        now = client.poll_timeout().into_iter().chain(server.poll_timeout()).min().unwrap_or(now).max(now);
        client.handle_timeout(now);
        server.handle_timeout(now);
    }
    got
}

#[test]
fn pulled_bytes_equal_the_object() {
    for size in [0, 1, 1_024, 300_000] {
        let object: Vec<u8> = (0..size).map(|byte| byte as u8).collect();
        assert!(pull(&object) == object, "{size} bytes");
    }
}
