//! A distributed sort of random records, as a workload for `anabranch shuffle`: every worker sends
//! records to every other worker.
//!
//! The sort works as `MapReduce` (Dean and Ghemawat, 2004) and its terasort, on records of 100
//! bytes with a key of 10. A worker reads its part in several map tasks. Each task sorts its
//! records, and then sends each reducer the records of its range over a separate TCP connection. A
//! reducer waits for all tasks, then merges and writes. A *coflow* is all flows that one reducer
//! waits for. Each of its flows is announced to the host's agent with its length.
//!
//! Input is generated from a seed, and read at the rate of `--disk`. Splitters are computed from a
//! sample. Each step prints a JSON line on standard output, with times in seconds of the system's
//! clock. Leaves out: failures (a worker that loses another worker ends), and inputs larger than
//! memory. Read [`Job`], [`Worker::map`] and [`Worker::reduce`] first.
//!
//! ```text
//! sort work --worker 0 --workers 10.0.0.1:7200,10.0.0.2:7200 --out DIR --agent /run/shuffle.sock    # on each host
//! sort check --workers 2 --out DIR                                                                 # afterwards
//! ```

#![allow(clippy::disallowed_methods, reason = "a program: sockets, files, threads, clocks")]

use anabranch_announce::Announcer;
use anabranch_units::ByteCount;
use std::collections::BTreeMap;
use std::io::{Error, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

const KEY: usize = 10;
type Record = [u8; 100];
type Result<T> = std::result::Result<T, Error>;

const HELP: &str = "sort work|check OPTIONS, see the module's first lines; of both:
  --workers ADDRESS,...   all workers' addresses, in order (check: how many)
  --out DIR               where the sorted parts are
  --records COUNT         in all (100000)
  --seed NUMBER           of the records (1)
  --reducers COUNT        of each worker (1)
  --skew EXPONENT         of reducers' shares, 1/rank^EXPONENT (0: equal)
of work:
  --worker NUMBER         which one this is, from 0
  --tasks COUNT           into which its part is cut (1)
  --disk BYTES            a second, read and written together (no limit)
  --agent PATH            where flows are announced (nowhere)
  --job NAME              in front of coflows' names (sort)";

const COMMON: &[&str] = &["workers", "out", "records", "seed", "reducers", "skew"];
const WORKS: &[&str] = &["worker", "tasks", "disk", "agent", "job"];

/// Maximum wait of a worker for the start of another worker.
const PATIENCE: Duration = Duration::from_secs(30);
/// Maximum wait for the agent. Machines that emulate many hosts are busy.
const ANSWER: Duration = Duration::from_secs(1);
/// Number of sampled records for each reducer.
const SAMPLE: u64 = 1_000;

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let done = match words.next().as_deref() {
        Some("work") => Options::read(words, &[COMMON, WORKS].concat()).and_then(|options| work(&options)),
        Some("check") => Options::read(words, COMMON).and_then(|options| check(&options)),
        _ => Err(Error::other(HELP)),
    };
    if let Err(error) = done {
        eprintln!("sort: {error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// The options of the command line: pairs of `--NAME VALUE`.
struct Options(BTreeMap<String, String>);

impl Options {
    fn read(mut words: impl Iterator<Item = String>, names: &[&str]) -> Result<Self> {
        let mut options = BTreeMap::new();
        while let Some(word) = words.next() {
            let (Some(name), Some(value)) = (word.strip_prefix("--"), words.next()) else {
                return Err(Error::other(format!("{word}: write --NAME VALUE\n{HELP}")));
            };
            if !names.contains(&name) {
                return Err(Error::other(format!(
                    "{word}: unknown: must be one of --{}",
                    names.join(", --")
                )));
            }
            options.insert(name.to_owned(), value);
        }
        Ok(Self(options))
    }

    fn text(&self, name: &str) -> Result<&str> {
        self.0
            .get(name)
            .map(String::as_str)
            .ok_or_else(|| Error::other(format!("--{name} is missing\n{HELP}")))
    }

    fn number<T: std::str::FromStr>(&self, name: &str, otherwise: T) -> Result<T> {
        let wrong = |text: &String| Error::other(format!("--{name} {text}: must be a number"));
        self.0.get(name).map_or(Ok(otherwise), |text| text.parse().map_err(|_| wrong(text)))
    }
}

/// Settings of a job, common to all workers.
struct Job {
    workers: usize,
    /// Total number of reducers. Reducer `r` runs at worker `r` modulo `workers`.
    reducers: usize,
    records: u64,
    seed: u64,
    /// Boundaries of the reducers' key ranges. Reducer `r` has the keys from `splitters[r - 1]` to
    /// below `splitters[r]`.
    splitters: Vec<[u8; KEY]>,
    out: PathBuf,
}

impl Job {
    fn new(options: &Options, workers: usize) -> Result<Self> {
        let (records, seed) = (options.number("records", 100_000)?, options.number("seed", 1)?);
        let reducers = workers * options.number("reducers", 1_usize)?;
        if workers == 0 || reducers == 0 || records < SAMPLE * reducers as u64 {
            let message =
                format!("{records} records for {reducers} reducers: must be at least {SAMPLE} for each");
            return Err(Error::other(message));
        }
        let skew: f64 = options.number("skew", 0.0)?;
        let out = PathBuf::from(options.text("out")?);
        let mut job = Self { workers, reducers, records, seed, splitters: Vec::new(), out };
        job.splitters = job.split(skew);
        Ok(job)
    }

    /// Splitters from a sample, such that the reducers' shares are proportional to 1/rank^skew. The
    /// ranks are drawn from the seed.
    fn split(&self, skew: f64) -> Vec<[u8; KEY]> {
        let count = SAMPLE * self.reducers as u64;
        let mut sample: Vec<[u8; KEY]> =
            (0..count).map(|n| key(&self.record(n * self.records / count))).collect();
        sample.sort_unstable();
        let mut ranks: Vec<usize> = (1..=self.reducers).collect();
        ranks.sort_by_cached_key(|rank| mix(self.seed ^ mix(*rank as u64)));
        let shares: Vec<f64> = ranks.iter().map(|rank| (*rank as f64).powf(-skew)).collect();
        let all: f64 = shares.iter().sum();
        let mut before = 0.0;
        let ends = shares[..self.reducers - 1].iter().map(|share| {
            before += share / all;
            sample[((before * count as f64) as usize).min(sample.len() - 1)]
        });
        ends.collect()
    }

    /// The record with this number, which is the same at every worker.
    fn record(&self, number: u64) -> Record {
        let mut record = [0; 100];
        let mut state = mix(self.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ number);
        for chunk in record.chunks_mut(8) {
            state = mix(state);
            chunk.copy_from_slice(&state.to_le_bytes()[..chunk.len()]);
        }
        record
    }

    fn part(&self, reducer: usize) -> PathBuf {
        self.out.join(format!("part-{reducer:05}"))
    }
}

/// A pseudo-random number that differs for each `number` (splitmix64).
fn mix(number: u64) -> u64 {
    let a = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let b = (a ^ (a >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let c = (b ^ (b >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    c ^ (c >> 31)
}

fn key(record: &Record) -> [u8; KEY] {
    *record.first_chunk().expect("a record is longer than its key")
}

/// Sum of the records' hashes, which is independent of the records' order.
fn sum_of<'a>(records: impl Iterator<Item = &'a Record>) -> u64 {
    let word = |chunk: &[u8]| chunk.iter().fold(0_u64, |all, byte| (all << 8) | u64::from(*byte));
    records.map(|r| r.chunks(8).fold(0, |state, chunk| mix(state ^ word(chunk)))).fold(0, u64::wrapping_add)
}

fn now_s() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// Model of a disk's transfer time.
struct Disk {
    bytes_per_second: f64,
    free_at: Mutex<Instant>,
}

impl Disk {
    /// Waits for the transfer time of `bytes` further bytes.
    fn moves(&self, bytes: usize) {
        let took = Duration::from_secs_f64(bytes as f64 / self.bytes_per_second);
        let mut free_at = self.free_at.lock().unwrap_or_else(PoisonError::into_inner);
        *free_at = (*free_at).max(Instant::now()) + took;
        let until = *free_at;
        drop(free_at);
        std::thread::sleep(until.saturating_duration_since(Instant::now()));
    }
}

/// One process of the job.
struct Worker {
    job: Job,
    me: usize,
    addresses: Vec<SocketAddr>,
    tasks: u64,
    disk: Option<Disk>,
    agent: Option<Announcer>,
    name: String,
    /// Channels to all reducers. Channels to reducers of other processes are never used.
    inboxes: Vec<Sender<Vec<Record>>>,
}

fn work(options: &Options) -> Result<()> {
    let wrong = |text: &str| Error::other(format!("--workers {text}: must be IP:PORT"));
    let addresses = options.text("workers")?.split(',').map(|text| text.parse().map_err(|_| wrong(text)));
    let addresses = addresses.collect::<Result<Vec<SocketAddr>>>()?;
    let job = Job::new(options, addresses.len())?;
    let me = options.number("worker", usize::MAX)?;
    let own = *addresses
        .get(me)
        .ok_or_else(|| Error::other("--worker: must be the place of one of --workers, from 0"))?;
    let bytes_per_second: f64 = options.number("disk", f64::INFINITY)?;
    if bytes_per_second.is_nan() || bytes_per_second <= 0.0 {
        return Err(Error::other(format!("--disk {bytes_per_second}: must be more than 0 bytes a second")));
    }
    let tasks = options.number("tasks", 1)?;
    if tasks == 0 {
        return Err(Error::other("--tasks 0: must be at least 1"));
    }
    let (inboxes, outboxes): (Vec<_>, Vec<_>) = (0..job.reducers).map(|_| channel()).unzip();
    let worker = Worker {
        me,
        addresses,
        tasks,
        disk: bytes_per_second
            .is_finite()
            .then(|| Disk { bytes_per_second, free_at: Mutex::new(Instant::now()) }),
        agent: options.0.get("agent").map(|path| Announcer::new(path).with_timeout(ANSWER)),
        name: options.0.get("job").map_or("sort", String::as_str).to_owned(),
        inboxes,
        job,
    };
    // The worker listens before any other step, so that other workers can connect.
    let listener = TcpListener::bind(own).map_err(|e| Error::other(format!("{own}: cannot listen: {e}")))?;
    let worker: &'static Worker = Box::leak(Box::new(worker));
    // The thread ends with the process.
    std::thread::spawn(move || worker.accept(&listener));
    std::thread::scope(|scope| {
        let ours = outboxes.into_iter().enumerate().filter(|(reducer, _)| worker.place(*reducer) == me);
        let reduces: Vec<_> =
            ours.map(|(reducer, inbox)| scope.spawn(move || worker.reduce(reducer, &inbox))).collect();
        let mut sends = Vec::new();
        for task in 0..worker.tasks {
            for (reducer, records) in worker.map(task).into_iter().enumerate() {
                if worker.place(reducer) == me {
                    worker.inboxes[reducer].send(records).expect("a reducer waits for all tasks");
                } else {
                    sends.push(scope.spawn(move || worker.send(task, reducer, &records)));
                }
            }
        }
        for thread in sends.into_iter().chain(reduces) {
            // Other workers' reducers would wait forever for records that this process does not
            // send.
            if let Err(error) = thread.join().expect("a thread that panics ends the process") {
                eprintln!("sort: worker {me}: {error}");
                std::process::exit(1);
            }
        }
    });
    Ok(())
}

impl Worker {
    fn place(&self, reducer: usize) -> usize {
        reducer % self.job.workers
    }

    fn disk_moves(&self, bytes: usize) {
        if let Some(disk) = &self.disk {
            disk.moves(bytes);
        }
    }

    /// Reads and sorts a task's share of the records. Returns the records for each reducer.
    fn map(&self, task: u64) -> Vec<Vec<Record>> {
        let begun_s = now_s();
        let (pieces, piece) = (self.job.workers as u64 * self.tasks, self.me as u64 * self.tasks + task);
        let range = self.job.records * piece / pieces..self.job.records * (piece + 1) / pieces;
        let mut by_reducer = vec![Vec::new(); self.job.reducers];
        for number in range.clone() {
            let record = self.job.record(number);
            by_reducer[self.job.splitters.partition_point(|end| *end <= key(&record))].push(record);
        }
        by_reducer.iter_mut().for_each(|records| records.sort_unstable_by_key(key));
        self.disk_moves((range.end - range.start) as usize * size_of::<Record>());
        println!(
            r#"{{"kind":"map","worker":{},"task":{task},"begun_s":{begun_s:.6},"ended_s":{:.6}}}"#,
            self.me,
            now_s()
        );
        by_reducer
    }

    /// Sends a task's records to a remote reducer, over a separate connection.
    fn send(&self, task: u64, reducer: usize, records: &[Record]) -> Result<()> {
        let to = self.place(reducer);
        let mut stream = connect(self.addresses[to])?;
        let body = records.as_flattened();
        let head = [(reducer as u64).to_le_bytes(), (body.len() as u64).to_le_bytes()].concat();
        let begun_s = now_s();
        let coflow = format!("{}/{reducer}", self.name);
        let size = ByteCount::new((head.len() + body.len()) as u64);
        let flow = self.agent.as_ref().and_then(|agent| {
            let said = agent.announce(&stream, &coflow, size);
            said.inspect_err(|error| eprintln!("sort: worker {}: goes unannounced: {error}", self.me)).ok()
        });
        stream.write_all(&head)?;
        stream.write_all(body)?;
        // The reducer confirms that it has received all records.
        stream.read_exact(&mut [0])?;
        let ended_s = now_s();
        // The flow ends sooner than the agent would detect the closed connection.
        drop(flow);
        println!(
            r#"{{"kind":"flow","from":{},"to":{to},"task":{task},"reducer":{reducer},"size_bytes":{},"begun_s":{begun_s:.6},"ended_s":{:.6}}}"#,
            self.me,
            head.len() + body.len(),
            ended_s
        );
        Ok(())
    }

    /// Receives records from other processes, until this process ends.
    fn accept(&'static self, listener: &TcpListener) {
        for stream in listener.incoming() {
            std::thread::spawn(move || {
                if let Err(error) = stream.and_then(|stream| self.receive(stream)) {
                    eprintln!("sort: worker {}: {error}", self.me);
                    std::process::exit(1);
                }
            });
        }
    }

    fn receive(&self, mut stream: TcpStream) -> Result<()> {
        let mut head = [[0; 8]; 2];
        stream.read_exact(head.as_flattened_mut())?;
        let [reducer, length] = head.map(|field| u64::from_le_bytes(field) as usize);
        let length_max = self.job.records as usize * size_of::<Record>();
        let is_ours = reducer < self.job.reducers && self.place(reducer) == self.me;
        if !is_ours || length > length_max || length % size_of::<Record>() != 0 {
            return Err(Error::other(format!("{length} bytes for reducer {reducer}: not of this job")));
        }
        let mut records = vec![[0; 100]; length / size_of::<Record>()];
        stream.read_exact(records.as_flattened_mut())?;
        stream.write_all(&[1])?;
        self.inboxes[reducer].send(records).map_err(|_| Error::other("more tasks than there are"))
    }

    /// Waits for the records of all tasks, merges them and writes the reducer's part.
    fn reduce(&self, reducer: usize, inbox: &Receiver<Vec<Record>>) -> Result<()> {
        let mut records = Vec::new();
        for _ in 0..self.job.workers as u64 * self.tasks {
            records.append(&mut inbox.recv().expect("the worker keeps a sender"));
        }
        let received_s = now_s();
        // A stable sort detects sorted runs and merges them.
        records.sort_by_key(key);
        self.disk_moves(records.as_flattened().len());
        let part = self.job.part(reducer);
        std::fs::write(&part, records.as_flattened())
            .map_err(|error| Error::other(format!("{}: cannot write: {error}", part.display())))?;
        println!(
            r#"{{"kind":"reduce","worker":{},"reducer":{reducer},"records":{},"received_s":{received_s:.6},"ended_s":{:.6}}}"#,
            self.me,
            records.len(),
            now_s()
        );
        Ok(())
    }
}

fn connect(to: SocketAddr) -> Result<TcpStream> {
    let begun = Instant::now();
    loop {
        match TcpStream::connect(to) {
            Ok(stream) => return Ok(stream),
            // The other worker may not be listening yet.
            Err(_) if begun.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(50)),
            Err(error) => return Err(Error::other(format!("{to}: cannot connect: {error}"))),
        }
    }
}

/// Checks that all parts together are the records in order.
fn check(options: &Options) -> Result<()> {
    let job = Job::new(options, options.number("workers", 0)?)?;
    let (mut last, mut count, mut sum) = ([0; KEY], 0_u64, 0_u64);
    for reducer in 0..job.reducers {
        let path = job.part(reducer);
        let wrong = |what: &str| Error::other(format!("{}: {what}", path.display()));
        let bytes = std::fs::read(&path).map_err(|error| wrong(&error.to_string()))?;
        let (records, rest) = bytes.as_chunks::<100>();
        if !rest.is_empty() {
            return Err(wrong("ends within a record"));
        }
        for record in records {
            if key(record) < last {
                return Err(wrong("a key is less than the one before"));
            }
            last = key(record);
        }
        count += records.len() as u64;
        sum = sum.wrapping_add(sum_of(records.iter()));
    }
    let made = (0..job.records).map(|number| sum_of([job.record(number)].iter())).fold(0, u64::wrapping_add);
    if (count, sum) != (job.records, made) {
        return Err(Error::other(format!("{count} records, which are not the {} of the input", job.records)));
    }
    println!(r#"{{"kind":"check","records":{count}}}"#);
    Ok(())
}
