//! A host of an emulated scenario: a program in its namespace that sends, receives, asks and answers over the kernel's TCP.
//!
//! It reads its [`Task`] as a line of JSON, listens, says `ready`, reads when to begin (by the machine's monotonic clock, which
//! all hosts share), does its part, and prints what it has [`Seen`]. Threads and blocking sockets: flows are few.

use anabranch_units::Seed;
use anyhow::Context as _;
use rustix::net::sockopt::set_tcp_congestion;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::io::{BufRead as _, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// What a host has to do. Times are nanoseconds from the beginning.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Task {
    /// When it ends at the latest.
    pub duration_ns: u64,
    /// From when bytes count.
    pub warmup_ns: u64,
    /// The kernel's name of it, for every socket.
    pub congestion_control: String,
    pub incoming: Vec<Incoming>,
    pub outgoing: Vec<Outgoing>,
    pub serve: Vec<Serve>,
    pub ask: Vec<Ask>,
}

/// A flow that is received.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Incoming {
    pub flow: u32,
    pub port: u16,
    pub size_bytes: Option<u64>,
}

/// A flow that is sent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Outgoing {
    pub flow: u32,
    pub to: (IpAddr, u16),
    pub start_ns: u64,
    pub size_bytes: Option<u64>,
}

/// A block for every request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Serve {
    pub port: u16,
    pub request_bytes: u64,
    pub block_bytes: u64,
}

/// Requests to several servers at once.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Ask {
    pub first_flow: u32,
    pub servers: Vec<(IpAddr, u16)>,
    pub rounds: u32,
    pub warmup_rounds: u32,
    pub request_bytes: u64,
    pub block_bytes: u64,
    pub jitter_ns: u64,
    pub seed: u64,
}

/// What a host has seen. Times are nanoseconds from the beginning.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Seen {
    /// When it was over.
    pub over_ns: u64,
    pub flows: Vec<SeenFlow>,
    pub asked: Vec<SeenRounds>,
}

/// A flow, as its receiver saw it; `start_ns` as its sender did.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct SeenFlow {
    pub flow: u32,
    pub bytes: u64,
    pub warmup_bytes: u64,
    pub start_ns: Option<u64>,
    pub whole_ns: Option<u64>,
}

/// The rounds of an incast.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct SeenRounds {
    pub first_flow: u32,
    pub round_bytes: u64,
    pub rounds_ns: Vec<(u64, u64)>,
}

/// The machine's monotonic clock.
pub(super) fn monotonic_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Bytes that are read or written at once.
const CHUNK: usize = 64 << 10;

/// The beginning, and what follows from it.
#[derive(Copy, Clone)]
struct Clock {
    begin_ns: u64,
    end_ns: u64,
    warmup_ns: u64,
}

impl Clock {
    /// Since the beginning.
    fn now_ns(self) -> u64 {
        monotonic_ns().saturating_sub(self.begin_ns)
    }
    fn is_over(self) -> bool {
        self.now_ns() >= self.end_ns
    }
    fn sleep_until(self, at_ns: u64) {
        let left = (self.begin_ns + at_ns.min(self.end_ns)).saturating_sub(monotonic_ns());
        std::thread::sleep(Duration::from_nanos(left));
    }
}

/// Runs it.
///
/// Errors: the system's.
pub(crate) fn run() -> anyhow::Result<ExitCode> {
    let mut lines = std::io::stdin().lock().lines();
    let task: Task = serde_json::from_str(&lines.next().context("a task")??)?;
    let control = task.congestion_control.as_str();
    let listen = |port| {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))?;
        // What it accepts inherits it.
        set_tcp_congestion(&listener, control)?;
        std::io::Result::Ok(listener)
    };
    listen(0).with_context(|| format!("congestion control {control}: not on this machine"))?;
    let incoming: Vec<_> = task.incoming.iter().map(|i| listen(i.port)).collect::<Result<_, _>>()?;
    let serving: Vec<_> = task.serve.iter().map(|s| listen(s.port)).collect::<Result<_, _>>()?;
    println!("ready");
    let begin_ns: u64 = lines.next().context("when to begin")??.trim().parse()?;
    let clock = Clock { begin_ns, end_ns: task.duration_ns, warmup_ns: task.warmup_ns };
    let seen = Mutex::new(Seen::default());
    std::thread::scope(|scope| {
        for (task, listener) in task.serve.iter().zip(serving) {
            // Ends with its client's connection, or with the process.
            std::thread::Builder::new().spawn({
                let task = task.clone();
                move || serve(&task, &listener)
            })?;
        }
        for (task, listener) in task.incoming.iter().zip(incoming) {
            let seen = &seen;
            scope.spawn(move || {
                let flow = receive(task, &listener, clock);
                seen.lock().expect("nobody panics with it").flows.push(flow);
            });
        }
        for task in &task.outgoing {
            scope.spawn(move || send(task, control, clock));
        }
        for task in &task.ask {
            let seen = &seen;
            scope.spawn(move || match ask(task, clock) {
                Ok(asked) => seen.lock().expect("nobody panics with it").asked.push(asked),
                Err(error) => eprintln!("anabranch: incast: {error}"),
            });
        }
        anyhow::Ok(())
    })?;
    let mut seen = seen.into_inner().expect("nobody panics with it");
    seen.over_ns = clock.now_ns().min(clock.end_ns);
    println!("{}", serde_json::to_string(&seen)?);
    std::io::stdout().flush()?;
    // Servers answer until all is over.
    lines.by_ref().for_each(drop);
    std::process::exit(0)
}

/// Takes in one flow until it is whole or time is up. The sender's first 8 bytes say when it began.
fn receive(task: &Incoming, listener: &TcpListener, clock: Clock) -> SeenFlow {
    let mut seen = SeenFlow { flow: task.flow, ..SeenFlow::default() };
    let Some(mut stream) = accept(listener, clock) else { return seen };
    let mut buffer = vec![0; CHUNK];
    let mut is_warm = false;
    loop {
        let left_ns = clock.end_ns.saturating_sub(clock.now_ns());
        let _ = stream.set_read_timeout(Some(Duration::from_nanos(left_ns.max(1_000))));
        let read = stream.read(&mut buffer);
        let now_ns = clock.now_ns();
        if !is_warm && now_ns >= clock.warmup_ns {
            (is_warm, seen.warmup_bytes) = (true, seen.bytes);
        }
        match read {
            Ok(0) => return seen,
            Ok(length) => {
                if now_ns > clock.end_ns {
                    return seen;
                }
                if seen.bytes == 0
                    && let Some(first) = buffer[..length].first_chunk()
                {
                    seen.start_ns = Some(u64::from_le_bytes(*first));
                }
                seen.bytes += length as u64;
                if task.size_bytes.is_some_and(|size| seen.bytes >= size) {
                    seen.whole_ns = Some(now_ns);
                    return seen;
                }
            }
            Err(_) if clock.is_over() => return seen,
            Err(_) => {}
        }
    }
}

/// The connection that comes before time is up: its sender may not get through.
fn accept(listener: &TcpListener, clock: Clock) -> Option<TcpStream> {
    listener.set_nonblocking(true).ok()?;
    while !clock.is_over() {
        match listener.accept() {
            Ok((stream, _)) => return stream.set_nonblocking(false).ok().map(|()| stream),
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    None
}

/// Sends one flow from its start until it is out or time is up.
fn send(task: &Outgoing, control: &str, clock: Clock) {
    clock.sleep_until(task.start_ns);
    let began_ns = clock.now_ns();
    let Ok(mut stream) = TcpStream::connect(task.to) else { return };
    if let Err(error) = set_tcp_congestion(&stream, control) {
        return eprintln!("anabranch: congestion control {control}: {error}");
    }
    let mut chunk = vec![0; CHUNK];
    chunk[..8].copy_from_slice(&began_ns.to_le_bytes());
    let mut left = task.size_bytes.unwrap_or(u64::MAX);
    while left > 0 && !clock.is_over() {
        let length = left.min(CHUNK as u64) as usize;
        let left_ns = clock.end_ns.saturating_sub(clock.now_ns());
        let _ = stream.set_write_timeout(Some(Duration::from_nanos(left_ns.max(1_000))));
        match stream.write(&chunk[..length]) {
            Ok(written) => left -= written as u64,
            Err(_) => return,
        }
    }
    // Kept until the receiver has it all, or time is up: an early end would reset the connection.
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let _ = stream
        .set_read_timeout(Some(Duration::from_nanos(clock.end_ns.saturating_sub(clock.now_ns()).max(1_000))));
    let _ = stream.read(&mut chunk);
}

/// Answers each request with a block.
fn serve(task: &Serve, listener: &TcpListener) {
    let Ok((mut stream, _)) = listener.accept() else { return };
    let _ = stream.set_nodelay(true);
    let block = vec![0; CHUNK];
    let mut request = vec![0; task.request_bytes as usize];
    while stream.read_exact(&mut request).is_ok() {
        let mut left = task.block_bytes;
        while left > 0 {
            let length = left.min(CHUNK as u64) as usize;
            if stream.write_all(&block[..length]).is_err() {
                return;
            }
            left -= length as u64;
        }
    }
}

/// Asks all servers for a block, again when all have come; one thread a server, a barrier between rounds.
fn ask(task: &Ask, clock: Clock) -> std::io::Result<SeenRounds> {
    let streams: Vec<TcpStream> = task.servers.iter().map(TcpStream::connect).collect::<Result<_, _>>()?;
    let barrier = std::sync::Barrier::new(streams.len() + 1);
    let ok = AtomicBool::new(true);
    let mut rounds_ns = Vec::new();
    clock.sleep_until(0);
    std::thread::scope(|scope| {
        for (index, mut stream) in streams.into_iter().enumerate() {
            let (barrier, ok) = (&barrier, &ok);
            scope.spawn(move || {
                let _ = stream.set_nodelay(true);
                let mut random = Seed::new(task.seed).stream("ask", index as u64);
                let request = vec![0; task.request_bytes as usize];
                let mut buffer = vec![0; CHUNK];
                for _ in 0..task.rounds + task.warmup_rounds {
                    barrier.wait();
                    std::thread::sleep(Duration::from_nanos(random.below(task.jitter_ns + 1)));
                    let mut left = task.block_bytes;
                    let mut good = stream.write_all(&request).is_ok();
                    while good && left > 0 {
                        let length = left.min(CHUNK as u64) as usize;
                        match stream.read(&mut buffer[..length]) {
                            Ok(0) | Err(_) => good = false,
                            Ok(length) => left -= length as u64,
                        }
                    }
                    if !good {
                        ok.store(false, Relaxed);
                    }
                    barrier.wait();
                }
            });
        }
        for round in 0..task.rounds + task.warmup_rounds {
            let began_ns = clock.now_ns();
            barrier.wait();
            barrier.wait();
            let ended_ns = clock.now_ns();
            if round >= task.warmup_rounds && ok.load(Relaxed) && ended_ns <= clock.end_ns {
                rounds_ns.push((began_ns, ended_ns));
            }
        }
    });
    let round_bytes = task.block_bytes * task.servers.len() as u64;
    Ok(SeenRounds { first_flow: task.first_flow, round_bytes, rounds_ns })
}
