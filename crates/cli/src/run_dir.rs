//! Writer of run directories: see `anabranch_record` for their contents.

use anabranch_codes::kernel_in_use;
use anabranch_record::{Emulation, Machine, ROWS, RUN, Rows, Run, RunEnvironment, Table};
use anabranch_units::Seed;
use anyhow::{Context as _, bail};
use serde::Serialize;
use serde_json::{Map, Value};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// An unfinished run directory. It has no `run.json` before [`RunDir::finish`], so a failed run has
/// none.
pub struct RunDir {
    path: PathBuf,
    began: Instant,
    began_unix_s: u64,
    load_1min: Option<f64>,
    rows: Rows,
    emulations: Vec<Emulation>,
}

impl RunDir {
    /// Creates the directory, which must not exist, before the run begins.
    ///
    /// Errors: a one-line message for the user: the directory exists already, or cannot be created.
    pub fn claim(path: &Path) -> anyhow::Result<Self> {
        let shown = path.display();
        if let Some(parent) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
            std::fs::create_dir_all(parent).with_context(|| {
                format!("{shown}: the run directory cannot be made: name a place that can be written")
            })?;
        }
        match std::fs::create_dir(path) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                bail_usage!("{shown}: exists already: name another run directory, or remove it")
            }
            Err(e) => {
                bail!("{shown}: the run directory cannot be made: {e}: name a place that can be written")
            }
        }
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Ok(Self {
            path: path.canonicalize()?,
            began: Instant::now(),
            began_unix_s: since.map_or(0, |d| d.as_secs()),
            load_1min: read("/proc/loadavg").and_then(|t| t.split(' ').next()?.parse().ok()),
            rows: Rows::default(),
            emulations: Vec::new(),
        })
    }

    /// Creates the first of `base-1`, `base-2`, … that does not exist.
    ///
    /// Errors: as [`RunDir::claim`].
    pub fn claim_next(base: &Path) -> anyhow::Result<Self> {
        let name = base.file_name().context("a run directory has a name")?.to_string_lossy().into_owned();
        let free = (1u32..).map(|n| base.with_file_name(format!("{name}-{n}"))).find(|p| !p.exists());
        Self::claim(&free.context("more runs than numbers")?)
    }

    /// Path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adds a row.
    ///
    /// Errors: a column without its unit.
    pub fn row(&mut self, row: &impl Serialize) -> anyhow::Result<()> {
        Ok(self.rows.push(row)?)
    }

    /// Adds the lateness of an emulation.
    ///
    /// Errors: not possible for an emulation's report.
    pub fn emulation(&mut self, name: &str, report: &anabranch_emu::Report) -> anyhow::Result<()> {
        self.emulations.push(Emulation { name: name.to_owned(), report: serde_json::to_value(report)? });
        Ok(())
    }

    /// Writes a further file atomically.
    ///
    /// Errors: an error of the operating system, with the file's name.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> anyhow::Result<()> {
        let (path, partial) = (self.path.join(name), self.path.join(format!(".{name}.partial")));
        let written = || -> io::Result<()> {
            let mut file = std::fs::File::create(&partial)?;
            io::Write::write_all(&mut file, content.as_ref())?;
            file.sync_all()?;
            std::fs::rename(&partial, &path)
        };
        written().with_context(|| format!("cannot write {}", path.display()))
    }

    /// Writes `rows` as `NAME.parquet`, with a column for each field.
    ///
    /// Errors: a column without its unit, a text that is too long; as [`RunDir::write`].
    pub fn table(&self, name: &str, rows: &[Map<String, Value>]) -> anyhow::Result<()> {
        let mut bytes = Vec::new();
        Table::of_objects(rows)?.write_parquet(&mut bytes)?;
        self.write(&format!("{name}.parquet"), &bytes)
    }

    /// Writes the rows, and then the run's configuration.
    ///
    /// Errors: as [`RunDir::write`].
    pub fn finish(self, command: &str, config: Value, seed: Option<Seed>) -> anyhow::Result<()> {
        self.write(ROWS, self.rows.text())?;
        let facts = RunEnvironment {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            commit: option_env!("ANABRANCH_COMMIT").map(str::to_owned),
            began_unix_s: self.began_unix_s,
            took_s: self.began.elapsed().as_secs_f64(),
            machine: Machine { load_1min: self.load_1min, ..machine() },
        };
        let mut run = Run::new(command, config, seed, facts, &self.rows);
        run.emulations = self.emulations.clone();
        self.write(RUN, run.text())
    }
}

/// Name and arguments of the innermost subcommand. Defaults are included; each argument has the
/// form of the command line, and repeated options are lists.
pub fn arguments(command: &clap::Command, matches: &clap::ArgMatches) -> (String, Value) {
    let (mut command, mut matches, mut names) = (command, matches, Vec::new());
    while let Some((name, inner)) = matches.subcommand() {
        (command, matches) = (command.find_subcommand(name).expect("it was matched"), inner);
        names.push(name);
    }
    let text = |word: &std::ffi::OsStr| Value::from(word.to_string_lossy());
    let given = command.get_arguments().filter_map(|argument| {
        let name = argument.get_id().as_str();
        let mut words: Vec<Value> = matches.try_get_raw(name).ok()??.map(text).collect();
        let several = argument.get_num_args().is_some_and(|n| n.max_values() > 1)
            || argument.get_value_delimiter().is_some()
            || matches!(argument.get_action(), clap::ArgAction::Append);
        let value = if several { Value::from(words) } else { words.pop()? };
        Some((name.to_owned(), value))
    });
    (names.join(" "), Value::Object(given.collect()))
}

fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

fn machine() -> Machine {
    let field = |path: &str, name: &str| {
        let text = read(path)?;
        let line = text.lines().find_map(|l| l.strip_prefix(name))?;
        Some(line.trim_start_matches([' ', '\t', ':']).trim().to_owned())
    };
    let memory = field("/proc/meminfo", "MemTotal:");
    let kib = memory.and_then(|m| m.trim_end_matches(" kB").parse::<u64>().ok());
    Machine {
        cpu: field("/proc/cpuinfo", "model name"),
        cpus: std::thread::available_parallelism().ok().map(|n| n.get() as u64),
        architecture: std::env::consts::ARCH.to_owned(),
        kernel: read("/proc/sys/kernel/osrelease").map(|t| t.trim().to_owned()),
        codes_kernel: kernel_in_use().to_string(),
        memory_bytes: kib.map(|k| k * 1024),
        load_1min: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn finished_run_reads_back_and_partial_files_are_removed() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("a/run");
        let mut run = RunDir::claim(&path).expect("a new place");
        run.row(&json!({ "rate_mbps": 1.5 })).expect("a unit is there");
        assert!(!path.join(RUN).exists(), "it has not ended");
        run.write("plan.svg", "<svg/>").expect("writable");
        run.finish("demo", json!({ "size_bytes": 10 }), Some(Seed::new(3))).expect("writable");
        let read =
            Run::read(&std::fs::read_to_string(path.join(RUN)).expect("it ended")).expect("as written");
        assert_eq!((read.rows, read.seed, &read.config["size_bytes"]), (1, Some(Seed::new(3)), &json!(10)));
        assert!(read.facts.machine.cpus >= Some(1));
        let mut names: Vec<_> =
            std::fs::read_dir(&path).expect("listed").map(|e| e.expect("read").file_name()).collect();
        names.sort();
        assert_eq!(names, ["plan.svg", ROWS, RUN]);
    }

    #[test]
    fn arguments_are_resolved_to_their_defaults() {
        let mut command = clap::Command::new("anabranch").subcommand(clap::Command::new("run").args([
            clap::Arg::new("rate").long("rate").default_value("10 Mbit/s"),
            clap::Arg::new("to").long("to").value_delimiter(','),
            clap::Arg::new("out").long("out"),
        ]));
        let matches =
            command.try_get_matches_from_mut(["anabranch", "run", "--to", "a,b"]).expect("good words");
        let expected = json!({ "rate": "10 Mbit/s", "to": ["a", "b"] });
        assert_eq!(arguments(&command, &matches), ("run".into(), expected));
    }

    #[test]
    fn existing_or_invalid_run_directory_is_refused_by_name() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("run");
        drop(RunDir::claim(&path).expect("a new place"));
        let refused = |path: &Path| {
            let error = RunDir::claim(path).err().expect("refused");
            format!("{error:#}")
        };
        let taken = refused(&path);
        assert!(taken.contains("run: exists already") && taken.contains("another"), "{taken}");
        std::fs::write(folder.path().join("file"), "").expect("writable");
        let below = refused(&folder.path().join("file/run"));
        assert!(below.contains("file/run") && below.contains("cannot be made"), "{below}");
        let next = RunDir::claim_next(&path).expect("there are more numbers");
        assert_eq!(next.path().file_name(), Some("run-1".as_ref()));
    }
}
