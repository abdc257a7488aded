//! Load test: viewers of one live channel behind a caching proxy, with the origin in this process.
//! Measures the time from the origin's last byte of a part to each viewer's last byte, the number
//! of requests at the origin, and the processor time of the proxy.
//!
//! `load ORIGIN_LISTEN PROXY PID [NAME=VALUE...]`: `viewers=1000 seconds=10 part_ms=200
//! part_bytes=25000 mode=hint`. Modes: `hint` requests each part before it exists, and the origin
//! delays the answer; `paced` requests each part up to 20 ms after it exists; `playlist` requests a
//! blocking `no-cache` playlist, then the part; `segment` requests segments of ten parts, which the
//! origin sends as they are produced.
#![allow(clippy::disallowed_methods, reason = "a program")]

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep_until};

const PARTS_OF_SEGMENT: u32 = 10;
/// Time between the program's start and the first part.
const WARM_UP: Duration = Duration::from_secs(2);

struct Load {
    begin: Instant,
    part_time: Duration,
    part_bytes: usize,
    mode: String,
    proxy: SocketAddr,
    requests: AtomicU64,
    /// Time at which the origin sent the last byte of each object.
    sent_at: Mutex<BTreeMap<u32, Instant>>,
    delays_us: Mutex<Vec<u64>>,
    bytes: AtomicU64,
    errors: AtomicU64,
    /// Longest time between the ends of two parts at one viewer, in microseconds.
    gap_us_max: AtomicU64,
    is_counting: AtomicBool,
}

impl Load {
    fn ready_at(&self, part: u32) -> Instant {
        self.begin + self.part_time * part
    }

    fn is_segments(&self) -> bool {
        self.mode == "segment"
    }
}

async fn serve(load: Arc<Load>, mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut head = Vec::new();
    loop {
        head.clear();
        while !head.ends_with(b"\r\n\r\n") {
            if stream.read_buf(&mut head).await? == 0 {
                return Ok(());
            }
        }
        load.requests.fetch_add(u64::from(load.is_counting.load(Relaxed)), Relaxed);
        let text = String::from_utf8_lossy(&head);
        let target = text.split(' ').nth(1).unwrap_or_default();
        let digits = |text: &str| text.chars().filter(char::is_ascii_digit).collect::<String>().parse().ok();
        let part: u32 = target.rsplit(['/', '=']).next().and_then(digits).unwrap_or(0);
        if target.contains("m3u8") {
            sleep_until(load.ready_at(part)).await;
            let answer = b"HTTP/1.1 200 OK\r\ncache-control: no-cache\r\ncontent-length: 1000\r\n\r\n";
            stream.write_all(&[&answer[..], &[b'#'; 1000]].concat()).await?;
            continue;
        }
        let body = vec![b'v'; load.part_bytes];
        if load.is_segments() {
            stream
                .write_all(
                    b"HTTP/1.1 200 OK\r\ncache-control: max-age=60\r\ntransfer-encoding: chunked\r\n\r\n",
                )
                .await?;
            for n in 1..=PARTS_OF_SEGMENT {
                sleep_until(load.ready_at(part * PARTS_OF_SEGMENT + n)).await;
                let chunk = [format!("{:x}\r\n", body.len()).as_bytes(), &body, b"\r\n"].concat();
                stream.write_all(&chunk).await?;
            }
            stream.write_all(b"0\r\n\r\n").await?;
        } else {
            sleep_until(load.ready_at(part)).await;
            let answer = format!(
                "HTTP/1.1 200 OK\r\ncache-control: max-age=60\r\ncontent-length: {}\r\n\r\n",
                body.len()
            );
            stream.write_all(&[answer.as_bytes(), &body].concat()).await?;
        }
        load.sent_at.lock().expect("no panic").entry(part).or_insert_with(Instant::now);
    }
}

/// Reads one answer. Returns the length of its body.
async fn exchange(stream: &mut TcpStream, buffer: &mut Vec<u8>, target: &str) -> io::Result<usize> {
    let request = format!("GET {target} HTTP/1.1\r\nhost: load\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    buffer.clear();
    let end = loop {
        if stream.read_buf(buffer).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if let Some(at) = buffer.windows(4).position(|four| four == b"\r\n\r\n") {
            break at + 4;
        }
    };
    let head = String::from_utf8_lossy(&buffer[..end]).to_ascii_lowercase();
    if !head.starts_with("http/1.1 200") {
        return Err(io::Error::other(head.lines().next().unwrap_or_default().to_owned()));
    }
    if let Some((_, length)) = head.split_once("content-length: ") {
        let length = length.lines().next().and_then(|l| l.trim().parse().ok()).unwrap_or(0);
        let mut read = buffer.len() - end;
        while read < length {
            buffer.clear();
            match stream.read_buf(buffer).await? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                more => read += more,
            }
        }
        return Ok(length);
    }
    let (mut at, mut total) = (end, 0);
    loop {
        // A chunk consists of its size, its bytes, and an empty line.
        let line = loop {
            if let Some(length) = buffer[at..].windows(2).position(|two| two == b"\r\n") {
                break at..at + length;
            }
            stream.read_buf(buffer).await?;
        };
        let size = std::str::from_utf8(&buffer[line.clone()])
            .ok()
            .and_then(|s| usize::from_str_radix(s.trim(), 16).ok());
        let size = size.ok_or(io::ErrorKind::InvalidData)?;
        at = line.end + 2;
        while buffer.len() < at + size + 2 {
            if stream.read_buf(buffer).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        at += size + 2;
        total += size;
        if size == 0 {
            return Ok(total);
        }
        buffer.drain(..at);
        at = 0;
    }
}

async fn view(load: Arc<Load>, number: u32, until: Instant) {
    let mut buffer = Vec::with_capacity(64 << 10);
    let mut stream = None;
    let mut ended_at: Option<Instant> = None;
    let mut part = if load.is_segments() { 0 } else { 1 };
    loop {
        let at =
            if load.is_segments() { load.ready_at(part * PARTS_OF_SEGMENT) } else { load.ready_at(part) };
        if at >= until {
            return;
        }
        match &*load.mode {
            "paced" | "segment" => {
                sleep_until(at + Duration::from_micros(u64::from(number * 7919 % 20_000))).await
            }
            _ => {}
        }
        if stream.is_none() {
            stream = TcpStream::connect(load.proxy).await.ok();
        }
        let Some(open) = &mut stream else { continue };
        let exchanged = async {
            if load.mode == "playlist" {
                exchange(open, &mut buffer, &format!("/ch/live.m3u8?_HLS_msn=1&_HLS_part={part}")).await?;
            }
            exchange(open, &mut buffer, &format!("/ch/p{part}.bin")).await
        };
        match exchanged.await {
            Ok(bytes) => {
                let now = Instant::now();
                let gap =
                    ended_at.replace(now).filter(|_| load.is_counting.load(Relaxed)).map(|then| now - then);
                load.gap_us_max.fetch_max(gap.map_or(0, |gap| gap.as_micros() as u64), Relaxed);
                if load.is_counting.load(Relaxed) {
                    load.bytes.fetch_add(bytes as u64, Relaxed);
                    let sent = load.sent_at.lock().expect("no panic").get(&part).copied();
                    let asked = at + Duration::from_micros(u64::from(number * 7919 % 20_000));
                    // If the viewer asks after the part was sent, its delay is measured from its
                    // request.
                    let from = if load.mode == "paced" { sent.map(|sent| sent.max(asked)) } else { sent };
                    let delay = from.map_or(0, |from| now.saturating_duration_since(from).as_micros() as u64);
                    load.delays_us.lock().expect("no panic").push(delay);
                }
            }
            Err(error) => {
                if load.errors.fetch_add(1, Relaxed) < 3 {
                    eprintln!("part {part}: {error}");
                }
                stream = None;
            }
        }
        part += 1;
    }
}

/// Processor time of a process and its descendants, in seconds.
fn cpu_s(pid: u32) -> f64 {
    let mut parents = BTreeMap::new();
    let mut ticks = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Ok(text) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        let Some((name, rest)) = text.rsplit_once(')') else { continue };
        let Some(id) = name.split(' ').next().and_then(|id| id.parse::<u32>().ok()) else { continue };
        let fields: Vec<u64> = rest.split(' ').map(|field| field.parse().unwrap_or(0)).collect();
        parents.insert(id, fields[2] as u32);
        ticks.insert(id, fields[12] + fields[13]);
    }
    let is_below = |mut id: u32| loop {
        if id == pid {
            return true;
        }
        match parents.get(&id) {
            Some(parent) => id = *parent,
            None => return false,
        }
    };
    ticks.iter().filter(|(id, _)| is_below(**id)).map(|(_, ticks)| *ticks as f64 / 100.0).sum()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut next = || arguments.next().ok_or("usage: load ORIGIN_LISTEN PROXY PID [NAME=VALUE...]");
    let (listen, proxy, pid) = (next()?, next()?.parse()?, next()?.parse()?);
    let mut settings = BTreeMap::from(
        [
            ("viewers", "1000"),
            ("seconds", "10"),
            ("part_ms", "200"),
            ("part_bytes", "25000"),
            ("mode", "hint"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned())),
    );
    settings.extend(arguments.filter_map(|a| a.split_once('=').map(|(n, v)| (n.to_owned(), v.to_owned()))));
    let number = |name: &str| settings[name].parse::<u64>();
    let (viewers, seconds) = (number("viewers")? as u32, number("seconds")?);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let part_time = Duration::from_millis(number("part_ms")?);
    let part_bytes = number("part_bytes")? as usize;
    let mode = settings["mode"].clone();
    runtime.block_on(async move {
        let load = Arc::new(Load {
            begin: Instant::now() + WARM_UP,
            part_time,
            part_bytes,
            mode,
            proxy,
            requests: AtomicU64::new(0),
            sent_at: Mutex::default(),
            delays_us: Mutex::default(),
            bytes: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            gap_us_max: AtomicU64::new(0),
            is_counting: AtomicBool::new(false),
        });
        let listener = TcpListener::bind(&listen).await?;
        let serving = Arc::clone(&load);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(Arc::clone(&serving), stream));
            }
        });
        let end = load.begin + Duration::from_secs(seconds + 2);
        for number in 0..viewers {
            tokio::spawn(view(Arc::clone(&load), number, end));
        }
        sleep_until(load.begin + Duration::from_secs(1)).await;
        let (cpu, begin) = (cpu_s(pid), Instant::now());
        load.is_counting.store(true, Relaxed);
        sleep_until(load.begin + Duration::from_secs(seconds + 1)).await;
        load.is_counting.store(false, Relaxed);
        let (cpu, time) = (cpu_s(pid) - cpu, begin.elapsed().as_secs_f64());
        let mut delays = std::mem::take(&mut *load.delays_us.lock().expect("no panic"));
        delays.sort_unstable();
        let quantile = |share: f64| {
            delays.get((delays.len() as f64 * share) as usize).map_or(f64::NAN, |us| *us as f64 / 1_000.0)
        };
        let gbit = load.bytes.load(Relaxed) as f64 * 8.0 / 1e9;
        let objects = if load.is_segments() { time / part_time.as_secs_f64() / 10.0 } else { time / part_time.as_secs_f64() };
        println!(
            "mode {} viewers {viewers}: {:.2} Gbit/s, {:.1} % of parts, upstream requests per part {:.2}, cpu {cpu:.2} s, {:.3} cpu s per Gbit, delay ms p50 {:.2} p99 {:.2} max {:.2}, longest gap between parts {:.1} ms, errors {}",
            load.mode,
            gbit / time,
            delays.len() as f64 * 100.0 / (objects * f64::from(viewers)),
            load.requests.load(Relaxed) as f64 / objects,
            cpu / gbit,
            quantile(0.5),
            quantile(0.99),
            quantile(0.9999),
            load.gap_us_max.load(Relaxed) as f64 / 1_000.0,
            load.errors.load(Relaxed),
        );
        Ok(())
    })
}
