//! The client's last hop: the share that each pull is granted, and what pulls that use less lend to others.
//!
//! Leaves out: how shares are reckoned ([`share`]), and who is asked for what (`client`, `balance`).

use super::{Client, Pull, State};
use crate::grants::share;
use crate::msg::Packet;
use anabranch_codes::Symbol;
use anabranch_units::{BitRate, Duration, Instant};

/// The least time over which it is measured what pulls use.
const MEASURE_MIN: Duration = Duration::from_ms(20);
/// Packets that each pull may send meanwhile, at least.
const MEASURE_PACKETS: u64 = 16;
/// A pull that uses less than this share of its grant lends the rest.
const USED_SHARE: f64 = 0.7;

impl<S: Symbol> Client<S> {
    /// What may be granted in all, in bits of datagrams a second.
    fn granted_bps(&self) -> Option<f64> {
        let datagram = self.datagram_bytes();
        let on_link = datagram + f64::from(self.config.overhead_bytes);
        self.config.link.map(|link| link.as_bps() as f64 * self.config.link_share * datagram / on_link)
    }

    /// Bytes of the shortest packets that servers send: the others have fewer headers for as much.
    fn datagram_bytes(&self) -> f64 {
        let shortest = self.servers.iter().map(|server| server.block_bytes).min();
        let header = Packet::<S>::header_bytes(self.config.rate_control);
        f64::from(header + shortest.unwrap_or(self.config.block_bytes))
    }

    /// How long a packet takes of what is granted in all.
    pub(super) fn slot(&self) -> Duration {
        let bits = 8.0 * self.datagram_bytes();
        self.granted_bps().map_or(Duration::ZERO, |bps| Duration::from_ps((bits / bps * 1e12) as u64))
    }

    /// Divides the last hop. With `only_lowers` nobody is granted more than before: what is taken from one may be given to
    /// others only once the one has heard of it.
    pub(super) fn regrant(&mut self, only_lowers: bool) {
        let Some(capacity) = self.granted_bps() else { return };
        let mut demands: Vec<Option<f64>> = self.pulls.values().map(|pull| pull.demand).collect();
        // Whoever is connected first may not have all, as it would go on with that until it hears of the others.
        let awaited = self.servers.iter().filter(|server| !server.was_asked && server.lost.is_none()).count();
        let awaited = if self.awaits_until.is_some() { awaited } else { 0 };
        demands.extend(std::iter::repeat_n(None, awaited));
        for ((id, pull), share) in self.pulls.iter_mut().zip(share(capacity, &demands)) {
            let rate = BitRate::bps((share as u64).max(1));
            let new =
                |old: Option<BitRate>| Some(old.filter(|old| only_lowers && *old < rate).unwrap_or(rate));
            match &mut pull.state {
                State::Asked { grant, .. } => *grant = new(*grant),
                State::Receiving(receiver) => {
                    receiver.set_grant(new(receiver.grant()));
                    if receiver.is_lowered() {
                        self.touched.push_back(*id);
                    }
                }
            }
        }
    }

    /// Sees which pulls do not use what they are granted.
    pub(super) fn measure(&mut self, now: Instant) {
        if self.awaits_until.is_some_and(|until| until <= now) {
            self.awaits_until = None;
            self.regrant(false);
        }
        let Some(capacity) = self.granted_bps() else { return };
        let rtt = self.servers.iter().filter_map(|server| server.rtt).max().unwrap_or(Duration::ZERO);
        let since = *self.measured_at.get_or_insert(now);
        let time = now.saturating_since(since);
        let packets = self.slot() * (MEASURE_PACKETS * self.pulls.len() as u64);
        if time < MEASURE_MIN.max(rtt * 4).max(packets) {
            return;
        }
        self.measured_at = Some(now);
        // Whoever uses little may always use some more, so that it is seen when it could.
        let least = capacity / 8.0 / self.pulls.len().max(1) as f64;
        let mut changed = false;
        for pull in self.pulls.values_mut() {
            let State::Receiving(receiver) = &pull.state else { continue };
            let used = 8.0 * std::mem::take(&mut pull.bytes) as f64 / time.as_secs_f64();
            let granted = receiver.grant().map_or(0.0, |grant| grant.as_bps() as f64);
            // Who was not there all the time is not measured by it.
            let is_new = pull.asked_at + rtt * 2 > since;
            let uses_little = !is_new && used < USED_SHARE * granted;
            let twice = std::mem::replace(&mut pull.used_little, uses_little);
            let demand = (uses_little && twice).then(|| (1.5 * used).max(least));
            changed |= demand.is_some() || pull.demand.is_some();
            pull.demand = demand;
        }
        let granted = |pull: &Pull<S>| match &pull.state {
            State::Receiving(receiver) => receiver.grant().map_or(0.0, |grant| grant.as_bps() as f64),
            State::Asked { .. } => 0.0,
        };
        let lowers = self.pulls.values().any(|pull| pull.demand.is_some_and(|demand| demand < granted(pull)));
        if changed || self.is_lowered {
            self.regrant(lowers);
        }
        self.is_lowered = lowers;
    }
}
