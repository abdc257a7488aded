//! Edges that serve one live channel, and a player that watches it.

use crate::play::{Action, Get, Player, PlayerConfig, PlayerKind, RequestId, ResourceKind};
use anabranch_media::hls::{
    DateTime, HintKind, MediaPlaylist, MultivariantPlaylist, OpenSegment, Part, PreloadHint, Resource,
    Segment, SegmentHead, ServerControl, Variant,
};
use anabranch_units::{BitRate, ByteCount, Duration, Instant};
use std::ops::Range;

/// Wall-clock time at which the player is opened.
pub const OPENED_UNIX_MS: u64 = 1_700_000_000_000;
/// Age of the stream when the player is opened.
const STREAM_MS: u64 = 60_300;
const SEGMENT_MS: u64 = 2_000;
const PART_MS: u64 = 200;
const PARTS: u64 = SEGMENT_MS / PART_MS;
const LISTED: u64 = 7;
/// One-way delay of a request or an answer.
const DELAY_MS: u64 = 10;
const PART_BYTES: usize = 1_000;

pub fn at(ms: u64) -> Instant {
    Instant::ZERO + Duration::from_ms(ms)
}

#[derive(Copy, Clone, Debug, PartialEq)]
pub enum Fault {
    /// The edge does not answer.
    Silent,
    /// The connection breaks.
    Broken,
    /// The edge answers with this status.
    Refuses(u16),
}

enum Event {
    Answer(RequestId, u16, Vec<u8>),
    Break(RequestId),
}

pub struct World {
    pub player: Player,
    /// Faults: index of the edge, fault, and its time in ms.
    pub faults: Vec<(usize, Fault, Range<u64>)>,
    pub variants_kbps: Vec<u64>,
    /// Bitrates that all edges refuse.
    pub refused_kbps: Vec<u64>,
    /// Time from which no part is added, and blocking playlist requests are answered at once.
    pub frozen_at_ms: Option<u64>,
    /// Number of newest parts missing in playlists without directives, as in a cache's copy.
    pub cache_lacks_parts: u64,
    pub segments_asked: Vec<u64>,
    pub segments_ended: Vec<u64>,
    pub playlists_asked: u64,
    pub actions: u64,
    pub ended_ms: u64,
    has_parts: bool,
    now_ms: u64,
    /// Events at the player, with their times in ms.
    events: Vec<(u64, Event)>,
    open: Vec<Get>,
}

impl World {
    pub fn new(kind: PlayerKind, edges: usize, has_parts: bool) -> Self {
        let urls = (0..edges).map(|edge| format!("http://edge{edge}/news/index.m3u8")).collect();
        let opened = DateTime::from_unix_ms(OPENED_UNIX_MS).expect("a date");
        let player = Player::new(at(0), PlayerConfig::new(kind, urls, opened)).expect("URLs");
        Self {
            player,
            faults: Vec::new(),
            variants_kbps: Vec::new(),
            refused_kbps: Vec::new(),
            frozen_at_ms: None,
            cache_lacks_parts: 0,
            segments_asked: Vec::new(),
            segments_ended: Vec::new(),
            playlists_asked: 0,
            actions: 0,
            ended_ms: 0,
            has_parts,
            now_ms: 0,
            events: Vec::new(),
            open: Vec::new(),
        }
    }

    /// Number of complete parts at a time.
    fn parts_at(&self, ms: u64) -> u64 {
        (ms.min(self.frozen_at_ms.unwrap_or(u64::MAX)) + STREAM_MS) / PART_MS
    }

    /// Time at which the part with index `parts` is complete.
    fn whole_ms(&self, parts: u64) -> u64 {
        match self.frozen_at_ms {
            Some(frozen) if self.parts_at(frozen) <= parts => self.now_ms,
            _ => ((parts + 1) * PART_MS).saturating_sub(STREAM_MS),
        }
    }

    fn playlist(&self, parts: u64) -> Vec<u8> {
        let end = parts / PARTS;
        let head = |msn: u64| SegmentHead {
            map: Some(Resource::whole("init.mp4").into()),
            date: DateTime::from_unix_ms(OPENED_UNIX_MS - STREAM_MS + msn * SEGMENT_MS),
            is_discontinuous: false,
        };
        let part = |msn: u64, part: u64| Part {
            resource: Resource::whole(format!("{msn}.{part}.m4s")),
            duration: Duration::from_ms(PART_MS),
            is_independent: part == 0,
            is_gap: false,
        };
        let has_parts = self.has_parts;
        let segments = (end - LISTED..end).map(|msn| Segment {
            head: head(msn),
            resource: Resource::whole(format!("{msn}.m4s")),
            duration: Duration::from_ms(SEGMENT_MS),
            is_gap: false,
            parts: (0..PARTS).filter(|_| has_parts && msn + 3 >= end).map(|n| part(msn, n)).collect(),
        });
        let open = OpenSegment { head: head(end), parts: (0..parts % PARTS).map(|n| part(end, n)).collect() };
        let hint = PreloadHint {
            kind: HintKind::Part,
            uri: format!("{end}.{}.m4s", parts % PARTS),
            start: ByteCount::ZERO,
            length: None,
        };
        let control = ServerControl {
            can_block_reload: has_parts,
            part_hold_back: has_parts.then(|| Duration::from_ms(3 * PART_MS)),
            ..ServerControl::default()
        };
        let playlist = MediaPlaylist {
            target_duration: Duration::from_ms(SEGMENT_MS),
            media_sequence: end - LISTED,
            part_target: has_parts.then(|| Duration::from_ms(PART_MS)),
            server_control: control,
            segments: segments.collect(),
            open: Some(open).filter(|open| has_parts && !open.parts.is_empty()),
            preload_hints: Some(hint).into_iter().filter(|_| has_parts).collect(),
            ..MediaPlaylist::default()
        };
        playlist.write().into_bytes()
    }

    /// Status, body and time of an edge's answer.
    fn answer(&self, get: &Get, ms: u64) -> (u16, Vec<u8>, u64) {
        let (path, query) = get.url.split_once('?').unwrap_or((&get.url, ""));
        let words: Vec<&str> = path.split('/').skip(4).collect();
        let of_variant = words.len() == 2;
        if of_variant && self.refused_kbps.iter().any(|kbps| kbps.to_string() == words[0]) {
            return (503, Vec::new(), ms);
        }
        let name = words[words.len() - 1];
        if name == "index.m3u8" && !of_variant && !self.variants_kbps.is_empty() {
            let variants = self.variants_kbps.iter().map(|kbps| Variant {
                uri: format!("{kbps}/index.m3u8"),
                bandwidth: BitRate::bps(1_000 * kbps),
                average_bandwidth: None,
                codecs: None,
                resolution: None,
                frame_rate: None,
                audio: None,
                pathway_id: None,
            });
            let playlist =
                MultivariantPlaylist { variants: variants.collect(), ..MultivariantPlaylist::default() };
            return (200, playlist.write().into_bytes(), ms);
        }
        if name == "index.m3u8" {
            let number = |key: &str| {
                let pair = query.split('&').find_map(|pair| pair.strip_prefix(key));
                pair.map(|value| value.parse::<u64>().expect("digits"))
            };
            let wanted =
                number("_HLS_msn=").map(|msn| msn * PARTS + number("_HLS_part=").unwrap_or(PARTS - 1));
            let Some(parts) = wanted else {
                return (200, self.playlist(self.parts_at(ms) - self.cache_lacks_parts), ms);
            };
            let ms = ms.max(self.whole_ms(parts));
            return (200, self.playlist(self.parts_at(ms)), ms);
        }
        if name == "init.mp4" {
            return (200, vec![0; 100], ms);
        }
        let numbers: Vec<u64> = name.split('.').filter_map(|word| word.parse().ok()).collect();
        let (last, count) = match numbers[..] {
            [msn] => (msn * PARTS + PARTS - 1, PARTS),
            [msn, part] => (msn * PARTS + part, 1),
            _ => panic!("{name}"),
        };
        let known = self.parts_at(ms);
        let is_expired = (last / PARTS + 2 * LISTED) < known / PARTS;
        if is_expired || last > known + 1 || (last == known && self.frozen_at_ms.is_some_and(|at| at <= ms)) {
            return (404, Vec::new(), ms);
        }
        (200, vec![7; PART_BYTES * count as usize], ms.max(self.whole_ms(last)))
    }

    fn send(&mut self, get: Get) {
        assert!(self.open.len() < 2, "at most a playlist and a segment are asked for at once");
        let at_edge = self.now_ms + DELAY_MS;
        match get.kind {
            ResourceKind::Playlist => self.playlists_asked += 1,
            ResourceKind::Media => self.segments_asked.push(self.now_ms),
            ResourceKind::Map => {}
        }
        let (status, body, answered) = self.answer(&get, at_edge);
        let fault = |ms: u64| {
            let faults = self.faults.iter();
            faults
                .filter(|(edge, _, time)| *edge == get.edge && time.contains(&ms))
                .map(|(_, fault, _)| *fault)
                .next()
        };
        let arrives = answered + DELAY_MS;
        let event =
            match fault(at_edge).or_else(|| fault(answered).filter(|f| !matches!(f, Fault::Refuses(_)))) {
                Some(Fault::Silent) => None,
                Some(Fault::Broken) => Some((arrives, Event::Break(get.id))),
                Some(Fault::Refuses(status)) => {
                    Some((at_edge + DELAY_MS, Event::Answer(get.id, status, Vec::new())))
                }
                None => Some((arrives, Event::Answer(get.id, status, body))),
            };
        self.events.extend(event);
        self.open.push(get);
    }

    fn close(&mut self, id: RequestId) -> Option<Get> {
        let at = self.open.iter().position(|get| get.id == id)?;
        Some(self.open.remove(at))
    }

    pub fn run_until(&mut self, end_ms: u64) {
        loop {
            let now = at(self.now_ms);
            while let Some(action) = self.player.poll(now) {
                self.actions += 1;
                match action {
                    Action::Get(get) => self.send(get),
                    Action::Abort(id) => drop(self.close(id)),
                    Action::Resolve => panic!("no DNS"),
                }
            }
            if self.player.is_over() && self.ended_ms == 0 {
                self.ended_ms = self.now_ms;
            }
            let due_ms = self.player.poll_timeout().as_ps().div_ceil(1_000_000_000);
            let due_ms = u64::try_from(due_ms).unwrap_or(u64::MAX);
            let next = self.events.iter().map(|(ms, _)| *ms).min().unwrap_or(u64::MAX).min(due_ms);
            if next > end_ms {
                self.now_ms = end_ms;
                return;
            }
            assert!(next > self.now_ms || self.events.iter().any(|(ms, _)| *ms <= next), "time moves on");
            self.now_ms = self.now_ms.max(next);
            let now = at(self.now_ms);
            let arrived = self.events.iter().position(|(ms, _)| *ms <= self.now_ms);
            let Some(arrived) = arrived else {
                self.player.handle_timeout(now);
                continue;
            };
            match self.events.remove(arrived).1 {
                Event::Break(id) => {
                    self.close(id);
                    self.player.handle_failure(now, id, "reset".to_owned());
                }
                Event::Answer(id, status, body) => {
                    let Some(get) = self.close(id) else { continue };
                    self.player.handle_head(now, id, status);
                    if status == 200 {
                        self.player.handle_bytes(now, id, &body);
                        self.player.handle_end(now, id);
                        if get.kind == ResourceKind::Media {
                            self.segments_ended.push(self.now_ms);
                        }
                    }
                }
            }
        }
    }
}
