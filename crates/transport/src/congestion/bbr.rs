//! BBR for a TCP connection, in either version: the path model (`crate::bbr`) with its pacing.
//!
//! Growth of the window and losses drive the other congestion controls. BBR is driven by each
//! segment that leaves, arrives or is lost; `rack` keeps the record of each segment. The window is
//! the model's, and a single loss does not shrink it.
//!
//! Differs: no network card segments quanta here, so the window has room for one quantum in
//! addition to the segments that the receiver may leave unacknowledged; section 5.5.8 has three
//! quanta for TCP. A loss repaired by a probe (RFC 8985 section 7.4.2) is not reported to the
//! model.
//!
//! Leaves out: the bytes in flight, and loss detection (`send`, `rack`).

use super::properties::RequiredSetting;
use super::{Ack, Algorithm, Properties, Window};
use crate::bbr::{self, Bbr, Bbr1, HEADROOM, SendRecord};
use crate::config::Config;
use crate::controls::Control;
use crate::pacing::Pacing;
use crate::rack::LostSegment;
use anabranch_units::{BitRate, Duration, Instant, Seed};

/// Number of segments that a receiver with delayed acknowledgements leaves unacknowledged (RFC 5681
/// section 4.2).
const DELAYED_SEGMENTS: u64 = 2;

/// Path model of the first or the third version.
#[derive(Clone, Debug)]
enum Model {
    First(Box<Bbr1>),
    Third(Box<Bbr>),
}

/// Evaluates an expression with either model.
macro_rules! of {
    ($model:expr, $it:ident => $does:expr) => {
        match $model {
            Model::First($it) => $does,
            Model::Third($it) => $does,
        }
    };
}

/// The path model, which is created with the first segment, and its pacing.
#[derive(Clone, Debug)]
pub(crate) struct ModelControl {
    config: bbr::Config,
    is_first_version: bool,
    bbr: Option<Model>,
    pacing: Pacing,
}

impl ModelControl {
    #[cfg(test)]
    pub(crate) const fn bbr(&self) -> Option<&Bbr> {
        match &self.bbr {
            Some(Model::Third(bbr)) => Some(bbr),
            _ => None,
        }
    }
    #[cfg(test)]
    pub(crate) const fn bbr1(&self) -> Option<&Bbr1> {
        match &self.bbr {
            Some(Model::First(bbr)) => Some(bbr),
            _ => None,
        }
    }
    /// The model. Creates the model with the handshake's round-trip time if no segment has been
    /// sent.
    fn model_from(&mut self, now: Instant, srtt: Option<Duration>) -> &mut Model {
        self.bbr.get_or_insert_with(|| {
            let config = bbr::Config { initial_rtt: srtt, ..self.config.clone() };
            if self.is_first_version {
                Model::First(Box::new(Bbr1::new(now, config)))
            } else {
                Model::Third(Box::new(Bbr::new(now, config)))
            }
        })
    }

    /// Whether a segment may be sent now. If not, and `has_more` is set, the pacing timer is set.
    pub(crate) fn may_send(&mut self, now: Instant, srtt: Option<Duration>, has_more: bool) -> bool {
        let model = self.model_from(now, srtt);
        let (pacing, quantum) = of!(model, it => (it.pacing_bytes_per_s(), it.quantum_bytes()));
        let rate = BitRate::bps(((8.0 * pacing) as u64).max(1));
        self.pacing.set(rate, quantum);
        self.pacing.may_send(now, self.config.packet_bytes, has_more)
    }
    /// Records the data of a sent segment for pacing.
    pub(crate) fn note_paced(&mut self, now: Instant, bytes: u32) {
        self.pacing.note_sent(now, bytes);
    }
    /// Handles a sent segment of `bytes` bytes; `pipe` bytes are in flight with it.
    pub(crate) fn handle_sent(
        &mut self,
        now: Instant,
        bytes: u64,
        pipe: u64,
        srtt: Option<Duration>,
    ) -> SendRecord {
        of!(self.model_from(now, srtt), it => it.handle_sent(now, bytes, pipe))
    }
    /// Marks the sender as application-limited, because fewer bytes are in flight than allowed.
    pub(crate) fn note_app_limited(&mut self) {
        if let Some(model) = &mut self.bbr {
            of!(model, it => it.note_app_limited());
        }
    }
    /// Handles the delivery of `bytes` bytes. `newest` is the record of the last sent segment among
    /// them; `None` if no record is kept.
    pub(crate) fn handle_delivered(&mut self, now: Instant, bytes: u64, newest: Option<&SendRecord>) {
        match (&mut self.bbr, newest) {
            (Some(model), Some(newest)) => of!(model, it => it.handle_delivered(now, bytes, newest)),
            (Some(model), None) => of!(model, it => it.handle_late(now, bytes)),
            (None, _) => {}
        }
    }
    pub(crate) fn handle_segment_lost(&mut self, now: Instant, found: &LostSegment) {
        match &mut self.bbr {
            Some(Model::First(model)) => model.handle_lost(found.bytes),
            Some(Model::Third(model)) => {
                model.handle_lost(now, found.bytes, &found.sent, found.begins_run.into());
            }
            None => {}
        }
    }
    /// Completes an acknowledgement. `pipe` bytes are left in flight.
    pub(crate) fn handle_ack(&mut self, now: Instant, w: &mut Window, pipe: u64, rtt: Option<Duration>) {
        let Some(model) = &mut self.bbr else { return };
        let window = of!(model, it => {
            it.handle_ack(now, pipe, rtt);
            it.window_bytes()
        });
        w.cwnd = window.min(w.cwnd_max);
    }
}

impl Algorithm for ModelControl {
    const PROPERTIES: Properties = Properties {
        linux_name: Some("bbr"),
        needs: &[
            (RequiredSetting::Rack, "goes by when each segment left"),
            // The draft's section 3.7: a sender of ECN-capable segments must respond to marks.
            (RequiredSetting::Ecn(false), "has no answer to ECN marks"),
        ],
        ..Properties::DEFAULT
    };

    fn new(config: &Config) -> Self {
        let mss = u64::from(config.mss);
        let is_first_version = config.control == Control::Bbr1;
        let config = bbr::Config {
            packet_bytes: mss,
            initial_window_bytes: mss * u64::from(config.initial_window_segments),
            initial_rtt: None,
            ack_bytes: mss * if config.delayed_ack.is_some() { DELAYED_SEGMENTS } else { 1 },
            learns_loss: false,
            headroom: HEADROOM,
            senders: 1,
            fits_rtt: false,
            heeds_first_flight: false,
            train: None,
            seed: Seed::new(0),
        };
        Self { config, is_first_version, bbr: None, pacing: Pacing::new(BitRate::bps(1), 0) }
    }

    fn set_seed(&mut self, seed: Seed) {
        self.config.seed = seed;
    }

    fn model(&mut self) -> Option<&mut ModelControl> {
        Some(self)
    }

    fn paced_until(&self) -> Option<Instant> {
        self.pacing.timer()
    }

    fn grows_by_acks(&self) -> bool {
        false
    }

    fn avoid(&mut self, _now: Instant, _w: &mut Window, _ack: &Ack) {}

    fn back_off(&mut self, w: &mut Window, _flight: u64) {
        if let Some(model) = &mut self.bbr {
            of!(model, it => it.handle_repair());
        }
        w.ssthresh = w.cwnd;
    }

    fn handle_recovered(&mut self) {
        if let Some(model) = &mut self.bbr {
            of!(model, it => it.handle_recovered());
        }
    }

    fn handle_timeout(&mut self, w: &mut Window, _flight: u64, _is_first: bool) {
        let Some(model) = &mut self.bbr else { return };
        w.cwnd = of!(model, it => {
            it.handle_timeout();
            it.window_bytes()
        });
    }

    /// Source: section 5.4. The window keeps its value, and pacing prevents a burst.
    fn handle_idle(&mut self, _w: &mut Window, _initial: u64) {}
}
