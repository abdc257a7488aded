//! When the circuits of a job turn: the best sequence of choices, step by step.
//!
//! A state is what stands after a step; for each state the sequence that ends first is kept. For chains of phases this is
//! optimal among the choices; for other graphs it is a heuristic. The best single state held for the whole job, which is
//! *staying*, is always among the candidates: no plan is worse.
//!
//! Leaves out: schedules of one phase ([`crate::parallel`]) and paths over standing circuits (`standing`).

use super::failure::moved;
use super::{Failures, Job, JobError, Lost};
use crate::Matching;
use crate::parallel::decompose::decompose;
use crate::parallel::{Orders, orders, timed};
use crate::standing::{DeadPorts, rings, standing_layers, time_over};
use anabranch_units::Duration;

/// Demands of a job whose own matchings are tried as standing circuits.
const OWN_MAX: usize = 6;

/// Action of the circuits for one phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Choice {
    /// The circuits that stand stay.
    Stay,
    /// Other circuits are set up, and then stand.
    Turn,
    /// A schedule of days runs; its last circuits stand for nobody.
    Days,
    /// The phase has nothing to send.
    Idle,
}

impl Choice {
    /// Its word in tables.
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
    /// End of the phases before and of the computation.
    pub ready: Duration,
    /// Last byte.
    pub end: Duration,
    /// Standing circuits in use, as a number; `None` for days and for nothing to send.
    held: Option<usize>,
}

/// Choices for all steps, and what they are measured by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobPlan {
    /// Steps in order.
    pub steps: Vec<Step>,
    /// End of the last step.
    pub makespan: Duration,
    /// Time that no choice of circuits and relays undercuts.
    pub bound: Duration,
    /// Makespan of the best circuits that stand for the whole job. `None` if none reach all pairs.
    pub staying: Option<Duration>,
    /// Makespan of a packet switch without nights, with the same ports.
    pub packet: Duration,
}

/// Times of one demand by each choice, in picoseconds.
struct Costs {
    orders: Orders,
    days: Option<u64>,
    /// Over each of the standing circuits. `None` where a pair has no path.
    standing: Vec<Option<u64>>,
    bound: u64,
    packet: u64,
}

/// A job with the schedules and the standing circuits that its plans choose from.
pub struct Planner<'a> {
    job: &'a Job,
    /// Times of each distinct demand.
    times: Vec<Vec<u64>>,
    /// Distinct demand of each phase. `None` for nothing to send.
    demand_of: Vec<Option<usize>>,
    standing: Vec<Vec<Matching>>,
    costs: Vec<Costs>,
    /// Ports of a network in which all parts work.
    ports: DeadPorts,
}

impl<'a> Planner<'a> {
    /// Schedules each demand and weighs the standing circuits.
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
            bound: bound_with_relays(racks, times, switches.count as u64, switches.night.as_ps()),
            packet: busiest(racks, times).div_ceil(switches.count as u64),
        }
    }

    /// The plan of the job while all parts work.
    ///
    /// Panics: never; a ring reaches all hosts.
    pub fn plan(&self) -> JobPlan {
        self.planned(&self.costs).expect("a ring reaches all hosts")
    }

    /// The plan of the job after `failures`, which are checked: circuits of dead ports move, and bytes take detours.
    ///
    /// Errors: why the job cannot go on.
    /// Cost: paths over the standing circuits; no schedule is made from the start.
    pub fn plan_after(&self, failures: &Failures) -> Result<JobPlan, Lost> {
        let racks = self.job.hosts;
        let night = self.job.switches.night.as_ps();
        let ports = failures.dead_ports(self.job)?;
        if ports == self.ports {
            return self.planned(&self.costs);
        }
        let after = |(costs, times): (&Costs, &Vec<u64>)| {
            let orders = moved(racks, night, &costs.orders, &ports);
            let over = |matchings: &Vec<Matching>| time_over(racks, times, matchings, &ports);
            Costs {
                days: orders.as_ref().map(|orders| timed(racks, night, orders).makespan().as_ps()),
                orders: orders.unwrap_or_default(),
                standing: self.standing.iter().map(over).collect(),
                bound: costs.bound,
                packet: costs.packet,
            }
        };
        self.planned(&self.costs.iter().zip(&self.times).map(after).collect::<Vec<_>>())
    }

    /// Makespan of `plan` if the phases send the bytes of `truth`: circuits last until their pair has sent its bytes.
    ///
    /// Errors: a job that [`Job::check`] refuses. Panics: if `truth` has other phases, hosts or switches.
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
        let mut run = Run::new(self.job.phases.len());
        for step in &plan.steps {
            let (times, days) = &sent[step.phase];
            let how = match step.held {
                Some(held) => {
                    let time = time_over(racks, times, &self.standing[held], &self.ports);
                    How::Standing(held, time.expect("pairs that were planned have a path"))
                }
                None => days.filter(|_| step.choice == Choice::Days).map_or(How::Idle, How::Days),
            };
            run.advance(self.job, step.phase, how);
        }
        Ok(Duration::from_ps(run.end()))
    }

    fn planned(&self, costs: &[Costs]) -> Result<JobPlan, Lost> {
        let staying = (0..self.standing.len()).filter_map(|held| self.held(costs, held)).min_by_key(Run::end);
        let best = self.best(costs)?;
        let stays = staying.as_ref().is_some_and(|staying| staying.end() < best.end());
        let run = if stays { staying.as_ref().expect("there is one") } else { &best };
        let bound = self.least(costs, |costs| costs.bound);
        let packet = self.least(costs, |costs| costs.packet);
        Ok(JobPlan {
            steps: run.steps.clone(),
            makespan: Duration::from_ps(run.end()),
            bound: Duration::from_ps(bound),
            staying: staying.as_ref().map(|run| Duration::from_ps(run.end())),
            packet: Duration::from_ps(packet),
        })
    }

    /// The whole job over standing circuits that never turn.
    fn held(&self, costs: &[Costs], held: usize) -> Option<Run> {
        let mut run = Run::new(self.job.phases.len());
        for _ in 0..self.job.iterations {
            for phase in 0..self.job.phases.len() {
                let how = match self.demand_of[phase] {
                    None => How::Idle,
                    Some(demand) => How::Standing(held, costs[demand].standing[held]?),
                };
                run.advance(self.job, phase, how);
            }
        }
        Some(run)
    }

    fn best(&self, costs: &[Costs]) -> Result<Run, Lost> {
        let mut runs = vec![Run::new(self.job.phases.len())];
        for _ in 0..self.job.iterations {
            for (phase, demand) in self.demand_of.iter().enumerate() {
                runs = match demand {
                    None => {
                        runs.iter_mut().for_each(|run| run.advance(self.job, phase, How::Idle));
                        runs
                    }
                    Some(demand) => self.next(&runs, phase, &costs[*demand]),
                };
                if runs.is_empty() {
                    return Err(Lost::Unreachable { phase: self.job.phases[phase].name.clone() });
                }
            }
        }
        Ok(runs.into_iter().min_by_key(Run::end).expect("a run for one state at least"))
    }

    /// Of each state after `phase` the run that ends first.
    fn next(&self, runs: &[Run], phase: usize, costs: &Costs) -> Vec<Run> {
        let standing = costs.standing.iter().enumerate();
        let all = standing.filter_map(|(held, time)| time.map(|time| How::Standing(held, time)));
        all.chain(costs.days.map(How::Days))
            .filter_map(|how| {
                let ends = |run: &&Run| run.times(self.job, phase, how).1;
                let mut run = runs.iter().min_by_key(ends)?.clone();
                run.advance(self.job, phase, how);
                Some(run)
            })
            .collect()
    }

    /// Time of the job if each phase sends for `time`: the longest path of an iteration, or what the busiest port needs.
    fn least(&self, costs: &[Costs], time: impl Fn(&Costs) -> u64) -> u64 {
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
        let ports = busiest(racks, &sum).div_ceil(self.job.switches.count as u64);
        ends.into_iter().max().unwrap_or(0).max(ports) * self.job.iterations as u64
    }
}

/// How a phase sends, and its time.
#[derive(Clone, Copy)]
enum How {
    Idle,
    Standing(usize, u64),
    Days(u64),
}

/// Steps so far, and what the next one builds on.
#[derive(Clone)]
struct Run {
    steps: Vec<Step>,
    /// Ends of the phases of this iteration.
    ends: Vec<u64>,
    /// End of the iteration before.
    begun: u64,
    /// End of the network's last transfer. `None` before the first one, whose circuits stand in time.
    free: Option<u64>,
    held: Option<usize>,
}

impl Run {
    fn new(phases: usize) -> Self {
        Self { steps: Vec::new(), ends: Vec::with_capacity(phases), begun: 0, free: None, held: None }
    }

    fn end(&self) -> u64 {
        self.ends.iter().copied().max().unwrap_or(0).max(self.begun)
    }

    /// When `phase` is ready to send, and when it has sent.
    fn times(&self, job: &Job, phase: usize, how: How) -> (u64, u64) {
        let begun = if phase == 0 { self.end() } else { self.begun };
        let before = job.phases[phase].after.iter().map(|before| self.ends[*before]).max();
        let ready = before.unwrap_or(begun) + job.phases[phase].compute.as_ps();
        let night = job.switches.night.as_ps();
        let end = match (how, self.free) {
            (How::Idle, _) => ready,
            (How::Standing(_, time), None) => ready + time,
            (How::Days(time), None) => ready + time - night,
            (How::Standing(held, time), Some(free)) => {
                ready.max(free + if self.held == Some(held) { 0 } else { night }) + time
            }
            // The first night of each port passes while the network waits for the phase.
            (How::Days(time), Some(free)) => ready.max(free) + time - night.min(ready.saturating_sub(free)),
        };
        (ready, end)
    }

    fn advance(&mut self, job: &Job, phase: usize, how: How) {
        let (ready, end) = self.times(job, phase, how);
        if phase == 0 {
            self.begun = self.end();
            self.ends.clear();
        }
        let (choice, held) = match how {
            How::Idle => (Choice::Idle, None),
            How::Days(_) => (Choice::Days, None),
            How::Standing(held, _) => {
                let stays = self.held == Some(held) || self.free.is_none();
                (if stays { Choice::Stay } else { Choice::Turn }, Some(held))
            }
        };
        if !matches!(how, How::Idle) {
            (self.free, self.held) = (Some(end), held);
        }
        self.ends.push(end);
        self.steps.push(Step {
            iteration: self.steps.len() / job.phases.len(),
            phase,
            choice,
            ready: Duration::from_ps(ready),
            end: Duration::from_ps(end),
            held,
        });
    }
}

/// Time of the busiest host, sending or receiving, on one port.
fn busiest(racks: usize, times: &[u64]) -> u64 {
    let row = |at: usize| times[at * racks..][..racks].iter().sum::<u64>();
    let column = |at: usize| (0..racks).map(|other| times[other * racks + at]).sum::<u64>();
    (0..racks).map(|at| row(at).max(column(at))).max().unwrap_or(0)
}

/// A time that no circuits undercut, even if hosts relay and each port finds a circuit standing.
///
/// The busiest host needs its bytes' time on its ports. And of each host's partners at most as many as it has ports stand at
/// first: each further one costs a night of a port, or its bytes pass a second sending port. The sum over all hosts
/// is at most what all ports have; the same holds of receiving.
fn bound_with_relays(racks: usize, times: &[u64], count: u64, night: u64) -> u64 {
    let need = |mut line: Vec<u64>| {
        line.sort_unstable_by_key(|time| std::cmp::Reverse(*time));
        let sum: u128 = line.iter().map(|time| u128::from(*time)).sum();
        let further = line.iter().skip(usize::try_from(count).unwrap_or(usize::MAX));
        sum + further.map(|time| u128::from((*time).min(night))).sum::<u128>()
    };
    let rows: u128 = (0..racks).map(|at| need(times[at * racks..][..racks].to_vec())).sum();
    let columns: u128 =
        (0..racks).map(|at| need((0..racks).map(|other| times[other * racks + at]).collect())).sum();
    let all = rows.max(columns).div_ceil(racks as u128 * u128::from(count));
    busiest(racks, times)
        .div_ceil(count)
        .max(u64::try_from(all).expect("at most the sum of all times and nights"))
}

/// The pieces of `orders` with lengths that add up to `times`, in the proportions that they have.
fn stretched(racks: usize, orders: &Orders, times: &[u64]) -> Orders {
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
