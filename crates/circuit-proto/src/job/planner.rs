//! Planner of a job's circuits: the best sequence of choices, step by step.
//!
//! A state is the set of standing circuits after a step; for each state, only the sequence that
//! ends first is kept. The result is optimal among the choices for chains of phases, and a
//! heuristic for other graphs. *Staying*, the best single state for the whole job, is always among
//! the candidates, so no plan is worse than staying.
//!
//! Leaves out: schedules of one phase ([`crate::parallel`]) and paths over standing circuits
//! (`standing`).

use super::failure::moved;
use super::{Failures, Job, JobError, JobFailure};
use crate::Matching;
use crate::parallel::decompose::decompose;
use crate::parallel::{PieceOrders, orders, timed};
use crate::standing::{DeadPorts, rings, standing_layers, time_over};
use crate::sums::Sums;
use anabranch_units::Duration;

/// Maximum number of demands of a job whose own matchings are tried as standing circuits.
const OWN_MAX: usize = 6;

/// Action of the circuits for one phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Choice {
    /// The standing circuits are kept.
    Stay,
    /// The switches reconfigure to other circuits, which are then the standing circuits.
    Turn,
    /// A schedule of days runs; no later phase uses its last circuits.
    Days,
    /// The phase has nothing to send.
    Idle,
}

impl Choice {
    /// Name of the choice in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stay => "stay",
            Self::Turn => "turn",
            Self::Days => "days",
            Self::Idle => "idle",
        }
    }
}

/// One phase of one iteration in a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Number of the iteration, from 0.
    pub iteration: usize,
    /// Number of the phase.
    pub phase: usize,
    /// Action of the circuits.
    pub choice: Choice,
    /// Time at which the hosts have computed and can send.
    pub ready: Duration,
    /// Time of the phase's last byte.
    pub end: Duration,
    /// Index of the standing circuits in use; `None` for a schedule of days and for an idle phase.
    held: Option<usize>,
}

/// Choices for all steps, their makespan, and the makespans to compare it with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobPlan {
    /// Steps in order.
    pub steps: Vec<Step>,
    /// End of the last step.
    pub makespan: Duration,
    /// Lower bound of the makespan for any choice of circuits and relays, with the ports that work.
    pub bound: Duration,
    /// Makespan of the best circuits that are kept for the whole job. `None` if none reach all
    /// pairs.
    pub staying: Option<Duration>,
    /// Makespan of a packet switch, which has no nights, with the ports that work.
    pub packet: Duration,
}

/// Times of one demand under each choice, in picoseconds.
struct Costs {
    orders: PieceOrders,
    days: Option<u64>,
    /// Time over each set of standing circuits. `None` if a pair has no path.
    standing: Vec<Option<u64>>,
    bound: u64,
    packet: u64,
}

/// A job, with the schedules and the standing circuits from which its plans choose.
pub struct Planner<'a> {
    job: &'a Job,
    /// Times of each distinct demand, by pair.
    times: Vec<Vec<u64>>,
    /// Index of each phase's demand in `times`. `None` if the phase sends no bytes.
    demand_of: Vec<Option<usize>>,
    standing: Vec<Vec<Matching>>,
    costs: Vec<Costs>,
    /// Ports of a network without failures.
    ports: DeadPorts,
}

impl<'a> Planner<'a> {
    /// Schedules each demand, and computes its time over each set of standing circuits.
    ///
    /// Errors: a job that [`Job::check`] refuses.
    pub fn new(job: &'a Job) -> Result<Self, JobError> {
        job.check()?;
        let (racks, count) = (job.hosts, job.switches.count);
        let mut times: Vec<Vec<u64>> = Vec::new();
        let mut demand_of = Vec::new();
        for phase in &job.phases {
            let of = job.switches.times(&phase.demand)?;
            let known = times.iter().position(|known| *known == of);
            let is_idle = of.iter().all(|time| *time == 0);
            demand_of.push((!is_idle).then(|| known.unwrap_or(times.len())));
            if known.is_none() && !is_idle {
                times.push(of);
            }
        }
        let mut standing = rings(racks, count);
        for times in times.iter().take(OWN_MAX) {
            let own = standing_layers(racks, &decompose(racks, times, u64::MAX), count);
            if !standing.contains(&own) {
                standing.push(own);
            }
        }
        let ports = vec![false; racks * count];
        let mut planner = Self { job, times, demand_of, standing, costs: Vec::new(), ports };
        planner.costs = planner.times.iter().map(|times| planner.cost(times)).collect();
        Ok(planner)
    }

    fn cost(&self, times: &[u64]) -> Costs {
        let (racks, switches) = (self.job.hosts, &self.job.switches);
        let orders = orders(racks, times, switches);
        let days = timed(racks, switches.night.as_ps(), &orders).makespan().as_ps();
        let over = |matchings: &Vec<Matching>| time_over(racks, times, matchings, &self.ports);
        Costs {
            orders,
            days: Some(days),
            standing: self.standing.iter().map(over).collect(),
            bound: bound_with_relays(times, &alive(racks, &self.ports), switches.night.as_ps()),
            packet: busiest(times, &alive(racks, &self.ports)),
        }
    }

    /// The plan of the job without failures.
    ///
    /// Panics: never; a ring reaches all hosts.
    pub fn plan(&self) -> JobPlan {
        self.planned(&self.costs, &self.ports).expect("a ring reaches all hosts")
    }

    /// The plan of the job after `failures`, which the caller has checked: circuits of dead ports
    /// move, and bytes take detours.
    ///
    /// Errors: the reason why the job cannot continue.
    /// Cost: paths over the standing circuits; existing schedules are adapted, not recomputed.
    pub fn plan_after(&self, failures: &Failures) -> Result<JobPlan, JobFailure> {
        let racks = self.job.hosts;
        let night = self.job.switches.night.as_ps();
        let ports = failures.dead_ports(self.job)?;
        if ports == self.ports {
            return self.planned(&self.costs, &ports);
        }
        let alive = alive(racks, &ports);
        let after = |(costs, times): (&Costs, &Vec<u64>)| {
            let orders = moved(racks, night, &costs.orders, &ports);
            let over = |matchings: &Vec<Matching>| time_over(racks, times, matchings, &ports);
            Costs {
                days: orders.as_ref().map(|orders| timed(racks, night, orders).makespan().as_ps()),
                orders: orders.unwrap_or_default(),
                standing: self.standing.iter().map(over).collect(),
                bound: bound_with_relays(times, &alive, night),
                packet: busiest(times, &alive),
            }
        };
        self.planned(&self.costs.iter().zip(&self.times).map(after).collect::<Vec<_>>(), &ports)
    }

    /// Makespan of `plan` if the phases send the bytes of `truth`: each circuit lasts until its
    /// pair has sent its bytes.
    ///
    /// Errors: a job that [`Job::check`] refuses; bytes of a pair for which the plan has no
    /// circuits.
    /// Panics: if `truth` has other phases, hosts or switches.
    pub fn executed(&self, plan: &JobPlan, truth: &Job) -> Result<Duration, JobError> {
        truth.check()?;
        let racks = self.job.hosts;
        let same = truth.hosts == racks && truth.phases.len() == self.job.phases.len();
        assert!(same && truth.switches == self.job.switches, "a plan is for one network and its phases");
        let night = truth.switches.night.as_ps();
        let mut sent = Vec::new();
        for (phase, demand) in truth.phases.iter().zip(&self.demand_of) {
            let times = truth.switches.times(&phase.demand)?;
            let days = demand.map(|demand| {
                let orders = stretched(racks, &self.costs[demand].orders, &times);
                timed(racks, night, &orders).makespan().as_ps()
            });
            sent.push((times, days));
        }
        let mut run = Run::default();
        for step in &plan.steps {
            let (times, days) = &sent[step.phase];
            let how = match step.held {
                Some(held) => match time_over(racks, times, &self.standing[held], &self.ports) {
                    Some(time) => PhaseMode::Standing(held, time),
                    None => {
                        return Err(self.unplanned(step.phase, times).expect("planned pairs have a path"));
                    }
                },
                None => match self.unplanned(step.phase, times) {
                    Some(error) => return Err(error),
                    None => {
                        days.filter(|_| step.choice == Choice::Days).map_or(PhaseMode::Idle, PhaseMode::Days)
                    }
                },
            };
            run.advance(self.job, step.phase, how);
        }
        Ok(Duration::from_ps(run.end()))
    }

    /// Returns an error for the first pair that has bytes in `times` but none in the plan of
    /// `phase`.
    fn unplanned(&self, phase: usize, times: &[u64]) -> Option<JobError> {
        let planned = self.demand_of[phase].map(|demand| &self.times[demand]);
        let is_planned = |pair: usize| planned.is_some_and(|planned| planned[pair] > 0);
        let pair = (0..times.len()).find(|pair| times[*pair] > 0 && !is_planned(*pair))?;
        let (source, destination) = (pair / self.job.hosts, pair % self.job.hosts);
        Some(JobError::Unplanned { phase: self.job.phases[phase].name.clone(), source, destination })
    }

    /// The plan with the dead ports `ports`, given the times of each demand with these ports.
    fn planned(&self, costs: &[Costs], ports: &DeadPorts) -> Result<JobPlan, JobFailure> {
        let mut steps = Steps::default();
        let held = (0..self.standing.len()).filter_map(|held| self.held(costs, held, &mut steps));
        let staying = held.min_by_key(Run::end);
        let best = self.best(costs, &mut steps)?;
        let stays = staying.as_ref().is_some_and(|staying| staying.end() < best.end());
        let run = if stays { staying.as_ref().expect("there is one") } else { &best };
        let alive = alive(self.job.hosts, ports);
        let bound = self.least(&alive, costs, |costs| costs.bound);
        let packet = self.least(&alive, costs, |costs| costs.packet);
        Ok(JobPlan {
            steps: steps.until(run),
            makespan: Duration::from_ps(run.end()),
            bound: Duration::from_ps(bound),
            staying: staying.as_ref().map(|run| Duration::from_ps(run.end())),
            packet: Duration::from_ps(packet),
        })
    }

    /// The run of the whole job over one set of standing circuits that is never changed.
    fn held(&self, costs: &[Costs], held: usize, steps: &mut Steps) -> Option<Run> {
        let mut run = Run::default();
        for _ in 0..self.job.iterations {
            for phase in 0..self.job.phases.len() {
                let how = match self.demand_of[phase] {
                    None => PhaseMode::Idle,
                    Some(demand) => PhaseMode::Standing(held, costs[demand].standing[held]?),
                };
                steps.advance(&mut run, self.job, phase, how);
            }
        }
        Some(run)
    }

    fn best(&self, costs: &[Costs], steps: &mut Steps) -> Result<Run, JobFailure> {
        let mut runs = vec![Run::default()];
        for _ in 0..self.job.iterations {
            for (phase, demand) in self.demand_of.iter().enumerate() {
                runs = match demand {
                    None => {
                        runs.iter_mut().for_each(|run| steps.advance(run, self.job, phase, PhaseMode::Idle));
                        runs
                    }
                    Some(demand) => self.next(&runs, phase, &costs[*demand], steps),
                };
                if runs.is_empty() {
                    return Err(JobFailure::Unreachable { phase: self.job.phases[phase].name.clone() });
                }
            }
        }
        Ok(runs.into_iter().min_by_key(Run::end).expect("a run for one state at least"))
    }

    /// For each state after `phase`, the run that ends first. Cost: O(states^2 + states * phases).
    fn next(&self, runs: &[Run], phase: usize, costs: &Costs, steps: &mut Steps) -> Vec<Run> {
        let standing = costs.standing.iter().enumerate();
        let all = standing.filter_map(|(held, time)| time.map(|time| PhaseMode::Standing(held, time)));
        all.chain(costs.days.map(PhaseMode::Days))
            .filter_map(|how| {
                let ends = |run: &&Run| run.times(self.job, phase, how).1;
                let mut run = runs.iter().min_by_key(ends)?.clone();
                steps.advance(&mut run, self.job, phase, how);
                Some(run)
            })
            .collect()
    }

    /// Lower bound of the job's time if each phase sends for `time`. The maximum of the longest
    /// path of an iteration, and of the time of the busiest port of hosts with `alive` ports.
    fn least(&self, alive: &[u64], costs: &[Costs], time: impl Fn(&Costs) -> u64) -> u64 {
        let sends = |phase: usize| self.demand_of[phase].map_or(0, |demand| time(&costs[demand]));
        let mut ends: Vec<u64> = Vec::new();
        for (number, phase) in self.job.phases.iter().enumerate() {
            let begins = phase.after.iter().map(|before| ends[*before]).max().unwrap_or(0);
            ends.push(begins + phase.compute.as_ps() + sends(number));
        }
        let racks = self.job.hosts;
        let mut sum = vec![0u64; racks * racks];
        for demand in self.demand_of.iter().flatten() {
            sum.iter_mut().zip(&self.times[*demand]).for_each(|(sum, time)| *sum += time);
        }
        ends.into_iter().max().unwrap_or(0).max(busiest(&sum, alive)) * self.job.iterations as u64
    }
}

/// How a phase sends, with its time in picoseconds.
#[derive(Clone, Copy)]
enum PhaseMode {
    Idle,
    Standing(usize, u64),
    Days(u64),
}

/// Steps of all runs, each with the index of the run's previous step.
#[derive(Default)]
struct Steps(Vec<(Step, Option<usize>)>);

impl Steps {
    /// Advances a run, and stores its step.
    fn advance(&mut self, run: &mut Run, job: &Job, phase: usize, how: PhaseMode) {
        let step = run.advance(job, phase, how);
        self.0.push((step, run.last));
        run.last = Some(self.0.len() - 1);
    }

    /// The steps of a run, in order.
    fn until(&self, run: &Run) -> Vec<Step> {
        let before = |at: &usize| self.0[*at].1;
        let mut steps: Vec<Step> = std::iter::successors(run.last, before).map(|at| self.0[at].0).collect();
        steps.reverse();
        steps
    }
}

/// The state of the network after some steps.
#[derive(Clone, Default)]
struct Run {
    /// Number of the run's steps.
    count: usize,
    /// Index of the last step in [`Steps`]. `None` before the first step, and for a run whose steps
    /// are not stored.
    last: Option<usize>,
    /// Ends of the phases of the current iteration.
    ends: Vec<u64>,
    /// End of the previous iteration.
    begun: u64,
    /// End of the network's last transfer. `None` before the first transfer, whose circuits are set
    /// up before the job starts.
    free: Option<u64>,
    held: Option<usize>,
}

impl Run {
    fn end(&self) -> u64 {
        self.ends.iter().copied().max().unwrap_or(0).max(self.begun)
    }

    /// Time at which `phase` is ready to send, and time at which it has sent.
    fn times(&self, job: &Job, phase: usize, how: PhaseMode) -> (u64, u64) {
        let begun = if phase == 0 { self.end() } else { self.begun };
        let before = job.phases[phase].after.iter().map(|before| self.ends[*before]).max();
        let ready = before.unwrap_or(begun) + job.phases[phase].compute.as_ps();
        let night = job.switches.night.as_ps();
        let end = match (how, self.free) {
            (PhaseMode::Idle, _) => ready,
            (PhaseMode::Standing(_, time), None) => ready + time,
            (PhaseMode::Days(time), None) => ready + time - night,
            (PhaseMode::Standing(held, time), Some(free)) => {
                ready.max(free + if self.held == Some(held) { 0 } else { night }) + time
            }
            // The first night of each port can pass while the network waits for the phase.
            (PhaseMode::Days(time), Some(free)) => {
                ready.max(free) + time - night.min(ready.saturating_sub(free))
            }
        };
        (ready, end)
    }

    /// Advances the run by one step, and returns the step.
    fn advance(&mut self, job: &Job, phase: usize, how: PhaseMode) -> Step {
        let (ready, end) = self.times(job, phase, how);
        if phase == 0 {
            self.begun = self.end();
            self.ends.clear();
        }
        let (choice, held) = match how {
            PhaseMode::Idle => (Choice::Idle, None),
            PhaseMode::Days(_) => (Choice::Days, None),
            PhaseMode::Standing(held, _) => {
                let stays = self.held == Some(held) || self.free.is_none();
                (if stays { Choice::Stay } else { Choice::Turn }, Some(held))
            }
        };
        if !matches!(how, PhaseMode::Idle) {
            (self.free, self.held) = (Some(end), held);
        }
        self.ends.push(end);
        self.count += 1;
        let iteration = (self.count - 1) / job.phases.len();
        let (ready, end) = (Duration::from_ps(ready), Duration::from_ps(end));
        Step { iteration, phase, choice, ready, end, held }
    }
}

/// Number of live ports of each host. At least one, because a host without ports is replaced by a
/// spare.
fn alive(racks: usize, dead: &DeadPorts) -> Vec<u64> {
    (0..racks).map(|host| dead.chunks(racks).filter(|ports| !ports[host]).count() as u64).collect()
}

/// Time of the busiest port, sending or receiving, if each host shares its bytes equally among its
/// `alive` ports.
fn busiest(times: &[u64], alive: &[u64]) -> u64 {
    let sums = Sums::of(alive.len(), times.iter().copied());
    let needs = sums.rows.iter().zip(&sums.columns).map(|(row, column)| row.max(column));
    needs.zip(alive).map(|(need, ports)| need.div_ceil(*ports)).max().unwrap_or(0)
}

/// Lower bound of a phase's time for any circuits, even if hosts relay and each port has a circuit
/// at the start.
///
/// The busiest host needs the time of its bytes on its ports. Initially a host has circuits to at
/// most as many partners as it has ports. For each further partner, either a port spends a night,
/// or the bytes pass a second sending port. The sum over all hosts is at most the time of all
/// ports. The same holds for receiving.
fn bound_with_relays(times: &[u64], alive: &[u64], night: u64) -> u64 {
    let racks = alive.len();
    let need = |host: usize, mut line: Vec<u64>| {
        line.sort_unstable_by_key(|time| std::cmp::Reverse(*time));
        let sum: u128 = line.iter().map(|time| u128::from(*time)).sum();
        let further = line.iter().skip(usize::try_from(alive[host]).unwrap_or(usize::MAX));
        sum + further.map(|time| u128::from((*time).min(night))).sum::<u128>()
    };
    let row = |at: usize| times[at * racks..][..racks].to_vec();
    let column = |at: usize| (0..racks).map(|other| times[other * racks + at]).collect();
    let rows: u128 = (0..racks).map(|at| need(at, row(at))).sum();
    let columns: u128 = (0..racks).map(|at| need(at, column(at))).sum();
    let ports: u128 = alive.iter().map(|ports| u128::from(*ports)).sum();
    let all =
        u64::try_from(rows.max(columns).div_ceil(ports)).expect("at most the sum of all times and nights");
    busiest(times, alive).max(all)
}

/// Scales the pieces of `orders`, pair by pair, so that their lengths add up to `times`.
fn stretched(racks: usize, orders: &PieceOrders, times: &[u64]) -> PieceOrders {
    let mut planned = vec![0u64; racks * racks];
    for piece in orders.iter().flatten() {
        planned[piece.source * racks + piece.destination] += piece.length;
    }
    let mut left = times.to_vec();
    let mut stretched = orders.clone();
    for piece in stretched.iter_mut().flatten() {
        let pair = piece.source * racks + piece.destination;
        let share = u128::from(left[pair]) * u128::from(piece.length) / u128::from(planned[pair]);
        planned[pair] -= piece.length;
        piece.length = u64::try_from(share).expect("a part of it");
        left[pair] -= piece.length;
    }
    stretched
}
