//! The store that several brokers share: etcd, by the JSON form of its interface (version 3.4 and later).
//!
//! Below a prefix: `leader`, which its holder's lease keeps; `last`, which says what the last decision is and how many parts it has; and the parts below
//! `decision/`, as a value of etcd has at most 1.5 MiB. A decision counts from the transaction that writes `last`: it asks that the lead still
//! stands and that nobody has written `last` since. Asking the same twice does the same once.
//!
//! An unreadable `last` is logged once and left to the leader, who writes its own over it. An unreadable `leader`, or one without a lease, would stand for
//! ever: it is replaced by [`Leader::nobody`], which ends with its lease, so that whoever led before has ended by then.
//!
//! Leaves out: who leads when (`broker_proto::replica`). Read [`Etcd`] and [`Etcd::answer`] first.
#![allow(clippy::disallowed_methods, reason = "a driver: reads files")]

use crate::asked::{Asked, Told};
use crate::mistake::Mistake;
use crate::wire::DecisionView;
use anabranch_broker_proto::replica::Stamp;
use anabranch_net::cause::cause;
use anabranch_net::tls::words;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Bytes of a part.
const PART_BYTES: usize = 512 << 10;
/// The most parts of a decision that are read.
pub const PARTS_MAX: u32 = 1_000;
/// The most bytes of an answer.
const ANSWER_BYTES_MAX: u64 = 4 << 20;
const FORMAT: &str = "broker 1";
/// Prefix of the names of all formats of decisions.
const FORMATS: &str = "broker ";
/// The highest round that a value may have: rounds count milliseconds since 1970, and JSON's whole numbers are exact up to here.
const ROUND_MAX: u64 = 1 << 53;

/// Where the store is, and as whom to use it.
#[derive(Clone, Debug)]
pub struct EtcdConfig {
    /// Its members, as `http://HOST:PORT` or `https://HOST:PORT`: one is enough, of more the next is asked when one does not answer.
    pub members: Vec<String>,
    /// What the names of all keys begin with.
    pub prefix: String,
    /// How long a lead lasts that is not renewed; whole seconds, etcd knows no parts.
    pub lease: Duration,
    /// Where networks' agents and other brokers find this one: `host:port`.
    pub address: String,
    tls: Option<ureq::tls::TlsConfig>,
    shows_certificate: bool,
}

impl EtcdConfig {
    /// A store without TLS, with a lease of ten seconds.
    pub fn new(members: Vec<String>, address: impl Into<String>) -> Self {
        let (prefix, lease) = ("/anabranch/broker/".to_owned(), Duration::from_secs(10));
        Self { members, prefix, lease, address: address.into(), tls: None, shows_certificate: false }
    }

    /// The same, with this prefix and this lease.
    #[must_use]
    pub fn with(mut self, prefix: impl Into<String>, lease: Duration) -> Self {
        (self.prefix, self.lease) = (prefix.into(), lease);
        self
    }

    /// The same by TLS: the authority that members' certificates are of, and this broker's own certificate and key if members ask for one; PEM.
    ///
    /// Errors: files that cannot be read or have none.
    pub fn with_tls(mut self, authority: &Path, own: Option<(&Path, &Path)>) -> Result<Self, Mistake> {
        let read = |path: &Path| {
            std::fs::read(path).map_err(|error| Mistake(format!("{}: {error}", path.display())))
        };
        let certificate = |path: &Path| {
            let no = |error: &dyn std::fmt::Display| {
                Mistake(format!("{}: has no certificate: {error}", path.display()))
            };
            ureq::tls::Certificate::from_pem(&read(path)?).map_err(|error| no(&error))
        };
        let mut tls = ureq::tls::TlsConfig::builder()
            .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .root_certs([certificate(authority)?].into_iter().into());
        if let Some((own, key)) = own {
            let found = ureq::tls::PrivateKey::from_pem(&read(key)?)
                .map_err(|error| Mistake(format!("{}: has no key: {error}", key.display())))?;
            let client = ureq::tls::ClientCert::new_with_certs(&[certificate(own)?], found);
            tls = tls.client_cert(Some(client));
        }
        (self.tls, self.shows_certificate) = (Some(tls.build()), own.is_some());
        Ok(self)
    }
}

/// The store, as this broker uses it.
pub(crate) struct Etcd {
    agent: ureq::Agent,
    config: EtcdConfig,
    /// This broker's name among them, drawn anew each time that it begins.
    id: String,
    /// The member that is asked first: the one that answered last.
    first: AtomicUsize,
    /// The last faulty value of a key that was logged.
    logged: Mutex<Option<(&'static str, u64)>>,
}

/// The holder of the lead.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Leader {
    id: String,
    address: String,
}

impl Leader {
    /// Holder of the lead in the place of an unreadable value: no broker, which renews nothing.
    const fn nobody() -> Self {
        Self { id: String::new(), address: String::new() }
    }
}

/// Which decision is the last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Last {
    format: String,
    round: u64,
    epoch: u64,
    parts: u32,
}

/// A key as etcd shows it: numbers are text in JSON.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct KeyValue {
    create_revision: Number,
    mod_revision: Number,
    lease: Number,
    value: String,
}

/// A number of 64 bits, in JSON a text.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Value")]
struct Number(u64);

impl TryFrom<Value> for Number {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        let number = value.as_u64().or_else(|| value.as_str().and_then(|text| text.parse().ok()));
        number.map(Self).ok_or_else(|| format!("{value} is no number"))
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Found {
    kvs: Vec<KeyValue>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Response {
    #[serde(alias = "responseRange")]
    response_range: Option<Found>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Transaction {
    header: Header,
    succeeded: bool,
    responses: Vec<Response>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Header {
    revision: Number,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Granted {
    #[serde(rename = "ID")]
    id: Number,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct KeptAlive {
    result: Alive,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Alive {
    #[serde(rename = "TTL")]
    ttl: Number,
}

/// A key's value, which somebody else may have spoiled.
struct Held<T> {
    value: Result<T, String>,
    kv: KeyValue,
}

impl<T: DeserializeOwned> Held<T> {
    fn read(kv: KeyValue, check: impl Fn(&T, &KeyValue) -> Result<(), String>) -> Self {
        let value = kv.read().and_then(|value| check(&value, &kv).map(|()| value));
        Self { value, kv }
    }
}

/// What the store said of the lead and of the last decision.
struct Looked {
    revision: u64,
    leader: Option<Held<Leader>>,
    last: Option<Held<Last>>,
}

impl Looked {
    /// Errors: no revision; a decision of another version of this program, which is left as it is.
    fn read(transaction: &mut Transaction) -> Result<Self, String> {
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
        let leader = leader.map(|kv| Held::read(kv, has_lease));
        if let Some(format) = last.as_ref().and_then(other_format) {
            return Err(format!(
                "the store has a decision of format `{format}`, this broker has `{FORMAT}`: run one version, or \
                 delete the key `last` below the prefix"
            ));
        }
        Ok(Self { revision, leader, last: last.map(|kv| Held::read(kv, Last::check)) })
    }

    /// The stamp of the last decision.
    fn stamp(&self) -> Stamp {
        let Some(held) = &self.last else { return Stamp::default() };
        let revision = held.kv.mod_revision.0;
        held.value.as_ref().map_or(Stamp { revision, ..Stamp::default() }, |last| last.stamp(revision))
    }

    /// The holder of the lead, if that is a broker.
    fn leader(&self) -> Option<(&Leader, &KeyValue)> {
        self.leader.as_ref().and_then(|held| Some((held.value.as_ref().ok()?, &held.kv)))
    }

    fn has_kept(&self, epoch: u64, round: u64) -> bool {
        let last = self.last.as_ref().and_then(|held| held.value.as_ref().ok());
        last.is_some_and(|last| (last.epoch, last.round) == (epoch, round))
    }
}

/// The format of a decision of another version of this program.
fn other_format(kv: &KeyValue) -> Option<String> {
    let value: Value = kv.read().ok()?;
    let format = value.get("format")?.as_str()?;
    (format.starts_with(FORMATS) && format != FORMAT).then(|| format.to_owned())
}

impl Last {
    fn check(&self, _: &KeyValue) -> Result<(), String> {
        let Self { format, round, parts, .. } = self;
        if format != FORMAT {
            Err(format!("format `{format}` instead of `{FORMAT}`"))
        } else if *round > ROUND_MAX {
            Err(format!("round {round}: at most {ROUND_MAX}"))
        } else if *parts > PARTS_MAX {
            Err(format!("a decision in {parts} parts: at most {PARTS_MAX}"))
        } else {
            Ok(())
        }
    }

    const fn stamp(&self, revision: u64) -> Stamp {
        Stamp { revision, epoch: self.epoch, round: self.round }
    }
}

impl KeyValue {
    fn bytes(&self) -> Result<Vec<u8>, String> {
        BASE64.decode(&self.value).map_err(|error| error.to_string())
    }

    fn read<T: DeserializeOwned>(&self) -> Result<T, String> {
        serde_json::from_slice(&self.bytes()?).map_err(|error| error.to_string())
    }
}

fn encoded(text: impl AsRef<[u8]>) -> String {
    BASE64.encode(text)
}

impl Etcd {
    /// Does not ask for anything yet.
    ///
    /// Errors: members that are none; no random numbers.
    pub(crate) fn new(config: EtcdConfig) -> Result<Self, Mistake> {
        if config.members.is_empty() {
            return Err(Mistake("etcd: name at least one member, as http://HOST:PORT".to_owned()));
        }
        for member in &config.members {
            if !(member.starts_with("http://") || member.starts_with("https://")) {
                return Err(Mistake(format!(
                    "etcd `{member}`: must be http://HOST:PORT or https://HOST:PORT"
                )));
            }
            if member.starts_with("https://") && config.tls.is_none() {
                return Err(Mistake(format!("etcd `{member}`: https needs the authority's certificate")));
            }
        }
        if config.lease < Duration::from_secs(2) {
            return Err(Mistake(format!("lease of {} s: must be 2 at least", config.lease.as_secs_f64())));
        }
        let id = anabranch_net::random().map_err(|error| Mistake(error.to_string()))?;
        // Each question has a third of the lease, and two members may be tried in it.
        let mut agent = ureq::Agent::config_builder()
            .timeout_global(Some(config.lease / 7))
            .max_redirects(0)
            .http_status_as_error(false);
        if let Some(tls) = &config.tls {
            agent = agent.tls_config(tls.clone());
        }
        let agent = agent.build().into();
        let (id, first) = (format!("{id:016x}"), AtomicUsize::new(0));
        Ok(Self { agent, config, id, first, logged: Mutex::default() })
    }

    /// How long a lead lasts.
    pub(crate) const fn lease(&self) -> Duration {
        self.config.lease
    }

    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.config.prefix)
    }

    /// Asks, and waits for the answer.
    ///
    /// Errors: no member that answers, or an answer that is none, in a line; what was asked may have been done.
    pub(crate) fn answer(&self, ask: &Asked) -> Result<Told, String> {
        match ask {
            Asked::Lead => self.lead(),
            Asked::Renew { epoch } => self.renew(*epoch),
            Asked::Keep { epoch, decided, before, view } => self.keep(*epoch, *decided, *before, view),
            Asked::Read => self.read(),
        }
    }

    /// Gives the lead back, so that another need not wait for the lease to end.
    pub(crate) fn leave(&self) -> Result<(), String> {
        let looked = self.look()?;
        match looked.leader() {
            Some((leader, kv)) if leader.id == self.id => self.revoke(kv.lease),
            _ => Ok(()),
        }
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

    /// What is wrong. A member that asks for a certificate where there is none ends the connection with an alert that says little, or without a word.
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
            format!("{said}: if it asks for a certificate, name this broker's for etcd")
        } else {
            said
        }
    }

    fn get(&self, name: &str) -> Value {
        json!({ "request_range": { "key": encoded(self.key(name)) } })
    }

    fn look(&self) -> Result<Looked, String> {
        let asked = json!({ "success": [self.get("leader"), self.get("last")] });
        self.looked(self.post("/v3/kv/txn", &asked)?)
    }

    fn looked(&self, mut transaction: Transaction) -> Result<Looked, String> {
        let looked = Looked::read(&mut transaction)?;
        if let Some(Held { value: Err(fault), kv }) = &looked.last {
            self.log_fault("last", kv.mod_revision.0, fault);
        }
        Ok(looked)
    }

    /// Logs a faulty value, once.
    fn log_fault(&self, key: &'static str, revision: u64, fault: &str) {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.replace((key, revision)) != Some((key, revision)) {
            let key = self.key(key);
            tracing::warn!("etcd: the value of {key} is none of a broker's, and is replaced: {fault}");
        }
    }

    /// Whether this broker has the lead, whose lease then begins anew, or another.
    fn told(&self, looked: &Looked) -> Result<Told, String> {
        let (revision, last) = (looked.revision, looked.stamp());
        if let Some(Held { value: Err(fault), kv }) = &looked.leader {
            self.log_fault("leader", kv.mod_revision.0, fault);
            self.end_unreadable_lead(kv)?;
            return Ok(Told::Follows { leader: None, revision, last });
        }
        Ok(match looked.leader() {
            Some((leader, _)) if leader.id != self.id => {
                // With its own address it is this broker before a restart, whose lease has yet to end: nobody is found there who leads.
                let is_other = |address: &String| !address.is_empty() && *address != self.config.address;
                let leader = Some(leader.address.clone()).filter(is_other);
                Told::Follows { leader, revision, last }
            }
            Some((_, kv)) if self.is_kept_alive(kv.lease)? => {
                Told::Leads { epoch: kv.create_revision.0, revision, last }
            }
            _ => Told::Lost,
        })
    }

    /// Puts nobody in the place of an unreadable holder, for a lease.
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
        self.post::<Granted>("/v3/lease/grant", &asked).map(|granted| granted.id)
    }

    /// Has a lease begin anew. Whether it was still there.
    fn is_kept_alive(&self, lease: Number) -> Result<bool, String> {
        let alive: KeptAlive = self.post("/v3/lease/keepalive", &json!({ "ID": lease.0.to_string() }))?;
        Ok(alive.result.ttl.0 > 0)
    }

    /// The lease of a lead, if this broker has that.
    fn lease_of(&self, looked: &Looked, epoch: u64) -> Option<Number> {
        let (leader, kv) = looked.leader()?;
        (leader.id == self.id && kv.create_revision.0 == epoch).then_some(kv.lease)
    }

    fn lead(&self) -> Result<Told, String> {
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
            // What was kept may be newer than what was looked at: look again, now that nobody else can keep anything.
            let (epoch, looked) = (done.header.revision.0, self.look()?);
            return Ok(Told::Leads { epoch, revision: looked.revision, last: looked.stamp() });
        }
        self.revoke(lease)?;
        self.told(&self.looked(done)?)
    }

    fn revoke(&self, lease: Number) -> Result<(), String> {
        let asked = json!({ "ID": lease.0.to_string() });
        self.post::<Value>("/v3/lease/revoke", &asked).map(drop)
    }

    fn renew(&self, epoch: u64) -> Result<Told, String> {
        let looked = self.look()?;
        let Some(lease) = self.lease_of(&looked, epoch) else { return Ok(Told::Lost) };
        let (revision, last) = (looked.revision, looked.stamp());
        Ok(if self.is_kept_alive(lease)? { Told::Renewed { revision, last } } else { Told::Lost })
    }

    fn part(round: u64, epoch: u64, number: u32) -> String {
        format!("decision/{round:020}-{epoch:020}/{number:06}")
    }

    /// Answer for a decision that could not be written, or was written already.
    fn unwritten(&self, looked: &Looked, epoch: u64, decided: u64, round: u64) -> Told {
        let last = looked.stamp();
        if looked.has_kept(decided, round) {
            Told::Kept { revision: last.revision }
        } else if self.lease_of(looked, epoch).is_some() {
            Told::Changed { last }
        } else {
            Told::Lost
        }
    }

    fn keep(&self, epoch: u64, decided: u64, before: Stamp, decision: &DecisionView) -> Result<Told, String> {
        let (looked, round) = (self.look()?, decision.round);
        let is_written = looked.has_kept(decided, round);
        if is_written || self.lease_of(&looked, epoch).is_none() || looked.stamp() != before {
            return Ok(self.unwritten(&looked, epoch, decided, round));
        }
        let text = serde_json::to_vec(decision).map_err(|error| error.to_string())?;
        let parts: Vec<&[u8]> = text.chunks(PART_BYTES).collect();
        for (number, part) in (0..).zip(&parts) {
            let key = self.key(&Self::part(round, decided, number));
            let asked = json!({ "key": encoded(key), "value": encoded(part) });
            self.post::<Value>("/v3/kv/put", &asked)?;
        }
        let count = parts.len() as u32;
        let last = Last { format: FORMAT.to_owned(), round, epoch: decided, parts: count };
        let (leader_key, last_key) = (encoded(self.key("leader")), encoded(self.key("last")));
        // Deletes the parts of all other decisions: of earlier rounds, of unkept rounds, and of leads whose clocks were ahead.
        let [below, above] = [
            (self.key("decision/"), self.key(&Self::part(round, decided, 0))),
            (self.key(&Self::part(round, decided, count)), self.key("decision0")),
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
            return Ok(Told::Kept { revision: done.header.revision.0 });
        }
        // A try before this one, which was given up, may have come through meanwhile.
        Ok(self.unwritten(&self.look()?, epoch, decided, round))
    }

    fn read(&self) -> Result<Told, String> {
        let looked = self.look()?;
        let stamp = looked.stamp();
        let Some(Held { value: Ok(last), .. }) = &looked.last else {
            return Ok(Told::Last { last: stamp, view: None });
        };
        let view = match self.read_parts(last)? {
            Ok(view) => Some(view),
            Err(_) if self.look()?.stamp() != stamp => {
                return Err("the decision was replaced while it was read".to_owned());
            }
            Err(fault) => {
                self.log_fault("last", stamp.revision, &fault);
                None
            }
        };
        Ok(Told::Last { last: stamp, view })
    }

    /// The decision, or why its parts are none.
    fn read_parts(&self, last: &Last) -> Result<Result<DecisionView, String>, String> {
        let mut text = Vec::new();
        for number in 0..last.parts {
            let key = self.key(&Self::part(last.round, last.epoch, number));
            let found: Found = self.post("/v3/kv/range", &json!({ "key": encoded(&key) }))?;
            match found.kvs.first().map(KeyValue::bytes) {
                Some(Ok(part)) => text.extend(part),
                Some(Err(error)) => return Ok(Err(format!("{key}: {error}"))),
                None => return Ok(Err(format!("{key} is not there"))),
            }
        }
        Ok(match serde_json::from_slice::<DecisionView>(&text) {
            Ok(view) if view.round == last.round => Ok(view),
            Ok(view) => Err(format!("its parts are of round {}, and not of {}", view.round, last.round)),
            Err(error) => Err(format!("its parts: {error}")),
        })
    }
}

fn written(value: &impl Serialize) -> Result<Vec<u8>, String> {
    serde_json::to_vec(value).map_err(|error| error.to_string())
}

/// Whether this is what etcd may say of the lead and of the last decision: for fuzzing.
pub(crate) fn is_answer(bytes: &[u8]) -> bool {
    let looked = serde_json::from_slice(bytes).ok().and_then(|mut told| Looked::read(&mut told).ok());
    looked.is_some_and(|looked| {
        let _ = looked.stamp();
        looked.leader.is_none_or(|held| held.value.is_ok())
            && looked.last.is_none_or(|held| held.value.is_ok())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_text_or_numbers_and_what_is_left_out_is_none() {
        let kv: KeyValue =
            serde_json::from_value(json!({ "create_revision": "12", "lease": 7 })).expect("a key");
        assert_eq!((kv.create_revision, kv.lease, kv.mod_revision), (Number(12), Number(7), Number(0)));
        assert!(serde_json::from_value::<KeyValue>(json!({ "lease": "x" })).is_err());
    }

    #[test]
    fn members_that_are_none_are_refused_in_a_line() {
        let said = |members: &[&str], lease| {
            let members = members.iter().map(|member| (*member).to_owned()).collect();
            let config = EtcdConfig { lease: Duration::from_secs(lease), ..EtcdConfig::new(members, "a:1") };
            Etcd::new(config).err().map(|mistake| mistake.to_string()).unwrap_or_default()
        };
        assert_eq!(said(&[], 10), "etcd: name at least one member, as http://HOST:PORT");
        assert_eq!(said(&["a:1"], 10), "etcd `a:1`: must be http://HOST:PORT or https://HOST:PORT");
        assert_eq!(said(&["https://a:1"], 10), "etcd `https://a:1`: https needs the authority's certificate");
        assert_eq!(said(&["http://a:1"], 1), "lease of 1 s: must be 2 at least");
        assert_eq!(said(&["http://a:1"], 2), "");
    }

    #[test]
    fn rounds_of_before_stand_before() {
        assert!(Etcd::part(9, 5, 3) < Etcd::part(10, 1, 0));
        let (first, end) = (Etcd::part(9, 5, 0), Etcd::part(9, 5, PARTS_MAX));
        assert!(*"decision/" < *first && first < Etcd::part(9, 5, PARTS_MAX - 1) && *end < *"decision0");
    }

    fn looked(last: &[u8], leader: &[u8], lease: u64) -> Result<Looked, String> {
        let range = |text: &[u8], lease: u64| {
            let kv = json!({ "mod_revision": "7", "lease": lease.to_string(), "value": encoded(text) });
            json!({ "response_range": { "kvs": [kv] } })
        };
        let answer =
            json!({ "header": { "revision": "9" }, "responses": [range(leader, lease), range(last, 0)] });
        Looked::read(&mut serde_json::from_value(answer).expect("an answer"))
    }

    /// A value that is none of a broker's has a stamp of its revision alone; one of another version is left as it is (#48).
    #[test]
    fn spoiled_values_are_found_and_other_formats_refused() {
        let leader = br#"{"id":"1","address":"a:1"}"#;
        let last = |format: &str, round: u64, parts: u32| {
            format!(r#"{{"format":"{format}","round":{round},"epoch":3,"parts":{parts}}}"#).into_bytes()
        };
        let good = looked(&last(FORMAT, ROUND_MAX, PARTS_MAX), leader, 5).expect("both are right");
        assert_eq!(good.stamp(), Stamp { revision: 7, epoch: 3, round: ROUND_MAX });
        assert!(good.leader().is_some());
        let junk = [
            Vec::new(),
            vec![255, 0],
            b"{}".to_vec(),
            last("x", 1, 1),
            last(FORMAT, ROUND_MAX + 1, 1),
            last(FORMAT, 1, PARTS_MAX + 1),
        ];
        for last in junk {
            let looked = looked(&last, leader, 5).expect("it goes on");
            assert_eq!(looked.stamp(), Stamp { revision: 7, ..Stamp::default() });
        }
        assert!(looked(&last(FORMAT, 1, 1), leader, 0).expect("it goes on").leader().is_none());
        assert!(looked(&last(FORMAT, 1, 1), b"[]", 5).expect("it goes on").leader().is_none());
        let other = looked(&last("broker 2", 1, 1), leader, 5).err().unwrap_or_default();
        assert!(other.contains("format `broker 2`, this broker has `broker 1`"), "{other}");
    }
}
