//! What daemons and clients have in common as processes: their runtime, and how they are told to end.

/// The runtime that daemons and clients run on, on all cores.
pub fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    // Each attempt may keep a few threads for its files (`replicate::service::ATTEMPTS_MAX`); commands must still find one.
    tokio::runtime::Builder::new_multi_thread().max_blocking_threads(8_192).enable_all().build()
}

/// Waits for Ctrl-C or a polite kill.
pub async fn asked_to_end() {
    use tokio::signal::unix::{SignalKind, signal};
    let ended = async {
        match signal(SignalKind::terminate()) {
            Ok(mut term) => term.recv().await,
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = ended => {}
    }
}

/// A number that nobody can guess, as sessions have.
pub fn random() -> std::io::Result<u64> {
    use std::io::Read as _;
    let mut bytes = [0; 8];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}
