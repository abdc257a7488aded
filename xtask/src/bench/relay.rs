//! `bench relay`: what each role of `replicate` costs, over loopback sockets.
//!
//! A controller and seven daemons of the release binary run the butterfly's code on loopback: 0 sends A and B, 1 and 2
//! mirror them, 3 adds them, 4 mirrors the sum, 5 and 6 decode. Each process's CPU time, from `/proc`, is set against
//! the payload that passed it. All daemons share the machine's cores, so the wall time says little and is not reported as
//! a rate; bytes per CPU second of one role are what a core of its own would carry.

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
    /// One JSON object for each role.
    #[arg(long)]
    json: bool,
}

/// What one role did.
#[derive(serde::Serialize)]
struct Row {
    job: &'static str,
    role: &'static str,
    site: &'static str,
    bytes_in: u64,
    bytes_out: u64,
    cpu_s: f64,
    /// Bytes in and out together.
    gbytes_per_cpu_s: f64,
    rss_max_bytes: u64,
}

/// Site, its role, and how many halves of the file it takes in and sends out.
const ROLES: [(&str, &str, u64, u64); 7] = [
    ("s", "source", 0, 2),
    ("a", "mirror", 1, 2),
    ("b", "mirror", 1, 2),
    ("c", "code and forward", 2, 1),
    ("d", "mirror", 1, 2),
    ("t1", "decode and write", 2, 0),
    ("t2", "decode and write", 2, 0),
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

/// Runs it.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(&cargo)
        .args(["build", "--quiet", "--release", "--package", "anabranch-cli"])
        .status()?;
    ensure!(built.success(), "the release binary does not build");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask lies in the workspace")?;
    let binary = root.join("target/release/anabranch");
    let folder = Folder::new()?;
    let rows = measure(args, &binary, &folder.0)?;
    if args.json {
        for row in &rows {
            println!("{}", serde_json::to_string(row)?);
        }
        Ok(())
    } else {
        let mut table = comfy_table::Table::new();
        table.load_preset(comfy_table::presets::NOTHING);
        table.set_header(["site", "role", "MB in", "MB out", "CPU s", "GB in and out per CPU s", "peak MB"]);
        for r in &rows {
            table.add_row([
                r.site.to_owned(),
                r.role.to_owned(),
                format!("{:.0}", r.bytes_in as f64 / 1e6),
                format!("{:.0}", r.bytes_out as f64 / 1e6),
                format!("{:.2}", r.cpu_s),
                format!("{:.2}", r.gbytes_per_cpu_s),
                format!("{:.0}", r.rss_max_bytes as f64 / 1e6),
            ]);
        }
        println!("{table}");
        Ok(())
    }
}

/// A folder in memory where there is one, so that the disk is not what is measured.
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

fn measure(args: &Args, binary: &Path, folder: &Path) -> anyhow::Result<Vec<Row>> {
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
    for (site, ..) in ROLES {
        std::fs::create_dir(folder.join(site))?;
    }
    write_file(&folder.join("s/file.bin"), size)?;
    // Ports: the first free one tells where to look for eight in a row.
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
    for (index, (site, ..)) in ROLES.iter().enumerate() {
        let listen = format!("127.0.0.1:{}", base + 1 + index as u16);
        let own = ["--site", site, "--controller", &controller, "--dir", site, "--listen", &listen];
        daemons.0.push(start(&[&["relay"], &network[..], &own].concat(), &format!("{site}.log"))?);
    }
    let sent = Command::new(binary)
        .args(["-q", "replicate", "send", "file.bin", "--as", "copy.bin", "--scheme", "coded", "--from", "s"])
        .args(["--to", "t1,t2", "--json", "--controller", &controller])
        .args(["--symbol", &args.symbol_bytes.to_string()])
        .arg("--keys")
        .arg(&keys)
        .current_dir(folder)
        .output()?;
    if !sent.status.success() {
        bail!("send failed: {}", String::from_utf8_lossy(&sent.stderr).trim());
    }
    ROLES
        .iter()
        .zip(&daemons.0[1..])
        .map(|(&(site, role, into, out), child)| {
            let (cpu_s, rss_max_bytes) = usage(child.id())?;
            let (bytes_in, bytes_out) = (into * size / 2, out * size / 2);
            let gbytes_per_cpu_s = (bytes_in + bytes_out) as f64 / 1e9 / cpu_s;
            Ok(Row { job: "relay", role, site, bytes_in, bytes_out, cpu_s, gbytes_per_cpu_s, rss_max_bytes })
        })
        .collect()
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

/// CPU seconds and the largest resident memory of a process so far.
fn usage(pid: u32) -> anyhow::Result<(f64, u64)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // Fields after the name, which may contain anything but ends with the last parenthesis: utime and stime are 14 and 15.
    let fields: Vec<&str> =
        stat.rsplit_once(')').context("a name in parentheses")?.1.split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>()? + fields[12].parse::<u64>()?;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let peak = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).context("VmHWM")?;
    let kib: u64 = peak.trim().trim_end_matches(" kB").trim().parse()?;
    Ok((ticks as f64 / rustix::param::clock_ticks_per_second() as f64, kib * 1024))
}
