//! The controller's side of its sites' sessions as a machine: which process serves each site, whether the process lives, and which
//! commands it has taken over.
//!
//! A site's process draws a session when it starts, and registers with the session. Commands are numbered and kept until a later
//! request of the process confirms them, so that none is lost or carried out twice while the process lives; its reports come
//! in numbered batches, so that none counts twice. A process that is silent for a while counts as gone, and registers
//! again when it is back. A second process of a site is refused for as long as the first one gives signs of life.
//!
//! Sans-IO: time comes in as `now`, requests as calls. Leaves out: the commands and reports themselves, how requests
//! travel, and durability. Read [`Sessions`] first.

use anabranch_units::{Duration, Instant};
use std::collections::{BTreeMap, VecDeque};

/// Commands that may wait for one site; a site that lets more pile up has to register anew, and its queue is dropped.
pub const QUEUE_MAX: usize = 16_384;
/// The most commands in one answer; the rest follows.
pub const COMMANDS_TOGETHER_MAX: usize = 256;
/// How long a site's process has for a sign of life when another one wants its place, if its request for commands stood until
/// then.
pub(crate) const CALL_STANDING: Duration = Duration::from_secs(3);
/// The same if its connection was just broken.
pub(crate) const CALL_BROKEN: Duration = Duration::from_secs(1);

/// The site has to register (again).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct NotRegistered;

/// Another process serves the site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Its session.
    pub session: u64,
    /// Where it takes in data.
    pub address: String,
}

/// Up to where a site has taken its commands over.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// Which numbering of commands.
    pub queue: u64,
    /// The last command that was taken over.
    pub after: u64,
}

/// What a process that has registered has to know, and what is worth a line in a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registered {
    /// The last command that it has taken over.
    pub after: u64,
    /// Which numbering of commands that is.
    pub queue: u64,
    /// Where the process took in data whose place it has taken while that one was there.
    pub replaced: Option<String>,
    /// Whether the site was away until now.
    pub is_back: bool,
}

/// A site's process that was asked for a sign of life; see [`Sessions::call`].
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// How long it has.
    pub within: Duration,
    requests: u64,
}

/// What came of a [`Call`] so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Called {
    /// The process has gone, or was replaced.
    Gone,
    /// Nothing yet.
    Silent,
    /// It has given a sign of life.
    Answers(Taken),
}

/// A site's place.
#[derive(Clone, Debug)]
struct Place<M> {
    session: Option<u64>,
    queue: VecDeque<(u64, M)>,
    /// Tells one numbering from another, over restarts of the controller too.
    id: u64,
    last_number: u64,
    acknowledged: u64,
    last_batch: u64,
    address: String,
    /// Requests of the site's process so far.
    requests: u64,
    /// How often it was asked for a sign of life: a request for commands is answered at once then.
    calls: u64,
    /// Requests for commands that stand: the site is surely there.
    polls: usize,
    heard_at: Option<Instant>,
    is_up: bool,
}

impl<M> Default for Place<M> {
    fn default() -> Self {
        Self {
            session: None,
            queue: VecDeque::new(),
            id: 0,
            last_number: 0,
            acknowledged: 0,
            last_batch: 0,
            address: String::new(),
            requests: 0,
            calls: 0,
            polls: 0,
            heard_at: None,
            is_up: false,
        }
    }
}

/// The machine. See the module.
#[derive(Clone, Debug)]
pub struct Sessions<Id, M> {
    places: BTreeMap<Id, Place<M>>,
    grace: Duration,
    overflows: u64,
    commands: u64,
}

impl<Id: Copy + Ord, M: Clone> Sessions<Id, M> {
    /// Nobody has registered at any site. One of which nothing is heard for `grace` counts as gone.
    pub const fn new(grace: Duration) -> Self {
        Self { places: BTreeMap::new(), grace, overflows: 0, commands: 0 }
    }

    /// The clock begins anew: all register again, as after a restart. Requests that stand are told so when they look again.
    pub fn restart(&mut self) {
        for place in self.places.values_mut() {
            *place = Place { polls: place.polls, ..Place::default() };
        }
    }

    /// A site's process registers, and takes the place of another one; `queue` tells the numbering of its commands from all
    /// earlier ones, if it has to begin.
    pub fn register(
        &mut self,
        now: Instant,
        site: Id,
        session: u64,
        address: String,
        queue: u64,
    ) -> Registered {
        let place = self.places.entry(site).or_default();
        let (mut replaced, is_back) = (None, !place.is_up);
        if place.session != Some(session) {
            replaced = place.is_up.then(|| std::mem::take(&mut place.address));
            *place = Place { session: Some(session), polls: place.polls, id: queue, ..Place::default() };
        }
        (place.address, place.heard_at, place.is_up) = (address, Some(now), true);
        Registered {
            after: place.acknowledged,
            queue: place.id,
            is_back: is_back || replaced.is_some(),
            replaced,
        }
    }

    /// A process of another session wants a site's place: asks the one that has it for a sign of life, if there is one. Its
    /// requests that stand look again, and are answered.
    pub fn call(&mut self, site: Id, session: u64) -> Option<Call> {
        let place = self.places.entry(site).or_default();
        place.other_than(session)?;
        place.calls += 1;
        let within = if place.polls == 0 { CALL_BROKEN } else { CALL_STANDING };
        Some(Call { within, requests: place.requests })
    }

    /// What came of a call that a process of this session has made.
    pub fn called(&self, site: Id, session: u64, call: Call) -> Called {
        let Some(place) = self.places.get(&site) else { return Called::Gone };
        match place.other_than(session) {
            None => Called::Gone,
            Some(_) if place.requests == call.requests => Called::Silent,
            Some(session) => Called::Answers(Taken { session, address: place.address.clone() }),
        }
    }

    /// A batch of reports comes. True if it did not come before.
    ///
    /// Errors: the site has to register, and say it again.
    pub fn handle_batch(
        &mut self,
        now: Instant,
        site: Id,
        session: u64,
        number: u64,
    ) -> Result<bool, NotRegistered> {
        let place = self.hear(now, site, session)?;
        place.requests += 1;
        let is_new = number > place.last_batch;
        place.last_batch = place.last_batch.max(number);
        Ok(is_new)
    }

    /// A request for commands begins to stand: until [`Sessions::end_poll`] the site is there.
    pub fn begin_poll(&mut self, site: Id) {
        self.places.entry(site).or_default().polls += 1;
    }

    /// A request for commands has been answered, or its connection has ended.
    pub fn end_poll(&mut self, now: Instant, site: Id) {
        let place = self.places.entry(site).or_default();
        place.polls -= 1;
        if place.polls == 0 && place.heard_at.is_some() {
            place.heard_at = Some(now);
        }
    }

    /// What a request for the commands that follow `position` is answered now; `None` as long as it has to wait. `calls` is the
    /// request's own, none before it first looks.
    ///
    /// Errors: the site has to register; the request is from before the site registered the last time.
    pub fn poll_commands(
        &mut self,
        now: Instant,
        site: Id,
        session: u64,
        position: Position,
        calls: &mut Option<u64>,
    ) -> Result<Option<Vec<(u64, M)>>, NotRegistered> {
        if calls.is_some_and(|calls| self.places.get(&site).is_none_or(|place| place.calls != calls)) {
            // The next request is the sign of life.
            return Ok(Some(Vec::new()));
        }
        let place = self.hear(now, site, session)?;
        // It would acknowledge commands that it knows nothing of.
        if place.id != position.queue {
            return Err(NotRegistered);
        }
        place.requests += u64::from(calls.is_none());
        *calls = Some(place.calls);
        place.acknowledged = place.acknowledged.max(position.after.min(place.last_number));
        let acknowledged = place.acknowledged;
        place.queue.retain(|(number, _)| *number > acknowledged);
        let waiting = place.queue.iter().take(COMMANDS_TOGETHER_MAX).cloned().collect::<Vec<_>>();
        Ok((!waiting.is_empty()).then_some(waiting))
    }

    /// Queues a command. False if too many wait: the site then has to register anew, with an empty queue.
    pub fn push(&mut self, now: Instant, site: Id, command: M) -> bool {
        let place = self.places.entry(site).or_default();
        if place.queue.len() >= QUEUE_MAX {
            self.overflows += 1;
            *place = Place { polls: place.polls, heard_at: Some(now), is_up: true, ..Place::default() };
            return false;
        }
        place.last_number += 1;
        place.queue.push_back((place.last_number, command));
        self.commands += 1;
        true
    }

    /// Nobody could be heard for a while, as the controller was at work: silence counts for nothing until `now`.
    pub fn excuse(&mut self, now: Instant) {
        for place in self.places.values_mut().filter(|place| place.is_up) {
            place.heard_at = Some(now);
        }
    }

    /// Time has come to a [`Sessions::poll_timeout`]: the sites that count as gone from now on.
    pub fn handle_timeout(&mut self, now: Instant) -> Vec<Id> {
        let mut gone = Vec::new();
        for (site, place) in &mut self.places {
            if place.silent_at(self.grace).is_some_and(|at| now >= at) {
                place.is_up = false;
                gone.push(*site);
            }
        }
        gone
    }

    /// When to call [`Sessions::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.places.values().filter_map(|place| place.silent_at(self.grace)).min()
    }

    /// Commands that wait, of all sites.
    pub fn waiting(&self) -> usize {
        self.places.values().map(|place| place.queue.len()).sum()
    }

    /// Commands that have been given so far.
    pub const fn commands(&self) -> u64 {
        self.commands
    }

    /// How often too many commands waited for a site.
    pub const fn overflows(&self) -> u64 {
        self.overflows
    }

    /// Notes that the site's present process said something. One that was given up as gone registers again, so that the
    /// coordinator learns that it is back.
    fn hear(&mut self, now: Instant, site: Id, session: u64) -> Result<&mut Place<M>, NotRegistered> {
        let place = self.places.entry(site).or_default();
        if place.session != Some(session) || !place.is_up {
            return Err(NotRegistered);
        }
        place.heard_at = Some(now);
        Ok(place)
    }
}

impl<M> Place<M> {
    /// The session that serves the site now, if there is one and it is not this one.
    fn other_than(&self, session: u64) -> Option<u64> {
        self.session.filter(|other| self.is_up && *other != session)
    }

    /// When the site counts as gone unless it is heard of.
    fn silent_at(&self, grace: Duration) -> Option<Instant> {
        let heard_at = self.heard_at.filter(|_| self.is_up && self.polls == 0)?;
        Some(heard_at + grace)
    }
}
