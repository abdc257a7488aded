//! Checks after every event, and at the end.

use super::site::path;
use super::world::{CONTROLLER, DISK_MS, Fault, MEMORY_ENOUGH, World};
use anabranch_replicate_proto::control::{Report, Run, TransferId};
use anabranch_replicate_proto::coordinator::{
    CorruptPolicy, PhaseName, TransferRequest, TransferStatus, Verdict,
};
use anabranch_units::{Duration, SiteId};
use std::collections::BTreeSet;

/// Maximum number of commands that wait at the controller in these schedules: a few for each
/// attempt that a site has not received.
const QUEUED_MAX: usize = 2_000;
/// Maximum time until a reachable site has removed an attempt.
const STALE_MAX: Duration = Duration::from_secs(10);

impl World {
    pub fn is_over(&self) -> bool {
        self.ids.len() == self.requests.len() && self.ids.keys().all(|id| self.is_durably_over(*id))
    }

    /// Whether a controller that starts now would read from the store that the transfer has ended.
    pub fn is_durably_over(&self, id: TransferId) -> bool {
        self.store.snapshots.get(&id).is_some_and(|s| s.outcome.is_some())
    }

    /// Whether the sites have no state of ended transfers.
    pub fn is_quiet(&self) -> bool {
        let is_quiet = |host: &super::site::Host| {
            host.process.as_ref().is_some_and(|process| {
                process.daemon.is_idle()
                    && process.daemon.attempts().next().is_none()
                    && process.runners.is_empty()
                    && process.link.is_idle()
                    && host.disk.has_none_open()
            })
        };
        self.hosts.iter().all(is_quiet) && self.conns.is_empty()
    }

    /// The requests, by number, that may have a file of that name at a site.
    fn wanting(&self, site: usize, name: &str) -> BTreeSet<usize> {
        let wants = |number: &usize| {
            let destinations = &self.requests[*number].destinations;
            destinations.iter().any(|d| d.site.index() == site && path(&d.path) == name)
        };
        (0..self.requests.len()).filter(wants).collect()
    }

    /// Checks a file that has just received its name: some request must have sent that file to the
    /// site.
    pub fn check_named(&self, site: usize, name: &str) {
        let bytes = self.hosts[site].disk.finished(name).expect("it has just got it");
        let is_sent =
            |number: &usize| self.sources.files[&self.requests[*number].source_path].bytes == *bytes;
        assert!(self.wanting(site, name).iter().any(is_sent), "{name} at {site} is nobody's");
    }

    /// Checks the invariants after every event.
    pub fn check(&self) {
        for (site, host) in self.hosts.iter().enumerate() {
            let Some(process) = &host.process else { continue };
            let bytes = process.daemon.memory_bytes();
            assert!(bytes <= self.memory_max, "site {site} takes {bytes} bytes");
        }
        let Some(controller) = &self.controller else { return };
        assert!(controller.queued() <= QUEUED_MAX, "{} commands wait", controller.queued());
        let open = |id| controller.coordinator.status(id).is_some_and(|status| status.outcome.is_none());
        if controller.coordinator.poll_timeout().is_none() {
            let waits = controller.coordinator.transfer_ids().find(|id| open(*id));
            assert_eq!(waits, None, "a transfer waits for nothing");
        }
    }

    /// Checks that an attempt does not continue after the report of a broken connection.
    pub fn check_report(&self, report: &Report) {
        let Report::HopFailed { run, unconnected: false, .. } = report else { return };
        let status = self.controller.as_ref().and_then(|c| c.coordinator.status(run.transfer));
        let goes_on = |s: &TransferStatus| {
            s.attempts == run.attempt.0 && matches!(s.phase, PhaseName::Installing | PhaseName::Running)
        };
        assert!(!status.is_some_and(|s| goes_on(&s)), "{run:?} goes on without a connection");
    }

    /// Whether a fault may prevent a site from receiving a command or from executing it.
    fn is_disturbed(&self, site: usize) -> bool {
        let is_slow = self.hosts[site].disk_ms > DISK_MS || self.lost_ppm > 0;
        let is_cut = self.is_frozen(site) || self.is_frozen(CONTROLLER) || !self.is_reached(site, CONTROLLER);
        is_slow || is_cut || self.controller.is_none() || self.trouble().is_some()
    }

    /// Checks that no state of an attempt stays at a reachable site after another attempt has
    /// followed.
    pub fn check_stale(&mut self) {
        let now = self.schedule.now();
        let is_over = |run: &Run| {
            let status = self.controller.as_ref().and_then(|c| c.coordinator.status(run.transfer));
            status.is_none_or(|s| {
                let is_idle = matches!(s.phase, PhaseName::Waiting | PhaseName::Over);
                is_idle || s.attempts > run.attempt.0
            })
        };
        let told = self.hosts.iter().enumerate().filter(|(site, _)| !self.is_disturbed(*site));
        let processes = told.filter_map(|(site, host)| Some((site, host.process.as_ref()?)));
        let runs = processes.flat_map(|(site, p)| p.daemon.attempts().map(move |run| (site, run)));
        let stale: BTreeSet<_> = runs.filter(|(_, run)| is_over(run)).collect();
        self.stale.retain(|key, _| stale.contains(key));
        for key in stale {
            let since = *self.stale.entry(key).or_insert(now);
            assert!(now < since + STALE_MAX, "{:?} is over and still at {}", key.1, key.0);
        }
    }

    /// Description of the remaining state, for the log.
    pub fn left(&self) -> String {
        let statuses = self.controller.iter().flat_map(|controller| {
            let open =
                controller.coordinator.transfer_ids().filter_map(|id| controller.coordinator.status(id));
            open.filter(|status| status.outcome.is_none()).map(|status| format!("{status:?}"))
        });
        let statuses: Vec<String> = statuses.collect();
        let attempts = |host: &super::site::Host| {
            let process = host.process.as_ref();
            process.map(|p| (p.daemon.attempts().collect::<Vec<Run>>(), p.daemon.is_idle(), p.link.is_idle()))
        };
        let sites: Vec<_> = self.hosts.iter().map(attempts).collect();
        format!("{statuses:#?}, sites {sites:?}, {} connections", self.conns.len())
    }

    /// Whether every path to a site passes through suspected sites of the transfer.
    fn is_cut_off(&self, request: &TransferRequest, suspects: &[SiteId], site: SiteId) -> bool {
        let (mut reached, mut new) = (BTreeSet::from([request.source]), vec![request.source]);
        while let Some(at) = new.pop() {
            for link in self.topology.links_out(at).filter(|link| !request.avoid_links.contains(link)) {
                let to = self.topology.link(link).to;
                let passes = to == site || !request.avoid_sites.contains(&to) && !suspects.contains(&to);
                if passes && reached.insert(to) {
                    new.push(to);
                }
            }
        }
        !reached.contains(&site)
    }

    /// Whether data may have arrived wrong until the transfer gave up. A corrupting relay is always
    /// found if no other kind of fault occurs.
    fn may_be_wrong(&self, id: TransferId, request: &TransferRequest) -> bool {
        let is_found = self.only == Some(Fault::Spoil) && request.on_corrupt == CorruptPolicy::Repair;
        self.spoiled.contains(&id) && !is_found
    }

    /// Checks the invariants at the end: every file that was reported exists, and every reachable
    /// destination was served.
    pub fn check_end(&self) {
        for (id, number) in &self.ids {
            let (request, snapshot) = (&self.requests[*number], &self.store.snapshots[id]);
            for (d, state) in request.destinations.iter().zip(&snapshot.destinations) {
                let (site, name) = (d.site.index(), path(&d.path));
                let wanting = self.wanting(site, &name);
                let bytes = self.hosts[site].disk.finished(&name);
                let verdict = state.verdict.as_ref().expect("the transfer is over");
                match verdict {
                    Verdict::Done => {
                        let is_directory = name.ends_with('/');
                        let is_own = if is_directory {
                            self.has_directory(request, d.site, &name, false)
                        } else {
                            bytes == Some(&self.sources.files[&request.source_path].bytes)
                        };
                        let is_replaced = wanting.len() > 1 && (is_directory || bytes.is_some());
                        assert!(is_own || is_replaced, "{id}: {name} is gone at {site}");
                    }
                    Verdict::Integrity { .. } if self.may_be_wrong(*id, request) => {}
                    Verdict::Failed { .. } if self.cancelled.contains(number) => {}
                    Verdict::Failed { reason } if reason.contains("changed") => {
                        assert!(self.sources.edited.contains(number), "{id} to {site}: {reason}");
                    }
                    Verdict::Failed { reason } if reason.contains("no space") => {
                        assert!(self.filled.contains(&site), "{id} to {site}: {reason}");
                    }
                    Verdict::Failed { reason } if reason.contains("with the smallest buffers: more than") => {
                        assert!(self.memory_max < MEMORY_ENOUGH, "{id} to {site}: {reason}");
                    }
                    Verdict::Unreachable { .. } if self.is_cut_off(request, &snapshot.suspects, d.site) => {}
                    other => {
                        let is_alone = wanting.len() == 1;
                        assert!(!is_alone, "{id} to {site}: {other:?}");
                    }
                }
            }
        }
    }

    /// Checks that the files of the last requests are at their destinations.
    pub fn check_last(&self, first: usize) {
        for (id, number) in self.ids.iter().filter(|(_, number)| **number >= first) {
            let (request, snapshot) = (&self.requests[*number], &self.store.snapshots[id]);
            let sent = self.sources.files.get(&request.source_path).map(|source| &source.bytes);
            for (d, state) in request.destinations.iter().zip(&snapshot.destinations) {
                // A plan for a link that was measured as slow has more streams than a site with
                // little memory accepts.
                let is_refused = |reason: &str| reason.contains("with the smallest buffers: more than");
                if self.memory_max < MEMORY_ENOUGH
                    && matches!(&state.verdict, Some(Verdict::Failed { reason }) if is_refused(reason))
                {
                    continue;
                }
                assert_eq!(state.verdict, Some(Verdict::Done), "{id} to {}, when all was over", d.site);
                let found = self.hosts[d.site.index()].disk.finished(&path(&d.path));
                let is_there = match sent {
                    Some(sent) => found == Some(sent),
                    None => self.has_directory(request, d.site, &path(&d.path), true),
                };
                assert!(is_there, "{id} to {}: another file is there", d.site);
            }
        }
    }
}
