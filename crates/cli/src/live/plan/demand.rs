//! The demand of a plan, in the form that an operator writes.
//!
//! Leaves out: the description of the network ([`anabranch_live::description`]). Read [`read`].

use anabranch_live::description::Layout;
use anabranch_live_proto::control::messages::GroupId;
use anabranch_live_proto::plan::VIEWERS_MAX;
use anabranch_live_proto::plan::recorded::{RecordError, RecordedRequest, ViewerLocation};
use anabranch_live_proto::{ChannelId, Object};
use anabranch_units::text::brief;
use anyhow::anyhow;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry as MapEntry;
use toml::Spanned;

/// Maximum characters of an invalid value in an error message.
const SHOWN_CHARS_MAX: usize = 100;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    demand: Vec<Spanned<Entry>>,
}

/// Viewers of one group and rendition.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    group: String,
    channel: String,
    rendition: String,
    viewers: u64,
}

/// Parses the number of viewers by group and object.
///
/// Errors: one line with the number of the text's line. Invalid text; a group, channel or rendition
/// that the network does not have; a number of viewers that is 0, or above [`VIEWERS_MAX`]; a group
/// with two entries for a rendition.
pub(super) fn read(text: &str, layout: &Layout) -> anyhow::Result<BTreeMap<(GroupId, Object), u64>> {
    let line = |at: usize| text[..at].matches('\n').count() + 1;
    let file: File = toml::from_str(text).map_err(|error| {
        let place = error.span().map_or_else(String::new, |span| format!("line {}: ", line(span.start)));
        anyhow!("{place}{}", error.message().replace('\n', " "))
    })?;
    ensure_usage!(
        !file.demand.is_empty(),
        "no demand: add a [[demand]] with group, channel, rendition and viewers"
    );
    let mut demand = BTreeMap::new();
    for entry in file.demand {
        let line = line(entry.span().start);
        let entry = entry.into_inner();
        let place = || format!("line {line}: demand of group `{}`", brief(&entry.group, SHOWN_CHARS_MAX));
        let key = key(&entry, layout).map_err(|reason| anyhow!("{}: {reason}", place()))?;
        let viewers = entry.viewers;
        if !(1..=VIEWERS_MAX).contains(&viewers) {
            bail_usage!("{}: {viewers} viewers: must be from 1 to {VIEWERS_MAX}", place());
        }
        match demand.entry(key) {
            MapEntry::Vacant(vacant) => vacant.insert(viewers),
            MapEntry::Occupied(_) => {
                bail_usage!("{}: {}/{} is listed twice: remove one", place(), entry.channel, entry.rendition)
            }
        };
    }
    Ok(demand)
}

/// Number of viewers by group and object, from a log of requests: the sum over its lines.
///
/// Errors: one line with the number of the file's line: a bad record; a place, video or bitrate
/// that the network does not have; a place or bitrate that the log does not state.
pub(super) fn of_requests(
    records: impl Iterator<Item = Result<RecordedRequest, RecordError>>,
    layout: &Layout,
) -> anyhow::Result<BTreeMap<(GroupId, Object), u64>> {
    let described = layout.description();
    let groups = described.groups.iter().map(|group| group.name.as_str()).zip((0..).map(GroupId));
    let groups: BTreeMap<&str, GroupId> = groups.collect();
    let channels = described.channels.iter().zip((0..).map(ChannelId));
    let channels: BTreeMap<&str, _> =
        channels.map(|(channel, id)| (channel.name.as_str(), (id, &channel.renditions))).collect();
    let mut demand: BTreeMap<(GroupId, Object), u64> = BTreeMap::new();
    for record in records {
        let record = record?;
        let line = record.line;
        let shown = |name: &str| brief(name, SHOWN_CHARS_MAX);
        let group = match &record.place {
            Some(ViewerLocation::Name(name)) => groups
                .get(name.as_str())
                .copied()
                .ok_or_else(|| anyhow!("line {line}: the network has no group `{}`", shown(name)))?,
            Some(ViewerLocation::Address(address)) => layout.group_of(*address).ok_or_else(|| {
                anyhow!("line {line}: address {address} is of no group: add a [[group]] without prefixes")
            })?,
            None => bail_usage!("line 1: no column `place` or `address`: a request needs its group"),
        };
        let channel = channels.get(record.video.as_str());
        let (channel, renditions) = *channel
            .ok_or_else(|| anyhow!("line {line}: the network has no channel `{}`", shown(&record.video)))?;
        let bitrate = match record.bitrate {
            Some(bitrate) => renditions.values().find(|rate| **rate == bitrate).ok_or_else(|| {
                anyhow!("line {line}: channel `{}` has no rendition of {bitrate}", shown(&record.video))
            })?,
            None => renditions.values().next().filter(|_| renditions.len() == 1).ok_or_else(|| {
                anyhow!(
                    "line {line}: channel `{}` has {} renditions: add a column `bitrate`",
                    shown(&record.video),
                    renditions.len()
                )
            })?,
        };
        let viewers = demand.entry((group, Object { channel, bitrate: *bitrate })).or_default();
        *viewers = viewers.saturating_add(record.viewers).min(VIEWERS_MAX);
    }
    ensure_usage!(!demand.is_empty(), "no request: the file has only a heading");
    Ok(demand)
}

fn key(entry: &Entry, layout: &Layout) -> Result<(GroupId, Object), String> {
    let described = layout.description();
    let unknown =
        |kind: &str, name: &str| format!("the network has no {kind} `{}`", brief(name, SHOWN_CHARS_MAX));
    let group = described.groups.iter().position(|group| group.name == entry.group);
    let group = group.ok_or_else(|| unknown("group", &entry.group))?;
    let channel = described.channels.iter().position(|channel| channel.name == entry.channel);
    let channel = channel.ok_or_else(|| unknown("channel", &entry.channel))?;
    let renditions = &described.channels[channel].renditions;
    let of_channel = || format!("rendition of channel `{}`", entry.channel);
    let bitrate = renditions.get(&entry.rendition);
    let bitrate = *bitrate.ok_or_else(|| unknown(&of_channel(), &entry.rendition))?;
    Ok((GroupId(group as u32), Object { channel: ChannelId(channel as u32), bitrate }))
}
