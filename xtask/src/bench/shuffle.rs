//! `bench shuffle`: time from a flow's announcement on one host until a flow of another host has
//! its new limit.
//!
//! Runs a coordinator and agents of an existing binary over the loopback device of a separate
//! network namespace; the flows are idle. Two hosts send to the third, so that the announcement of
//! one's flow halves the limit of the other's; the agents of the remaining hosts only report that
//! they live. Measures wall time from the announcing line until the socket of the other flow has
//! another limit, which is polled continuously. Needs root. Read [`measure`] first.

use anabranch_linux::namespace::{Kind, Namespace};
use anabranch_linux::rtnetlink::{Address, LOOPBACK, LinkChange, Prefix, Rtnetlink};
use anabranch_pace::{FlowKey, FlowReader};
use anyhow::{Context as _, ensure};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Arguments of `bench shuffle`.
#[derive(clap::Args)]
pub struct Args {
    /// The `anabranch` command.
    #[arg(long, value_name = "FILE")]
    binary: PathBuf,
    /// Announcements that are measured.
    #[arg(long, default_value_t = 200)]
    turns: usize,
    /// Hosts, each with its agent.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(3..=200))]
    hosts: u8,
    /// Fail if the median is above this.
    #[arg(long, value_name = "MS")]
    median_ms_max: Option<f64>,
}

/// Maximum wait for a limit.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// Runs the benchmark in a new network namespace.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let folder = std::env::temp_dir().join(format!("anabranch-bench-shuffle-{}", std::process::id()));
    std::fs::create_dir(&folder)?;
    let measured = std::thread::scope(|scope| scope.spawn(|| measure(args, &folder)).join());
    let _ = std::fs::remove_dir_all(&folder);
    let mut ms = measured.map_err(|_| anyhow::anyhow!("the measuring thread panicked"))??;
    ms.sort_by(f64::total_cmp);
    let at = |share: f64| ms[((ms.len() - 1) as f64 * share) as usize];
    println!("announced to limited: {:.2} ms median, {:.2} ms p90, {:.2} ms most", at(0.5), at(0.9), at(1.0));
    if let Some(most) = args.median_ms_max {
        ensure!(at(0.5) <= most, "the median is {:.2} ms: at most {most} ms", at(0.5));
    }
    Ok(())
}

/// Child processes that are killed when this value is dropped.
struct ChildProcesses(Vec<Child>);

impl Drop for ChildProcesses {
    fn drop(&mut self) {
        // The agents started last, so they are killed before the coordinator.
        while let Some(mut child) = self.0.pop() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Moves the calling thread to a new network namespace, and returns the milliseconds of each turn
/// there.
fn measure(args: &Args, folder: &Path) -> anyhow::Result<Vec<f64>> {
    Namespace::unshare(Kind::Network).context("no network namespace: run as root")?;
    let mut rtnetlink = Rtnetlink::open()?;
    rtnetlink.change_link(LOOPBACK, &LinkChange { set_up: true, ..LinkChange::default() })?;
    for host in 1..=args.hosts {
        let prefix = Prefix::host(IpAddr::from([10, 9, 8, host]));
        rtnetlink.add_address(Address { device: LOOPBACK, prefix })?;
    }
    let keys = folder.join("keys");
    let anabranch = || {
        let mut command = Command::new(&args.binary);
        command.args(["-q", "shuffle"]).stdin(Stdio::null());
        command
    };
    let hosts: Vec<String> = (1..=args.hosts).map(|host| format!("h{host}")).collect();
    let made = anabranch().args(["keys", "--hosts", &hosts.join(","), "--out"]).arg(&keys).status()?;
    ensure!(made.success(), "no keys");
    let mut running = ChildProcesses(Vec::new());
    let mut command = anabranch();
    command.args(["coordinator", "--allocator", "max-min", "--keys"]).arg(&keys);
    running.0.push(command.arg("--store").arg(folder.join("store")).spawn()?);
    for host in 1..=args.hosts {
        let mut command = anabranch();
        command.args(["agent", "--link", "100 Mbit/s", "--name", &format!("h{host}"), "--keys"]).arg(&keys);
        command
            .args(["--address", &format!("10.9.8.{host}"), "--listen"])
            .arg(folder.join(format!("s{host}")));
        running.0.push(command.arg("--state").arg(folder.join(format!("state{host}"))).spawn()?);
    }
    let listener = TcpListener::bind("10.9.8.3:0")?;
    let connect = |host: u8| -> anyhow::Result<(TcpStream, TcpStream)> {
        use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
        let near = socket(AddressFamily::INET, SocketType::STREAM, None)?;
        bind(&near, &std::net::SocketAddr::from(([10, 9, 8, host], 0)))?;
        connect(&near, &listener.local_addr()?)?;
        Ok((near.into(), listener.accept()?.0))
    };
    let flows = [connect(1)?, connect(2)?];
    let begun = Instant::now();
    let mut programs = Vec::new();
    for host in 1..=2 {
        programs.push(loop {
            match UnixStream::connect(folder.join(format!("s{host}"))) {
                Ok(stream) => break BufReader::new(stream),
                Err(error) if begun.elapsed() > WAIT_MAX => return Err(error).context("no agent"),
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        });
    }
    let mut say = |of: usize, line: String| -> anyhow::Result<()> {
        let program = &mut programs[of];
        program.get_mut().write_all(line.as_bytes())?;
        let mut reply = String::new();
        program.read_line(&mut reply)?;
        ensure!(reply.contains(r#""ok":true"#), "{reply}");
        Ok(())
    };
    let key = |of: usize| -> anyhow::Result<String> {
        let near = &flows[of].0;
        Ok(format!(r#"{{"local":"{}","remote":"{}"}}"#, near.local_addr()?, near.peer_addr()?))
    };
    let announce = |of: usize| -> anyhow::Result<String> {
        Ok(format!("{{\"flow\":{},\"coflow\":\"t{of}\",\"size_bytes\":1000000000}}\n", key(of)?))
    };
    let mut reader = FlowReader::new()?;
    let other = FlowKey::new(flows[1].0.local_addr()?, flows[1].0.peer_addr()?);
    let mut wait_for = |mbps: u64| -> anyhow::Result<()> {
        let begun = Instant::now();
        loop {
            let limit = reader.find(other)?.context("the flow is gone")?.pacing_limit;
            if limit.is_some_and(|limit| limit.as_bps().abs_diff(mbps * 1_000_000) < 1_000_000) {
                return Ok(());
            }
            ensure!(begun.elapsed() < WAIT_MAX, "{limit:?} where {mbps} Mbit/s are to be");
        }
    };
    // Waits until all agents are connected and idle.
    std::thread::sleep(Duration::from_secs(2));
    say(1, announce(1)?)?;
    wait_for(100)?;
    let mut ms = Vec::with_capacity(args.turns);
    for _ in 0..args.turns.max(1) {
        let line = announce(0)?;
        let begun = Instant::now();
        say(0, line)?;
        wait_for(50)?;
        ms.push(1e3 * begun.elapsed().as_secs_f64());
        say(0, format!("{{\"ended\":{}}}\n", key(0)?))?;
        wait_for(100)?;
    }
    Ok(ms)
}
