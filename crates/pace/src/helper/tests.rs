//! Tests of the helper when other programs' descriptors delay it.

use super::*;
use rustix::process::{Signal, kill_process};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt as _;

/// A location in which only the user matters.
fn nowhere(user: u32) -> SocketLocation {
    let pid = Pid::from_raw(i32::MAX).expect("beyond what there is");
    SocketLocation { pid, fd: 0, inode: 0, cookie: 0, user }
}

/// Never completes a change of rate to 13; executes all other tasks.
fn never_ends_at_13(task: &Task) -> Result<u64, Errno> {
    match task.1 {
        Change::Rate(13) => loop {
            std::thread::sleep(Duration::from_secs(1));
        },
        Change::Rate(rate) => Ok(rate),
        _ => Err(Errno::NOENT),
    }
}

fn helper(act: Act) -> Helper {
    let mut helper = Helper::new();
    (helper.act, helper.patience) = (act, BUSY_PATIENCE);
    helper
}

/// Time limit of a task here: longer than a busy machine stops the helper process.
const BUSY_PATIENCE: Duration = Duration::from_secs(4);

fn kinds(results: &[io::Result<u64>]) -> Vec<Result<u64, io::ErrorKind>> {
    results.iter().map(|result| result.as_ref().map(|value| *value).map_err(io::Error::kind)).collect()
}

/// Kills the processes that a test has left behind.
fn end_left_behind(helper: &Helper) {
    for left in &helper.left_behind {
        let _ = kill_process(left.pid, Signal::KILL);
    }
}

/// A program that delayed operations on its descriptors stopped all limits (#17).
#[test]
fn endless_task_blocks_its_user_and_no_other() {
    let mut helper = helper(never_ends_at_13);
    let rate = |user, rate| (nowhere(user), Change::Rate(rate));
    let begun = Instant::now();
    let results =
        helper.carry_out(&[rate(1, 7), rate(2, 13), rate(1, 8), rate(2, 9), (nowhere(3), Change::ReadRate)]);
    let late = Err(io::ErrorKind::TimedOut);
    assert_eq!(kinds(&results), [Ok(7), late, Ok(8), late, Err(io::ErrorKind::NotFound)]);
    let text = results[3].as_ref().expect_err("late").to_string();
    assert!(text.contains("user 2") && !text.contains('\n'), "{text}");
    // The machine may be busy, so the bound is generous; a task that hangs would hang for ever.
    assert!(begun.elapsed() < 20 * BUSY_PATIENCE, "{:?}", begun.elapsed());
    // The user stays barred while the process exists, and for some time afterwards.
    assert_eq!(kinds(&helper.carry_out(&[rate(2, 9), rate(1, 9)])), [late, Ok(9)]);
    end_left_behind(&helper);
    while helper.left_behind[0].ended_at.is_none() {
        assert_eq!(kinds(&helper.carry_out(&[rate(2, 9)])), [late]);
    }
    helper.left_behind[0].ended_at = Instant::now().checked_sub(BARRED_FOR);
    assert_eq!(kinds(&helper.carry_out(&[rate(2, 9)])), [Ok(9)]);
}

#[test]
fn left_behind_processes_are_limited_in_number() {
    let mut helper = helper(never_ends_at_13);
    let users = LEFT_BEHIND_MAX as u32;
    let tasks: Vec<Task> = (0..=users).map(|user| (nowhere(user), Change::Rate(13))).collect();
    let results = helper.carry_out(&tasks);
    assert!(kinds(&results).iter().all(|kind| *kind == Err(io::ErrorKind::TimedOut)), "{results:?}");
    assert_eq!(helper.left_behind.len(), LEFT_BEHIND_MAX);
    let text = results[LEFT_BEHIND_MAX].as_ref().expect_err("no room").to_string();
    assert!(text.contains("no socket is touched"), "{text}");
    assert_eq!(kinds(&helper.carry_out(&[(nowhere(99), Change::Rate(7))])), [Err(io::ErrorKind::TimedOut)]);
    end_left_behind(&helper);
    while kinds(&helper.carry_out(&[(nowhere(99), Change::Rate(7))])) != [Ok(7)] {}
}

#[test]
fn helper_process_answers_many_tasks_in_order() {
    let mut helper = helper(never_ends_at_13);
    let tasks: Vec<Task> = (100..1_000).map(|rate| (nowhere(1), Change::Rate(rate))).collect();
    let results = helper.carry_out(&tasks);
    assert!(results.iter().zip(100..).all(|(result, rate)| result.as_ref().is_ok_and(|is| *is == rate)));
    assert!(helper.left_behind.is_empty());
}

#[test]
fn killed_helper_process_is_replaced() {
    let mut helper = helper(never_ends_at_13);
    let mut once = || kinds(&helper.carry_out(&[(nowhere(1), Change::Rate(7))]));
    assert_eq!(once(), [Ok(7)]);
    kill_process(helper.running.as_ref().expect("it runs").pid, Signal::KILL).expect("ours");
    let tasks = [(nowhere(1), Change::Rate(7)), (nowhere(1), Change::Rate(8))];
    let results = helper.carry_out(&tasks);
    assert!(results[0].is_err() && results[1].is_ok(), "{results:?}");
}

/// A connection of this process, with the location of its near end.
fn connected() -> (TcpStream, TcpStream, SocketLocation) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let near = TcpStream::connect(listener.local_addr().expect("bound")).expect("listening");
    let (far, _) = listener.accept().expect("connected");
    let inode = std::fs::metadata(format!("/proc/self/fd/{}", near.as_raw_fd())).expect("ours").ino() as u32;
    let cookie = socket_cookie(&near).expect("a socket");
    let pid = rustix::process::getpid();
    let place = SocketLocation { pid, fd: near.as_raw_fd(), inode, cookie, user: 7 };
    (near, far, place)
}

#[test]
fn helper_changes_only_the_requested_socket() {
    let (near, _far, place) = connected();
    let mut helper = Helper::new();
    helper.patience = BUSY_PATIENCE;
    let mut rate = |place, rate| helper.carry_out(&[(place, Change::Rate(rate))]).pop().expect("one");
    assert_eq!(rate(place, 1_000_000).expect("it is ours"), u64::MAX);
    assert_eq!(rate(place, 2_000_000).expect("it is ours"), 1_000_000);
    assert_eq!(sys::max_pacing_rate(&near).expect("ours"), 2_000_000);
    let file = std::fs::File::open("/proc/self/status").expect("it is there");
    let elsewhere = SocketLocation { fd: file.as_raw_fd(), ..place };
    for other in
        [elsewhere, SocketLocation { inode: place.inode ^ 1, ..place }, SocketLocation { cookie: 1, ..place }]
    {
        assert_eq!(rate(other, 7).expect_err("another").kind(), io::ErrorKind::NotFound);
    }
    assert_eq!(sys::max_pacing_rate(&near).expect("ours"), 2_000_000);
}

/// Acts like an owner that closes at the worst moment: between the duplication and its end.
fn closes_last(task: &Task) -> Result<u64, Errno> {
    let process = pidfd_open(task.0.pid, PidfdFlags::empty())?;
    let duplicate = pidfd_getfd(&process, task.0.fd, PidfdGetfdFlags::empty())?;
    while is_there(&task.0) {
        std::thread::sleep(Duration::from_millis(1));
    }
    // The owner's process number disappears shortly before its descriptors do.
    std::thread::sleep(Duration::from_millis(20));
    drop(duplicate);
    Ok(0)
}

/// The kernel delays the last close of a lingering socket for the time that its owner has set
/// (#17).
#[test]
fn close_blocked_by_the_kernel_delays_no_other_task() {
    let (near, far, place) = connected();
    rustix::net::sockopt::set_socket_linger(&near, Some(Duration::from_secs(600))).expect("ours");
    near.set_nonblocking(true).expect("ours");
    // The other end does not read, so the data stays unsent.
    while io::Write::write(&mut &near, &[7; 100_000]).is_ok() {}
    let mut helper = helper(closes_last);
    assert!(helper.carry_out(&[(nowhere(9), Change::ReadRate)])[0].is_err());
    let pid = helper.running.as_ref().expect("it runs").pid;
    let owner = std::thread::spawn(move || {
        // Runs once the socket has been duplicated; an earlier close would itself wait.
        let has_it = |fd: RawFd| is_there(&SocketLocation { pid, fd, ..place });
        while !(0..64).any(has_it) {
            std::thread::yield_now();
        }
        drop(near);
    });
    let results = helper.carry_out(&[(place, Change::Rate(7)), (nowhere(8), Change::ReadRate)]);
    assert_eq!(kinds(&results)[0], Err(io::ErrorKind::TimedOut));
    assert!(matches!(kinds(&results)[1], Err(kind) if kind != io::ErrorKind::TimedOut), "{results:?}");
    end_left_behind(&helper);
    drop(far);
    owner.join().expect("it does not panic");
}
