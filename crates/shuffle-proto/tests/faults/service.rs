//! The coordinator as its service runs it: who has been heard from, and who waits for limits.

use super::host::{LINK, address};
use anabranch_shuffle_proto::agent::{Answer, Ask, Failure, LIMITS_WAIT};
use anabranch_shuffle_proto::control::FlowKey;
use anabranch_shuffle_proto::coordinator::{Host, ReportError, Settings};
use anabranch_shuffle_proto::{BoxedAllocator, Coordinator, Scheduler};
use anabranch_units::{Duration, Instant};
use std::collections::{BTreeMap, BTreeSet};

/// An agent that is silent for so long has gone.
const SILENCE_MAX: Duration = Duration::from_secs(1);

/// Who asks: a host, its agent's generation, and the number by which the agent waits.
pub type Asker = (usize, u64, u64);

/// A running coordinator.
pub struct Service {
    pub machine: Coordinator<BoxedAllocator>,
    /// When it was started: its clock begins then.
    began: Instant,
    /// By host: the session, and when it was heard.
    agents: BTreeMap<usize, (u64, Instant)>,
    /// By host: who waits for limits, in which session, and since when.
    waiting: BTreeMap<usize, (Asker, u64, Instant)>,
}

pub type Reply = (Asker, Result<Answer, Failure>);

fn name(host: usize) -> String {
    format!("h{host}")
}

fn not_joined(host: usize) -> Failure {
    Failure::NotJoined(ReportError::NotJoined(name(host)).to_string())
}

impl Service {
    pub fn new(began: Instant, scheduler: Scheduler) -> Self {
        let machine = Coordinator::new(Settings::default(), scheduler.make());
        Self { machine, began, agents: BTreeMap::new(), waiting: BTreeMap::new() }
    }

    fn clock(&self, now: Instant) -> Instant {
        Instant::ZERO + (now - self.began)
    }

    pub fn is_joined(&self, host: usize, session: u64) -> bool {
        self.agents.get(&host).is_some_and(|(joined, _)| *joined == session)
    }

    /// Whether all these hosts' agents have joined.
    pub fn has_all(&self, hosts: usize) -> bool {
        (0..hosts).all(|host| self.agents.contains_key(&host))
    }

    /// The flows that are known of a host and are no mice.
    pub fn flows_of(&mut self, now: Instant, host: usize) -> BTreeSet<FlowKey> {
        let (clock, name) = (self.clock(now), name(host));
        let flows = self.machine.transfers(clock).into_iter().flat_map(|transfer| transfer.flows);
        flows.filter(|flow| flow.host == name).map(|flow| flow.flow).collect()
    }

    /// Takes a request in, and says all that is answered because of it.
    pub fn handle(&mut self, now: Instant, asker: Asker, ask: Ask) -> Vec<Reply> {
        let (host, clock, mut replies) = (asker.0, self.clock(now), Vec::new());
        let answer = |replies: &mut Vec<Reply>, result: Result<(), ReportError>| {
            let failure = |error: ReportError| match error {
                ReportError::NotJoined(_) => Failure::NotJoined(error.to_string()),
                _ => Failure::Refused(error.to_string()),
            };
            replies.push((asker, result.map(|()| Answer::Taken).map_err(failure)));
        };
        match ask {
            Ask::Join(request) => {
                let joining = Host { addresses: vec![address(host)], rate: LINK, uplinks: Vec::new() };
                let session = request.session;
                let joined = self.machine.handle_join(clock, &name(host), session, joining);
                if joined.is_ok() {
                    self.agents.insert(host, (session, now));
                    let earlier = self.waiting.remove(&host);
                    replies.extend(earlier.map(|(asker, ..)| (asker, Err(not_joined(host)))));
                }
                let told = joined.and_then(|()| {
                    self.machine.handle_reports(clock, &name(host), session, &request.reports)
                });
                answer(&mut replies, told);
            }
            Ask::Report(request) if self.is_joined(host, request.session) => {
                self.agents.insert(host, (request.session, now));
                let (session, reports) = (request.session, &request.reports);
                let told = self.machine.handle_reports(clock, &name(host), session, reports);
                answer(&mut replies, told);
            }
            Ask::Limits { session } if self.is_joined(host, session) => {
                self.agents.insert(host, (session, now));
                self.waiting.insert(host, (asker, session, now));
            }
            Ask::Leave { session } => {
                if self.is_joined(host, session) {
                    self.gone(now, host);
                }
            }
            _ => replies.push((asker, Err(not_joined(host)))),
        }
        self.decide(now, &mut replies);
        replies
    }

    fn gone(&mut self, now: Instant, host: usize) {
        if let Some((session, _)) = self.agents.remove(&host) {
            self.machine.handle_leave(self.clock(now), &name(host), session);
        }
    }

    /// Some time has passed.
    pub fn handle_tick(&mut self, now: Instant) -> Vec<Reply> {
        let silent = self.agents.iter().filter(|(_, (_, heard_at))| *heard_at + SILENCE_MAX <= now);
        let silent: Vec<usize> = silent.map(|(host, _)| *host).collect();
        let mut replies = Vec::new();
        for host in silent {
            self.gone(now, host);
            let waiting = self.waiting.remove(&host);
            replies.extend(waiting.map(|(asker, ..)| (asker, Err(not_joined(host)))));
        }
        self.waiting.retain(|_, (asker, _, since)| {
            let is_over = *since + LIMITS_WAIT <= now;
            if is_over {
                replies.push((*asker, Ok(Answer::Limits(Vec::new()))));
            }
            !is_over
        });
        self.decide(now, &mut replies);
        replies
    }

    fn decide(&mut self, now: Instant, replies: &mut Vec<Reply>) {
        let clock = self.clock(now);
        self.machine.decide(clock).expect("links carry what is decided");
        while self.machine.poll_begun().is_some() {}
        while self.machine.poll_ended().is_some() {}
        let Self { machine, waiting, .. } = self;
        waiting.retain(|host, (asker, session, _)| {
            let limits = machine.poll_limits(&name(*host), *session);
            let is_told = !limits.is_empty();
            if is_told {
                replies.push((*asker, Ok(Answer::Limits(limits))));
            }
            !is_told
        });
    }
}
