//! `bench datagrams`: the cost of UDP over loopback on both sides, and of sealing.
//!
//! One thread sends and another receives, with separate runtimes; CPU time is measured for both
//! threads, user and kernel together. On loopback the sender's thread also does the kernel's part
//! of receiving, up to the socket's buffer; on a network an interrupt does that work. The sender
//! never has more in flight than the buffer holds, so nothing is dropped; a turn with a drop fails.
//! The machine's cores are shared, so the best of several turns counts.
//!
//! Afterwards the AEADs are measured alone, all in turns. The time to open is the time to seal and
//! open minus the time to seal, because a datagram opens only once. Read [`transfer`] first.

use super::{best_seconds, thread_cpu_s};
use anabranch_net::datagram::{Batch, DatagramOptions, DatagramSocket, Segments};
use anabranch_net::seal::{Aead, ChannelId, OVERHEAD_BYTES, Opener, Sealer, pair_for_measurement};
use anabranch_units::ByteCount;
use anyhow::{Context as _, ensure};
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

/// Arguments of `bench datagrams`.
#[derive(clap::Args)]
pub struct Args {
    /// Payload of each turn, in MB.
    #[arg(long, default_value_t = 500)]
    megabytes: u64,
    /// Turns of each kind; the one with the least CPU time on both sides together counts.
    #[arg(long, default_value_t = 5)]
    turns: u32,
    /// CPU seconds for each AEAD alone.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Print one JSON object for each row.
    #[arg(long)]
    json: bool,
}

/// Sizes of UDP payloads in bytes: one that every path carries, one that fills an Ethernet frame
/// over IPv6, and one that fills a jumbo frame.
const SIZES: [usize; 3] = [1_200, 1_452, 8_952];
/// Maximum number of bytes that are sent and not yet read by the receiver. It is well below the
/// buffer's size, because the kernel charges a datagram for more than its bytes.
const UNDER_WAY_BYTES: u64 = 2_000_000;
const BUFFER: ByteCount = ByteCount::mib(8);
const PATIENCE: Duration = Duration::from_secs(20);
const AEADS: [Aead; 3] = [Aead::Aes128Gcm, Aead::Aes256Gcm, Aead::ChaCha20Poly1305];

/// Parameters of one kind of turn.
#[derive(Copy, Clone)]
struct Kind {
    size: usize,
    offload: bool,
    aead: Option<Aead>,
}

#[derive(serde::Serialize)]
struct Row {
    datagram_bytes: usize,
    offload: bool,
    aead: Option<String>,
    gbit_per_s: f64,
    send_cpu_s_per_gb: f64,
    receive_cpu_s_per_gb: f64,
    datagrams_per_send_call: f64,
    datagrams_per_receive_call: f64,
}

#[derive(serde::Serialize)]
struct AeadSpeed {
    aead: String,
    datagram_bytes: usize,
    seal_gbytes_per_cpu_s: f64,
    open_gbytes_per_cpu_s: f64,
}

/// Runs the benchmark.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let mut kinds = Vec::new();
    for size in SIZES {
        for offload in [true, false] {
            for aead in [None].into_iter().chain(AEADS.map(Some)) {
                kinds.push(Kind { size, offload, aead });
            }
        }
    }
    let mut best: Vec<Option<Row>> = kinds.iter().map(|_| None).collect();
    for _ in 0..args.turns.max(1) {
        for (kind, best) in kinds.iter().zip(&mut best) {
            let row = transfer(*kind, args.megabytes * 1_000_000)?;
            let cpu = |r: &Row| r.send_cpu_s_per_gb + r.receive_cpu_s_per_gb;
            if best.as_ref().is_none_or(|b| cpu(&row) < cpu(b)) {
                *best = Some(row);
            }
        }
    }
    let rows: Vec<Row> = best.into_iter().flatten().collect();
    let alone = alone(args.seconds);
    if args.json {
        for row in &rows {
            println!("{}", serde_json::to_string(row)?);
        }
        for row in &alone {
            println!("{}", serde_json::to_string(row)?);
        }
    } else {
        println!("{}\n\n{}", table(&rows), table_alone(&alone));
    }
    Ok(())
}

fn plain_table(header: &[&str]) -> comfy_table::Table {
    let mut table = comfy_table::Table::new();
    table.load_preset(comfy_table::presets::NOTHING);
    table.set_header(header);
    table
}

fn table(rows: &[Row]) -> comfy_table::Table {
    let mut table = plain_table(&[
        "datagram B",
        "offload",
        "AEAD",
        "Gbit/s",
        "send CPU s/GB",
        "receive CPU s/GB",
        "a send call",
        "a receive call",
    ]);
    for r in rows {
        table.add_row([
            r.datagram_bytes.to_string(),
            if r.offload { "on" } else { "off" }.to_owned(),
            r.aead.clone().unwrap_or_else(|| "plain".to_owned()),
            format!("{:.1}", r.gbit_per_s),
            format!("{:.2}", r.send_cpu_s_per_gb),
            format!("{:.2}", r.receive_cpu_s_per_gb),
            format!("{:.1}", r.datagrams_per_send_call),
            format!("{:.1}", r.datagrams_per_receive_call),
        ]);
    }
    table
}

fn table_alone(rows: &[AeadSpeed]) -> comfy_table::Table {
    let mut table = plain_table(&["AEAD", "datagram B", "seal GB/s", "open GB/s"]);
    for r in rows {
        table.add_row([
            r.aead.clone(),
            r.datagram_bytes.to_string(),
            format!("{:.2}", r.seal_gbytes_per_cpu_s),
            format!("{:.2}", r.open_gbytes_per_cpu_s),
        ]);
    }
    table
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().context("no runtime")
}

/// Sends `total` bytes in datagrams of one kind from one thread to another.
fn transfer(kind: Kind, total: u64) -> anyhow::Result<Row> {
    let (sealer, opener) = match kind.aead.map(|aead| pair_for_measurement(aead, ChannelId(1))) {
        Some((sealer, opener)) => (Some(sealer), Some(opener)),
        None => (None, None),
    };
    let count = total.div_ceil(kind.size as u64);
    let total = count * kind.size as u64;
    let received_bytes = Arc::new(AtomicU64::new(0));
    let (report, address) = std::sync::mpsc::channel();
    let start = Arc::new(Barrier::new(2));
    let receiver = std::thread::spawn({
        let (received_bytes, start) = (received_bytes.clone(), start.clone());
        move || receive(opener, total, &received_bytes, &start, &report)
    });
    let to = address.recv().context("the receiver has no socket")?;
    let options = DatagramOptions { receive_buffer: BUFFER, send_buffer: BUFFER, offload: kind.offload };
    let (sent, send_cpu, began) = runtime()?.block_on(async {
        let socket = DatagramSocket::bind((Ipv4Addr::LOCALHOST, 0).into(), &options)?;
        ensure!(socket.offloads() == kind.offload, "this machine has no segmentation offload");
        start.wait();
        let (began, cpu) = (Instant::now(), thread_cpu_s());
        send(&socket, to, kind, count, sealer, &received_bytes).await?;
        anyhow::Ok((socket.counters(), thread_cpu_s() - cpu, began))
    })?;
    let (received, receive_cpu, ended) = receiver.join().expect("the receiver does not panic")?;
    let gigabytes = total as f64 / 1e9;
    Ok(Row {
        datagram_bytes: kind.size,
        offload: kind.offload,
        aead: kind.aead.map(|aead| aead.to_string()),
        gbit_per_s: 8.0 * gigabytes / (ended - began).as_secs_f64(),
        send_cpu_s_per_gb: send_cpu / gigabytes,
        receive_cpu_s_per_gb: receive_cpu / gigabytes,
        datagrams_per_send_call: sent.sent as f64 / sent.send_calls as f64,
        datagrams_per_receive_call: received.received as f64 / received.receive_calls as f64,
    })
}

async fn send(
    socket: &DatagramSocket,
    to: std::net::SocketAddr,
    kind: Kind,
    count: u64,
    mut sealer: Option<Sealer>,
    received_bytes: &AtomicU64,
) -> anyhow::Result<()> {
    let together = (65_000 / kind.size).min(64);
    let mut buffer = vec![0x5a; together * kind.size];
    let (mut left, mut sent) = (count, 0);
    while left > 0 {
        let began = Instant::now();
        while sent - received_bytes.load(Ordering::Acquire) > UNDER_WAY_BYTES {
            ensure!(began.elapsed() < PATIENCE, "datagrams were dropped on loopback");
            // The runtime's timers have a resolution of a millisecond. No other work runs on this
            // thread.
            std::thread::sleep(Duration::from_micros(50));
        }
        let now = (together as u64).min(left) as usize * kind.size;
        if let Some(sealer) = &mut sealer {
            for datagram in buffer[..now].chunks_mut(kind.size) {
                sealer.seal(datagram)?;
            }
        }
        socket.send(&Segments::new(to, &buffer[..now], kind.size)).await?;
        sent += now as u64;
        left -= (now / kind.size) as u64;
    }
    Ok(())
}

type ReceiveResult = (anabranch_net::datagram::Counters, f64, Instant);

fn receive(
    mut opener: Option<Opener>,
    total: u64,
    received_bytes: &AtomicU64,
    start: &Barrier,
    report: &std::sync::mpsc::Sender<std::net::SocketAddr>,
) -> anyhow::Result<ReceiveResult> {
    runtime()?.block_on(async {
        let options = DatagramOptions { receive_buffer: BUFFER, send_buffer: BUFFER, offload: true };
        let socket = DatagramSocket::bind((Ipv4Addr::LOCALHOST, 0).into(), &options)?;
        let granted = socket.buffers().receive;
        ensure!(
            granted >= ByteCount::mib(4),
            "receive buffer of {granted}: raise net.core.rmem_max to 8388608"
        );
        report.send(socket.local_addr()?)?;
        let (mut batch, mut received) = (Batch::new(), 0);
        start.wait();
        let cpu = thread_cpu_s();
        while received < total {
            tokio::time::timeout(PATIENCE, socket.recv(&mut batch))
                .await
                .context("datagrams were dropped on loopback")??;
            let mut bytes = 0;
            for datagram in batch.datagrams() {
                bytes += datagram.bytes.len() as u64;
                if let Some(opener) = &mut opener {
                    opener.open(datagram.bytes)?;
                }
            }
            received += bytes;
            received_bytes.fetch_add(bytes, Ordering::Release);
        }
        Ok((socket.counters(), thread_cpu_s() - cpu, Instant::now()))
    })
}

/// Number of datagrams that are sealed, or sealed and opened, in one timed call.
const ALONE_TOGETHER: usize = 32;

/// Measures the AEADs without sockets.
fn alone(seconds: f64) -> Vec<AeadSpeed> {
    let cells: Vec<(Aead, usize)> =
        AEADS.into_iter().flat_map(|aead| SIZES.map(|size| (aead, size))).collect();
    let mut contenders: Vec<Box<dyn FnMut()>> = Vec::new();
    for &(aead, size) in &cells {
        // A key seals half a terabyte, and a turn lasts milliseconds, so one key is enough.
        let mut buffer = vec![0x5a; size * ALONE_TOGETHER];
        let (mut sealer, _) = pair_for_measurement(aead, ChannelId(1));
        contenders.push(Box::new(move || {
            for datagram in buffer.chunks_exact_mut(size) {
                sealer.seal(datagram).expect("the key is not worn out");
            }
        }));
        let mut buffer = vec![0x5a; size * ALONE_TOGETHER];
        let (mut sealer, mut opener) = pair_for_measurement(aead, ChannelId(1));
        contenders.push(Box::new(move || {
            for datagram in buffer.chunks_exact_mut(size) {
                sealer.seal(datagram).expect("the key is not worn out");
            }
            for datagram in buffer.chunks_exact_mut(size) {
                let opened = opener.open(datagram).expect("it was sealed just now");
                assert_eq!(opened.payload.len(), size - OVERHEAD_BYTES);
            }
        }));
    }
    let best = best_seconds(&mut contenders, seconds);
    let speed = |size: usize, seconds: f64| (size * ALONE_TOGETHER) as f64 / 1e9 / seconds;
    cells
        .iter()
        .zip(best.chunks_exact(2))
        .map(|(&(aead, size), best)| AeadSpeed {
            aead: aead.to_string(),
            datagram_bytes: size,
            seal_gbytes_per_cpu_s: speed(size, best[0]),
            open_gbytes_per_cpu_s: speed(size, best[1] - best[0]),
        })
        .collect()
}
