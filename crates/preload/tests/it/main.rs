//! Tests with unmodified programs that preload the library, and with a socket that receives their
//! announcements.
//!
//! The programs are in Python, whose sockets are the C library's. Without Python, tests print the
//! reason and count as skipped. Tests in `cli` use a real agent. Read [`World`] first.

#![allow(clippy::disallowed_methods, reason = "tests of a driver: they run programs")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};

use anabranch_testing::skip::{is_lacking, skip};

/// First lines of all programs.
const PROLOGUE: &str = "import os, socket, sys, threading\n\
    def connect(): return socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n";

/// A folder with a socket that records lines, and a receiver that counts bytes.
struct World {
    folder: PathBuf,
    lines: Arc<Mutex<Vec<serde_json::Value>>>,
    receiver: SocketAddr,
    received: Arc<Mutex<u64>>,
}

/// #17: a test was skipped if descriptors had run out or a path was wrong, which are our mistakes.
#[test]
fn only_errors_of_the_machine_skip_a_test() {
    let [eperm, enoent, enodev, emfile, enospc] = [1, 2, 19, 24, 28];
    let lacks = |code, codes: &[i32]| is_lacking(&std::io::Error::from_raw_os_error(code), codes);
    assert!(lacks(eperm, &[]));
    for code in [enoent, enodev, emfile, enospc] {
        assert!(!lacks(code, &[]), "{code}");
        assert!(lacks(code, &[code]), "{code}: where the step says so");
    }
}

/// Body of a separate process that the test below runs.
#[test]
#[ignore = "run by skips_are_counted_and_fail_where_forbidden"]
fn child_skips_its_test() {
    skip("no such\nthing");
}

/// #17: skipped tests looked like tests that passed.
#[test]
fn skips_are_counted_and_fail_where_forbidden() {
    let list = std::env::temp_dir().join(format!("anabranch-preload-{}-skipped", std::process::id()));
    let _ = std::fs::remove_file(&list);
    let run = |is_strict: bool| {
        let mut tests = Command::new(std::env::current_exe().expect("this program"));
        tests.args(["--exact", "--ignored", "child_skips_its_test"]).env("ANABRANCH_SKIPPED", &list);
        tests.env_remove("ANABRANCH_NO_SKIP");
        if is_strict {
            tests.env("ANABRANCH_NO_SKIP", "1");
        }
        tests.output().expect("it runs").status.success()
    };
    assert!(run(false) && run(false) && !run(true));
    let line = "anabranch-preload\tchild_skips_its_test\tno such thing\n";
    assert_eq!(std::fs::read_to_string(&list).expect("it was written"), line.repeat(2));
    let _ = std::fs::remove_file(&list);
}

impl World {
    /// Creates the folder and its sockets. Returns `None`, with the reason printed, if there is no
    /// Python.
    fn new(name: &str, is_agent_there: bool) -> Option<Self> {
        if !Command::new("python3").arg("--version").output().is_ok_and(|output| output.status.success()) {
            skip("no python3");
            return None;
        }
        let folder = std::env::temp_dir().join(format!("anabranch-preload-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).expect("a writable temporary folder");
        let lines = Arc::new(Mutex::new(Vec::new()));
        if is_agent_there {
            let (listener, lines) =
                (UnixListener::bind(folder.join("agent.sock")).expect("a free path"), lines.clone());
            std::thread::spawn(move || {
                for mut stream in listener.incoming().map_while(Result::ok) {
                    let mut line = String::new();
                    BufReader::new(&stream).read_line(&mut line).expect("text");
                    lines.lock().expect("no panic").push(serde_json::from_str(&line).expect("JSON"));
                    // The client may have disconnected without waiting.
                    let _ = stream.write_all(b"{\"ok\":true}\n");
                }
            });
        }
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let receiver = listener.local_addr().expect("bound");
        let received = Arc::new(Mutex::new(0));
        let count = received.clone();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                let count = count.clone();
                std::thread::spawn(move || {
                    let mut chunk = vec![0; 1 << 16];
                    while let Ok(length @ 1..) = stream.read(&mut chunk) {
                        *count.lock().expect("no panic") += length as u64;
                    }
                });
            }
        });
        Some(Self { folder, lines, receiver, received })
    }

    /// A command that runs the script with the library and its two variables, which may be changed.
    fn program(&self, script: &str) -> Command {
        // Cargo puts the library into the same folder as the tests of its crate.
        let tests = std::env::current_exe().expect("it runs");
        let library = tests.with_file_name("libanabranch_preload.so");
        assert!(library.exists(), "{} is built with the tests", library.display());
        let mut command = Command::new("python3");
        command.args(["-c", &format!("{PROLOGUE}{script}"), &self.receiver.port().to_string()]);
        command.env("LD_PRELOAD", library).env("ANABRANCH_COFLOW", "job-7");
        command.env("ANABRANCH_SHUFFLE_SOCKET", self.folder.join("agent.sock")).current_dir(&self.folder);
        command
    }

    /// Runs the script, which must succeed, and returns its output.
    fn run(&self, script: &str) -> String {
        finished(&mut self.program(script))
    }

    /// Runs the script in new worlds until it announces these sizes, at most ten times. An agent
    /// that answers later than the announcer's timeout misses announcements. Returns the last world
    /// and the script's output; `None`, with the reason printed, if there is no Python.
    fn announcing(name: &str, script: &str, wanted: &[u64]) -> Option<(Self, String)> {
        let mut said = Vec::new();
        for _ in 0..10 {
            let world = Self::new(name, true)?;
            let output = world.run(script);
            let sizes = world.sizes(wanted.len());
            if sizes == wanted {
                return Some((world, output));
            }
            assert!(sizes.iter().all(|size| wanted.contains(size)), "{sizes:?}, and only {wanted:?} is sent");
            said.push(sizes);
        }
        panic!("never {wanted:?}: {said:?}");
    }

    /// The announced sizes in order, once `count` of them have arrived.
    fn sizes(&self, count: usize) -> Vec<u64> {
        let sizes = || -> Vec<u64> {
            let lines = self.lines.lock().expect("no panic");
            lines.iter().map(|line| line["size_bytes"].as_u64().expect("a size")).collect()
        };
        for _ in 0..6_000 {
            if sizes().len() >= count {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        sizes()
    }

    /// Waits until this many bytes have arrived.
    fn receives(&self, bytes: u64) {
        for _ in 0..12_000 {
            if *self.received.lock().expect("no panic") >= bytes {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert_eq!(*self.received.lock().expect("no panic"), bytes);
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn finished(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().expect("it starts");
    assert!(status.success(), "{status}: {}", String::from_utf8_lossy(&stderr));
    assert!(stderr.is_empty(), "{}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).expect("text").trim().to_owned()
}

#[test]
fn program_is_announced_above_mice_size_and_after_growth() {
    let script = "s = connect()\nfor n in (40_000, 9_999, 1, 12_499, 1, 400_000): s.sendall(bytes(n))\n\
         print(s.getsockname()[1])";
    let Some((world, port)) = World::announcing("grows", script, &[50_000, 62_500, 462_500]) else { return };
    let lines = world.lines.lock().expect("no panic");
    let flow = serde_json::json!({
        "local": format!("127.0.0.1:{port}"), "remote": world.receiver.to_string(),
    });
    assert!(lines.iter().all(|line| line["flow"] == flow && line["coflow"] == "job-7"), "{lines:?}");
    world.receives(462_500);
}

#[test]
fn sendfile_announces_the_rest_before_it_sends() {
    let script = "s = connect()\nopen('part', 'wb').truncate(10_000_000)\nf = os.open('part', os.O_RDONLY)\nat = 0\n\
         while sent := os.sendfile(s.fileno(), f, at, 1 << 40): at += sent\n\
         assert at == 10_000_000";
    let Some((world, _)) = World::announcing("sendfile", script, &[10_000_000]) else { return };
    world.receives(10_000_000);
}

#[test]
fn every_send_function_is_counted() {
    for send in [
        "os.write(s.fileno(), bytes(70_000))",
        "os.writev(s.fileno(), [bytes(30_000), bytes(40_000)])",
        "s.sendmsg([bytes(30_000), bytes(40_000)])",
        "s.sendto(bytes(70_000), ('127.0.0.1', int(sys.argv[1])))",
        "os.write(os.dup(s.fileno()), bytes(70_000))",
        "os.dup2(s.fileno(), 0); os.write(0, bytes(70_000))",
    ] {
        let script = format!("s = connect()\n{send}");
        if World::announcing("ways", &script, &[70_000]).is_none() {
            return;
        }
    }
}

#[test]
fn connection_on_a_reused_descriptor_restarts_the_count() {
    let script = "fds = set()\nfor _ in range(3):\n    s = connect(); fds.add(s.fileno()); s.sendall(bytes(60_000)); s.close()\n\
         f = open('file', 'wb', buffering=0); fds.add(f.fileno()); f.write(bytes(100_000)); f.close()\n\
         s = connect(); fds.add(s.fileno()); s.sendall(bytes(40_000)); s.sendall(bytes(20_000))\n\
         assert len(fds) == 1";
    World::announcing("reuse", script, &[60_000; 4]);
}

#[test]
fn reused_descriptor_numbers_restart_the_count() {
    // The C library closes the descriptor of `fclose` internally, so its entry stays.
    let script = "import ctypes, fcntl\nc = ctypes.CDLL(None)\nc.fdopen.restype = ctypes.c_void_p\nc.fclose.argtypes = [ctypes.c_void_p]\n\
         u = connect()\n\
         def sent():\n    s = connect(); s.sendall(bytes(60_000)); return s.detach()\n\
         a = sent(); c.fclose(c.fdopen(a, b'w')); d = c.dup(u.fileno()); assert a == d\n\
         os.write(d, bytes(61_000)); os.close(d)\n\
         a = sent(); assert c.close_range(a, a, 0) == 0; d = fcntl.fcntl(u.fileno(), fcntl.F_DUPFD, 0); assert a == d\n\
         os.write(d, bytes(62_000))\n\
         u.sendall(bytes(64_000)); assert c.close_range(u.fileno(), u.fileno(), 4) == 0; u.sendall(bytes(16_000))";
    World::announcing("anew", script, &[60_000, 61_000, 60_000, 62_000, 64_000, 80_000]);
}

#[test]
fn accepted_connections_are_announced_too() {
    let script = "l = socket.create_server(('127.0.0.1', 0))\n\
         def get():\n    c = socket.create_connection(l.getsockname())\n    while c.recv(1 << 16): pass\n\
         t = threading.Thread(target=get); t.start()\ns, _ = l.accept(); s.sendall(bytes(60_000)); s.close(); t.join()";
    World::announcing("accepted", script, &[60_000]);
}

#[test]
fn only_tcp_sockets_are_announced() {
    let script = "f = open('file', 'wb', buffering=0); f.write(bytes(1_000_000))\n\
         a, b = socket.socketpair()\n\
         t = threading.Thread(target=lambda: a.sendall(bytes(1_000_000))); t.start()\n\
         n = 0\nwhile n < 1_000_000: n += len(b.recv(1 << 16))\n\
         t.join()\n\
         u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.connect(('127.0.0.1', 9))\n\
         for _ in range(3):\n    try: u.send(bytes(60_000))\n    except ConnectionRefusedError: pass\n\
         s = connect(); s.sendall(bytes(51_000))";
    World::announcing("other", script, &[51_000]);
}

#[test]
fn threads_and_forked_children_are_announced() {
    let script = "s = connect(); s.sendall(bytes(60_000))\n\
         if not (child := os.fork()):\n    c = connect(); c.sendall(bytes(70_000)); s.sendall(bytes(20_000)); os._exit(0)\n\
         assert os.waitpid(child, 0)[1] == 0\n\
         ts = [threading.Thread(target=lambda: connect().sendall(bytes(80_000))) for _ in range(8)]\n\
         [t.start() for t in ts]; [t.join() for t in ts]";
    let sizes = [[60_000, 70_000, 80_000].as_slice(), &[80_000; 8]].concat();
    let Some((world, _)) = World::announcing("fork", script, &sizes) else { return };
    world.receives(60_000 + 90_000 + 8 * 80_000);
}

#[test]
fn errors_are_unchanged_by_announcements() {
    let Some(world) = World::new("errors", true) else { return };
    let script = "import errno\n\
         s = connect(); s.setblocking(False)\n\
         l = socket.create_server(('127.0.0.1', 0)); c = socket.create_connection(l.getsockname()); c.setblocking(False)\n\
         codes = []\n\
         def code(f):\n    try: return str(f() and 0)\n    except OSError as e: return errno.errorcode[e.errno]\n\
         while codes[-1:] != ['EAGAIN']: codes.append(code(lambda: c.send(bytes(300_000))))\n\
         codes.append(code(lambda: c.send(bytes(3_000_000))))\n\
         s.shutdown(socket.SHUT_WR)\n\
         codes.append(code(lambda: s.send(bytes(60_000))))\n\
         codes.append(code(lambda: os.write(99, bytes(60_000))))\n\
         codes.append(code(lambda: socket.socket().send(bytes(60_000))))\n\
         print(codes[-5:])";
    let with = world.run(script);
    assert_eq!(with, "['EAGAIN', 'EAGAIN', 'EPIPE', 'EBADF', 'EPIPE']");
    assert_eq!(with, finished(world.program(script).env_remove("LD_PRELOAD")));
    assert!(world.sizes(2).len() >= 2, "some were announced");
}

#[test]
fn program_runs_unchanged_without_agent_or_variable() {
    let Some(world) = World::new("away", false) else { return };
    let script = "s = connect()\nfor _ in range(100): s.sendall(bytes(10_000))\nprint(sorted(os.listdir('/proc/self/fd')))";
    let plain = finished(world.program(script).env_remove("LD_PRELOAD"));
    assert_eq!(world.run(script), plain);
    for name in ["ANABRANCH_COFLOW", "ANABRANCH_SHUFFLE_SOCKET"] {
        assert_eq!(finished(world.program(script).env_remove(name)), plain);
        assert_eq!(finished(world.program(script).env(name, "x".repeat(5_000))), plain);
    }
    world.receives(6_000_000);
}

#[test]
fn invalid_coflow_name_is_never_announced() {
    let Some(world) = World::new("name", true) else { return };
    let script = "s = connect(); s.sendall(bytes(int(os.environ['SIZE'])))";
    for name in ["a b", "\u{e9}", &"x".repeat(129)] {
        finished(world.program(script).env("ANABRANCH_COFLOW", name).env("SIZE", "60000"));
    }
    finished(world.program(script).env("ANABRANCH_COFLOW", "x".repeat(128)).env("SIZE", "70000"));
    assert_eq!(world.sizes(1), [70_000]);
}

#[test]
fn agent_that_starts_later_is_found() {
    let Some(world) = World::new("later", false) else { return };
    let listener = world.folder.join("agent.sock");
    let script = "import time\ns = connect(); s.sendall(bytes(60_000))\n\
        l = socket.socket(socket.AF_UNIX); l.bind('agent.sock'); l.listen()\n\
        l.settimeout(0)\n\
        for _ in range(2_000):\n    s.sendall(bytes(100)); time.sleep(0.01)\n    try: c, _ = l.accept(); break\n    except BlockingIOError: pass\n\
        c.settimeout(20); print(c.recv(4_096).decode())";
    let line: serde_json::Value = serde_json::from_str(&world.run(script)).expect("JSON");
    assert!(line["size_bytes"].as_u64().expect("a size") > 60_000, "{line}");
    assert!(listener.exists());
}
