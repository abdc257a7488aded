//! Keys of a store in etcd, and the JSON in which etcd shows them.
//!
//! etcd's gateway writes 64-bit numbers as text and omits default values; keys and values are
//! Base64 (RFC 4648). If another program has overwritten a value, the key is kept with the value's
//! fault. Source: etcd 3.4, `rpc.proto` and `kv.proto`. Leaves out: requests (`etcd`). Read
//! [`StoreSnapshot`].

use super::super::{StoredValue, word};
use anabranch_election::Stamp;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Maximum number of parts of a stored value.
pub const PARTS_MAX: u32 = 1_000;
/// Maximum round of a stored value. Rounds count milliseconds since 1970, and integers in JSON are
/// exact up to this number.
pub(super) const ROUND_MAX: u64 = 1 << 53;

/// Value of the key `leader`: the holder of the lead.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Leader {
    pub(super) id: String,
    pub(super) address: String,
}

impl Leader {
    /// Entry that replaces an unreadable value of `leader`. It names no controller, so nobody
    /// renews its lease.
    pub(super) const fn nobody() -> Self {
        Self { id: String::new(), address: String::new() }
    }
}

/// Value of the key `last`: identity and parts of the stored value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LastValue {
    pub(super) format: String,
    pub(super) round: u64,
    pub(super) epoch: u64,
    pub(super) parts: u32,
}

impl LastValue {
    fn check<V: StoredValue>(&self) -> Result<(), String> {
        let Self { format, round, parts, .. } = self;
        if format != V::FORMAT {
            Err(format!("format `{format}` instead of `{}`", V::FORMAT))
        } else if *round > ROUND_MAX {
            Err(format!("round {round}: at most {ROUND_MAX}"))
        } else if *parts > PARTS_MAX {
            Err(format!("a decision in {parts} parts: at most {PARTS_MAX}"))
        } else {
            Ok(())
        }
    }

    pub(super) const fn stamp(&self, revision: u64) -> Stamp {
        Stamp { revision, epoch: self.epoch, round: self.round }
    }
}

/// A key in etcd's JSON form.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct KeyValue {
    pub(super) create_revision: Number,
    pub(super) mod_revision: Number,
    pub(super) lease: Number,
    value: String,
}

impl KeyValue {
    pub(super) fn bytes(&self) -> Result<Vec<u8>, String> {
        BASE64.decode(&self.value).map_err(|error| error.to_string())
    }

    fn read<T: DeserializeOwned>(&self) -> Result<T, String> {
        serde_json::from_slice(&self.bytes()?).map_err(|error| error.to_string())
    }

    /// Returns the format of a value that another version of this system has written.
    fn other_format<V: StoredValue>(&self) -> Option<String> {
        let value: Value = self.read().ok()?;
        let format = value.get("format")?.as_str()?;
        let is_versioned = format.strip_prefix(word::<V>()).is_some_and(|rest| rest.starts_with(' '));
        (is_versioned && format != V::FORMAT).then(|| format.to_owned())
    }
}

pub(super) fn encoded(text: impl AsRef<[u8]>) -> String {
    BASE64.encode(text)
}

/// A 64-bit number, which etcd writes as text.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Value")]
pub(super) struct Number(pub(super) u64);

impl TryFrom<Value> for Number {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        let number = value.as_u64().or_else(|| value.as_str().and_then(|text| text.parse().ok()));
        number.map(Self).ok_or_else(|| format!("{value} is no number"))
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RangeReply {
    pub(super) kvs: Vec<KeyValue>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Response {
    #[serde(alias = "responseRange")]
    response_range: Option<RangeReply>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Transaction {
    pub(super) header: Header,
    pub(super) succeeded: bool,
    responses: Vec<Response>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Header {
    pub(super) revision: Number,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct LeaseGrant {
    #[serde(rename = "ID")]
    pub(super) id: Number,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct KeepAliveReply {
    pub(super) result: LeaseTtl,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct LeaseTtl {
    #[serde(rename = "TTL")]
    pub(super) ttl: Number,
}

/// A key with its value, or with the fault of an unreadable value.
pub(super) struct HeldKey<T> {
    pub(super) value: Result<T, String>,
    pub(super) kv: KeyValue,
}

impl<T: DeserializeOwned> HeldKey<T> {
    fn read(kv: KeyValue, check: impl Fn(&T, &KeyValue) -> Result<(), String>) -> Self {
        let value = kv.read().and_then(|value| check(&value, &kv).map(|()| value));
        Self { value, kv }
    }
}

/// The lead and the stored value at one revision of the store.
pub(super) struct StoreSnapshot {
    pub(super) revision: u64,
    pub(super) leader: Option<HeldKey<Leader>>,
    pub(super) last: Option<HeldKey<LastValue>>,
}

impl StoreSnapshot {
    /// Reads the answer to a request for the keys `leader` and `last`.
    ///
    /// Errors: no revision; a value of another version of this system, which must not be
    /// overwritten.
    pub(super) fn read<V: StoredValue>(transaction: &mut Transaction) -> Result<Self, String> {
        let revision = transaction.header.revision.0;
        if revision == 0 {
            return Err("the answer has no revision of the store".to_owned());
        }
        let mut found =
            transaction.responses.iter_mut().filter_map(|response| response.response_range.take());
        let mut first = || found.next().and_then(|found| found.kvs.into_iter().next());
        let (leader, last) = (first(), first());
        let has_lease = |_: &Leader, kv: &KeyValue| match kv.lease.0 {
            0 => Err("has no lease".to_owned()),
            _ => Ok(()),
        };
        let leader = leader.map(|kv| HeldKey::read(kv, has_lease));
        if let Some(format) = last.as_ref().and_then(KeyValue::other_format::<V>) {
            return Err(format!(
                "the store has a decision of format `{format}`, this {} has `{}`: run one version, or \
                 delete the key `last` below the prefix",
                word::<V>(),
                V::FORMAT
            ));
        }
        let last = last.map(|kv| HeldKey::read(kv, |last: &LastValue, _| last.check::<V>()));
        Ok(Self { revision, leader, last })
    }

    /// Stamp of the stored value; for an unreadable value, its revision alone.
    pub(super) fn stamp(&self) -> Stamp {
        let Some(held) = &self.last else { return Stamp::default() };
        let revision = held.kv.mod_revision.0;
        held.value.as_ref().map_or(Stamp { revision, ..Stamp::default() }, |last| last.stamp(revision))
    }

    /// The holder of the lead; `None` without a holder, and if the value is unreadable.
    pub(super) fn leader(&self) -> Option<(&Leader, &KeyValue)> {
        self.leader.as_ref().and_then(|held| Some((held.value.as_ref().ok()?, &held.kv)))
    }

    /// Returns true if the stored decision is of this lead and round.
    pub(super) fn has_kept(&self, epoch: u64, round: u64) -> bool {
        let last = self.last.as_ref().and_then(|held| held.value.as_ref().ok());
        last.is_some_and(|last| (last.epoch, last.round) == (epoch, round))
    }
}

/// Returns true if the bytes are an answer of etcd about the lead and a value of type `V`, and both
/// are readable. For fuzzing.
pub(crate) fn is_etcd_answer<V: StoredValue>(bytes: &[u8]) -> bool {
    let looked =
        serde_json::from_slice(bytes).ok().and_then(|mut told| StoreSnapshot::read::<V>(&mut told).ok());
    looked.is_some_and(|looked| {
        let _ = looked.stamp();
        looked.leader.is_none_or(|held| held.value.is_ok())
            && looked.last.is_none_or(|held| held.value.is_ok())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[derive(Serialize, Deserialize)]
    struct Plan;

    impl StoredValue for Plan {
        const FORMAT: &'static str = "planner 1";
        fn round(&self) -> u64 {
            0
        }
    }

    #[test]
    fn numbers_parse_from_text_and_default_to_zero() {
        let kv: KeyValue =
            serde_json::from_value(json!({ "create_revision": "12", "lease": 7 })).expect("a key");
        assert_eq!((kv.create_revision, kv.lease, kv.mod_revision), (Number(12), Number(7), Number(0)));
        assert!(serde_json::from_value::<KeyValue>(json!({ "lease": "x" })).is_err());
    }

    fn looked(last: &[u8], leader: &[u8], lease: u64) -> Result<StoreSnapshot, String> {
        let range = |text: &[u8], lease: u64| {
            let kv = json!({ "mod_revision": "7", "lease": lease.to_string(), "value": encoded(text) });
            json!({ "response_range": { "kvs": [kv] } })
        };
        let answer =
            json!({ "header": { "revision": "9" }, "responses": [range(leader, lease), range(last, 0)] });
        StoreSnapshot::read::<Plan>(&mut serde_json::from_value(answer).expect("an answer"))
    }

    /// An unreadable value has a stamp with its revision alone; a value of another version is
    /// refused (#48).
    #[test]
    fn unreadable_values_are_reported_and_other_versions_refused() {
        let leader = br#"{"id":"1","address":"a:1"}"#;
        let last = |format: &str, round: u64, parts: u32| {
            format!(r#"{{"format":"{format}","round":{round},"epoch":3,"parts":{parts}}}"#).into_bytes()
        };
        let good = looked(&last(Plan::FORMAT, ROUND_MAX, PARTS_MAX), leader, 5).expect("both are right");
        assert_eq!(good.stamp(), Stamp { revision: 7, epoch: 3, round: ROUND_MAX });
        assert!(good.leader().is_some());
        let junk = [
            Vec::new(),
            vec![255, 0],
            b"{}".to_vec(),
            last("x", 1, 1),
            last("planners 2", 1, 1),
            last(Plan::FORMAT, ROUND_MAX + 1, 1),
            last(Plan::FORMAT, 1, PARTS_MAX + 1),
        ];
        for last in junk {
            let looked = looked(&last, leader, 5).expect("it goes on");
            assert_eq!(looked.stamp(), Stamp { revision: 7, ..Stamp::default() });
        }
        assert!(looked(&last(Plan::FORMAT, 1, 1), leader, 0).expect("it goes on").leader().is_none());
        assert!(looked(&last(Plan::FORMAT, 1, 1), b"[]", 5).expect("it goes on").leader().is_none());
        let other = looked(&last("planner 2", 1, 1), leader, 5).err().unwrap_or_default();
        assert!(other.contains("format `planner 2`, this planner has `planner 1`"), "{other}");
    }
}
