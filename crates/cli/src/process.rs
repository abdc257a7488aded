//! Processes of daemons and clients: their runtime, limits and signals.

/// Creates the runtime of daemons and clients, on all cores.
pub fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    // Each attempt may keep a few threads for its files (`replicate_proto::daemon::ATTEMPTS_MAX`),
    // and other work must still get a thread.
    tokio::runtime::Builder::new_multi_thread().max_blocking_threads(8_192).enable_all().build()
}

/// CPU time of this thread, in seconds.
pub fn thread_cpu_s() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + 1e-9 * time.tv_nsec as f64
}

/// Raises this process's limit of descriptors to the system's maximum, and returns the new limit. A
/// few hundred connections of strangers must not exhaust the usual limit of 1,024.
pub fn raise_descriptor_limit() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let found = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: found.maximum, maximum: found.maximum };
    // The call fails if the system's maximum is lower than the limit states; then the limit stays.
    let now = if setrlimit(Resource::Nofile, raised).is_ok() { found.maximum } else { found.current };
    now.unwrap_or(u64::MAX)
}

/// Warns if a daemon may need more descriptors than the `limit`.
pub fn check_descriptors(limit: u64, needed: u64) {
    if limit < needed {
        tracing::warn!(
            "{limit} descriptors (ulimit -Hn), and {needed} may be needed: allow that many, or connections will be refused"
        );
    }
}

/// Redirects standard output or error to `/dev/null` if its reader has ended, for instance a closed
/// terminal, so that a failed write does not end the process.
pub fn leave_dead_terminal() {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let is_dead = |fd: std::os::fd::BorrowedFd<'_>| {
        let mut asked = [PollFd::new(&fd, PollFlags::OUT)];
        let gone = PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL;
        poll(&mut asked, Some(&Timespec::default())).is_ok() && asked[0].revents().intersects(gone)
    };
    let Ok(nowhere) = std::fs::OpenOptions::new().write(true).open("/dev/null") else { return };
    if is_dead(rustix::stdio::stdout()) {
        let _ = rustix::stdio::dup2_stdout(&nowhere);
    }
    if is_dead(rustix::stdio::stderr()) {
        let _ = rustix::stdio::dup2_stderr(&nowhere);
    }
}

/// Waits for Ctrl-C or SIGTERM.
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
