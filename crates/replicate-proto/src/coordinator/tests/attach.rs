//! A transfer that is requested twice runs only once.

use super::*;

/// An equal request with its lists in another order.
fn reordered(mut request: TransferRequest) -> TransferRequest {
    request.destinations.reverse();
    request.avoid_sites.reverse();
    request.avoid_links.reverse();
    request.hop_overrides.reverse();
    request.source_path = format!("./{}", request.source_path.trim_start_matches('/'));
    request
}

/// #17: after a kill, SIGHUP or a lost terminal the same command failed, because the transfer of
/// the first command still ran.
#[test]
fn equal_request_attaches_while_the_transfer_runs() {
    let mut w = World::new(internet2());
    let over =
        |link| HopOverride { link: LinkId(link), hop: HopSettings { stripes: 2, ..request(0, &[3]).hop } };
    let mut asked = TransferRequest {
        source_path: "data/in".into(),
        avoid_sites: vec![SiteId(7), SiteId(8)],
        avoid_links: vec![LinkId(8), LinkId(9)],
        hop_overrides: vec![over(3), over(4)],
        ..request(0, &[3, 5])
    };
    asked.destinations[0].path = "elsewhere".into();
    let id = w.submit(asked.clone());
    let again = |w: &mut World| {
        let again = w.coordinator.submit_or_attach(w.now, reordered(asked.clone()));
        w.drain();
        again
    };
    while w.outcome(id).is_none() {
        assert_eq!(again(&mut w), Ok(SubmitResult::Attached(id)));
        w.tick();
    }
    let Ok(SubmitResult::New(second)) = again(&mut w) else { panic!("the first is over") };
    assert!(second > id);
    assert!(w.coordinator.cancel(w.now, second));
    assert!(
        matches!(again(&mut w), Ok(SubmitResult::New(third)) if third > second),
        "a cancelled one is over"
    );
    assert_eq!(w.coordinator.transfer_ids().count(), 3, "each was begun once");
}

/// A request with other settings must not attach without notice.
#[test]
fn request_with_other_settings_is_refused_with_the_difference() {
    let mut w = World::new(internet2());
    let id = w.submit(request(0, &[3, 5]));
    let plain = || request(0, &[3, 5]);
    let hop = |hop: HopSettings| TransferRequest { hop, ..plain() };
    let usual = plain().hop;
    let all = [
        (TransferRequest { avoid_sites: vec![SiteId(1)], ..plain() }, "other avoid sites"),
        (TransferRequest { avoid_links: vec![LinkId(1)], ..plain() }, "other avoid links"),
        (TransferRequest { scheme: SchemeChoice::Coded, ..plain() }, "scheme auto, not coded"),
        (hop(HopSettings { stripes: 4, ..usual.clone() }), "stripes 1, not 4"),
        (
            hop(HopSettings { congestion_control: Some("bbr".into()), ..usual.clone() }),
            "congestion control unset, not bbr",
        ),
        (hop(HopSettings { priority: Priority::Fill, ..usual.clone() }), "priority bulk, not fill"),
        (
            TransferRequest { hop_overrides: vec![HopOverride { link: LinkId(0), hop: usual }], ..plain() },
            "other hop overrides",
        ),
        (
            TransferRequest { bandwidth_limit: Some(BitRate::mbps(3)), ..plain() },
            "bandwidth limit unset, not 3 Mbit/s",
        ),
        (TransferRequest { symbol_bytes: 1, ..plain() }, "symbol bytes "),
        (TransferRequest { buffer_packets: 1, ..plain() }, "buffer packets "),
        (TransferRequest { on_corrupt: CorruptPolicy::Refuse, ..plain() }, "on corrupt repair, not refuse"),
        (TransferRequest { fill: true, ..plain() }, "fill off, not on"),
        (TransferRequest { replace: true, ..plain() }, "replace off, not on"),
    ];
    for (other, differs) in all {
        let refused = w.coordinator.submit_or_attach(w.now, other).expect_err(differs);
        assert!(
            matches!(&refused, SubmitError::RunsOtherwise { transfer, .. } if *transfer == id),
            "{refused}"
        );
        let said = refused.to_string();
        assert!(said.contains(&format!("transfer {id} ")) && said.contains(differs), "{said}");
        assert!(said.contains(&format!("--follow {id}")) && !said.contains('\n'), "{said}");
    }
    assert_eq!(w.coordinator.transfer_ids().count(), 1);
}

/// #17: if two transfers of the same file ran with different settings, a request attached to the
/// older one, not to the one with equal settings.
#[test]
fn request_attaches_to_the_transfer_with_equal_settings() {
    let mut w = World::new(internet2());
    let coded = || TransferRequest { scheme: SchemeChoice::Coded, ..request(0, &[3, 5]) };
    let first = w.submit(coded());
    let second = w.submit(request(0, &[3, 5]));
    let third = w.submit(request(0, &[3, 5]));
    let again = |w: &mut World, request| w.coordinator.submit_or_attach(w.now, request);
    assert_eq!(again(&mut w, request(0, &[5, 3])), Ok(SubmitResult::Attached(second)), "the earlier of two");
    assert_eq!(again(&mut w, coded()), Ok(SubmitResult::Attached(first)));
    let other = again(&mut w, TransferRequest { replace: true, ..request(0, &[3, 5]) });
    assert!(matches!(other, Err(SubmitError::RunsOtherwise { transfer, .. }) if transfer == first));
    assert!(third > second && w.coordinator.transfer_ids().count() == 3);
}

/// A transfer of another submitter has other rights. Another destination path is another file.
#[test]
fn request_attaches_only_for_same_file_destinations_and_submitter() {
    let mut w = World::new(internet2());
    let id = w.submit(request(0, &[3, 5]));
    let mut elsewhere = request(0, &[3, 5]);
    elsewhere.destinations[1].path = "elsewhere".into();
    let others = [
        TransferRequest { submitter: Submitter::Site(SiteId(0)), ..request(0, &[3, 5]) },
        TransferRequest { source_path: "other".into(), ..request(0, &[3, 5]) },
        request(1, &[3, 5]),
        request(0, &[3]),
        request(0, &[3, 5, 6]),
        elsewhere,
    ];
    for other in others {
        let begun = w.coordinator.submit_or_attach(w.now, other.clone());
        assert!(matches!(begun, Ok(SubmitResult::New(new)) if new != id), "{begun:?}");
        let again = w.coordinator.submit_or_attach(w.now, other);
        assert_eq!(
            again,
            begun.map(|new| match new {
                SubmitResult::New(id) | SubmitResult::Attached(id) => SubmitResult::Attached(id),
            })
        );
    }
    assert_eq!(w.coordinator.submit_or_attach(w.now, request(0, &[3, 5])), Ok(SubmitResult::Attached(id)));
}
