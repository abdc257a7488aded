//! Network namespaces without names: they vanish with their threads and processes, and their devices too.

use std::process::Command;
use std::sync::mpsc;
use std::thread::JoinHandle;

/// A network namespace: that of a thread, which does what it is told.
pub struct Namespace {
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    thread_id: i32,
}

type Job = Box<dyn FnOnce() + Send>;

impl Namespace {
    /// A new one, or why there can be none.
    pub fn start() -> Result<Self, String> {
        let (jobs, inbox) = mpsc::channel::<Job>();
        let (tell, told) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            // SAFETY: only this thread's network namespace changes; no memory is shared with it alone.
            let made = unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) };
            let id = rustix::thread::gettid().as_raw_pid();
            let _ = tell.send(made.map(|()| id));
            inbox.into_iter().for_each(|job| job());
        });
        let thread_id =
            told.recv().expect("the thread tells").map_err(|e| format!("no network namespace: {e}"))?;
        Ok(Self { jobs: Some(jobs), thread: Some(thread), thread_id })
    }

    /// As `ip link set DEVICE netns ID` wants it.
    pub fn id(&self) -> i32 {
        self.thread_id
    }

    /// Does this in the namespace.
    pub fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        let (tell, told) = mpsc::channel();
        let jobs = self.jobs.as_ref().expect("until it is dropped");
        jobs.send(Box::new(move || drop(tell.send(job())))).expect("the thread runs");
        told.recv().expect("the job did not panic")
    }

    /// Runs a command line there, and returns what it prints.
    pub fn command(&self, line: &str) -> Result<String, String> {
        let words: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
        let output = self.run(move || Command::new(&words[0]).args(&words[1..]).output());
        let output = output.map_err(|e| format!("`{line}`: {e}"))?;
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        } else {
            Err(format!("`{line}`: {}", String::from_utf8_lossy(&output.stderr).trim()))
        }
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        self.jobs = None;
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
