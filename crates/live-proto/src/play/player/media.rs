//! Segments and parts: the choice of the next item, and the measurement of received items.

use super::super::BUFFER_MAX;
use super::{PAUSE_MIN, Player, Request};
use crate::play::listing::ListingMatch;
use crate::play::{Get, Measurements, PlayFailure, PlayerKind, ResourceKind, join_url};
use anabranch_media::hls::Resource;
use anabranch_units::{ByteCount, Duration, Instant};

/// Number of items in the buffer at which playback starts.
const STARTUP_ITEMS: u64 = 2;

/// A received segment or part.
#[derive(Debug)]
pub(super) struct LoadedResource {
    resource: Resource,
    ended_at: Instant,
}

/// Measurements of a player, and state for measuring the next event.
#[derive(Debug, Default)]
pub(super) struct Records {
    pub measurements: Measurements,
    last_byte_at: Option<Instant>,
    /// Whether a request has failed since the last received byte.
    has_failed: bool,
}

impl Records {
    pub(super) fn has_video(&self) -> bool {
        self.last_byte_at.is_some()
    }

    pub(super) fn fail(&mut self, url: String, failure: PlayFailure) {
        let counts = &mut self.measurements.counts;
        if matches!(failure, PlayFailure::Status(_)) {
            counts.refused += 1;
        } else {
            counts.failed += 1;
        }
        self.has_failed = true;
        self.measurements.last_failure = Some((url, failure));
    }

    /// Counts received bytes of media.
    pub(super) fn receive(&mut self, now: Instant, opened_at: Instant, bytes: usize) {
        let measurements = &mut self.measurements;
        measurements.bytes = ByteCount::new(measurements.bytes.as_u64().saturating_add(bytes as u64));
        measurements.join.first_byte.get_or_insert(now.saturating_since(opened_at));
        if let Some(last) = self.last_byte_at.replace(now) {
            let gap = now.saturating_since(last);
            measurements.gap_max = measurements.gap_max.max(gap);
            if self.has_failed {
                measurements.recovery_max = measurements.recovery_max.max(gap);
            }
        }
        self.has_failed = false;
    }
}

impl Player {
    /// The next request for media, or for the initialisation section that the media need.
    pub(super) fn next_media(&mut self, now: Instant) -> Option<Get> {
        self.playout.advance(now);
        let is_fixed = self.config.kind == PlayerKind::Fixed;
        let is_full = self.playout.level() > BUFFER_MAX;
        if self.loaded.is_some() || (is_fixed && now < self.timers.segment_at) || (!is_fixed && is_full) {
            return None;
        }
        let (kind, resource) = self.next_resource(now)?;
        let playlist_url = self.route.playlist_url(&self.config);
        let Some(url) = join_url(&playlist_url, &resource.uri) else {
            self.skip_item();
            return None;
        };
        let (get, request) = self.ask(now, (kind, url), Some(resource));
        if kind == ResourceKind::Media {
            let after = now.saturating_since(self.opened_at);
            self.records.measurements.join.requested.get_or_insert(after);
        }
        self.media = Some(request);
        Some(get)
    }

    /// The resource at the load position. Skips gaps.
    fn next_resource(&mut self, now: Instant) -> Option<(ResourceKind, Resource)> {
        let listing = self.listing.as_ref()?;
        let positions = self.positions.as_mut()?;
        loop {
            match listing.find(positions.load) {
                ListingMatch::Lost => {
                    let (load, play_from) = listing.start();
                    self.records.measurements.counts.skips += 1;
                    (positions.load, positions.play_from) = (load, play_from);
                    if matches!(listing.find(load), ListingMatch::Lost) {
                        return None;
                    }
                }
                ListingMatch::Moved(next) => positions.load = next,
                ListingMatch::Item(item) if item.is_gap => {
                    self.records.measurements.counts.skips += 1;
                    positions.load = item.next;
                }
                ListingMatch::Item(item) => {
                    if let Some(map) = item.map.filter(|map| self.map.as_ref() != Some(map)) {
                        return Some((ResourceKind::Map, Resource::clone(map)));
                    }
                    return Some((ResourceKind::Media, item.resource.clone()));
                }
                // A part that is a byte range is requested only once it is listed.
                ListingMatch::Hint(hint) if hint.start == ByteCount::ZERO && hint.length.is_none() => {
                    return Some((ResourceKind::Media, Resource::whole(hint.uri.clone())));
                }
                ListingMatch::Hint(_) | ListingMatch::Later => {
                    if listing.is_ended() {
                        self.playout.end(now);
                        self.timers.ends_at = Some(now + self.playout.level());
                    } else if self.playlist.is_none() && self.timers.reload_at.is_none() {
                        self.timers.reload_at = Some(self.timers.reload_from.max(now));
                    }
                    return None;
                }
            }
        }
    }

    /// Skips the item at the load position, which is unavailable.
    pub(super) fn skip_item(&mut self) {
        self.records.measurements.counts.skips += 1;
        let Some(positions) = &mut self.positions else { return };
        if let Some(ListingMatch::Item(item)) =
            self.listing.as_ref().map(|listing| listing.find(positions.load))
        {
            positions.load = item.next;
        }
    }

    /// Aborts a media request if the newest playlist lists another resource at its position.
    pub(super) fn abort_unlisted(&mut self) {
        let (Some(listing), Some(positions)) = (&self.listing, &mut self.positions) else { return };
        while let ListingMatch::Moved(next) = listing.find(positions.load) {
            positions.load = next;
        }
        let is_unlisted = |request: &Request| match listing.find(positions.load) {
            _ if request.kind != ResourceKind::Media => false,
            ListingMatch::Item(item) => request.resource.as_ref() != Some(item.resource),
            ListingMatch::Hint(hint) => {
                request.resource.as_ref().is_none_or(|resource| resource.uri != hint.uri)
            }
            ListingMatch::Lost => true,
            ListingMatch::Moved(_) | ListingMatch::Later => false,
        };
        let unlisted = self.media.take_if(|request| is_unlisted(request));
        self.aborts.extend(unlisted.map(|request| request.id));
    }

    pub(super) fn end_media(&mut self, now: Instant, request: Request) {
        self.route.succeed();
        self.loaded = request.resource.map(|resource| LoadedResource { resource, ended_at: now });
        self.settle(now);
    }

    /// Measures received media once the playlist lists them.
    pub(super) fn settle(&mut self, now: Instant) {
        let (Some(listing), Some(positions)) = (&self.listing, &mut self.positions) else { return };
        let Some(loaded) = &self.loaded else { return };
        while let ListingMatch::Moved(next) = listing.find(positions.load) {
            positions.load = next;
        }
        let at = positions.load;
        let (duration, end_us) = match listing.find(at) {
            ListingMatch::Item(item) if *item.resource == loaded.resource => {
                positions.load = item.next;
                (item.duration, item.end_us)
            }
            ListingMatch::Hint(hint) if hint.uri == loaded.resource.uri => return,
            ListingMatch::Later => return,
            _ => {
                self.loaded = None;
                return;
            }
        };
        let (play_from, made_from) = (positions.play_from, positions.made_from);
        let ended_at = loaded.ended_at;
        self.loaded = None;
        self.timers.segment_at = ended_at + duration.max(PAUSE_MIN);
        self.account(now, ended_at, (at >= play_from, at >= made_from), (duration, end_us));
    }

    /// Measures media that end at the date `end_us`. Played media enter the buffer. If the media
    /// were made after the player joined, their age is recorded.
    fn account(
        &mut self,
        now: Instant,
        ended_at: Instant,
        (is_played, is_new): (bool, bool),
        (duration, end_us): (Duration, Option<u64>),
    ) {
        if is_played {
            let is_startup = self.playout.began_after().is_none() && self.config.kind != PlayerKind::Fixed;
            let items = if is_startup { STARTUP_ITEMS } else { 1 };
            let needed = self.config.buffer.unwrap_or(duration * items);
            self.playout.add(now, duration, needed);
        }
        let opened_at = self.opened_at;
        let opened_us = self.config.opened_at.as_unix_ms() * 1_000;
        let wall_us = |at: Instant| opened_us.saturating_add(at.saturating_since(opened_at).as_us());
        let measurements = &mut self.records.measurements;
        measurements.counts.objects += 1;
        measurements.join.first_object.get_or_insert(ended_at.saturating_since(opened_at));
        let Some(end_us) = end_us else { return };
        // A playlist from a cache may be older than the player, and so may media that it lists as
        // new.
        if is_new && end_us >= opened_us {
            let age_us = i128::from(wall_us(ended_at)) - i128::from(end_us);
            measurements.ages.record(i64::try_from(age_us).unwrap_or(i64::MAX));
        }
        if self.playout.is_playing() && self.config.kind == PlayerKind::Buffering {
            let shown_us = end_us.saturating_sub(self.playout.level().as_us());
            let latency_us = wall_us(now).saturating_sub(shown_us);
            measurements.latency.record(latency_us.saturating_mul(1_000));
        }
    }
}
