//! A store that several controllers share: etcd (version 3.4 and later), through its JSON gateway.
//!
//! All keys are below a prefix. `leader` is kept by its holder's lease. `last` has the identity of
//! the stored value and the number of its parts. The parts are below `decision/`, because a value
//! in etcd has at most 1.5 MiB. The transaction that writes `last` stores the value, on two
//! conditions: the lead is unchanged, and `last` is unchanged since it was read. A repeated
//! operation takes effect once.
//!
//! An unreadable `last` is logged once and left to the leader, which overwrites it with its known
//! value. An unreadable `leader`, or one without a lease, would never expire. So it is replaced by
//! [`Leader::nobody`], which expires with its lease. Any earlier lead has ended by then.
//!
//! Source: etcd's documentation, *gRPC gateway* (`/v3/kv/txn`, `/v3/lease/grant`, `keepalive`,
//! `revoke`). Leaves out: elections (`election`). Read [`EtcdStore`] first.

mod config;
mod form;

pub use config::{EtcdConfig, EtcdConfigError};
pub use form::PARTS_MAX;
pub(crate) use form::is_etcd_answer;

use super::{LeaseError, SharedStore, StoredValue, word};
use anabranch_election::{Stamp, StoreReply, StoreRequest};
use anabranch_net::cause::cause;
use anabranch_net::tls::words;
use form::{
    HeldKey, KeepAliveReply, KeyValue, LastValue, Leader, LeaseGrant, Number, RangeReply, StoreSnapshot,
    Transaction, encoded,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Maximum bytes of a part.
const PART_BYTES: usize = 512 << 10;
/// Maximum bytes of an answer.
const ANSWER_BYTES_MAX: u64 = 4 << 20;

/// A value of type `V` in etcd, for one of the controllers that share it.
pub struct EtcdStore<V> {
    agent: ureq::Agent,
    config: EtcdConfig,
    /// Random name of this controller; each restart draws another name.
    id: String,
    /// Index of the member that gets the next request first: the last member that answered.
    first: AtomicUsize,
    /// Key and revision of the unreadable value that was logged last.
    logged: Mutex<Option<(&'static str, u64)>>,
    value: PhantomData<fn() -> V>,
}

impl<V: StoredValue> EtcdStore<V> {
    /// Creates a store, without sending a request.
    ///
    /// Errors: settings that cannot be used; no random numbers.
    pub fn new(config: EtcdConfig) -> Result<Self, EtcdConfigError> {
        config.check()?;
        let id = anabranch_net::random().map_err(EtcdConfigError::NoRandom)?;
        // An operation must end within a third of the lease, in which two members may be tried.
        let mut agent = ureq::Agent::config_builder()
            .timeout_global(Some(config.lease / 7))
            .max_redirects(0)
            .http_status_as_error(false);
        if let Some(tls) = &config.tls {
            agent = agent.tls_config(tls.clone());
        }
        Ok(Self {
            agent: agent.build().into(),
            config,
            id: format!("{id:016x}"),
            first: AtomicUsize::new(0),
            logged: Mutex::default(),
            value: PhantomData,
        })
    }

    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.config.prefix)
    }

    fn post<T: DeserializeOwned>(&self, path: &str, body: &Value) -> Result<T, String> {
        let members = &self.config.members;
        let first = self.first.load(Ordering::Relaxed);
        let mut said = String::new();
        for at in (first..first + members.len()).map(|at| at % members.len()) {
            let member = &members[at];
            match self.post_to(member, path, body) {
                Ok(text) => {
                    self.first.store(at, Ordering::Relaxed);
                    let wrong =
                        |error| format!("etcd at {member}: {path} answers what is no answer: {error}");
                    return serde_json::from_str(&text).map_err(wrong);
                }
                Err(error) => said = format!("etcd at {member}: {error}"),
            }
        }
        Err(said)
    }

    fn post_to(&self, member: &str, path: &str, body: &Value) -> Result<String, String> {
        let url = format!("{}{path}", member.trim_end_matches('/'));
        let request = self.agent.post(url).content_type("application/json");
        let mut response = request.send(body.to_string()).map_err(|error| self.explained(member, &error))?;
        let status = response.status();
        let text = response.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_string();
        let text = text.map_err(|error| self.explained(member, &error))?;
        if status.is_success() {
            Ok(text)
        } else {
            Err(format!("{path} answers {status}: {}", text.chars().take(200).collect::<String>()))
        }
    }

    /// Describes an error and its cause. A member that requires a certificate closes the connection
    /// with a vague alert, or without one.
    fn explained(&self, member: &str, error: &ureq::Error) -> String {
        use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
        let kind = match error {
            ureq::Error::Io(error) => Some(error.kind()),
            _ => None,
        };
        let is_cut = matches!(kind, Some(BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof))
            || error.to_string().contains("fatal alert");
        let said = match error {
            ureq::Error::Io(error) => cause(error),
            ureq::Error::Rustls(error) => words(error),
            other => other.to_string(),
        };
        if is_cut && member.starts_with("https://") && !self.config.shows_certificate {
            format!("{said}: if it asks for a certificate, name this {}'s for etcd", word::<V>())
        } else {
            said
        }
    }

    fn get(&self, name: &str) -> Value {
        json!({ "request_range": { "key": encoded(self.key(name)) } })
    }

    fn look(&self) -> Result<StoreSnapshot, String> {
        let asked = json!({ "success": [self.get("leader"), self.get("last")] });
        self.looked(self.post("/v3/kv/txn", &asked)?)
    }

    fn looked(&self, mut transaction: Transaction) -> Result<StoreSnapshot, String> {
        let looked = StoreSnapshot::read::<V>(&mut transaction)?;
        if let Some(HeldKey { value: Err(fault), kv }) = &looked.last {
            self.log_fault("last", kv.mod_revision.0, fault);
        }
        Ok(looked)
    }

    /// Logs an unreadable value, once for each revision.
    fn log_fault(&self, key: &'static str, revision: u64, fault: &str) {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.replace((key, revision)) != Some((key, revision)) {
            let key = self.key(key);
            let word = word::<V>();
            tracing::warn!("etcd: the value of {key} is none of a {word}'s, and is replaced: {fault}");
        }
    }

    /// Returns whether this controller or another one leads. If this controller leads, its lease is
    /// renewed.
    fn told(&self, looked: &StoreSnapshot) -> Result<StoreReply<V>, String> {
        let (revision, last) = (looked.revision, looked.stamp());
        if let Some(HeldKey { value: Err(fault), kv }) = &looked.leader {
            self.log_fault("leader", kv.mod_revision.0, fault);
            self.end_unreadable_lead(kv)?;
            return Ok(StoreReply::Follows { leader: None, revision, last });
        }
        Ok(match looked.leader() {
            Some((leader, _)) if leader.id != self.id => {
                // An entry with this controller's address is from before a restart. Its lease has
                // not ended yet, but no leader answers at the address.
                let is_other = |address: &String| !address.is_empty() && *address != self.config.address;
                let leader = Some(leader.address.clone()).filter(is_other);
                StoreReply::Follows { leader, revision, last }
            }
            Some((_, kv)) if self.is_kept_alive(kv.lease)? => {
                StoreReply::Leads { epoch: kv.create_revision.0, revision, last }
            }
            _ => StoreReply::Lost,
        })
    }

    /// Replaces an unreadable `leader` by an entry without a holder, under a new lease.
    fn end_unreadable_lead(&self, kv: &KeyValue) -> Result<(), String> {
        let lease = self.grant()?;
        let key = encoded(self.key("leader"));
        let nobody = encoded(written(&Leader::nobody())?);
        let seen = kv.mod_revision.0.to_string();
        let asked = json!({
            "compare": [{ "target": "MOD", "result": "EQUAL", "key": key, "mod_revision": seen }],
            "success": [{ "request_put": { "key": key, "value": nobody, "lease": lease.0.to_string() } }],
        });
        let done: Transaction = self.post("/v3/kv/txn", &asked)?;
        if done.succeeded { Ok(()) } else { self.revoke(lease) }
    }

    fn grant(&self) -> Result<Number, String> {
        let asked = json!({ "TTL": self.config.lease.as_secs().to_string() });
        self.post::<LeaseGrant>("/v3/lease/grant", &asked).map(|granted| granted.id)
    }

    /// Renews a lease. Returns false if the lease had ended.
    fn is_kept_alive(&self, lease: Number) -> Result<bool, String> {
        let alive: KeepAliveReply =
            self.post("/v3/lease/keepalive", &json!({ "ID": lease.0.to_string() }))?;
        Ok(alive.result.ttl.0 > 0)
    }

    /// Returns the lease of the lead `epoch` if this controller holds that lead.
    fn lease_of(&self, looked: &StoreSnapshot, epoch: u64) -> Option<Number> {
        let (leader, kv) = looked.leader()?;
        (leader.id == self.id && kv.create_revision.0 == epoch).then_some(kv.lease)
    }

    fn lead(&self) -> Result<StoreReply<V>, String> {
        let looked = self.look()?;
        if looked.leader.is_some() {
            return self.told(&looked);
        }
        let lease = self.grant()?;
        let own = Leader { id: self.id.clone(), address: self.config.address.clone() };
        let own = encoded(written(&own)?);
        let key = encoded(self.key("leader"));
        let asked = json!({
            "compare": [{ "target": "CREATE", "result": "EQUAL", "key": key, "create_revision": "0" }],
            "success": [{ "request_put": { "key": key, "value": own, "lease": lease.0.to_string() } }],
            "failure": [self.get("leader"), self.get("last")],
        });
        let done: Transaction = self.post("/v3/kv/txn", &asked)?;
        if done.succeeded {
            // The stored value may be newer than the value read before. It is read again, now that
            // no other controller can store a value.
            let (epoch, looked) = (done.header.revision.0, self.look()?);
            return Ok(StoreReply::Leads { epoch, revision: looked.revision, last: looked.stamp() });
        }
        self.revoke(lease)?;
        self.told(&self.looked(done)?)
    }

    fn revoke(&self, lease: Number) -> Result<(), String> {
        let asked = json!({ "ID": lease.0.to_string() });
        self.post::<Value>("/v3/lease/revoke", &asked).map(drop)
    }

    fn renew(&self, epoch: u64) -> Result<StoreReply<V>, String> {
        let looked = self.look()?;
        let Some(lease) = self.lease_of(&looked, epoch) else { return Ok(StoreReply::Lost) };
        let (revision, last) = (looked.revision, looked.stamp());
        Ok(if self.is_kept_alive(lease)? { StoreReply::Renewed { revision, last } } else { StoreReply::Lost })
    }

    /// Answers for a value that could not be written, or that was written before.
    fn unwritten(&self, looked: &StoreSnapshot, epoch: u64, decided: u64, round: u64) -> StoreReply<V> {
        let last = looked.stamp();
        if looked.has_kept(decided, round) {
            StoreReply::Kept { revision: last.revision }
        } else if self.lease_of(looked, epoch).is_some() {
            StoreReply::Changed { last }
        } else {
            StoreReply::Lost
        }
    }

    fn keep(&self, epoch: u64, decided: u64, before: Stamp, value: &V) -> Result<StoreReply<V>, String> {
        let (looked, round) = (self.look()?, value.round());
        let is_written = looked.has_kept(decided, round);
        if is_written || self.lease_of(&looked, epoch).is_none() || looked.stamp() != before {
            return Ok(self.unwritten(&looked, epoch, decided, round));
        }
        let text = serde_json::to_vec(value).map_err(|error| error.to_string())?;
        let parts: Vec<&[u8]> = text.chunks(PART_BYTES).collect();
        for (number, part) in (0..).zip(&parts) {
            let key = self.key(&part_key(round, decided, number));
            let asked = json!({ "key": encoded(key), "value": encoded(part) });
            self.post::<Value>("/v3/kv/put", &asked)?;
        }
        let count = parts.len() as u32;
        let last = LastValue { format: V::FORMAT.to_owned(), round, epoch: decided, parts: count };
        let (leader_key, last_key) = (encoded(self.key("leader")), encoded(self.key("last")));
        // Deletes the parts of every other value: values of earlier rounds, values that were not
        // stored, and values of leaders with a fast clock.
        let [below, above] = [
            (self.key("decision/"), self.key(&part_key(round, decided, 0))),
            (self.key(&part_key(round, decided, count)), self.key("decision0")),
        ]
        .map(|(from, to)| {
            json!({ "request_delete_range": { "key": encoded(from), "range_end": encoded(to) } })
        });
        let (epoch_text, seen) = (epoch.to_string(), before.revision.to_string());
        let asked = json!({
            "compare": [
                { "target": "CREATE", "result": "EQUAL", "key": leader_key, "create_revision": epoch_text },
                { "target": "MOD", "result": "EQUAL", "key": last_key, "mod_revision": seen },
            ],
            "success": [
                { "request_put": { "key": last_key, "value": encoded(written(&last)?) } },
                below,
                above,
            ],
        });
        let done: Transaction = self.post("/v3/kv/txn", &asked)?;
        if done.succeeded {
            return Ok(StoreReply::Kept { revision: done.header.revision.0 });
        }
        // An earlier attempt, which was given up, may have been carried out meanwhile.
        Ok(self.unwritten(&self.look()?, epoch, decided, round))
    }

    fn read(&self) -> Result<StoreReply<V>, String> {
        let looked = self.look()?;
        let stamp = looked.stamp();
        let Some(HeldKey { value: Ok(last), .. }) = &looked.last else {
            return Ok(StoreReply::Last { last: stamp, decision: None });
        };
        let decision = match self.read_parts(last)? {
            Ok(value) => Some(Arc::new(value)),
            Err(_) if self.look()?.stamp() != stamp => {
                return Err("the decision was replaced while it was read".to_owned());
            }
            Err(fault) => {
                self.log_fault("last", stamp.revision, &fault);
                None
            }
        };
        Ok(StoreReply::Last { last: stamp, decision })
    }

    /// Reads the value; the inner error is a fault in its parts.
    fn read_parts(&self, last: &LastValue) -> Result<Result<V, String>, String> {
        let mut text = Vec::new();
        for number in 0..last.parts {
            let key = self.key(&part_key(last.round, last.epoch, number));
            let found: RangeReply = self.post("/v3/kv/range", &json!({ "key": encoded(&key) }))?;
            match found.kvs.first().map(KeyValue::bytes) {
                Some(Ok(part)) => text.extend(part),
                Some(Err(error)) => return Ok(Err(format!("{key}: {error}"))),
                None => return Ok(Err(format!("{key} is not there"))),
            }
        }
        Ok(match serde_json::from_slice::<V>(&text) {
            Ok(value) if value.round() == last.round => Ok(value),
            Ok(value) => Err(format!("its parts are of round {}, and not of {}", value.round(), last.round)),
            Err(error) => Err(format!("its parts: {error}")),
        })
    }
}

/// Name of a part's key, below the prefix. Names sort by round.
fn part_key(round: u64, epoch: u64, number: u32) -> String {
    format!("decision/{round:020}-{epoch:020}/{number:06}")
}

fn written(value: &impl Serialize) -> Result<Vec<u8>, String> {
    serde_json::to_vec(value).map_err(|error| error.to_string())
}

impl<V: StoredValue> SharedStore<V> for EtcdStore<V> {
    fn lease(&self) -> Option<Duration> {
        Some(self.config.lease)
    }

    fn answer(&self, ask: &StoreRequest<V>) -> Result<StoreReply<V>, LeaseError> {
        let told = match ask {
            StoreRequest::Lead => self.lead(),
            StoreRequest::Renew { epoch } => self.renew(*epoch),
            StoreRequest::Keep { epoch, decided, before, decision } => {
                self.keep(*epoch, *decided, *before, decision)
            }
            StoreRequest::Read => self.read(),
        };
        told.map_err(|reason| LeaseError::Etcd { reason })
    }

    fn leave(&self) -> Result<(), LeaseError> {
        let left = self.look().and_then(|looked| match looked.leader() {
            Some((leader, kv)) if leader.id == self.id => self.revoke(kv.lease),
            _ => Ok(()),
        });
        left.map_err(|reason| LeaseError::Etcd { reason })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_sorted_by_round() {
        assert!(part_key(9, 5, 3) < part_key(10, 1, 0));
        let (first, end) = (part_key(9, 5, 0), part_key(9, 5, PARTS_MAX));
        assert!(*"decision/" < *first && first < part_key(9, 5, PARTS_MAX - 1) && *end < *"decision0");
    }
}
