//! Exercise of the control messages for a fuzz target: a node and a controller that receive
//! arbitrary messages.
//!
//! Leaves out: the inputs (`fuzz/`). Read [`exercise`].

use super::controller::{Controller, ControllerSettings};
use super::messages::{GroupId, Report, ToChild, ToNode, ToParent};
use super::node::{Event, Node, RequestId, Settings};
use crate::{Link, Network, NodeId, Object, Tier};
use anabranch_units::{BitRate, Duration, Instant, Seed};
use serde::{Deserialize, Serialize};

/// Maximum number of input lines that are read.
const LINES_MAX: usize = 2_000;
/// The node that receives the messages, a reflector. Sources are 0 and 1, edges are 4 and 5.
const NODE: NodeId = NodeId(2);
/// Incarnation number of the node. The attempts of the node are numbered from this value.
const LIFE: u64 = 100;

/// A line of an input.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum ScriptLine {
    /// Advances time by this number of milliseconds.
    Wait(u16),
    FromParent(NodeId, ToChild),
    FromChild(NodeId, ToParent),
    FromController(ToNode),
    Viewer(GroupId, Object),
    ViewerLeft(GroupId, Object),
    Delivered(Object, NodeId),
    Stalled(Object),
    /// A report to the controller.
    Report(NodeId, Report),
}

struct Pair {
    now: Instant,
    node: Node,
    controller: Controller,
    requests: u64,
    /// Whether the node has refused an update.
    is_refused: bool,
}

impl Pair {
    fn new() -> Self {
        let tiers = [Tier::Source, Tier::Reflector, Tier::Edge];
        let node = |at: usize| crate::Node { name: format!("n{at}"), tier: tiers[at / 2] };
        let pairs = [(0, 2), (0, 3), (1, 2), (1, 3), (2, 4), (2, 5), (3, 4), (3, 5)];
        let capacity = BitRate::mbps(10);
        let link = |(from, to)| Link { from: NodeId(from), to: NodeId(to), capacity, cost: 1.0 };
        let network = Network::new((0..6).map(node).collect(), pairs.map(link).into());
        let network = network.expect("tiers are in order");
        let now = Instant::ZERO;
        let node = Node::new(now, &network, NODE, LIFE, Settings::default(), Seed::new(1));
        let groups = vec![vec![NodeId(4), NodeId(5)]; 2];
        let controller = Controller::new(now, network, groups, 1, ControllerSettings::default());
        let controller = controller.expect("groups have edges");
        Self { now, node, controller, requests: 0, is_refused: false }
    }

    fn handle(&mut self, line: ScriptLine) {
        let (now, node) = (self.now, &mut self.node);
        match line {
            ScriptLine::Wait(ms) => self.now += Duration::from_ms(ms.into()),
            ScriptLine::FromParent(parent, message) => node.handle_parent(now, parent, message),
            ScriptLine::FromChild(child, message) => node.handle_child(now, child, message),
            ScriptLine::FromController(message) => node.handle_controller(now, message),
            ScriptLine::Viewer(group, object) => {
                self.requests += 1;
                node.handle_viewer(now, RequestId(self.requests), group, object);
            }
            ScriptLine::ViewerLeft(group, object) => node.handle_viewer_left(group, object),
            ScriptLine::Delivered(object, parent) => node.handle_delivered(now, object, parent),
            ScriptLine::Stalled(object) => node.handle_stalled(now, object),
            ScriptLine::Report(from, report) => self.controller.handle_report(now, from, report),
        }
    }

    fn drain(&mut self) {
        self.node.handle_timeout(self.now);
        self.controller.handle_timeout(self.now);
        while self.node.poll_transmit().is_some() {}
        while let Some(event) = self.node.poll_event() {
            self.is_refused |= matches!(event, Event::UpdateRefused(_));
        }
        while self.controller.poll_transmit().is_some() {}
        while self.controller.poll_event().is_some() {}
        if let Some(job) = self.controller.poll_job() {
            let plan = job.running.clone();
            // The plan is refused if a running stream's parent does not receive the stream.
            let _ = self.controller.handle_plan(self.now, job.number, plan);
        }
    }
}

/// Processes the lines of an input, one JSON message per line. Returns whether all lines are
/// messages and the node refuses no update.
///
/// Panics: if a message does not survive a JSON round trip, or a ledger exceeds its link's
/// capacity.
pub fn exercise(bytes: &[u8]) -> bool {
    let mut pair = Pair::new();
    pair.drain();
    let mut are_read = true;
    let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    for line in lines.take(LINES_MAX) {
        let Ok(line) = serde_json::from_slice::<ScriptLine>(line) else {
            are_read = false;
            continue;
        };
        let text = serde_json::to_vec(&line).expect("messages have no map with other keys than text");
        assert_eq!(serde_json::from_slice::<ScriptLine>(&text).ok().as_ref(), Some(&line));
        pair.handle(line);
        pair.drain();
        for child in [NodeId(4), NodeId(5)] {
            let ledger = pair.node.ledger(child).expect("a child");
            assert!(ledger.used() <= ledger.capacity().believed());
        }
    }
    are_read && !pair.is_refused
}

#[cfg(test)]
mod tests {
    use anabranch_testing::replay;

    #[test]
    fn fuzz_corpus_results_match_the_file_names() {
        assert!(replay("live_control", super::exercise) >= 18);
    }
}
