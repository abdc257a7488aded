//! Many objects in one command: the number of open objects stays within the limit of descriptors,
//! and short objects arrive in full. One object from a slow and a fast server.

use super::{LINK, MIB, RunningClient, World, anabranch};
use crate::net::{PATIENCE, noise, working_files};
use std::process::Command;
use std::time::Instant;

/// A list of different objects at servers, of various lengths.
fn list(world: &World, servers: usize, objects: usize) -> Vec<(String, Vec<u8>)> {
    let bytes = |number: usize| {
        let length = [0, 1, 5_000, 32 << 10, (32 << 10) + 1, 100_000][number % 6];
        vec![number as u8; length]
    };
    let all: Vec<_> = (0..objects).map(|number| (format!("o{number}"), bytes(number))).collect();
    all.iter().for_each(|(name, bytes)| world.put(0..servers, name, bytes));
    let lines = all.iter().map(|(name, _)| world.object(0..servers, name) + "\n");
    std::fs::write(world.path("list"), lines.collect::<String>()).expect("the folder is ours");
    all
}

/// #19: of 10,000 objects, a third failed with "Too many open files".
#[test]
fn get_accepts_more_objects_than_descriptors() {
    let world = World::new(2);
    let objects = list(&world, 2, 600);
    // The limit applies to a shell and to all its children.
    let command = anabranch();
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -n 100; exec \"$0\" gather get --json \"$@\""]).arg(command.get_program());
    limited.arg("--objects-from").arg(world.path("list")).arg("--keys").arg(world.path("keys"));
    let got = RunningClient::start({
        limited.arg("-o").arg(world.path("out/"));
        limited
    })
    .end();
    assert_eq!(got.code, Some(0), "{:?}", got.end);
    for (name, bytes) in &objects {
        assert!(std::fs::read(world.path("out").join(name)).is_ok_and(|is| is == *bytes), "{name}");
    }
    assert!(working_files(&world.path("out")).is_empty());
}

#[test]
fn existing_objects_are_not_fetched_again() {
    let world = World::new(2);
    list(&world, 2, 60);
    let (list, out) = (world.path("list"), world.path("out/"));
    let get = || {
        let arguments = ["--objects-from", list.to_str().expect("plain"), "-o", out.to_str().expect("plain")];
        world.get(&arguments).end()
    };
    let first = get();
    assert_eq!(first.code, Some(0), "{:?}", first.end);
    let again = get();
    assert_eq!(again.code, Some(0), "{:?}", again.end);
    assert_eq!((first.count("fetched_bytes") > 0, again.count("fetched_bytes")), (true, 0));
    // An existing file with other contents is not replaced.
    std::fs::write(out.join("o2"), b"another").expect("the folder is ours");
    assert_ne!(get().code, Some(0));
    assert_eq!(std::fs::read(out.join("o2")).expect("it is there"), b"another");
}

/// Pulls an object of 24 MiB, which a slow server has, too: 125 kB/s, so 50 s for a quarter of the
/// object. Returns the bytes that the slow server sent.
fn pull_beside_a_slow_server() -> u64 {
    let world = World::new(1).with(None, &["--rate-max", "1 Mbit/s"]);
    let bytes = noise(14, 24 * MIB);
    world.put(0..2, "object", &bytes);
    let got = world.get(&[&world.object(0..2, "object"), LINK[0], LINK[1]]).end();
    assert_eq!(got.code, Some(0), "{got:?}");
    assert!(world.has(&bytes));
    got.end["servers"][1]["received_bytes"].as_u64().expect("a count")
}

#[test]
fn slow_server_delivers_a_quarter_at_most() {
    assert!(pull_beside_a_slow_server() <= 6 * MIB as u64);
}

#[test]
#[ignore = "it measures: `make claims`"]
fn slow_server_does_not_delay_the_object() {
    let begun = Instant::now();
    let of_the_slow_one = pull_beside_a_slow_server();
    assert!((1..2 << 20).contains(&of_the_slow_one), "{of_the_slow_one} bytes");
    assert!(begun.elapsed() < PATIENCE / 2, "{:?}", begun.elapsed());
}
