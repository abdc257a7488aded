//! Two network namespaces joined by a veth cable, and flows that fill it.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::namespace::Namespace;
use anabranch_pace::FlowKey;
pub use anabranch_testing::skip::{is_lacking, skip};
use anabranch_units::BitRate;

/// Serialises the tests, because two loads at once would slow each other.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
/// Maximum duration of a load: longer than any test.
const LOAD_MAX: Duration = Duration::from_secs(600);

pub fn alone() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Internet protocol version.
#[derive(Copy, Clone, Debug)]
pub enum Ipv {
    Four,
    Six,
}

/// Two namespaces with a cable between their devices `v0`; flows run from `a` to `b`.
pub struct Pair {
    pub a: Namespace,
    pub b: Namespace,
}

impl Pair {
    /// Creates the namespaces. Returns `None`, with the reason printed, if the machine permits
    /// none.
    pub fn start() -> Option<Self> {
        match Self::try_start() {
            Ok(pair) => Some(pair),
            Err(why) => {
                skip(&why);
                None
            }
        }
    }

    fn try_start() -> Result<Self, String> {
        let pair = Self { a: Namespace::start()?, b: Namespace::start()? };
        pair.a.connect("v0", &pair.b, "v0")?;
        for (namespace, host) in [(&pair.a, 1), (&pair.b, 2)] {
            namespace.command(&format!("ip address add 10.9.0.{host}/24 dev v0"))?;
            namespace.command(&format!("ip address add fd09::{host}/64 dev v0 nodad"))?;
            namespace.command("ip link set v0 up")?;
            namespace.command("ip link set lo up")?;
        }
        Ok(pair)
    }

    fn sink(&self, ipv: Ipv) -> Sink {
        let to: SocketAddr = match ipv {
            Ipv::Four => "10.9.0.2:0".parse().expect("good"),
            Ipv::Six => "[fd09::2]:0".parse().expect("good"),
        };
        Sink::start(self.b.run(move || TcpListener::bind(to).expect("our own address")))
    }

    /// Starts a flow of this process. Returns `None`, with the reason printed, if the machine lacks
    /// the congestion control.
    pub fn load(&self, congestion_control: &'static str) -> Option<Load> {
        let sink = self.sink(Ipv::Four);
        let to = sink.address;
        let stream = self.a.run(move || TcpStream::connect(to).expect("listening"));
        if let Err(error) = rustix::net::sockopt::set_tcp_congestion(&stream, congestion_control) {
            skip(&format!("congestion control {congestion_control}: {error}"));
            return None;
        }
        let flow = FlowKey::new(stream.local_addr().expect("connected"), to);
        let stop = sink.stop.clone();
        let sender = std::thread::spawn(move || pump(stream, &stop));
        Some(Load {
            flow,
            congestion_control: congestion_control.into(),
            sink,
            sender: Some(sender),
            child: None,
        })
    }

    /// Starts a flow of another process.
    pub fn foreign_load(&self, ipv: Ipv) -> Load {
        self.foreign_load_in(ipv, None)
    }

    /// Starts a flow of another process, which is in this cgroup before it connects.
    pub fn foreign_load_in(&self, ipv: Ipv, cgroup: Option<&TestCgroup>) -> Load {
        self.waiting_load(ipv, cgroup).start()
    }

    /// Prepares a flow of another process in this cgroup, which connects on request.
    pub fn waiting_load(&self, ipv: Ipv, cgroup: Option<&TestCgroup>) -> WaitingLoad {
        let sink = self.sink(ipv);
        let to = sink.address;
        // A free port below the kernel's ephemeral range.
        let port = 20_000 + NEXT_PORT.fetch_add(1, Ordering::Relaxed) as u16;
        let from = SocketAddr::new(if to.is_ipv4() { A4 } else { A6 }.parse().expect("good"), port);
        let child = self.a.run(move || {
            let mut command = Command::new(std::env::current_exe().expect("this test"));
            command.args(["--exact", "the_sender_of_other_tests"]);
            command.env(SEND_TO, to.to_string()).env(SEND_FROM, from.to_string());
            command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("this test again")
        });
        if let Some(cgroup) = cgroup {
            std::fs::write(cgroup.path().join("cgroup.procs"), child.id().to_string())
                .expect("our own cgroup");
        }
        WaitingLoad { flow: FlowKey::new(from, to), sink, child }
    }
}

const A4: &str = "10.9.0.1";
const A6: &str = "fd09::1";
static NEXT_PORT: AtomicU32 = AtomicU32::new(0);

/// A program that connects on request.
pub struct WaitingLoad {
    pub flow: FlowKey,
    sink: Sink,
    child: Child,
}

impl WaitingLoad {
    /// Requests the connection, and waits until it is made.
    pub fn start(mut self) -> Load {
        self.child.stdin.take().expect("piped").write_all(b"\n").expect("it reads");
        assert_eq!(self.sink.peer(), self.flow.local);
        let congestion_control =
            std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap_or_default();
        Load {
            flow: self.flow,
            congestion_control: congestion_control.trim().to_owned(),
            sink: self.sink,
            sender: None,
            child: Some(self.child),
        }
    }
}

/// A cgroup below the root. Dropping the value removes it.
pub struct TestCgroup(std::path::PathBuf);

impl TestCgroup {
    /// Creates the cgroup. Returns `None`, with the reason printed, if that is not permitted.
    pub fn make() -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let root = mounts.lines().find(|line| line.contains(" cgroup2 ")).and_then(|l| l.split(' ').nth(1));
        let Some(root) = root else {
            skip("no cgroup2 file system is mounted");
            return None;
        };
        let name = format!("pace-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::path::Path::new(root).join(name);
        match std::fs::create_dir(&path) {
            Ok(()) => Some(Self(path)),
            Err(error) => {
                skip(&format!("{}: {error}", path.display()));
                None
            }
        }
    }

    pub fn path(&self) -> &std::path::Path {
        &self.0
    }
}

impl Drop for TestCgroup {
    fn drop(&mut self) {
        // A killed process leaves the cgroup a moment later.
        for _ in 0..100 {
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

const SEND_FROM: &str = "ANABRANCH_PACE_TEST_SEND_FROM";
const SEND_TO: &str = "ANABRANCH_PACE_TEST_SEND_TO";

/// Fills a flow until the other end closes, if this process was started by [`Pair::foreign_load`].
pub fn send_if_asked() {
    let Ok(to) = std::env::var(SEND_TO) else { return };
    let _ = std::io::stdin().read(&mut [0]);
    let (to, from) = (to.parse::<SocketAddr>().expect("an address"), std::env::var(SEND_FROM).expect("both"));
    let from: SocketAddr = from.parse().expect("an address");
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let stream = socket(family, SocketType::STREAM, None).expect("a socket");
    bind(&stream, &from).expect("a free port");
    connect(&stream, &to).expect("listening");
    let stream = TcpStream::from(stream);
    pump(stream, &AtomicBool::new(false));
}

fn pump(mut stream: TcpStream, stop: &AtomicBool) {
    let chunk = [0; 16 << 10];
    let start = Instant::now();
    while !stop.load(Ordering::Relaxed) && start.elapsed() < LOAD_MAX && stream.write_all(&chunk).is_ok() {}
}

/// Accepts one connection and counts the bytes that arrive.
struct Sink {
    address: SocketAddr,
    received: Arc<AtomicU64>,
    peer: mpsc::Receiver<SocketAddr>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Sink {
    fn start(listener: TcpListener) -> Self {
        let address = listener.local_addr().expect("bound");
        let (received, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (tell, peer) = mpsc::channel();
        let (count, stopped) = (received.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            let Ok((mut stream, from)) = listener.accept() else { return };
            let _ = tell.send(from);
            let mut chunk = vec![0; 64 << 10];
            let start = Instant::now();
            while let Ok(n @ 1..) = stream.read(&mut chunk) {
                count.fetch_add(n as u64, Ordering::Relaxed);
                if stopped.load(Ordering::Relaxed) || start.elapsed() > LOAD_MAX {
                    break;
                }
            }
        });
        Self { address, received, peer, stop, thread: Some(thread) }
    }

    /// Address of the connected peer.
    fn peer(&self) -> SocketAddr {
        self.peer.recv_timeout(Duration::from_secs(60)).expect("somebody connects")
    }
}

/// A flow that sends as fast as it may.
pub struct Load {
    pub flow: FlowKey,
    pub congestion_control: String,
    sink: Sink,
    sender: Option<JoinHandle<()>>,
    child: Option<Child>,
}

/// Rate of each flow over the next `time`.
pub fn rates_over(loads: &[Load], time: Duration) -> Vec<BitRate> {
    let count = || loads.iter().map(|load| load.sink.received.load(Ordering::Relaxed)).collect::<Vec<_>>();
    let (start, before) = (Instant::now(), count());
    std::thread::sleep(time);
    let (seconds, after) = (start.elapsed().as_secs_f64(), count());
    before.iter().zip(after).map(|(b, a)| BitRate::bps(((a - b) as f64 * 8.0 / seconds) as u64)).collect()
}

impl Drop for Load {
    fn drop(&mut self) {
        self.sink.stop.store(true, Ordering::Relaxed);
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = self.sender.take().map(JoinHandle::join);
        let _ = self.sink.thread.take().map(JoinHandle::join);
    }
}
