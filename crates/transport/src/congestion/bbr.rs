//! BBR for a connection: the model of the path (`crate::bbr`) with the pacing that it asks for.
//!
//! It is not driven by the window's growth and its losses as the others are, but by each segment that leaves, arrives or is lost;
//! `rack` keeps what it has to know of each. The window is the model's, and no loss shrinks it by itself.
//!
//! Differs: quanta are not segmented by a network card here, so that one of them is allowed for beside what the receiver may leave
//! unacknowledged, where section 5.5.8 has three for TCP. A loss that a probe has repaired (RFC 8985 section 7.4.2) is not told.
//!
//! Leaves out: what is in flight, and which segments are lost (`send`, `rack`).

use super::Window;
use crate::bbr::{self, Bbr, HEADROOM, Sent};
use crate::config::Config;
use crate::pacing::Pacing;
use crate::rack::Found;
use anabranch_units::{BitRate, Duration, Instant, Seed};

/// Segments that a receiver that delays acknowledgements leaves without one (RFC 5681 section 4.2).
const DELAYED_SEGMENTS: u64 = 2;

/// The model, once the first segment has left, and what it asks for.
#[derive(Clone, Debug)]
pub(crate) struct ByModel {
    config: bbr::Config,
    bbr: Option<Bbr>,
    pacing: Pacing,
}

impl ByModel {
    pub(super) fn new(config: &Config) -> Self {
        let mss = u64::from(config.mss);
        let config = bbr::Config {
            packet_bytes: mss,
            initial_window_bytes: mss * u64::from(config.initial_window_segments),
            initial_rtt: None,
            ack_bytes: mss * if config.delayed_ack.is_some() { DELAYED_SEGMENTS } else { 1 },
            learns_loss: false,
            headroom: HEADROOM,
            fits_rtt: false,
            heeds_first_flight: false,
            train: None,
            seed: Seed::new(0),
        };
        Self { config, bbr: None, pacing: Pacing::new(BitRate::bps(1), 0) }
    }
    #[cfg(test)]
    pub(crate) const fn bbr(&self) -> Option<&Bbr> {
        self.bbr.as_ref()
    }
    /// To be said before anything leaves.
    pub(super) const fn set_seed(&mut self, seed: Seed) {
        self.config.seed = seed;
    }

    /// The model; a new one, with the round trip of the handshake, where nothing has left.
    fn model(&mut self, now: Instant, srtt: Option<Duration>) -> &mut Bbr {
        self.bbr
            .get_or_insert_with(|| Bbr::new(now, bbr::Config { initial_rtt: srtt, ..self.config.clone() }))
    }

    /// Whether a segment may leave now. If not, and if `has_more`, the time is waited for.
    pub(crate) fn may_send(&mut self, now: Instant, srtt: Option<Duration>, has_more: bool) -> bool {
        let model = self.model(now, srtt);
        let rate = BitRate::bps(((8.0 * model.pacing_bytes_per_s()) as u64).max(1));
        let quantum = model.quantum_bytes();
        self.pacing.set(rate, quantum);
        self.pacing.may_send(now, self.config.packet_bytes, has_more)
    }
    /// A segment with so much data has left.
    pub(crate) fn note_paced(&mut self, now: Instant, bytes: u32) {
        self.pacing.note_sent(now, bytes);
    }
    /// When a segment may leave that pacing keeps back.
    pub(crate) fn paced_until(&self) -> Option<Instant> {
        self.pacing.timer()
    }

    /// A segment leaves; `pipe` bytes are in flight with it.
    pub(crate) fn handle_sent(
        &mut self,
        now: Instant,
        bytes: u64,
        pipe: u64,
        srtt: Option<Duration>,
    ) -> Sent {
        self.model(now, srtt).handle_sent(now, bytes, pipe)
    }
    /// `pipe` bytes are in flight, more might be, and there is nothing to send.
    pub(crate) fn note_app_limited(&mut self) {
        if let Some(model) = &mut self.bbr {
            model.note_app_limited();
        }
    }
    /// `bytes` have arrived, `newest` last of those whose departure is known.
    pub(crate) fn handle_delivered(&mut self, now: Instant, bytes: u64, newest: Option<&Sent>) {
        match (&mut self.bbr, newest) {
            (Some(model), Some(newest)) => model.handle_delivered(now, bytes, newest),
            (Some(model), None) => model.handle_late(now, bytes),
            (None, _) => {}
        }
    }
    pub(crate) fn handle_lost(&mut self, now: Instant, found: &Found) {
        if let Some(model) = &mut self.bbr {
            model.handle_lost(now, found.bytes, &found.sent, found.begins_run.into());
        }
    }
    /// All that an acknowledgement says has been told. `pipe` bytes are left in flight.
    pub(crate) fn handle_ack(&mut self, now: Instant, w: &mut Window, pipe: u64, rtt: Option<Duration>) {
        let Some(model) = &mut self.bbr else { return };
        model.handle_ack(now, pipe, rtt);
        w.cwnd = model.window_bytes().min(w.cwnd_max);
    }
    /// A repair begins.
    pub(super) fn handle_loss(&mut self) {
        if let Some(model) = &mut self.bbr {
            model.handle_repair();
        }
    }
    pub(super) fn handle_timeout(&mut self, w: &mut Window) {
        let Some(model) = &mut self.bbr else { return };
        model.handle_timeout();
        w.cwnd = model.window_bytes();
    }
    pub(super) fn handle_recovered(&mut self) {
        if let Some(model) = &mut self.bbr {
            model.handle_recovered();
        }
    }
}
