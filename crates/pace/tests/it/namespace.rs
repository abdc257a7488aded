//! Network namespaces of tests. Dropping a value removes its namespace.

use std::process::Command;

/// A network namespace.
pub struct Namespace(anabranch_linux::namespace::Namespace);

impl Namespace {
    /// Creates a namespace. Fails with the reason if the machine permits none.
    pub fn start() -> Result<Self, String> {
        let made = anabranch_linux::namespace::Namespace::new_network();
        made.map(Self).map_err(|error| format!("no network namespace: {error}"))
    }

    /// Runs a job in the namespace.
    pub fn run<T: Send>(&self, job: impl FnOnce() -> T + Send) -> T {
        self.0.run(job).expect("its maker may enter it")
    }

    /// Runs a program in the namespace, and returns its output. Spaces separate the arguments.
    pub fn command(&self, line: &str) -> Result<String, String> {
        let mut words = line.split_whitespace();
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words);
        let output = self.run(|| command.output()).map_err(|e| format!("`{line}`: {e}"))?;
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        } else {
            Err(format!("`{line}`: {}", String::from_utf8_lossy(&output.stderr).trim()))
        }
    }

    /// Connects this namespace with another one by a cable whose ends have these names.
    pub fn connect(&self, name: &str, other: &Self, others_name: &str) -> Result<(), String> {
        let there = other.0.path();
        self.command(&format!(
            "ip link add {name} type veth peer name {others_name} netns {}",
            there.display()
        ))
        .map(drop)
    }
}
