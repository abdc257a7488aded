//! The controller's state machine: it completes transfers in spite of failures (CodedBulk section
//! 2.4).
//!
//! The stages of a transfer: source and destinations are asked which data they have
//! ([`Command::Inquire`]). The missing data is planned, alone or together with other running
//! transfers ([`JointConfig`]). Every site gets its program, the source starts, destinations finish
//! one by one, and the codes are removed. When a site or a link fails, the attempt is stopped and
//! the next attempt is planned around it, from the data that each site already has.
//!
//! Sans-IO: time comes in as `now`, commands go out through [`Coordinator::poll_command`]. After
//! any `submit`, `cancel` or `handle_*`: drain [`Coordinator::poll_changed`] (and make those
//! [`Coordinator::snapshot`]s durable), *then* `poll_command`, `poll_event` and
//! [`Coordinator::poll_answer`], then read [`Coordinator::poll_timeout`]. In this order, a
//! controller that is killed at any time never uses an attempt's number twice.
//!
//! Leaves out: the transport of messages and the storage of snapshots (the `replicate` room), and
//! plans (an injected [`Planner`]). Read [`Coordinator`], [`TransferRequest`] and [`Event`] first.

mod audit;
mod classes;
mod joint_planning;
mod links;
mod planner;
mod questions;
mod ranges;
mod request;
mod status;
mod transfer;

#[cfg(test)]
mod tests;

use crate::control::{
    Command, FailureKind, HopSettings, Inventory, Priority, Report, Run, SiteProgram, Submitter, TransferId,
};
use crate::msg::SYMBOL_BYTES_MAX;
use crate::plan::{FlowId, Plan};
use crate::site::BUFFER_PACKETS_MAX;
use anabranch_graph::Topology;
use anabranch_pieces::FileHash;
use anabranch_pieces::name::{directory, normal_entry};
use anabranch_units::text::printable;
use anabranch_units::{BitRate, Duration, Instant, LinkId, SiteId};
use links::Links;
use questions::Questions;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use transfer::{Context, FreedRoom, Transfer, one_line};

pub use links::{LinkStatus, MeasuredRate};
pub use planner::{DefaultPlanner, PlanRequest, Planner};
pub use questions::{Answer, QUESTIONS_MAX, SITE_QUESTIONS_MAX, SITES_QUESTIONS_MAX};
use request::backup_directory;
pub use request::{
    Backoff, CoordinatorConfig, CorruptPolicy, Destination, FILTER_BYTES_MAX, HopOverride, JointConfig,
    SchemeChoice, SubmitError, SubmitResult, TransferRequest,
};
pub use status::{
    DestinationProgress, DestinationSnapshot, DestinationStatus, Event, EventKind, Outcome, PhaseName,
    TransferSnapshot, TransferStatus, Verdict,
};
pub use transfer::without_connecting;

/// Why snapshots cannot be restored.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RestoreError {
    /// A transfer does not match the topology.
    Unfit {
        /// The transfer.
        transfer: TransferId,
        /// Reason.
        reason: String,
    },
}

impl std::fmt::Display for RestoreError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unfit { transfer, reason } => write!(
                f,
                "stored transfer {transfer} does not fit the topology ({reason}): start with the topology it was made \
                 on, or with an empty store"
            ),
        }
    }
}
impl std::error::Error for RestoreError {}

/// State of one site.
#[derive(Clone, Debug, Default)]
struct SiteState {
    /// Session of the site's process; it changes when the process restarts. `None` before the first
    /// registration.
    session: Option<u64>,
    up: bool,
    /// Addresses at which the site listens for data, by incoming link.
    addresses: BTreeMap<LinkId, String>,
}

/// The controller's state machine; see the module.
pub struct Coordinator<P> {
    config: CoordinatorConfig,
    /// The network, with the capacities that plans use.
    topology: Topology,
    links: Links,
    planner: P,
    sites: Vec<SiteState>,
    transfers: BTreeMap<TransferId, Transfer>,
    questions: Questions,
    next_transfer: u64,
    born: Instant,
    now: Instant,
    /// Time of the next check whether running transfers gain from a new plan.
    look_at: Option<Instant>,
    out: Outbox,
}

/// Maximum numbers of slots: for one site, for all sites together, and in total.
struct SlotLimits {
    of_site: usize,
    of_sites: usize,
    all: usize,
}

/// Which of the [`SlotLimits`] are full, with their number.
enum FullSlots {
    OfSite(SiteId, usize),
    OfSites(usize),
    All(usize),
}

impl SlotLimits {
    /// Checks whether a slot is free for this submitter, given the submitters of the taken slots.
    fn find(&self, submitter: Submitter, taken: impl Iterator<Item = Submitter>) -> Result<(), FullSlots> {
        let (mut all, mut of_sites, mut own) = (0, 0, 0);
        for other in taken {
            all += 1;
            of_sites += usize::from(other != Submitter::Operator);
            own += usize::from(other == submitter);
        }
        match submitter {
            Submitter::Site(site) if own >= self.of_site => Err(FullSlots::OfSite(site, self.of_site)),
            Submitter::Site(_) if of_sites >= self.of_sites => Err(FullSlots::OfSites(self.of_sites)),
            _ if all >= self.all => Err(FullSlots::All(self.all)),
            _ => Ok(()),
        }
    }
}

/// Output that has not been polled.
#[derive(Debug, Default)]
struct Outbox {
    commands: VecDeque<(SiteId, Command)>,
    events: VecDeque<Event>,
    events_dropped: u64,
    changed: BTreeSet<TransferId>,
    /// Sites where ended attempts returned memory for which other transfers may wait.
    freed: FreedRoom,
}

impl<P: Planner> Coordinator<P> {
    /// A coordinator with no sites up and no transfers.
    pub fn new(config: CoordinatorConfig, topology: Topology, planner: P, now: Instant) -> Self {
        let sites = vec![SiteState::default(); topology.sites().len()];
        Self {
            config,
            links: Links::new(&topology),
            topology,
            planner,
            sites,
            transfers: BTreeMap::new(),
            questions: Questions::default(),
            next_transfer: 1,
            born: now,
            now,
            look_at: None,
            out: Outbox::default(),
        }
    }

    /// Restores a coordinator from the snapshots of a stopped one. `next_transfer` is the next
    /// unused id ([`Coordinator::next_transfer`]); new ids are always above the ids in the
    /// snapshots.
    ///
    /// Errors: a snapshot that does not match the topology.
    pub fn restore(
        config: CoordinatorConfig,
        topology: Topology,
        planner: P,
        now: Instant,
        next_transfer: TransferId,
        snapshots: Vec<TransferSnapshot>,
    ) -> Result<Self, RestoreError> {
        let mut new = Self::new(config, topology, planner, now);
        new.next_transfer = next_transfer.0.max(1);
        for snapshot in snapshots {
            let id = snapshot.id;
            let unfit = |reason: String| RestoreError::Unfit { transfer: id, reason };
            new.check(&snapshot.request).map_err(|e| unfit(e.to_string()))?;
            if snapshot.destinations.len() != snapshot.request.destinations.len() {
                return Err(unfit("its destinations do not match its request".into()));
            }
            let named = snapshot.suspects.iter().chain(&snapshot.informed);
            if let Some(site) =
                named.chain(snapshot.installed.iter().map(|(s, _)| s)).find(|s| s.index() >= new.sites.len())
            {
                return Err(unfit(format!("it names site {site}")));
            }
            new.next_transfer = new.next_transfer.max(id.0 + 1);
            let transfer = Transfer::restore(snapshot, now, new.config.gather);
            new.transfers.insert(id, transfer);
        }
        new.step_all();
        new.plan_waiting();
        Ok(new)
    }

    /// Starts the numbers of questions ([`Coordinator::ask_source`]) at `number`. If every start of
    /// a controller uses a new number, late answers to its predecessor's questions match no open
    /// question.
    #[must_use]
    pub fn with_questions_from(mut self, number: u64) -> Self {
        self.questions.begin_at(number);
        self
    }

    /// The network, with the capacities that plans use ([`LinkStatus::planned`]).
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The declared and the measured capacity of a link.
    ///
    /// Panics: if the link is not in the topology.
    pub fn link(&self, link: LinkId) -> LinkStatus {
        self.links.status(link)
    }

    /// The next id that [`Coordinator::submit`] returns.
    pub fn next_transfer(&self) -> TransferId {
        TransferId(self.next_transfer)
    }

    /// Accepts a transfer.
    ///
    /// Errors: see [`SubmitError`]; nothing changes in that case.
    pub fn submit(&mut self, now: Instant, request: TransferRequest) -> Result<TransferId, SubmitError> {
        self.advance_clock(now);
        let request = self.accepted(request)?;
        self.begin(request)
    }

    /// Accepts a transfer, unless a running transfer of the same submitter delivers the same file
    /// to the same destinations with equal settings.
    ///
    /// Errors: see [`SubmitError`]; nothing changes in that case. A running transfer of the same
    /// file to the same destinations with other settings gives [`SubmitError::RunsOtherwise`].
    pub fn submit_or_attach(
        &mut self,
        now: Instant,
        request: TransferRequest,
    ) -> Result<SubmitResult, SubmitError> {
        self.advance_clock(now);
        let request = self.accepted(request)?;
        let running = self.transfers.iter().filter(|(_, t)| t.outcome().is_none());
        let twins = running.map(|(id, t)| (*id, t.request())).filter(|(_, r)| r.is_about_the_same(&request));
        let twins = twins.map(|(id, twin)| (id, twin.differences(&request)));
        // Of several transfers of the same file, one with equal settings is preferred.
        let Some((id, differs)) = twins.min_by_key(|(_, differs)| !differs.is_empty()) else {
            return self.begin(request).map(SubmitResult::New);
        };
        if differs.is_empty() {
            Ok(SubmitResult::Attached(id))
        } else {
            Err(SubmitError::RunsOtherwise { transfer: id, differs })
        }
    }

    /// Asks the source of a request about its file, without starting a transfer.
    /// [`Coordinator::poll_answer`] returns the answer under the returned number, within
    /// [`CoordinatorConfig::gather`] plus [`CoordinatorConfig::inquire_timeout`] (33 s by default).
    ///
    /// Errors: see [`SubmitError`]; a request that would be refused as a transfer is refused here
    /// too.
    pub fn ask_source(&mut self, now: Instant, request: TransferRequest) -> Result<TransferId, SubmitError> {
        self.advance_clock(now);
        let request = self.accepted(request)?;
        self.questions.ask(now, request, &self.config, &self.topology, &self.sites, &mut self.out)
    }

    /// Forgets a question whose answer is no longer needed.
    pub fn withdraw_question(&mut self, id: TransferId) {
        self.questions.withdraw(id);
    }

    /// The next answer to a question: the file's length in bytes, or why the file cannot be sent.
    pub fn poll_answer(&mut self) -> Option<(TransferId, Answer)> {
        self.questions.poll_answer()
    }

    /// Returns the request after all checks, with normalised paths, so that equal requests compare
    /// equal.
    fn accepted(&self, mut request: TransferRequest) -> Result<TransferRequest, SubmitError> {
        self.check(&request)?;
        for path in std::iter::once(&mut request.source_path)
            .chain(request.destinations.iter_mut().map(|d| &mut d.path))
        {
            *path = normal_entry(path).map_err(SubmitError::BadPath)?;
        }
        let backup = request.rules.backup.as_deref().map(backup_directory);
        request.rules.backup = backup.transpose()?;
        Ok(request)
    }

    fn begin(&mut self, request: TransferRequest) -> Result<TransferId, SubmitError> {
        self.find_place(request.submitter)?;
        let id = TransferId(self.next_transfer);
        self.next_transfer += 1;
        let wait_for_all = self.now < self.born + self.config.gather;
        let transfer = Transfer::new(id, request, self.now + self.config.gather, wait_for_all);
        self.transfers.insert(id, transfer);
        self.with(id, |t, cx| t.submitted(cx));
        self.settle();
        self.evict();
        Ok(id)
    }

    /// Checks whether a slot is free for a transfer of this submitter.
    fn find_place(&self, submitter: Submitter) -> Result<(), SubmitError> {
        let config = &self.config;
        let places = SlotLimits {
            of_site: config.site_transfers_max,
            of_sites: config.sites_transfers_max,
            all: config.transfers_max,
        };
        let under_way = self.transfers.values().filter(|t| t.outcome().is_none());
        places.find(submitter, under_way.map(Transfer::submitter)).map_err(|full| match full {
            FullSlots::OfSite(site, limit) => {
                SubmitError::TooManyOfSite { site: self.topology.site(site).name.clone(), limit }
            }
            FullSlots::OfSites(limit) => SubmitError::TooManyOfSites { limit },
            FullSlots::All(limit) => SubmitError::TooMany { limit },
        })
    }

    fn check(&self, request: &TransferRequest) -> Result<(), SubmitError> {
        let sites = self.topology.sites().len();
        let links = self.topology.links().len();
        let ends = || std::iter::once(request.source).chain(request.destinations.iter().map(|d| d.site));
        let limit = |what, value: u64, min: u64, max: u64| {
            if (min..=max).contains(&value) {
                Ok(())
            } else {
                Err(SubmitError::OutOfRange { what, value, allowed: format!("{min} to {max}") })
            }
        };
        // Sizes are checked first, because the time of the other checks grows with them.
        limit("bytes of a request", request.bytes() as u64, 0, self.config.request_bytes_max as u64)?;
        limit("sites to avoid", request.avoid_sites.len() as u64, 0, sites as u64)?;
        limit("links to avoid", request.avoid_links.len() as u64, 0, links as u64)?;
        if let Some(site) = ends().chain(request.avoid_sites.iter().copied()).find(|s| s.index() >= sites) {
            return Err(SubmitError::UnknownSite { site, sites });
        }
        let named_links =
            request.avoid_links.iter().copied().chain(request.hop_overrides.iter().map(|h| h.link));
        if let Some(link) = named_links.into_iter().find(|l| l.index() >= links) {
            return Err(SubmitError::UnknownLink { link, links });
        }
        let name = |s: SiteId| self.topology.site(s).name.clone();
        if request.destinations.is_empty() {
            return Err(SubmitError::NoDestination);
        }
        let mut seen = BTreeSet::new();
        for d in &request.destinations {
            if d.site == request.source {
                return Err(SubmitError::SourceIsDestination { site: name(d.site) });
            }
            if !seen.insert(d.site) {
                return Err(SubmitError::DuplicateDestination { site: name(d.site) });
            }
        }
        if let Some(site) = ends().find(|s| request.avoid_sites.contains(s)) {
            return Err(SubmitError::AvoidedEnd { site: name(site) });
        }
        let reached = self.reached(request);
        if let Some(d) = request.destinations.iter().find(|d| !reached.contains(&d.site)) {
            return Err(SubmitError::NoPath { source: name(request.source), destination: name(d.site) });
        }
        limit("destinations", request.destinations.len() as u64, 1, self.config.destinations_max as u64)?;
        limit("symbol_bytes", request.symbol_bytes.into(), 1, SYMBOL_BYTES_MAX.into())?;
        limit("buffer_packets", request.buffer_packets.into(), 1, BUFFER_PACKETS_MAX.into())?;
        let mut overridden = BTreeSet::new();
        if let Some(again) = request.hop_overrides.iter().find(|o| !overridden.insert(o.link)) {
            return Err(SubmitError::RepeatedOverride { link: again.link });
        }
        for hop in std::iter::once(&request.hop).chain(request.hop_overrides.iter().map(|h| &h.hop)) {
            limit("stripes", hop.stripes.into(), 1, 64)?;
            let named = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
            let good = |name: &&String| (1..=15).contains(&name.len()) && name.chars().all(named);
            if let Some(name) = hop.congestion_control.as_ref().filter(|name| !good(name)) {
                let name = printable(name).chars().take(20).collect();
                return Err(SubmitError::CongestionControl { name });
            }
            if request.fill && hop.priority == Priority::Fill {
                return Err(SubmitError::FillWith { what: "hops of priority fill" });
            }
        }
        if let Some(rate) = request.bandwidth_limit {
            limit("bandwidth limit in bit/s", rate.as_bps(), 1, u64::MAX)?;
            if request.fill {
                return Err(SubmitError::FillWith { what: "a bandwidth limit" });
            }
        }
        let paths = std::iter::once(&request.source_path).chain(request.destinations.iter().map(|d| &d.path));
        for path in paths {
            limit("length of a path in bytes", path.len() as u64, 1, self.config.path_bytes_max as u64)?;
            normal_entry(path).map_err(SubmitError::BadPath)?;
            if directory(path).is_some() != directory(&request.source_path).is_some() {
                return Err(SubmitError::FileAndDirectory { path: path.clone() });
            }
        }
        request.check_rules()
    }

    /// Sites that can be reached from the source without the sites and links that the request
    /// avoids.
    fn reached(&self, request: &TransferRequest) -> BTreeSet<SiteId> {
        let (mut reached, mut new) = (BTreeSet::from([request.source]), vec![request.source]);
        while let Some(site) = new.pop() {
            for link in self.topology.links_out(site).filter(|l| !request.avoid_links.contains(l)) {
                let to = self.topology.link(link).to;
                if !request.avoid_sites.contains(&to) && reached.insert(to) {
                    new.push(to);
                }
            }
        }
        reached
    }

    /// Cancels a transfer. Returns false if the transfer does not exist or has ended.
    pub fn cancel(&mut self, now: Instant, id: TransferId) -> bool {
        self.advance_clock(now);
        let cancelled = self.with(id, |t, cx| t.cancel(cx)).unwrap_or(false);
        self.settle();
        self.evict();
        cancelled
    }

    /// Handles the registration of a site. `session` changes when its process changes. `addresses`
    /// are the addresses at which the site listens for data, for each link that ends there.
    ///
    /// Panics: if the site is not in the topology. Addresses of links that do not end at the site
    /// are ignored.
    pub fn handle_site_up(
        &mut self,
        now: Instant,
        site: SiteId,
        session: u64,
        addresses: impl IntoIterator<Item = (LinkId, String)>,
    ) {
        self.advance_clock(now);
        let own = |l: &LinkId| l.index() < self.topology.links().len() && self.topology.link(*l).to == site;
        let addresses = addresses.into_iter().filter(|(l, _)| own(l)).collect();
        let state = &mut self.sites[site.index()];
        let restarted = state.session.is_some_and(|s| s != session);
        *state = SiteState { session: Some(session), up: true, addresses };
        self.questions.handle_site_up(now, site, &self.config, &mut self.out);
        self.with_all(|t, cx| t.handle_site_up(cx, site, restarted));
        self.settle();
    }

    /// Handles the loss of a site: its control connection has been down for longer than the
    /// driver's grace time.
    ///
    /// Panics: if the site is not in the topology.
    pub fn handle_site_down(&mut self, now: Instant, site: SiteId) {
        self.advance_clock(now);
        if std::mem::take(&mut self.sites[site.index()].up) {
            self.with_all(|t, cx| t.handle_site_down(cx, site));
            self.settle();
        }
    }

    /// Handles a report of a site. Late reports of attempts that have ended are ignored.
    ///
    /// Panics: if the site is not in the topology.
    pub fn handle_report(&mut self, now: Instant, site: SiteId, report: Report) {
        self.advance_clock(now);
        assert!(site.index() < self.sites.len(), "the driver knows the topology's sites");
        if self.questions.handle_report(&self.topology, site, &report) {
            return;
        }
        let run = report.run();
        let progress = matches!(report, Report::Progress { .. });
        if self.with(run.transfer, |t, cx| t.handle_report(cx, site, report)).is_none() && progress {
            // The transfer is unknown, for example because the store was lost. No other command
            // would remove this attempt.
            self.out.commands.push_back((site, Command::Uninstall { run }));
        }
        self.settle();
    }

    /// Handles all deadlines that are due at the time of [`Coordinator::poll_timeout`].
    pub fn handle_timeout(&mut self, now: Instant) {
        self.advance_clock(now);
        self.questions.handle_timeout(now, &self.topology, &self.config);
        self.step_all();
        self.settle();
    }

    /// The next command and its site. Commands for one site must reach the site in this order.
    pub fn poll_command(&mut self) -> Option<(SiteId, Command)> {
        self.out.commands.pop_front()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.out.events.pop_front()
    }

    /// The next transfer whose snapshot changed (or no longer exists, if [`Coordinator::snapshot`]
    /// returns `None`).
    pub fn poll_changed(&mut self) -> Option<TransferId> {
        self.out.changed.pop_first()
    }

    /// Next time to call [`Coordinator::handle_timeout`]. Always `Some` while a transfer is
    /// running.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let transfers = self.transfers.values().filter_map(|t| t.deadline(&self.config));
        transfers.chain(self.look_at).chain(self.questions.deadline()).chain(self.links.deadline()).min()
    }

    /// The state of a transfer that must survive a restart.
    pub fn snapshot(&self, id: TransferId) -> Option<TransferSnapshot> {
        self.transfers.get(&id).map(Transfer::snapshot)
    }

    /// The status of a transfer.
    pub fn status(&self, id: TransferId) -> Option<TransferStatus> {
        self.transfers.get(&id).map(|t| t.status(self.now))
    }

    /// The first known transfer with a higher id than `id`.
    pub fn next_after(&self, id: TransferId) -> Option<TransferId> {
        self.transfers.range(TransferId(id.0.checked_add(1)?)..).next().map(|(id, _)| *id)
    }

    /// Ids of all known transfers, ascending.
    pub fn transfer_ids(&self) -> impl Iterator<Item = TransferId> + '_ {
        self.transfers.keys().copied()
    }

    /// Of the plans of a transfer's attempts, the last one with the most destinations. It dates
    /// from before some destinations were postponed or finished (lost when the controller
    /// restarts).
    pub fn widest_plan(&self, id: TransferId) -> Option<&Plan> {
        self.transfers.get(&id).and_then(Transfer::widest_plan)
    }

    /// The plan of a transfer's current or last attempt (lost when the controller restarts).
    pub fn plan(&self, id: TransferId) -> Option<&Plan> {
        self.transfers.get(&id).and_then(Transfer::plan)
    }

    /// Whether the site is up.
    pub fn is_up(&self, site: SiteId) -> bool {
        self.sites.get(site.index()).is_some_and(|s| s.up)
    }

    /// Number of events that were dropped because they were not polled.
    pub fn events_dropped(&self) -> u64 {
        self.out.events_dropped
    }

    fn advance_clock(&mut self, now: Instant) {
        debug_assert!(now >= self.now, "time never goes back");
        self.now = self.now.max(now);
    }

    fn with<T>(&mut self, id: TransferId, f: impl FnOnce(&mut Transfer, &mut Context<'_>) -> T) -> Option<T> {
        let transfer = self.transfers.get_mut(&id)?;
        let mut cx = Context {
            now: self.now,
            config: &self.config,
            topology: &self.topology,
            links: &mut self.links,
            sites: &self.sites,
            planner: &self.planner,
            out: &mut self.out,
        };
        let before = transfer.outcome();
        let result = f(transfer, &mut cx);
        transfer.step(&mut cx);
        if before != transfer.outcome() && self.config.joint.is_some() {
            self.look_at = Some(self.now);
        }
        Some(result)
    }

    /// Applies newly measured capacities: notifies all transfers, and schedules a check whether
    /// running transfers gain from a new plan.
    fn correct_capacities(&mut self) {
        let corrections = self.links.poll_corrections(self.now);
        if corrections.is_empty() {
            return;
        }
        for (link, capacity) in corrections {
            self.topology.link_properties_mut(link).capacity = capacity;
        }
        self.with_all(Transfer::handle_capacities);
        if self.config.joint.is_some() {
            self.look_at = Some(self.now);
        }
    }

    /// Applies the effects of one transfer's end or pause to the other transfers.
    fn settle(&mut self) {
        self.correct_capacities();
        let freed = std::mem::take(&mut self.out.freed);
        if !freed.is_empty() {
            let ids: Vec<_> = self.transfers.keys().copied().collect();
            for id in ids {
                let others = freed.iter().filter(|(from, _)| *from != id);
                let sites: BTreeSet<SiteId> = others.flat_map(|(_, sites)| sites.iter().copied()).collect();
                self.with(id, |t, cx| t.handle_room(cx, &sites));
            }
        }
        self.plan_waiting();
    }

    fn with_all(&mut self, mut f: impl FnMut(&mut Transfer, &mut Context<'_>)) {
        let ids: Vec<_> = self.transfers.keys().copied().collect();
        for id in ids {
            self.with(id, &mut f);
        }
    }

    fn step_all(&mut self) {
        self.with_all(|_, _| ());
        self.evict();
    }

    fn evict(&mut self) {
        let mut over: BTreeMap<Submitter, VecDeque<TransferId>> = BTreeMap::new();
        for (id, t) in self.transfers.iter().filter(|(_, t)| t.outcome().is_some()) {
            over.entry(t.submitter()).or_default().push_back(*id);
        }
        let is_site = |s: &Submitter| *s != Submitter::Operator;
        let finished_max = self.config.finished_max;
        // A submitter with many ended transfers loses only its own. Ended transfers of sites lose
        // their slots first while they hold more than half of all slots.
        loop {
            let all: usize = over.values().map(VecDeque::len).sum();
            let operators = over.get(&Submitter::Operator).map_or(0, VecDeque::len);
            let busiest = over.iter().filter(|(s, _)| is_site(s));
            let busiest =
                busiest.max_by_key(|(_, own)| (own.len(), own.front().map(|id| std::cmp::Reverse(*id))));
            let busiest = busiest.map(|(s, own)| (*s, own.len()));
            let loses = match busiest {
                Some((site, own)) if own > self.config.site_transfers_max => site,
                _ if all <= finished_max => return,
                Some((site, _)) if all - operators > finished_max / 2 => site,
                _ => Submitter::Operator,
            };
            let Some(id) = over.get_mut(&loses).and_then(VecDeque::pop_front) else { return };
            self.transfers.remove(&id);
            self.out.changed.insert(id);
        }
    }
}

impl Outbox {
    fn event(&mut self, limit: usize, event: Event) {
        if self.events.len() >= limit {
            self.events.pop_front();
            self.events_dropped += 1;
        }
        self.events.push_back(event);
    }
}

impl Report {
    /// The run of the report.
    pub fn run(&self) -> Run {
        match self {
            Self::Inventory(Inventory { run, .. })
            | Self::Ready { run }
            | Self::Progress { run, .. }
            | Self::SourceDone { run, .. }
            | Self::Hashed { run, .. }
            | Self::SinkDone { run, .. }
            | Self::Corrupt { run, .. }
            | Self::Audit { run, .. }
            | Self::Completed { run }
            | Self::Written { run, .. }
            | Self::Compared { run, .. }
            | Self::HopFailed { run, .. }
            | Self::Failed { run, .. } => *run,
        }
    }
}
