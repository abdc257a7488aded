//! Waits of tokio; arguments and output are as in `std_waits`.

#![allow(clippy::disallowed_methods, reason = "it measures waits by the clock")]

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use tokio::net::TcpListener;
use tokio::time::{interval, sleep, timeout};

fn main() -> std::io::Result<()> {
    let ms = std::env::args().nth(1).and_then(|text| text.parse().ok());
    let wait = Duration::from_millis(ms.ok_or(ErrorKind::InvalidInput)?);
    for (kind, mut builder) in [
        ("one", tokio::runtime::Builder::new_current_thread()),
        ("many", tokio::runtime::Builder::new_multi_thread()),
    ] {
        let runtime = builder.enable_all().build()?;
        runtime.block_on(async {
            let begun = Instant::now();
            sleep(wait).await;
            println!("{kind}_sleep {}", begun.elapsed().as_micros());
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            let begun = Instant::now();
            let none = timeout(wait, listener.accept()).await;
            println!("{kind}_timeout {}", begun.elapsed().as_micros());
            assert!(none.is_err(), "nobody connects");
            // The first tick is immediate, and the second is due one period after the first.
            let begun = Instant::now();
            let mut ticks = interval(wait);
            ticks.tick().await;
            ticks.tick().await;
            println!("{kind}_interval {}", begun.elapsed().as_micros());
            let begun = Instant::now();
            tokio::task::spawn_blocking(move || std::thread::sleep(wait)).await.expect("no panic");
            println!("{kind}_blocking {}", begun.elapsed().as_micros());
            std::io::Result::Ok(())
        })?;
    }
    Ok(())
}
