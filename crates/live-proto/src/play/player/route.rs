//! The edge and rendition that a player uses.

use crate::play::{EDGES_MAX, PlayerConfig, join_url};
use anabranch_media::hls::Variant;
use anabranch_units::BitRate;
use std::cmp::Reverse;

/// The current edge and rendition, and the failures so far.
#[derive(Debug)]
pub(super) struct Route {
    /// Index of the current edge.
    pub edge: usize,
    edges: usize,
    /// Number of edges that have failed since the last segment or part.
    failed_edges: usize,
    /// Number of rounds over all edges since the last segment or part.
    rounds: u32,
    rounds_max: u32,
    /// Whether the player has given up.
    pub has_given_up: bool,
    /// Renditions, in order of decreasing bitrate.
    variants: Vec<Variant>,
    variant: usize,
}

impl Route {
    pub(super) fn new(edges: usize, rounds_max: u32) -> Self {
        Self {
            edge: 0,
            edges,
            failed_edges: 0,
            rounds: 0,
            rounds_max,
            has_given_up: false,
            variants: Vec::new(),
            variant: 0,
        }
    }

    pub(super) fn set_edges(&mut self, edges: usize) {
        self.edges = edges.clamp(1, EDGES_MAX);
        self.edge = 0;
        self.failed_edges = 0;
    }

    pub(super) fn has_variants(&self) -> bool {
        !self.variants.is_empty()
    }
    pub(super) fn set_variants(&mut self, mut variants: Vec<Variant>) {
        // Other pathways list the same variants at other edges.
        let pathway = variants.first().and_then(|variant| variant.pathway_id.clone());
        variants.retain(|variant| variant.pathway_id == pathway);
        variants.sort_by_key(|variant| Reverse(variant.bandwidth));
        self.variants = variants;
    }
    /// Declared bitrate of the rendition.
    pub(super) fn bitrate(&self) -> Option<BitRate> {
        self.variants.get(self.variant).map(|variant| variant.bandwidth)
    }

    /// URL of the playlist at the current edge.
    pub(super) fn playlist_url(&self, config: &PlayerConfig) -> String {
        let url = config.urls.get(self.edge).unwrap_or(&config.urls[0]);
        let of_variant = self.variants.get(self.variant).and_then(|variant| join_url(url, &variant.uri));
        of_variant.unwrap_or_else(|| url.clone())
    }

    /// Number of rounds over all edges since the last segment or part.
    pub(super) fn rounds(&self) -> u64 {
        self.rounds.into()
    }

    /// Records that the edge has delivered media.
    pub(super) fn succeed(&mut self) {
        self.failed_edges = 0;
        self.rounds = 0;
    }

    /// Moves to an edge without a failure since the last media. Returns false if all edges have
    /// failed.
    pub(super) fn next_edge(&mut self) -> bool {
        self.failed_edges += 1;
        if self.failed_edges >= self.edges {
            self.failed_edges = 0;
            return false;
        }
        self.edge = (self.edge + 1) % self.edges;
        true
    }

    /// Moves to the next lower bitrate. Returns false below the lowest.
    pub(super) fn next_variant(&mut self) -> bool {
        let lower = self.variant + 1;
        if lower >= self.variants.len() {
            return false;
        }
        self.variant = lower;
        true
    }

    /// Records the end of a round in which all edges have failed.
    pub(super) fn end_round(&mut self, has_video: bool) {
        self.rounds = self.rounds.saturating_add(1);
        self.edge = (self.edge + 1) % self.edges;
        self.has_given_up = !has_video && self.rounds >= self.rounds_max;
    }
}
