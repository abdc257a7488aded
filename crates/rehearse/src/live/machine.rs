//! Processor time of the machine and of this run's programs, which shows whether other programs
//! disturbed a run.
//!
//! Leaves out: the emulator's own lateness ([`anabranch_emu::Report`]). Read [`Processors`] first.

use anyhow::Context as _;

/// Shares of the machine's processor time during a run.
#[derive(Copy, Clone, Debug, serde::Serialize)]
pub struct Processors {
    /// Share that any program used.
    pub busy_share: f64,
    /// Share that programs outside this run used.
    pub others_share: f64,
    /// Share that the hypervisor took from the virtual machine.
    pub steal_share: f64,
}

/// Clock ticks of the machine since its start, and of this process with its ended child processes.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Ticks {
    all: u64,
    idle: u64,
    steal: u64,
    own: u64,
}

impl Ticks {
    /// Reads the present counts.
    ///
    /// Errors: unreadable files of the kernel.
    pub(super) fn now() -> anyhow::Result<Self> {
        let machine = std::fs::read_to_string("/proc/stat").context("/proc/stat")?;
        let own = std::fs::read_to_string("/proc/self/stat").context("/proc/self/stat")?;
        Self::read(&machine, &own).context("/proc/stat: other columns than proc_stat(5) has")
    }

    /// Parses the counts of both files (proc_stat(5), proc_pid_stat(5)).
    fn read(machine: &str, own: &str) -> Option<Self> {
        let columns = machine.lines().next()?.strip_prefix("cpu ")?;
        let columns: Vec<u64> = columns.split_whitespace().map_while(|text| text.parse().ok()).collect();
        // Columns: user, nice, system, idle, iowait, irq, softirq, steal; time of guests is also in
        // user.
        let [_, _, _, idle, iowait, _, _, steal, ..] = columns[..] else { return None };
        // The program's name, in brackets, may contain spaces.
        let own: Vec<&str> = own.rsplit_once(')')?.1.split_whitespace().collect();
        let own: Option<Vec<u64>> = own.get(11..15)?.iter().map(|text| text.parse().ok()).collect();
        Some(Self { all: columns[..8].iter().sum(), idle: idle + iowait, steal, own: own?.iter().sum() })
    }

    /// Shares since `before`. Programs of this run that have not ended count as other programs.
    pub(super) fn since(self, before: Self) -> Processors {
        let all = (self.all - before.all).max(1) as f64;
        let (idle, steal) =
            ((self.idle - before.idle) as f64, self.steal.saturating_sub(before.steal) as f64);
        let busy = all - idle - steal;
        let own = (self.own - before.own) as f64;
        Processors {
            busy_share: busy / all,
            others_share: ((busy - own) / all).max(0.0),
            steal_share: steal / all,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = "7 (a b) c) S 1 7 7 0 -1 4194560 1 2 3 4 100 50 30 20 20 0 1 0";

    #[test]
    fn shares_count_only_ticks_since_the_first_sample() {
        let before = Ticks::read("cpu  10 0 10 70 10 0 0 0 0 0\ncpu0 1\n", OWN).expect("both files");
        assert_eq!(before, Ticks { all: 100, idle: 80, steal: 0, own: 200 });
        let after = Ticks { all: 1_100, idle: 580, steal: 100, own: 500 };
        let shares = after.since(before);
        assert!((shares.busy_share - 0.4).abs() < 1e-9, "{shares:?}");
        assert!((shares.others_share - 0.1).abs() < 1e-9 && (shares.steal_share - 0.1).abs() < 1e-9);
    }

    #[test]
    fn malformed_kernel_files_are_refused() {
        for (machine, own) in [("", OWN), ("cpu  1 2 3\n", OWN), ("cpu  1 2 3 4 5 6 7 8\n", "7 (a) S 1")] {
            assert_eq!(Ticks::read(machine, own), None);
        }
    }
}
