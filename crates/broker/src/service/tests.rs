//! What cannot be seen from outside within a test's time, or at all: the end of the machine's clock, and what a store that fails leaves behind.

use super::*;
use crate::kept::read_decision;
use crate::wire::{Clients, ClusterBid, ShareBids};
use anabranch_broker_proto::broker::Settings;
use anabranch_broker_proto::designs;
use anabranch_broker_proto::replica::Stamp;
use anabranch_election::StoreTold;

const WITHIN: std::time::Duration = std::time::Duration::from_secs(20);
const SESSION: u64 = 5;

fn service(folder: &tempfile::TempDir) -> BrokerService {
    let settings = Settings {
        every: Duration::from_ms(100),
        ..Settings::new(designs::by_name("marketplace").expect("there is one"))
    };
    let contracts = "[[network]]\nname = \"a\"\n".parse().expect("it is right");
    let config = BrokerServiceConfig::new(settings, contracts, folder.path().join("store"));
    BrokerService::open(config).expect("the file is free")
}

fn clients() -> Vec<Gathered> {
    let clients = vec![Clients { bitrate_bps: 3_000_000, sessions: 7 }];
    vec![Gathered { location: "berlin".into(), isp: "x".into(), clients }]
}

/// Joins where the broker has forgotten it, takes part in rounds, and says which one was accepted after this one.
async fn round_after(service: &BrokerService, round: u64) -> u64 {
    let began = std::time::Instant::now();
    let mut after = 0;
    while service.decision().round <= round {
        assert!(began.elapsed() < WITHIN, "no round after {round}");
        let wait = std::time::Duration::from_millis(50);
        let Ok(messages) = service.messages("a", SESSION, after, wait).await else {
            after = 0;
            if service.join("a", SESSION).and_then(|()| service.give_clients(clients())).is_err() {
                tokio::time::sleep(wait).await;
            }
            continue;
        };
        for (number, message) in messages {
            after = number;
            if let NetworkMessage::Call(call) = message {
                let clusters =
                    vec![ClusterBid { cluster: 1, price: Some(1.0), capacity_bps: Some(1_000_000_000) }];
                let shares = vec![ShareBids { share: 0, clusters: vec![(1, 1.0)] }];
                let bids = Bids { round: call.round, clusters, shares, more: false };
                service.bids("a", SESSION, bids).expect("it has joined");
            }
        }
    }
    service.decision().round
}

/// The machine's clock ends after 213 days; a hundred days are behind this one.
#[tokio::test]
async fn before_its_clock_ends_it_begins_again_and_rounds_go_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = service(&folder);
    let runs = tokio::spawn({
        let service = service.clone();
        async move { service.go_on().await }
    });
    let first = round_after(&service, 0).await;
    {
        let mut state = lock(&service.shared.state);
        let age = ANEW_AFTER.to_std() + std::time::Duration::from_secs(1);
        state.epoch = state.epoch.checked_sub(age).expect("the machine's clock may be before its start");
        lock(&service.shared.answering).epoch = state.epoch;
    }
    service.shared.changed.notify_one();
    let began = std::time::Instant::now();
    while lock(&service.shared.state).counters.leads < 2 {
        assert!(began.elapsed() < WITHIN, "it does not begin again");
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    let ends = Instant::ZERO + ANEW_AFTER;
    assert!(lock(&service.shared.state).now() < ends && lock(&service.shared.answering).now() < ends);
    assert!(service.decision().round >= first, "the last decision stands");
    let second = round_after(&service, service.decision().round).await;
    assert!(second > first);
    runs.abort();
}

/// What was kept is not written otherwise when the store is asked again, as its answer was lost.
#[tokio::test]
async fn a_decision_that_is_kept_again_is_written_as_before() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = service(&folder);
    let decision = |round| {
        let decision =
            read_decision(&DecisionView { round, ..DecisionView::default() }, &service.shared.contracts);
        Arc::new(decision)
    };
    let (first, second) = (decision(1), decision(2));
    let view = service.written(&first);
    tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    assert_eq!(service.written(&first), view, "with the time of the first try");
    let other = service.written(&second);
    assert!(other.accepted_unix_ms > view.accepted_unix_ms && other.round == 2);
}

/// A decision that could not be kept is trouble until one is, whatever the store answers meanwhile.
#[tokio::test]
async fn a_decision_that_is_not_kept_is_not_forgotten() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = service(&folder);
    let told = |kind: &str, answer: Result<StoreTold<DecisionView>, String>| {
        let mut state = lock(&service.shared.state);
        service.note_told(&mut state, 1, (kind == "keep").then_some(1), answer);
    };
    told("keep", Err("the disk is full".to_owned()));
    told("renew", Ok(StoreTold::Renewed { revision: 1, last: Stamp::default() }));
    assert_eq!(service.trouble().as_deref(), Some("the disk is full"));
    told("renew", Err("no answer".to_owned()));
    assert_eq!(service.trouble().as_deref(), Some("the disk is full"));
    told("keep", Ok(StoreTold::Kept { revision: 1 }));
    assert_eq!(service.trouble().as_deref(), None);
}
