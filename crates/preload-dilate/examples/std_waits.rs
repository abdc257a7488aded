//! Waits of Rust's standard library, each for the number of milliseconds in the first argument.
//! Each line of output has the name of a wait and its duration by the program's own clock, in
//! microseconds. The tests run this example under the library.

#![allow(clippy::disallowed_methods, reason = "it measures waits by the clock")]

use std::io::{ErrorKind, Read as _};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::sync::{Condvar, Mutex, mpsc};
use std::time::{Duration, Instant, SystemTime};

fn main() -> std::io::Result<()> {
    let ms = std::env::args().nth(1).and_then(|text| text.parse().ok());
    let wait = Duration::from_millis(ms.ok_or(ErrorKind::InvalidInput)?);
    let took = |name: &str, work: &mut dyn FnMut()| {
        let begun = Instant::now();
        work();
        println!("{name} {}", begun.elapsed().as_micros());
    };
    took("sleep", &mut || std::thread::sleep(wait));
    took("park_timeout", &mut || std::thread::park_timeout(wait));
    let (_sender, receiver) = mpsc::channel::<()>();
    took("recv_timeout", &mut || _ = receiver.recv_timeout(wait));
    let (mutex, condition) = (Mutex::new(()), Condvar::new());
    took("condvar", &mut || {
        let guard = mutex.lock().expect("no panic");
        drop(condition.wait_timeout_while(guard, wait, |()| true));
    });
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut near = TcpStream::connect(listener.local_addr()?)?;
    near.set_read_timeout(Some(wait))?;
    // The kernel rounds up to its ticks, of at most 10 ms.
    let ticks = wait..=wait + Duration::from_millis(10);
    assert!(
        near.read_timeout()?.is_some_and(|timeout| ticks.contains(&timeout)),
        "{:?}",
        near.read_timeout()
    );
    took("read_timeout", &mut || drop(near.read(&mut [0])));
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.set_read_timeout(Some(wait))?;
    took("recv", &mut || drop(socket.recv(&mut [0])));
    let begun = SystemTime::now();
    std::thread::sleep(wait);
    println!("system_time {}", begun.elapsed().expect("it goes on").as_micros());
    Ok(())
}
