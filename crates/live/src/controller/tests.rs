//! Tests of a controller's stored states, drains and changes.

use super::*;
use crate::description::{ChannelEntry, LinkEntry};
use anabranch_units::BitRate;

const NODES: usize = 16;

fn description() -> Description {
    let text: String = (0..NODES)
        .map(|node| {
            format!(
                "[[node]]\nname = \"e{node}\"\ntier = \"edge\"\nmedia = \"http://127.0.0.1:{}\"\n",
                7_000 + node
            )
        })
        .collect();
    Description::from_toml(&text).expect("a good description")
}

/// Opens a controller and runs its driver.
async fn start(config: &ControllerConfig) -> (ControllerService, tokio::task::JoinHandle<()>) {
    let mut tries = 0..3_000;
    let service = loop {
        // Requests of the previous controller may still be using its store.
        match ControllerService::open(config.clone()) {
            Ok(service) => break service,
            Err(error) => assert!(tries.next().is_some(), "{error}"),
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    };
    let driven = service.clone();
    (service, tokio::spawn(async move { driven.go_on().await }))
}

fn drained(service: &ControllerService) -> usize {
    service.nodes().expect("it leads").iter().filter(|node| node.is_draining).count()
}

fn lead(service: &ControllerService) -> u64 {
    lock(&service.shared.state).lead.as_ref().expect("it leads").machine.version().lead
}

fn channel(name: &str, mbps: u64) -> Change {
    let renditions = [("main".to_owned(), BitRate::mbps(mbps))].into();
    Change::SetChannel(ChannelEntry { name: name.to_owned(), renditions })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_drains_survive_a_controller_restart() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let config = ControllerConfig::new(description(), Some(&folder.path().join("live.redb")));
    let (service, driver) = start(&config).await;
    let before = lead(&service);
    let drains = (0..NODES).map(|node| {
        let service = service.clone();
        tokio::spawn(async move { service.drain(&format!("e{node}"), true).await })
    });
    for drain in drains.collect::<Vec<_>>() {
        drain.await.expect("no panic").expect("a store");
    }
    service.drain("e3", false).await.expect("a store");
    assert_eq!(drained(&service), NODES - 1);
    driver.abort();
    let _ = driver.await;
    drop(service);
    let (service, _driver) = start(&config).await;
    assert_eq!(drained(&service), NODES - 1);
    assert!(lead(&service) > before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn network_changes_survive_a_controller_restart() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let config = ControllerConfig::new(description(), Some(&folder.path().join("live.redb")));
    let (service, driver) = start(&config).await;
    assert_eq!(service.change(1, vec![channel("news", 1), Change::RemoveNode("e1".to_owned())]).await, Ok(2));
    assert_eq!(service.nodes().expect("it leads").len(), NODES - 1);
    assert_eq!(service.drain("e1", true).await, Err(RequestRefusal::UnknownNode("e1".to_owned())));
    driver.abort();
    let _ = driver.await;
    drop(service);
    let (service, _driver) = start(&config).await;
    let (_, version, network) = service.network().expect("it leads");
    assert_eq!((version, network.channels.len()), (2, 1));
    assert_eq!(network.removed.nodes.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_one_of_concurrent_changes_is_accepted() {
    let (service, _driver) = start(&ControllerConfig::new(description(), None)).await;
    let edits = (0..8).map(|edit| {
        let service = service.clone();
        tokio::spawn(async move { service.change(1, vec![channel(&format!("c{edit}"), 1)]).await })
    });
    let mut taken = 0;
    for edit in edits.collect::<Vec<_>>() {
        match edit.await.expect("no panic") {
            Ok(version) => taken += version,
            Err(error) => assert_eq!(error, RequestRefusal::OtherVersion(1, 2)),
        }
    }
    assert_eq!(taken, 2, "one editor has version 2");
    assert_eq!(service.network().expect("it leads").2.channels.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_with_a_bad_change_is_refused_completely() {
    let (service, _driver) = start(&ControllerConfig::new(description(), None)).await;
    let link =
        LinkEntry { from: "e1".to_owned(), to: "e2".to_owned(), capacity: BitRate::mbps(1), cost: 1.0 };
    let error = service.change(1, vec![channel("news", 1), Change::SetLink(link)]).await.expect_err("bad");
    assert!(error.to_string().contains("links lead from") && !error.to_string().contains('\n'), "{error}");
    let (_, version, network) = service.network().expect("it leads");
    assert_eq!((version, network), (1, description()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn documents_list_all_metrics() {
    let text = "[[node]]\nname = \"s\"\ntier = \"source\"\nmedia = \"http://127.0.0.1:1\"\ncontrol = \"127.0.0.1:1\"\n\
        [[node]]\nname = \"r\"\ntier = \"reflector\"\nmedia = \"http://127.0.0.1:2\"\ncontrol = \"127.0.0.1:2\"\n\
        [[link]]\nfrom = \"s\"\nto = \"r\"\ncapacity = \"1 Mbit/s\"\ncost = 1\n";
    let config = ControllerConfig::new(Description::from_toml(text).expect("a good description"), None);
    let (service, _driver) = start(&config).await;
    while service.nodes().is_err() {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let text = service.metrics();
    anabranch_testing::exposition::check_table("docs/live.md", "live controller", &text);
}
