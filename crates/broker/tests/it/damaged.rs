//! Brokers around an etcd whose keys are deleted, restored or corrupted.
//!
//! The simulation in `broker-proto` injects damage at any time. These tests verify its assumptions
//! about the store's answers.

use crate::service::send;
use crate::shared::{Etcd, Stage};
use anabranch_testing::skip::skip;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Time limit for the next accepted round: the claimed 30 s, and as much for a busy machine.
const ROUNDS_WITHIN: Duration = Duration::from_secs(60);

/// Sends a request to etcd and parses the answer.
fn post(etcd: &Etcd, path: &str, body: &Value) -> Value {
    let body = body.to_string();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let (status, _, text) = send(etcd.clients, &format!("{head}{body}"));
    assert_eq!(status, 200, "{text}");
    // The body may arrive in chunks.
    let (start, end) = (text.find('{').expect("an object"), text.rfind('}').expect("an object"));
    serde_json::from_str(&text[start..=end]).expect("JSON")
}

fn key(name: &str) -> String {
    BASE64.encode(format!("/test/{name}"))
}

fn put(etcd: &Etcd, name: &str, value: &[u8]) {
    post(etcd, "/v3/kv/put", &json!({ "key": key(name), "value": BASE64.encode(value) }));
}

/// Deletes a key, or all keys with a prefix.
fn delete(etcd: &Etcd, name: &str) {
    let end = if name.is_empty() {
        json!({ "key": key(""), "range_end": BASE64.encode("/test0") })
    } else {
        json!({ "key": key(name) })
    };
    post(etcd, "/v3/kv/deleterange", &end);
}

fn last(etcd: &Etcd) -> Vec<u8> {
    let found = post(etcd, "/v3/kv/range", &json!({ "key": key("last") }));
    BASE64.decode(found["kvs"][0]["value"].as_str().expect("it is there")).expect("base64")
}

/// Waits until all brokers have a decision of a round after every round known at the call.
async fn next_round(stage: &Stage) -> Duration {
    let mut before = 0;
    for at in 0..stage.brokers.len() {
        before = stage.round(at).await.max(before);
    }
    let began = Instant::now();
    for at in 0..stage.brokers.len() {
        while stage.round(at).await <= before {
            assert!(began.elapsed() < ROUNDS_WITHIN, "broker {at} knows no new round");
            // Viewers keep sending requests, so that they are counted.
            (0..stage.brokers.len()).for_each(|at| drop(stage.first(at)));
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    began.elapsed()
}

async fn is_healthy(stage: &Stage) -> bool {
    let mut is_healthy = true;
    for broker in &stage.brokers {
        let operator = stage.house.operator_of(&broker.address).with_patience(Duration::ZERO);
        is_healthy &= operator.text("/healthz").await.is_ok();
    }
    is_healthy
}

/// Rounds continue after each damage, and no broker restarts (#48).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rounds_continue_after_damage_to_keys_in_etcd() {
    let Some(mut etcd) = Etcd::new() else {
        return skip("several brokers share an etcd, and this machine has none (Debian: etcd-server)");
    };
    etcd.start();
    let stage = Stage::new(&etcd).await;
    let (_cheap, _end_cheap) = stage.house.agent_of("cheap", stage.addresses());
    let (_near, _end_near) = stage.house.agent_of("near", stage.addresses());
    stage.leader(&[0, 1, 2]).await;
    next_round(&stage).await;
    let old = last(&etcd);
    next_round(&stage).await;

    let mut took = Vec::new();
    for name in ["last", ""] {
        delete(&etcd, name);
        took.push((format!("`{name}` deleted"), next_round(&stage).await));
    }
    let huge: &[u8] = br#"{"format":"broker 1","round":9007199254740992,"epoch":1,"parts":1}"#;
    let values: [&[u8]; 7] = [&old, b"", b"{", b"[]", b"\xff\x00", br#"{"format":"x","round":"1"}"#, huge];
    for value in values {
        put(&etcd, "last", value);
        took.push((format!("`last` {}", String::from_utf8_lossy(value)), next_round(&stage).await));
    }
    put(&etcd, "leader", b"junk");
    took.push(("`leader` junk".to_owned(), next_round(&stage).await));
    etcd.start_empty();
    took.push(("etcd replaced by an empty one".to_owned(), next_round(&stage).await));
    for (what, took) in took {
        eprintln!("{:6.2} s: {what}", took.as_secs_f64());
    }
    assert!(is_healthy(&stage).await);
}

/// Brokers report a decision of another version, do not overwrite it, and continue once it is
/// deleted (#48).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stored_decision_of_another_format_is_not_overwritten() {
    let Some(mut etcd) = Etcd::new() else {
        return skip("several brokers share an etcd, and this machine has none (Debian: etcd-server)");
    };
    etcd.start();
    let stage = Stage::new(&etcd).await;
    let (_cheap, _end_cheap) = stage.house.agent_of("cheap", stage.addresses());
    stage.leader(&[0, 1, 2]).await;
    next_round(&stage).await;
    let other: &[u8] = br#"{"format":"broker 2"}"#;
    put(&etcd, "last", other);
    let began = Instant::now();
    while is_healthy(&stage).await {
        assert!(began.elapsed() < ROUNDS_WITHIN, "it is said");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(last(&etcd), other);
    delete(&etcd, "last");
    next_round(&stage).await;
}
