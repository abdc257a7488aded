//! State after store failures, which no interface shows.

use super::*;
use crate::decision_form::read_decision;
use anabranch_broker_proto::broker::Settings;
use anabranch_broker_proto::designs;
use anabranch_broker_proto::replica::Stamp;
use anabranch_election::StoreReply;

fn service(folder: &tempfile::TempDir) -> BrokerService {
    let settings = Settings {
        every: Duration::from_ms(100),
        ..Settings::new(designs::by_name("marketplace").expect("there is one"))
    };
    let contracts = "[[network]]\nname = \"a\"\n".parse().expect("it is right");
    let config = BrokerServiceConfig::new(settings, contracts, folder.path().join("store"));
    BrokerService::open(config).expect("the file is free")
}

#[tokio::test]
async fn documents_list_all_metrics() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = service(&folder).metrics();
    anabranch_testing::exposition::check_table("docs/broker.md", "broker serve", &text);
}

/// A decision that is stored again after a lost answer is written with the same bytes.
#[tokio::test]
async fn decision_stored_again_has_the_same_bytes() {
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

/// The error of a decision that was not stored remains until a decision is stored, whatever other
/// operations return.
#[tokio::test]
async fn error_of_an_unstored_decision_remains_until_storage() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = service(&folder);
    let told = |kind: &str, answer: Result<StoreReply<DecisionView>, String>| {
        let mut state = lock(&service.shared.state);
        service.note_told(&mut state, 1, (kind == "keep").then_some(1), answer);
    };
    told("keep", Err("the disk is full".to_owned()));
    told("renew", Ok(StoreReply::Renewed { revision: 1, last: Stamp::default() }));
    assert_eq!(service.trouble().as_deref(), Some("the disk is full"));
    told("renew", Err("no answer".to_owned()));
    assert_eq!(service.trouble().as_deref(), Some("the disk is full"));
    told("keep", Ok(StoreReply::Kept { revision: 1 }));
    assert_eq!(service.trouble().as_deref(), None);
}
