//! `bench relay`: the cost of every role of `replicate`, over loopback sockets.
//!
//! A controller and seven daemons of the release binary run the butterfly's code on loopback: 0
//! sends A and B, 1 and 2 mirror them, 3 adds them, 4 mirrors the sum, 5 and 6 decode. The CPU time
//! of every process, from `/proc`, is divided by the payload that passed it. All daemons share the
//! machine's cores, so the wall time means little and is not reported as a rate; bytes per CPU
//! second of one role are the rate that it reaches with a core to itself.
//!
//! Division of the time into parts: the kernel's share is measured. The time of TLS, coding and
//! hashing is computed from the bytes that the role handles in each of them ([`ROLES`]) and from
//! this machine's speed at each part alone, measured in the same run ([`Parts`]). The remainder is
//! copies, locks, allocation and the runtime. (A remainder of a few hundredths below 0 comes from
//! the clock's resolution, and from parts that run faster together than alone.) A sampling profiler
//! is not used: on a virtual machine whose timer ticks are late and in bursts, two runs of one
//! profiler gave 4 % and 50 % to the same function.

use super::parts::Parts;
use anyhow::{Context as _, bail, ensure};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Arguments of `bench relay`.
#[derive(clap::Args)]
pub struct Args {
    /// Size of the file, in MiB.
    #[arg(long, default_value_t = 256)]
    mebibytes: u64,
    /// Bytes of a packet between sites.
    #[arg(long, default_value_t = 65_536)]
    symbol_bytes: u32,
    /// Measure these binaries in turns, instead of building one: before and after a change.
    #[arg(long, value_name = "FILE,FILE", value_delimiter = ',')]
    binaries: Vec<PathBuf>,
    /// Number of runs; for every role the run with the least CPU time counts.
    #[arg(long, default_value_t = 1)]
    runs: u32,
    /// Print one JSON object for each role.
    #[arg(long)]
    json: bool,
}

/// Measured values of one role.
#[derive(serde::Serialize)]
struct Row {
    job: &'static str,
    role: &'static str,
    site: &'static str,
    bytes_in: u64,
    bytes_out: u64,
    cpu_s: f64,
    /// Part of `cpu_s` spent in the kernel: sockets, files, pages.
    kernel_s: f64,
    /// Part of `cpu_s` for TLS records sealed and opened, computed from this machine's speed.
    tls_s: f64,
    coding_s: f64,
    blake3_s: f64,
    /// Digests for audits.
    xxh3_s: f64,
    /// Remainder of `cpu_s` after the parts above.
    rest_s: f64,
    /// 10^9 bytes in and out together, per CPU second.
    gbytes_per_cpu_s: f64,
    rss_max_bytes: u64,
}

/// Input of each part of a role's work, in halves of the file.
struct Role {
    site: &'static str,
    role: &'static str,
    into: u64,
    out: u64,
    /// Input of sums.
    coded: u64,
    /// Input of BLAKE3. A source hashes every piece, and derives the file's hash from the pieces'
    /// hashes. A destination hashes pieces as they arrive and, at the end, the file on the disk.
    blake3: u64,
}

const fn role(site: &'static str, role: &'static str, flows: [u64; 2], coded: u64, blake3: u64) -> Role {
    Role { site, role, into: flows[0], out: flows[1], coded, blake3 }
}

const ROLES: [Role; 7] = [
    role("s", "source", [0, 2], 0, 2),
    role("a", "mirror", [1, 2], 0, 0),
    role("b", "mirror", [1, 2], 0, 0),
    role("c", "code and forward", [2, 1], 2, 0),
    role("d", "mirror", [1, 2], 0, 0),
    role("t1", "decode and write", [2, 0], 2, 4),
    role("t2", "decode and write", [2, 0], 2, 4),
];

struct Daemons(Vec<Child>);

impl Drop for Daemons {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Runs the benchmark.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let mut binaries = args.binaries.clone();
    if binaries.is_empty() {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let built = Command::new(&cargo)
            .args(["build", "--quiet", "--release", "--package", "anabranch-cli"])
            .status()?;
        ensure!(built.success(), "the release binary does not build");
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask lies in the workspace")?;
        binaries.push(root.join("target/release/anabranch"));
    }
    let parts = Parts::measure(args.symbol_bytes)?;
    let mut best: Vec<Vec<Row>> = binaries.iter().map(|_| Vec::new()).collect();
    for _ in 0..args.runs.max(1) {
        for (binary, best) in binaries.iter().zip(&mut best) {
            let folder = Folder::new()?;
            let rows =
                measure(args, binary, &folder.0, &parts).with_context(|| format!("{}", binary.display()))?;
            if best.is_empty() {
                *best = rows;
                continue;
            }
            for (best, row) in best.iter_mut().zip(rows) {
                if row.cpu_s < best.cpu_s {
                    *best = row;
                }
            }
        }
    }
    if !args.json {
        println!("{parts}");
    }
    for (binary, rows) in binaries.iter().zip(&best) {
        if !args.binaries.is_empty() {
            eprintln!("{}", binary.display());
        }
        if args.json {
            for row in rows {
                println!("{}", serde_json::to_string(row)?);
            }
        } else {
            println!("{}", table(rows));
        }
    }
    Ok(())
}

fn table(rows: &[Row]) -> comfy_table::Table {
    let mut table = comfy_table::Table::new();
    table.load_preset(comfy_table::presets::NOTHING);
    table.set_header([
        "site",
        "role",
        "MB in",
        "MB out",
        "CPU s",
        "kernel",
        "TLS",
        "coding",
        "BLAKE3",
        "XXH3",
        "rest",
        "GB in and out per CPU s",
        "peak MB",
    ]);
    for r in rows {
        let mut cells = vec![
            r.site.to_owned(),
            r.role.to_owned(),
            format!("{:.0}", r.bytes_in as f64 / 1e6),
            format!("{:.0}", r.bytes_out as f64 / 1e6),
        ];
        let seconds = [r.cpu_s, r.kernel_s, r.tls_s, r.coding_s, r.blake3_s, r.xxh3_s, r.rest_s];
        cells.extend(seconds.map(|s| format!("{s:.2}")));
        cells.push(format!("{:.2}", r.gbytes_per_cpu_s));
        cells.push(format!("{:.0}", r.rss_max_bytes as f64 / 1e6));
        table.add_row(cells);
    }
    table
}

/// A folder in memory if the machine has one, so that the disk is not measured.
struct Folder(PathBuf);

impl Folder {
    fn new() -> anyhow::Result<Self> {
        let base = Path::new("/dev/shm");
        let base = if base.is_dir() { base.to_owned() } else { std::env::temp_dir() };
        let path = base.join(format!("anabranch-bench-{}", std::process::id()));
        std::fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn measure(args: &Args, binary: &Path, folder: &Path, parts: &Parts) -> anyhow::Result<Vec<Row>> {
    let size = args.mebibytes << 20;
    let network = ["--topology", "butterfly", "--rate", "10 Gbit/s"];
    let keys = folder.join("keys");
    let made = Command::new(binary)
        .args(["-q", "replicate", "keys", "init"])
        .args(network)
        .arg("--out")
        .arg(&keys)
        .status()?;
    ensure!(made.success(), "keys init failed");
    for role in &ROLES {
        std::fs::create_dir(folder.join(role.site))?;
    }
    write_file(&folder.join("s/file.bin"), size)?;
    // The first free port is the first of eight consecutive ports.
    let base = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port().min(60_000);
    let controller = format!("127.0.0.1:{base}");
    let start = |words: &[&str], log: &str| -> anyhow::Result<Child> {
        let log = std::fs::File::create(folder.join(log))?;
        let mut command = Command::new(binary);
        command.arg("replicate").args(words).arg("--keys").arg(&keys).current_dir(folder);
        Ok(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn()?)
    };
    let mut daemons = Daemons(Vec::new());
    let words = [&["controller"], &network[..], &["--listen", &controller]].concat();
    daemons.0.push(start(&words, "controller.log")?);
    for (index, Role { site, .. }) in ROLES.iter().enumerate() {
        let listen = format!("127.0.0.1:{}", base + 1 + index as u16);
        let own = ["--site", site, "--controller", &controller, "--dir", site, "--listen", &listen];
        daemons.0.push(start(&[&["relay"], &network[..], &own].concat(), &format!("{site}.log"))?);
    }
    let sent = Command::new(binary)
        .args(["-q", "replicate", "send", "file.bin", "--as", "copy.bin", "--scheme", "coded", "--from", "s"])
        .args(["--to", "t1,t2", "--json", "--controller", &controller])
        .args(["--symbol", &format!("{} B", args.symbol_bytes)])
        .arg("--keys")
        .arg(&keys)
        .current_dir(folder)
        .output()?;
    if !sent.status.success() {
        bail!("send failed: {}", String::from_utf8_lossy(&sent.stderr).trim());
    }
    let row = |(role, child): (&Role, &Child)| {
        let (user_s, kernel_s, rss_max_bytes) = usage(child.id())?;
        let halves = |n: u64| n * size / 2;
        let (bytes_in, bytes_out) = (halves(role.into), halves(role.out));
        let cpu_s = user_s + kernel_s;
        let tls_s = bytes_out as f64 * parts.seal_s + bytes_in as f64 * parts.open_s;
        let coding_s = halves(role.coded) as f64 * parts.xor_s;
        let blake3_s = halves(role.blake3) as f64 * parts.blake3_s;
        let xxh3_s = (bytes_in + bytes_out) as f64 * parts.xxh3_s;
        Ok(Row {
            job: "relay",
            role: role.role,
            site: role.site,
            bytes_in,
            bytes_out,
            cpu_s,
            kernel_s,
            tls_s,
            coding_s,
            blake3_s,
            xxh3_s,
            rest_s: user_s - tls_s - coding_s - blake3_s - xxh3_s,
            gbytes_per_cpu_s: (bytes_in + bytes_out) as f64 / 1e9 / cpu_s,
            rss_max_bytes,
        })
    };
    ROLES.iter().zip(&daemons.0[1..]).map(row).collect()
}

fn write_file(path: &Path, size: u64) -> anyhow::Result<()> {
    let mut file = std::io::BufWriter::new(std::fs::File::create(path)?);
    let mut state = 1u64;
    for _ in 0..size / 8 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        file.write_all(&state.to_le_bytes())?;
    }
    Ok(file.flush()?)
}

/// CPU seconds of a process, the program's own and the kernel's, and its peak resident memory so
/// far.
pub(super) fn usage(pid: u32) -> anyhow::Result<(f64, f64, u64)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // Fields after the name. The name may contain any character but ends with the last parenthesis.
    // `utime` and `stime` are fields 14 and 15.
    let fields: Vec<&str> =
        stat.rsplit_once(')').context("a name in parentheses")?.1.split_whitespace().collect();
    let seconds = |ticks: &str| {
        anyhow::Ok(ticks.parse::<u64>()? as f64 / rustix::param::clock_ticks_per_second() as f64)
    };
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let peak = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).context("VmHWM")?;
    let kib: u64 = peak.trim().trim_end_matches(" kB").trim().parse()?;
    Ok((seconds(fields[11])?, seconds(fields[12])?, kib * 1024))
}
