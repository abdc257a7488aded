//! Cost of a call: processor time of a million writes of 100 bytes to `/dev/null` and over
//! loopback. Run the example with the library preloaded and without; the crate's documentation has
//! the results.

#![allow(clippy::disallowed_methods, reason = "it measures a driver: it opens sockets and files")]

use rustix::time::{ClockId, clock_gettime};
use std::io::{Read as _, Write};
use std::net::{TcpListener, TcpStream};

const CALLS: usize = 1_000_000;

/// Processor time of this thread per call, in nanoseconds; the minimum of five rounds.
fn cost_ns(mut to: impl Write) -> f64 {
    let now = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
    };
    let turn = |_| {
        let begun = now();
        for _ in 0..CALLS / 5 {
            to.write_all(&[7; 100]).expect("it takes all");
        }
        (now() - begun) * 5.0 / CALLS as f64
    };
    (0..5).map(turn).fold(f64::INFINITY, f64::min)
}

fn main() -> std::io::Result<()> {
    println!("/dev/null: {:.0} ns a write", cost_ns(std::fs::File::options().write(true).open("/dev/null")?));
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let stream = TcpStream::connect(listener.local_addr()?)?;
    let (mut other, _) = listener.accept()?;
    let reader = std::thread::spawn(move || {
        let mut chunk = vec![0; 1 << 20];
        while matches!(other.read(&mut chunk), Ok(1..)) {}
    });
    println!("TCP over loopback: {:.0} ns a write", cost_ns(&stream));
    drop(stream);
    reader.join().expect("no panic");
    Ok(())
}
