//! The sites that are named as suspects if digests of flows differ.

use super::*;

/// The butterfly: 0 sends x0 to 1 and x1 to 2, 3 adds them, and 4 mirrors the sum to 5 and 6.
fn butterfly() -> (Topology, Plan) {
    let mut t = topology(7, &[]);
    let links = [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4), (4, 5), (4, 6), (1, 5), (2, 6)];
    for (a, b) in links {
        let properties = LinkProperties::new(BitRate::mbps(20), Duration::from_ms(1));
        t.add_link(SiteId(a), SiteId(b), properties).expect("a good link");
    }
    let one = |input| Term { input, coefficient: 1, delayed: false };
    let two = |input| Term { input, coefficient: 2, delayed: false };
    let terms = [
        vec![one(Input::Stream(0))],
        vec![two(Input::Stream(1))],
        vec![one(Input::Flow(FlowId(0)))],
        vec![one(Input::Flow(FlowId(1)))],
        vec![one(Input::Flow(FlowId(2))), two(Input::Flow(FlowId(3)))],
        vec![one(Input::Flow(FlowId(4)))],
        vec![one(Input::Flow(FlowId(4)))],
        vec![one(Input::Flow(FlowId(0)))],
        vec![one(Input::Flow(FlowId(1)))],
    ];
    let flows = terms
        .into_iter()
        .enumerate()
        .map(|(i, terms)| Flow { group: 0, link: LinkId(i as u32), terms })
        .collect();
    let sink = |site, a, b| Sink { site: SiteId(site), inputs: vec![FlowId(a), FlowId(b)], decode: None };
    let plan = Plan {
        scheme: Scheme::Coded,
        source: SiteId(0),
        destinations: vec![SiteId(5), SiteId(6)],
        unit: BitRate::mbps(20),
        groups: vec![Group {
            streams: 2,
            weights: vec![],
            mode: Mode::Coded,
            sinks: vec![sink(5, 5, 7), sink(6, 6, 8)],
            fills: None,
        }],
        flows,
        rate: BitRate::mbps(40),
        bound: BitRate::mbps(40),
        store_and_forward: false,
    };
    (t, plan)
}

#[test]
fn coding_vectors_follow_the_data() {
    let (_, plan) = butterfly();
    let vectors = audit::vectors(&plan, 0);
    assert_eq!(vectors[4].coefficients, [1, 4]);
    assert_eq!(vectors[8].coefficients, [0, 2]);
    let mut delayed = plan.clone();
    delayed.flows[4].terms[0].delayed = true;
    assert_eq!(audit::vectors(&delayed, 0), [], "a delayed code has no single vector");
}

#[test]
fn relay_that_sends_wrong_symbols_is_named() {
    let (t, plan) = butterfly();
    for culprit in [1u16, 2, 3, 4] {
        let mut digests: BTreeMap<SiteId, Vec<FlowDigest>> = BTreeMap::new();
        let mut wrong = [false; 9];
        for (i, flow) in plan.flows.iter().enumerate() {
            let (from, to) = (t.link(flow.link).from, t.link(flow.link).to);
            wrong[i] = from == SiteId(culprit)
                || flow.terms.iter().any(|x| matches!(x.input, Input::Flow(f) if wrong[f.index()]));
            let flow = FlowId(i as u32);
            let good = 100 + i as u64;
            let saw = if wrong[i] { good + 1_000 } else { good };
            digests.entry(SiteId(0)).or_default().push(FlowDigest {
                flow,
                side: FlowSide::Expected,
                digest: good,
            });
            digests.entry(to).or_default().push(FlowDigest { flow, side: FlowSide::Received, digest: saw });
            // A false report by a site that the flow does not touch is ignored.
            digests.entry(SiteId(6)).or_default().push(FlowDigest { flow, side: FlowSide::Sent, digest: 5 });
        }
        assert_eq!(audit::suspects(&plan, &t, 0, SiteId(5), &digests), [SiteId(culprit)]);
    }
}

#[test]
fn sink_that_decodes_wrongly_is_named() {
    let (t, plan) = butterfly();
    let mut digests: BTreeMap<SiteId, Vec<FlowDigest>> = BTreeMap::new();
    for (i, flow) in plan.flows.iter().enumerate() {
        let digest = i as u64;
        let flow_id = FlowId(i as u32);
        digests.entry(SiteId(0)).or_default().push(FlowDigest {
            flow: flow_id,
            side: FlowSide::Expected,
            digest,
        });
        let received = FlowDigest { flow: flow_id, side: FlowSide::Received, digest };
        digests.entry(t.link(flow.link).to).or_default().push(received);
    }
    assert_eq!(audit::suspects(&plan, &t, 0, SiteId(5), &digests), [SiteId(5)]);
    digests.remove(&SiteId(0));
    assert_eq!(audit::suspects(&plan, &t, 0, SiteId(5), &digests), [], "without the truth nobody is named");
}
