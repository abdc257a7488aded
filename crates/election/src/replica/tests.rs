//! Tests of two controllers of a counter, with a store in memory. Hundreds of faults are simulated
//! in virtual time, with the broker's machine (`broker-proto`).

use super::*;

const LEASE: Duration = Duration::from_secs(9);
const EVERY: Duration = Duration::from_secs(1);

/// A machine that makes a decision in each round, and notifies one client of it.
struct Counter {
    next_at: Instant,
    round: u64,
    event: Option<Event<u64, ()>>,
    message: Option<u64>,
}

impl Machine for Counter {
    type Settings = ();
    type Value = u64;
    type Message = u64;
    type Void = ();
    type Job = ();
    type Answer = ();

    fn begin(now: Instant, _: &(), rounds_after: u64, last: Option<&u64>) -> Self {
        let round = rounds_after.max(last.copied().unwrap_or(0));
        Self { next_at: now + EVERY, round, event: None, message: None }
    }
    fn round(value: &u64) -> u64 {
        *value
    }
    fn round_time((): &()) -> Duration {
        EVERY
    }
    fn handle_answer(&mut self, _: Instant, (): &(), (): ()) {}
    fn handle_timeout(&mut self, now: Instant) {
        self.round += 1;
        self.next_at = now + EVERY;
        self.event = Some(Event::Accepted(Arc::new(self.round)));
        self.message = Some(self.round);
    }
    fn poll_transmit(&mut self) -> Option<u64> {
        self.message.take()
    }
    fn poll_event(&mut self) -> Option<Event<u64, ()>> {
        self.event.take()
    }
    fn poll_job(&mut self) -> Option<()> {
        None
    }
    fn poll_timeout(&self) -> Option<Instant> {
        Some(self.next_at)
    }
}

/// A store without faults.
#[derive(Default)]
struct Store {
    revision: u64,
    /// Controller, number and end of the lead.
    lead: Option<(usize, u64, Instant)>,
    value: Option<(Stamp, Arc<u64>)>,
}

impl Store {
    fn answer(&mut self, now: Instant, id: usize, ask: &StoreRequest<u64>) -> StoreReply<u64> {
        self.lead.take_if(|(_, _, until)| *until <= now);
        let last = self.value.as_ref().map_or(Stamp::default(), |(stamp, _)| *stamp);
        let revision = self.revision;
        let stands = |epoch: u64| self.lead.is_some_and(|(holder, of, _)| (holder, of) == (id, epoch));
        match ask {
            StoreRequest::Lead => match self.lead {
                Some((holder, ..)) if holder != id => {
                    StoreReply::Follows { leader: Some(holder.to_string()), revision, last }
                }
                _ => {
                    self.revision += 1;
                    let epoch = self.revision;
                    self.lead = Some((id, epoch, now + LEASE));
                    StoreReply::Leads { epoch, revision: epoch, last }
                }
            },
            StoreRequest::Renew { epoch } if stands(*epoch) => {
                self.lead = Some((id, *epoch, now + LEASE));
                StoreReply::Renewed { revision, last }
            }
            StoreRequest::Keep { epoch, before, .. } if stands(*epoch) && *before != last => {
                StoreReply::Changed { last }
            }
            StoreRequest::Keep { epoch, decided, decision, .. } if stands(*epoch) => {
                self.revision += 1;
                let stamp = Stamp { revision: self.revision, epoch: *decided, round: **decision };
                self.value = Some((stamp, Arc::clone(decision)));
                StoreReply::Kept { revision: self.revision }
            }
            StoreRequest::Read => {
                StoreReply::Last { last, decision: self.value.as_ref().map(|(_, value)| Arc::clone(value)) }
            }
            _ => StoreReply::Lost,
        }
    }
}

/// Runs the controllers for a while. Returns the messages to clients, each with its controller.
fn run(
    replicas: &mut [Option<Replica<Counter>>],
    store: &mut Store,
    now: &mut Instant,
    time: Duration,
) -> Vec<(usize, u64)> {
    let (until, mut messages) = (*now + time, Vec::new());
    while *now < until {
        for (id, replica) in replicas.iter_mut().enumerate() {
            let Some(replica) = replica else { continue };
            replica.handle_timeout(*now);
            while let Some((number, ask)) = replica.poll_ask(*now) {
                let told = store.answer(*now, id, &ask);
                replica.handle_told(*now, number, Some(told));
            }
            while let Some(message) = replica.poll_transmit() {
                let stored = store.value.as_ref().map(|(stamp, _)| stamp.round);
                assert_eq!(stored, Some(message), "a client hears of stored decisions alone");
                messages.push((id, message));
            }
            while replica.poll_turn().is_some() {}
        }
        *now += Duration::from_ms(100);
    }
    messages
}

#[test]
fn follower_takes_over_with_higher_round_numbers() {
    let mut now = Instant::ZERO;
    let mut store = Store::default();
    let mut replicas: Vec<_> = (0..2).map(|_| Some(Replica::new(now, (), LEASE, 0))).collect();
    let first = run(&mut replicas, &mut store, &mut now, Duration::from_secs(5));
    assert!(first.len() >= 4 && first.iter().all(|(id, _)| *id == 0), "{first:?}");
    let follower = replicas[1].as_ref().expect("it runs");
    assert_eq!((follower.leader(), follower.leads()), (Some("0"), false));
    assert!(follower.known().is_some() && follower.machine().is_none());

    replicas[0] = None;
    let second = run(&mut replicas, &mut store, &mut now, LEASE * 2);
    let last = first.last().expect("there are rounds").1;
    assert!(!second.is_empty() && second.iter().all(|(id, round)| *id == 1 && *round > last), "{second:?}");
}

#[test]
fn leader_without_its_store_stops_when_its_lease_ends() {
    let mut now = Instant::ZERO;
    let mut store = Store::default();
    let mut replicas = [Some(Replica::new(now, (), LEASE, 0))];
    run(&mut replicas, &mut store, &mut now, Duration::from_secs(2));
    let replica = replicas[0].as_mut().expect("it runs");
    assert!(replica.leads() && replica.stall(now).is_none());
    let ends_at = now + LEASE;
    while now < ends_at {
        now += Duration::from_ms(100);
        replica.handle_timeout(now);
        if let Some((number, _)) = replica.poll_ask(now) {
            replica.handle_told(now, number, None);
        }
        assert_eq!(replica.poll_transmit(), None, "no decision is stored");
    }
    assert!(!replica.leads() && replica.leading().is_none());
    assert!(matches!(replica.stall(now), Some(Stall::NoLeader { .. })), "{:?}", replica.stall(now));
}
