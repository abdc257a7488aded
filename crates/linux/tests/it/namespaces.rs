//! Tests of namespaces, devices, routes and rules, each in its own network namespace.

use std::net::IpAddr;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::time::{Duration, Instant};

use anabranch_linux::namespace::{Kind, Namespace};
use anabranch_linux::rtnetlink::{
    Address, IpProtocol, LOOPBACK, LinkChange, Prefix, Route, Rtnetlink, Rule, RuleAction,
};
use anabranch_linux::tun;
use anabranch_testing::skip::{is_lacking, skip};

const PATIENCE: Duration = Duration::from_secs(60);

/// Creates a network namespace. Returns `None`, with the reason printed, if the machine permits
/// none.
fn namespace() -> Option<Namespace> {
    // Error number for the maximum number of namespaces.
    const ENOSPC: i32 = 28;
    match Namespace::new_network() {
        Ok(namespace) => Some(namespace),
        Err(error) if is_lacking(&error, &[ENOSPC]) => {
            skip(&format!("no network namespace: {error}"));
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn address(text: &str) -> IpAddr {
    text.parse().expect("good")
}

#[test]
fn namespace_is_removed_with_its_value_also_after_panics() {
    let Some(namespace) = namespace() else { return };
    let (inode, path) = (namespace.inode().expect("it is open"), namespace.path());
    let is_there =
        || std::fs::metadata(&path).is_ok_and(|m| std::os::unix::fs::MetadataExt::ino(&m) == inode);
    assert!(is_there());
    assert_ne!(Namespace::of_thread(Kind::Network).and_then(|own| own.inode()).expect("ours"), inode);
    let panicked = std::panic::catch_unwind(move || {
        namespace.run::<()>(|| std::panic::resume_unwind(Box::new("the test's own"))).expect("never reached")
    });
    drop(panicked.expect_err("it panics"));
    assert!(!is_there());
}

#[test]
fn links_addresses_routes_and_rules_are_managed() {
    let Some(namespace) = namespace() else { return };
    let done = namespace.run(|| -> Result<(), String> {
        let text = |error: anabranch_linux::netlink::NetlinkError| error.to_string();
        let mut kernel = Rtnetlink::open().map_err(text)?;
        let change =
            LinkChange { set_up: true, mtu_bytes: Some(9_000), alias: Some("ours"), ..LinkChange::default() };
        kernel.change_link(LOOPBACK, &change).map_err(text)?;
        let link = kernel.link(LOOPBACK).map_err(text)?.ok_or("no loopback")?;
        assert_eq!((link.index, link.is_up, link.alias.as_deref()), (LOOPBACK, true, Some("ours")));
        assert_eq!(kernel.link(999).map_err(text)?, None);
        assert_eq!(kernel.index_of("lo").map_err(text)?, LOOPBACK);
        let missing = kernel.index_of("none").expect_err("there is none");
        assert_eq!(missing.raw_os_error(), Some(rustix::io::Errno::NODEV.raw_os_error()));

        for (own, peer, bits, is_ipv6) in
            [("10.9.8.1", "10.9.8.2", 24, false), ("fd09::1", "fd09::2", 64, true)]
        {
            let prefix = Prefix { address: address(own), bits };
            kernel.add_address(Address { device: LOOPBACK, prefix }).map_err(text)?;
            assert!(kernel.addresses().map_err(text)?.contains(&Address { device: LOOPBACK, prefix }));
            let route = Route {
                table: 7_300,
                device: LOOPBACK,
                to: Prefix::host(address(peer)),
                from: Some(address(own)),
                mtu_bytes: Some(1_400),
                quick_ack: true,
                protocol: 72,
            };
            assert_eq!(kernel.routes(is_ipv6, 7_300).map_err(text)?, []);
            // A new IPv6 address is not used as a source until the kernel has checked for
            // duplicates.
            let began = Instant::now();
            while let Err(error) = kernel.set_route(&route) {
                assert!(began.elapsed() < PATIENCE, "{error}");
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(kernel.routes(is_ipv6, 7_300).map_err(text)?, [route]);
            let rule = Rule {
                priority: 7_300,
                is_ipv6,
                action: RuleAction::Lookup(7_300),
                protocol: 72,
                from: None,
                to: Some(Prefix::host(address(peer))),
                device_in: Some("lo".to_owned()),
                ip_protocol: Some(IpProtocol::Tcp),
                source_port: None,
                destination_port: Some(7),
                has_unknown: false,
            };
            kernel.add_rule(&rule).map_err(text)?;
            let listed = kernel.rules(is_ipv6).map_err(text)?;
            assert!(
                listed.iter().any(|other| Rule { has_unknown: false, ..other.clone() } == rule),
                "{listed:?}"
            );
            assert_eq!(
                kernel.add_rule(&rule).expect_err("it is there").kind(),
                std::io::ErrorKind::AlreadyExists
            );
            kernel.delete_rule(&rule).map_err(text)?;
            assert!(kernel.rules(is_ipv6).map_err(text)?.iter().all(|other| other.priority != 7_300));
            kernel.delete_route(&route).map_err(text)?;
            assert_eq!(kernel.routes(is_ipv6, 7_300).map_err(text)?, []);
        }
        Ok(())
    });
    done.expect("ours").expect("the kernel does what it is told");
}

#[test]
fn netlink_refusal_includes_the_kernels_reason() {
    let Some(namespace) = namespace() else { return };
    let refused = namespace.run(|| {
        let mut kernel = Rtnetlink::open().expect("netlink");
        let prefix = Prefix { address: address("10.9.8.1"), bits: 33 };
        kernel.add_address(Address { device: LOOPBACK, prefix }).expect_err("too long")
    });
    let error = refused.expect("ours");
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::INVAL.raw_os_error()));
    assert!(error.to_string().contains("prefix"), "{error}");
}

#[test]
fn plain_device_is_removed_with_its_descriptor() {
    let Some(namespace) = namespace() else { return };
    if let Err(error) = tun::check() {
        return skip(&format!("/dev/net/tun: {error}"));
    }
    let (open, gone) = namespace
        .run(|| {
            let device: OwnedFd = tun::open("ab0").expect("ours");
            assert!(device.as_raw_fd() > 2);
            let mut kernel = Rtnetlink::open().expect("netlink");
            let before = kernel.index_of("ab0").map(|index| kernel.link(index));
            drop(device);
            (before, kernel.index_of("ab0"))
        })
        .expect("ours");
    assert!(!open.expect("it is there").expect("it is listed").expect("it is there").is_up);
    gone.expect_err("it has gone");
}
