//! Properties of the rate control on a thousand random simulated paths. For every rate, round-trip
//! time, loss, queue and number of servers, the whole object arrives within a bounded time, with a
//! bounded number of packets, and behind a bounded queue.
//!
//! Leaves out: efficiency on each kind of path (`experiments/gather-paths`).

use anabranch_gather_proto::simulated::SimulatedSystem;
use anabranch_sim::{Outcome, Plan, Simulation, scenario};
use anabranch_units::{RandomStream, Seed};
use std::fmt::Write as _;

/// Number of random paths.
const PATHS: u64 = 1_000;
/// Bytes of a block.
const BLOCK: f64 = 1_427.0;
/// Bytes of a packet with one block and all headers.
const PACKET: f64 = 1_500.0;

/// A network path, and the object that is fetched over it.
#[derive(Debug)]
struct Path {
    rate_mbps: f64,
    rtt_ms: f64,
    loss: f64,
    burst: u64,
    queue_bytes: f64,
    servers: u64,
    blocks: f64,
}

impl Path {
    /// Draws a path: rates span three powers of ten, and round-trip times more than two. Half of
    /// the paths have no loss.
    fn draw(random: &mut RandomStream) -> Self {
        let mut unit = || random.below(1 << 32) as f64 / 2f64.powi(32);
        let mut between = |least: f64, most: f64| least * (most / least).powf(unit());
        let (rate_mbps, rtt_ms) = (between(1.0, 1_000.0), between(1.0, 250.0));
        let bdp = rate_mbps * 1e6 / 8.0 * rtt_ms / 1e3;
        let (queue_bdps, rtts) = (between(0.1, 4.0), between(4.0, 60.0));
        let loss = between(1e-3, 0.05);
        let blocks = (bdp / PACKET * rtts).clamp(40.0, 2_500.0).round();
        let loss = if random.below(2) == 0 { 0.0 } else { loss };
        Self {
            rate_mbps,
            rtt_ms,
            loss,
            burst: [1, 8][random.below(2) as usize],
            queue_bytes: (bdp * queue_bdps).max(4.0 * PACKET),
            servers: 1 + random.below(8),
            blocks,
        }
    }
    /// Bandwidth-delay product in bytes.
    fn bdp_bytes(&self) -> f64 {
        self.rate_mbps * 1e6 / 8.0 * self.rtt_ms / 1e3
    }
    /// The network as a topology: the client behind one link, and behind that link the servers, at
    /// half to one and a half times their mean distance.
    fn network(&self) -> String {
        let mut text = String::from(
            "name = \"paths\"\n[[site]]\nname = \"switch\"\nswitch = true\n[[site]]\nname = \"client\"\n",
        );
        for server in 0..self.servers {
            let _ = write!(text, "[[site]]\nname = \"s{server}\"\n");
        }
        let mut cable = |site: &str, rate: f64, far: f64, loss: f64| {
            let (delay_us, loss_ppm) = (self.rtt_ms / 4.0 * far * 1e3, loss * 1e6);
            let _ = write!(
                text,
                "[[cable]]\nbetween = [\"switch\", \"{site}\"]\ncapacity = \"{rate:.3} Mbit/s\"\ndelay = \"{delay_us:.0} us\"\n\
                 loss_ppm = {loss_ppm:.0}\nloss_burst = {}\nqueue = \"{:.0} B\"\n",
                self.burst, self.queue_bytes
            );
        };
        cable("client", self.rate_mbps, 1.0, self.loss);
        for server in 0..self.servers {
            let far = 0.5 + (server as f64 + 0.5) / self.servers as f64;
            cable(&format!("s{server}"), 2.0 * self.rate_mbps, far, 0.0);
        }
        text
    }
    fn run(&self, trial: u64) -> Outcome {
        self.run_over(&self.network(), trial)
    }
    /// Runs a trial with servers' links of `rate_mbps` Mbit/s.
    fn run_with_servers_of(&self, rate_mbps: f64, trial: u64) -> Outcome {
        let capacity = |rate: f64| format!("capacity = \"{rate:.3} Mbit/s\"");
        self.run_over(&self.network().replace(&capacity(2.0 * self.rate_mbps), &capacity(rate_mbps)), trial)
    }
    fn run_over(&self, network: &str, trial: u64) -> Outcome {
        let text = format!(
            "network = {{ topology = \"net.toml\" }}\n[transport]\nrack = true\n[workload]\nkind = \"gather\"\nclient = \"client\"\n\
             servers = {}\nblock = \"{} B\"\nsame_block = true\nrounds = 1\nknows_link = false\nsymbol = \"{BLOCK} B\"\ngeneration = 184\n\
             [probe]\ninterval = \"{:.0} us\"\nlinks = [\"switch-client\"]\n",
            self.servers,
            self.blocks * BLOCK,
            self.rtt_ms * 1e3
        );
        let point =
            scenario::read("paths.toml", &text, &[]).unwrap_or_else(|error| panic!("{error}")).remove(0);
        let plan = Plan::with_systems(point.scenario, &|_: &str| Ok(network.to_owned()), &[&SimulatedSystem]);
        let plan = plan.unwrap_or_else(|error| panic!("{error}: {self:?}"));
        let simulation: Simulation<'_> = Simulation::new(&plan, trial).expect("it can be planned");
        simulation.run()
    }
    /// Panics: if a trial delivers less than the fraction `share` of the link's rate.
    fn brings(&self, trials: std::ops::Range<u64>, share: f64) {
        for trial in trials {
            let goodput = self.run(trial).workloads[0].goodput_mbps.expect("all comes");
            assert!(goodput > share * self.rate_mbps, "trial {trial}: {goodput} Mbit/s: {self:?}");
        }
    }
}

/// Number of windows that the start may lose, because servers find the rate by exceeding it.
const BEGINS_WINDOWS: f64 = 7.0;
/// Number of round trips allowed for the start and the end.
const BEGINS_RTTS: f64 = 45.0;
/// Time allowed for TCP's timeouts in seconds, if its first segments are lost.
const TIMEOUTS_S: f64 = 4.0;

/// Number of paths out of a thousand that may exceed these bounds by chance. In ten draws 7 of
/// 10,000 paths do, and 8 did before the start had trains. Most of these paths have queues of a few
/// packets. In this draw one path does, which is slow and long: a queue remains after BBR's probe
/// for the minimum round-trip time. On two paths of other draws, bursts hit TCP's control channel:
/// 9 and 13 timeouts took 24 and 342 s. The length of a burst is in packets, so a burst is long if
/// a packet leaves only every few seconds.
const BEYOND_MOST: u64 = 1;

#[test]
fn objects_on_random_paths_arrive_within_bounds() {
    let mut random = Seed::new(19).stream("paths", 0);
    let mut beyond: Vec<String> = Vec::new();
    for number in 0..PATHS {
        let path = Path::draw(&mut random);
        let outcome = path.run(number);
        let row = &outcome.workloads[0];
        let Some(goodput) = row.goodput_mbps else { panic!("path {number} brings nothing: {path:?}") };
        let (rtt_s, bdp) = (path.rtt_ms / 1e3, path.bdp_bytes());

        // The number of packets exceeds the path's losses by at most a few windows, whatever the
        // queue.
        let window = (bdp + path.queue_bytes) / PACKET + 10.0 * path.servers as f64;
        let needed = path.blocks / (1.0 - path.loss);
        let sent = row.more["sent_packets_per_block"] * path.blocks;
        if sent > needed + BEGINS_WINDOWS * window {
            beyond.push(format!("path {number}: {sent} packets sent: {path:?}"));
        }

        // The transfer has no stall.
        let ideal_s = needed * PACKET / bdp * rtt_s;
        let took_s = path.blocks * BLOCK * 8.0 / goodput / 1e6;
        let is_lossy = outcome.network.dropped_queue_full + outcome.network.dropped_otherwise > 0;
        let most_s = 1.25 * ideal_s + BEGINS_RTTS * rtt_s + if is_lossy { TIMEOUTS_S } else { 0.0 };
        if took_s > most_s {
            beyond.push(format!("path {number}: {took_s} s, ideal {ideal_s}: {path:?}"));
        }

        // The queue of the start drains: afterwards the mean queue is at most the path's
        // bandwidth-delay product.
        let late = outcome.series.iter().filter(|sample| sample.time_s > 30.0 * rtt_s);
        let queues: Vec<f64> =
            late.filter_map(|sample| sample.queue_bytes).map(|bytes| bytes as f64).collect();
        if queues.len() > 10 {
            let mean = queues.iter().sum::<f64>() / queues.len() as f64;
            let most = bdp + 16.0 * PACKET * path.servers as f64;
            if mean > most {
                beyond.push(format!("path {number}: a queue of {mean} bytes stands: {path:?}"));
            }
        }
    }
    assert!(beyond.len() as u64 <= BEYOND_MOST, "{beyond:#?}");
}

/// Issue #19: a pull waited two seconds behind another pull of the same server. When the other pull
/// ended, the client requested the waiting pull again in shorter packets. An eighth of all packets
/// arrived twice.
#[test]
fn packets_that_were_not_lost_arrive_once() {
    let path = Path {
        rate_mbps: 100.0,
        rtt_ms: 250.0,
        loss: 0.0,
        burst: 1,
        queue_bytes: 4.0 * 3_125_000.0,
        servers: 8,
        blocks: 20_000.0,
    };
    let outcome = path.run(0);
    assert_eq!(outcome.network.dropped_queue_full + outcome.network.dropped_otherwise, 0);
    let sent = outcome.workloads[0].more["sent_packets_per_block"];
    // At the end one server takes over a part that another server would deliver later.
    assert!(sent < 1.04, "{sent} packets to a block");
}

/// Issue #19: servers with equal grants sent in the same rhythm, and packets that met in the full
/// queue met there every time. Half of the link was unused.
#[test]
fn many_servers_share_a_queue_of_a_few_packets() {
    let path = Path {
        rate_mbps: 100.0,
        rtt_ms: 1.0,
        loss: 0.0,
        burst: 1,
        queue_bytes: 12_500.0,
        servers: 32,
        blocks: 16_000.0,
    };
    path.brings(0..3, 0.8);
}

/// Issue #19: 32 servers behind a queue of four packets had 5 % loss and reached 84 Mbit/s. A few
/// servers reach the rate of a single server. If the servers' links are slow, a few servers do not
/// fill the client's link, and all servers are used.
#[test]
fn few_servers_are_asked_if_sufficient_for_the_link() {
    let path = Path {
        rate_mbps: 100.0,
        rtt_ms: 1.0,
        loss: 0.0,
        burst: 1,
        queue_bytes: 6_000.0,
        servers: 32,
        blocks: 46_800.0,
    };
    let goodput = |outcome: &Outcome| outcome.workloads[0].goodput_mbps.expect("all comes");
    // The drops of a single seed are not evidence: of twelve seeds on this path, one drops 650
    // packets and one 2,300.
    let outcomes: Vec<Outcome> = (0..5).map(|trial| path.run(trial)).collect();
    let mut dropped: Vec<u64> = outcomes.iter().map(|outcome| outcome.network.dropped_queue_full).collect();
    dropped.sort_unstable();
    let slowest = outcomes.iter().map(goodput).fold(f64::INFINITY, f64::min);
    assert!(slowest > 90.0 && dropped[2] < 1_400, "{slowest} Mbit/s, {dropped:?} dropped");
    let path = Path { queue_bytes: 65_536.0, ..path };
    for rate_mbps in [24.0, 12.0, 4.0] {
        let goodput = goodput(&path.run_with_servers_of(rate_mbps, 0));
        assert!(goodput > 91.0, "{goodput} Mbit/s with servers of {rate_mbps}");
    }
}

/// Issue #19: each of 32 servers began with four packets and doubled them. A fourth of the packets
/// was dropped when each server sent 64 KiB.
#[test]
fn common_start_of_many_servers_drops_few_packets() {
    let path = Path {
        rate_mbps: 100.0,
        rtt_ms: 1.0,
        loss: 0.0,
        burst: 1,
        queue_bytes: 65_536.0,
        servers: 32,
        blocks: 1_472.0,
    };
    for trial in 0..3 {
        let outcome = path.run(trial);
        let (row, dropped) = (&outcome.workloads[0], outcome.network.dropped_queue_full);
        assert!((dropped as f64) < 0.05 * path.blocks, "{dropped} of {} dropped", path.blocks);
        assert!(row.goodput_mbps.expect("all comes") > 80.0, "{:?}", row.goodput_mbps);
    }
}

/// Issue #19: behind a deep queue, servers found rates that differ tenfold, and the slowest servers
/// had the last pulls. The link was idle for a third of the time.
#[test]
fn last_servers_use_capacity_of_finished_servers() {
    let path = Path {
        rate_mbps: 1_000.0,
        rtt_ms: 20.0,
        loss: 0.01,
        burst: 1,
        queue_bytes: 4.0 * 2_500_000.0,
        servers: 32,
        blocks: 47_000.0,
    };
    path.brings(0..2, 0.65);
}

/// Issue #19: when the first servers ran out of requests, the other servers were limited to rates
/// from the start. 1 MiB took a fifth longer.
#[test]
fn server_still_probing_is_not_limited_near_the_end() {
    let path = Path {
        rate_mbps: 100.0,
        rtt_ms: 20.0,
        loss: 0.0,
        burst: 1,
        queue_bytes: 250_000.0,
        servers: 8,
        blocks: 734.0,
    };
    path.brings(0..4, 0.59);
}

/// Issue #19: a lost packet of a short object cost a round trip, although the sender was idle for
/// the whole round trip.
#[test]
fn first_flight_of_a_short_object_repairs_a_loss() {
    let path = Path {
        rate_mbps: 100.0,
        rtt_ms: 20.0,
        loss: 0.01,
        burst: 1,
        queue_bytes: 250_000.0,
        servers: 1,
        blocks: 46.0,
    };
    // One or two packets are lost in 36 of 100 trials, and more in one trial. In some trials
    // retransmissions are lost, too.
    let took_rtts = |trial| {
        let goodput = path.run(trial).workloads[0].goodput_mbps.expect("all comes");
        path.blocks * BLOCK * 8.0 / goodput / 1e3 / path.rtt_ms
    };
    let in_one_flight = (0..100).filter(|trial| took_rtts(*trial) < 1.5).count();
    assert!(in_one_flight >= 85, "{in_one_flight} of 100");
}
