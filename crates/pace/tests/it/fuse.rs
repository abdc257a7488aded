//! A program that replaces its socket by a file of a file system that never completes a close.
//!
//! Source: linux/fuse.h, protocol 7.31; fuse(4).

use std::ffi::CString;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::{AsRawFd as _, FromRawFd as _, IntoRawFd as _, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anabranch_pace::FlowKey;

const CONNECT_TO: &str = "ANABRANCH_PACE_TEST_FUSE_CONNECT_TO";

/// A program with a connection and a FUSE file. Dropping the value ends the program, and releases
/// processes that wait for its file system.
pub struct Attacker {
    pub flow: FlowKey,
    child: Child,
    said: BufReader<std::process::ChildStdout>,
}

impl Attacker {
    /// Starts the program, which connects to this address. Fails with the reason if this machine
    /// lacks FUSE.
    pub fn start(to: std::net::SocketAddr) -> Result<Self, String> {
        let mut command = Command::new(std::env::current_exe().expect("this test"));
        command.args(["--exact", "--nocapture", "the_attacker_of_other_tests"]);
        command.env(CONNECT_TO, to.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("this test again");
        let mut said = BufReader::new(child.stdout.take().expect("piped"));
        match next(&mut said, "connected from ") {
            Ok(from) => Ok(Self { flow: FlowKey::new(from.parse().expect("an address"), to), child, said }),
            Err(why) => {
                let _ = child.wait();
                Err(why)
            }
        }
    }

    /// Makes the program replace its socket by the file; the socket moves to another descriptor.
    pub fn strike(&mut self) {
        self.child.stdin.as_mut().expect("piped").write_all(b"\n").expect("it reads");
        next(&mut self.said, "struck").expect("it can");
    }
}

impl Drop for Attacker {
    fn drop(&mut self) {
        // The program cannot be killed while it closes the file, so it must unmount the file system
        // itself.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Returns the text after `words` in the next line that contains them.
fn next(said: &mut impl std::io::BufRead, words: &str) -> Result<String, String> {
    for line in said.lines().map_while(Result::ok) {
        if let Some((_, rest)) = line.split_once(words) {
            return Ok(rest.to_owned());
        }
        if let Some((_, why)) = line.split_once("cannot: ") {
            return Err(why.to_owned());
        }
    }
    Err("it has ended".into())
}

/// Runs the attacker if this process was started by [`Attacker::start`].
pub fn attack_if_asked() {
    let Ok(to) = std::env::var(CONNECT_TO) else { return };
    if let Err(why) = attack(&to) {
        println!("cannot: {why}");
    }
}

fn attack(to: &str) -> Result<(), String> {
    let folder = std::env::temp_dir().join(format!("anabranch-pace-fuse-{}", std::process::id()));
    std::fs::create_dir(&folder).map_err(|error| error.to_string())?;
    // The descriptor of the file system is below the file's, so it is closed first.
    let mounted = mount(&folder);
    // The mount is private, so other processes see an empty folder.
    let file = mounted.and_then(|device| {
        std::thread::spawn(move || serve(device));
        File::open(folder.join("file")).map_err(|error| error.to_string())
    });
    let file = file.inspect_err(|_| drop(std::fs::remove_dir(&folder)))?;
    let socket = TcpStream::connect(to).map_err(|error| error.to_string())?;
    println!("connected from {}", socket.local_addr().map_err(|error| error.to_string())?);
    let mut byte = [0];
    let _ = std::io::stdin().read(&mut byte);
    let elsewhere = socket.try_clone().map_err(|error| error.to_string())?;
    let at = socket.into_raw_fd();
    // SAFETY: `at` is our descriptor, and from now on the file's.
    let struck = unsafe { libc::dup2(file.as_raw_fd(), at) };
    println!("{}", if struck == at { "struck" } else { "cannot: dup2" });
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    let at = CString::new(folder.to_str().expect("a name of ours")).expect("no zero in it");
    // SAFETY: the string outlives the call. Processes that wait for the file system get an error.
    unsafe { libc::umount2(at.as_ptr(), libc::MNT_FORCE | libc::MNT_DETACH) };
    let _ = std::fs::remove_dir(&folder);
    drop((elsewhere, file));
    Ok(())
}

/// Mounts the file system so that only this thread's children see it.
fn mount(folder: &Path) -> Result<OwnedFd, String> {
    let failed = |what: &str| format!("{what}: {}", std::io::Error::last_os_error());
    let device = std::fs::File::options().read(true).write(true).open("/dev/fuse");
    let device = OwnedFd::from(device.map_err(|error| format!("/dev/fuse: {error}"))?);
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
    let text = |text: &str| CString::new(text).expect("no zero in it");
    let (options, at) = (text(&options), text(folder.to_str().expect("a name of ours")));
    let (root, kind) = (c"/".as_ptr(), c"fuse".as_ptr());
    // SAFETY: all pointers are to strings that outlive the calls; the change of mounts affects only
    // this thread.
    unsafe {
        if libc::unshare(libc::CLONE_NEWNS | libc::CLONE_FS) < 0 {
            return Err(failed("no mount namespace"));
        }
        if libc::mount(root, root, std::ptr::null(), libc::MS_REC | libc::MS_PRIVATE, std::ptr::null()) < 0 {
            return Err(failed("mounts cannot be made private"));
        }
        if libc::mount(kind, at.as_ptr(), kind, libc::MS_NOSUID | libc::MS_NODEV, options.as_ptr().cast()) < 0
        {
            return Err(failed("no FUSE"));
        }
    }
    Ok(device)
}

const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const FLUSH: u32 = 25;
const INIT: u32 = 26;

/// Answers all requests except the request to close a file.
fn serve(device: OwnedFd) {
    // SAFETY: the descriptor is ours, and has no owner but this file.
    let mut device = unsafe { File::from_raw_fd(device.into_raw_fd()) };
    let mut request = vec![0; 1 << 17];
    while let Ok(length @ 40..) = device.read(&mut request) {
        let word = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().expect("four bytes"));
        let opcode = word(4);
        let unique: [u8; 8] = request[8..16].try_into().expect("eight bytes");
        let words = |words: &[u32]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
        // A fuse_attr of a regular file, with sizes and times of zero.
        let attr = words(&[&[0; 15][..], &[0o100_600, 1, 0, 0, 0, 4_096, 0]].concat());
        let body = match opcode {
            FORGET | FLUSH => continue,
            INIT => Some(words(&[&[7, 31, 0, 0, 0, 4_096, 1, 0][..], &[0; 8]].concat())),
            LOOKUP => Some([words(&[2, 0, 1, 0, 0, 0, 0, 0, 0, 0]), attr].concat()),
            GETATTR => Some([words(&[0; 4]), attr].concat()),
            OPEN => Some(words(&[0; 4])),
            _ => None,
        };
        let error = if body.is_some() { 0 } else { -libc::ENOSYS };
        let body = body.unwrap_or_default();
        let head = (16 + body.len() as u32).to_ne_bytes();
        let reply = [&head[..], &error.to_ne_bytes(), &unique, &body].concat();
        if length > request.len() || device.write_all(&reply).is_err() {
            break;
        }
    }
}
