//! TCP Fast Open in a network namespace, because the machine must permit it to listeners.

use anabranch_net::socket::{self, TcpOptions};
use anabranch_testing::skip::{is_lacking, skip};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const PATIENCE: Duration = Duration::from_secs(60);

/// Runs `job` in a network namespace with loopback up, and with `net.ipv4.tcp_fastopen` set to
/// `allowed`. Skips the test if the machine permits no namespace.
fn in_a_namespace<F: Future<Output = ()>>(allowed: u32, job: impl FnOnce() -> F + Send + 'static) {
    let thread = std::thread::spawn(move || {
        match nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).map_err(io::Error::from) {
            Err(error) if is_lacking(&error, &[]) => return Err(error),
            made => made.expect("a namespace"),
        }
        let up = std::process::Command::new("ip").args(["link", "set", "lo", "up"]).status();
        match up {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(error),
            up => assert!(up.expect("it runs").success(), "`ip link set lo up`"),
        }
        let fast_open = "/proc/sys/net/ipv4/tcp_fastopen";
        std::fs::write(fast_open, allowed.to_string()).expect("it is this namespace's own");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime of this thread alone");
        runtime
            .block_on(async { tokio::time::timeout(PATIENCE, job()).await.expect("nothing stands still") });
        Ok(())
    });
    let done = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    done.unwrap_or_else(|error| skip(&format!("no network namespace, or no `ip`: {error}")));
}

/// Listens with TCP Fast Open permitted.
fn listen() -> (TcpListener, SocketAddr) {
    let listener = socket::listen(([127, 0, 0, 1], 0).into()).expect("a free port");
    socket::let_open_fast(&listener).expect("the kernel has it");
    let at = listener.local_addr().expect("bound");
    (listener, at)
}

async fn connect(to: SocketAddr) -> io::Result<TcpStream> {
    socket::connect(to, &TcpOptions { opens_fast: true, ..TcpOptions::default() }).await
}

/// Sends data to a listener, which echoes it. Returns true if the data left with the first packet,
/// by the kernel's counters.
async fn says_with_its_first_packet(listener: &TcpListener, to: SocketAddr) -> bool {
    let before = opened_fast();
    let mut caller = connect(to).await.expect("somebody listens");
    caller.write_all(b"who is there?").await.expect("it takes that");
    let (mut called, _) = listener.accept().await.expect("somebody calls");
    let mut said = [0; 13];
    called.read_exact(&mut said).await.expect("it was said");
    called.write_all(&said).await.expect("it is taken");
    let mut again = [0; 13];
    caller.read_exact(&mut again).await.expect("it was said again");
    assert_eq!((&said, &again), (b"who is there?", b"who is there?"));
    assert!(socket::rtt(&caller).is_some_and(|rtt| rtt < PATIENCE), "the kernel has measured it");
    opened_fast() > before
}

/// Number of connections in this namespace whose first packet's data was accepted.
fn opened_fast() -> u64 {
    let all = std::fs::read_to_string("/proc/thread-self/net/netstat").expect("the kernel counts");
    let mut lines = all.lines().filter(|line| line.starts_with("TcpExt:"));
    let (names, counts) = (lines.next().expect("names"), lines.next().expect("counts"));
    let at = names.split(' ').position(|name| name == "TCPFastOpenActive").expect("it counts that");
    counts.split(' ').nth(at).and_then(|count| count.parse().ok()).expect("a number")
}

#[test]
fn returning_caller_sends_data_in_its_first_packet() {
    in_a_namespace(3, || async {
        let (listener, at) = listen();
        assert!(!says_with_its_first_packet(&listener, at).await, "nobody knows it yet");
        assert!(says_with_its_first_packet(&listener, at).await);
        // The listener is closed, which the client notices only after `connect`.
        drop(listener);
        let mut caller = connect(at).await.expect("nothing has left yet");
        let said = caller.write_all(b"who is there?").await;
        let error = match said {
            Err(error) => error,
            Ok(()) => caller.read_u8().await.expect_err("nobody is there"),
        };
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    });
}

#[test]
fn forbidden_fast_open_falls_back_to_the_handshake() {
    in_a_namespace(1, || async {
        let (listener, at) = listen();
        for _ in 0..2 {
            assert!(!says_with_its_first_packet(&listener, at).await);
        }
        drop(listener);
        assert_eq!(connect(at).await.expect_err("nobody listens").kind(), io::ErrorKind::ConnectionRefused);
    });
}
