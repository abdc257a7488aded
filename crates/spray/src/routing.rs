//! Kernel rules and routes of the agent, compared with the kernel's state every second.
//!
//! A peer has a route into the device while its packets travel in datagrams. Otherwise it has no
//! route there, and the kernel tries its next rules. The device ends with the agent's process, and
//! the routes end with the device. A killed agent leaves rules without effect, which its guard or
//! the next agent deletes.
//!
//! `spray_proto::kernel` decides on repairs; this module lists the kernel's state and makes the
//! repairs. Leaves out: forwarded packets, whose routes do not change. Read [`Routing`] first.

use crate::forward::Command;
use crate::kernel::Kernel;
use crate::pulse::Pulse;
use anabranch_linux::netlink::NetlinkError;
use anabranch_spray_proto::kernel::{Event, Fault, KernelState, PeerEndpoint, Reconciler, Repair, Route};
use anabranch_units::{Duration, Instant};
use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{mpsc, oneshot, watch};

/// Interval between two comparisons with the kernel's state.
const COMPARE_EVERY: std::time::Duration = std::time::Duration::from_secs(1);
/// Time limit for the forwarding thread to create a device.
const MAKE_TIME: std::time::Duration = std::time::Duration::from_secs(2);

/// Error in setting the kernel's rules.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RoutingError {
    /// The kernel does not answer.
    #[error("rtnetlink: {0}: an agent lists rules and routes: Linux 4.17 or newer is needed")]
    Netlink(io::Error),
    /// Another agent uses the table.
    #[error("table {0}: another agent of this host has it: end that agent, or choose another --table")]
    TableTaken(u32),
    /// The kernel refused a rule, a route or a device.
    #[error("{what}: {error}: an agent sets routes: run it as root, or with CAP_NET_ADMIN")]
    Refused {
        /// The rule, route or device.
        what: String,
        /// The system's error.
        error: io::Error,
    },
}

/// Rules and routes of one agent. Dropping the value deletes them.
#[derive(Debug)]
pub(crate) struct Routing {
    state: Mutex<State>,
    device: String,
    table: u32,
    epoch: std::time::Instant,
}

#[derive(Debug)]
struct State {
    kernel: Kernel,
    reconciler: Reconciler,
    /// Index of the device.
    index: u32,
}

impl Routing {
    /// Deletes stale rules of agents. This agent listens on `port`, its device has this index, and
    /// it has no peer yet.
    ///
    /// Errors: see [`RoutingError`]; after an error no rule of this agent remains.
    pub(crate) fn set_up((device, index): (&str, u32), table: u32, port: u16) -> Result<Self, RoutingError> {
        let netlink = |error: NetlinkError| RoutingError::Netlink(error.into());
        let mut kernel = Kernel::open().map_err(netlink)?;
        let live = kernel.live_tables().map_err(netlink)?;
        if live.contains(&table) {
            return Err(RoutingError::TableTaken(table));
        }
        kernel
            .mark_device(index, table)
            .map_err(|error| refused(format!("alias of device `{device}`"), error))?;
        let reconciler = Reconciler::new(table, port, Vec::new(), filters("all"));
        let mut left = kernel.rules(false).map_err(netlink)?;
        // A kernel without IPv6 has no rules for it.
        left.extend(kernel.rules(true).unwrap_or_default());
        let repairs = reconciler.begin(&left, &live);
        let routing = Self {
            state: Mutex::new(State { kernel, reconciler, index }),
            device: device.to_owned(),
            table,
            epoch: std::time::Instant::now(),
        };
        for repair in repairs {
            // After an error, dropping the value removes the rules set so far.
            routing.apply(&mut routing.lock(), &repair)?;
        }
        Ok(routing)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Instant {
        Instant::from_std(self.epoch.elapsed())
    }

    /// Updates the rules for the peers that have an address.
    ///
    /// Errors: the first rule that the kernel refuses; all further rules are still set.
    pub(crate) fn set_peers(&self, places: Vec<PeerEndpoint>) -> Result<(), RoutingError> {
        let mut state = self.lock();
        let mut done = Ok(());
        for repair in state.reconciler.handle_peers(places) {
            let applied = self.apply(&mut state, &repair);
            done = done.and(applied);
        }
        done
    }

    /// Deletes the agent's rules. Returns how many of them remain in the kernel.
    ///
    /// Errors: the kernel does not list its rules.
    pub(crate) fn clear(&self) -> io::Result<usize> {
        Ok(self.lock().kernel.delete_rules(self.table)?)
    }

    /// Routes a peer's packets of up to `mtu` bytes to the agent.
    ///
    /// Errors: see [`RoutingError`].
    pub(crate) fn up(&self, place: &PeerEndpoint, mtu: usize) -> Result<(), RoutingError> {
        let mut state = self.lock();
        let route = Route { to: place.address, from: place.local, mtu_bytes: mtu as u32 };
        state.reconciler.handle_route(place.address, Some(route));
        self.apply(&mut state, &Repair::SetRoute(place.address))
    }

    /// Returns a peer's packets to the ordinary route.
    ///
    /// Errors: see [`RoutingError`].
    pub(crate) fn down(&self, place: &PeerEndpoint) -> Result<(), RoutingError> {
        let mut state = self.lock();
        state.reconciler.handle_route(place.address, None);
        self.apply(&mut state, &Repair::DeleteRoute(place.address))
    }

    /// Compares the states every second, makes repairs, and reports the current fault through
    /// `faults`.
    pub(crate) async fn keep(
        self: Arc<Self>,
        pulse: Arc<Pulse>,
        commands: mpsc::Sender<Command>,
        faults: watch::Sender<Option<Fault>>,
    ) -> Infallible {
        let mut ticks = tokio::time::interval(COMPARE_EVERY);
        // After a delay the next comparison is a full interval later, so that the forwarding thread
        // has sent a heartbeat by then.
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let (routing, beats) = (Arc::clone(&self), pulse.count());
            let compared = tokio::task::spawn_blocking(move || routing.compare(beats)).await;
            if let Ok(true) = compared {
                let (reply, made) = oneshot::channel();
                let make = async {
                    commands.send(Command::MakeDevice { reply }).await.ok()?;
                    made.await.ok()
                };
                let made = tokio::time::timeout(MAKE_TIME, make).await.ok().flatten();
                let routing = Arc::clone(&self);
                let _ = tokio::task::spawn_blocking(move || routing.renew(made)).await;
            }
            let fault = self.lock().reconciler.fault();
            faults.send_if_modified(|before| std::mem::replace(before, fault) != fault);
        }
    }

    /// Compares the states once and makes repairs. Returns true if the device must be created
    /// again.
    fn compare(&self, beats: u64) -> bool {
        let state = &mut *self.lock();
        let observed = match self.observe(state, beats) {
            Ok(observed) => observed,
            Err(error) => {
                tracing::debug!(%error, "the kernel does not list rules and routes");
                return false;
            }
        };
        let repairs = state.reconciler.handle_observed(self.now(), &observed);
        let mut makes_device = false;
        for repair in repairs {
            if repair == Repair::MakeDevice {
                makes_device = true;
            } else if let Err(error) = self.apply(state, &repair) {
                self.refused(state, &repair, &error.to_string());
            }
        }
        log(&mut state.reconciler);
        makes_device
    }

    /// Handles the result of creating the device again.
    fn renew(&self, made: Option<io::Result<u32>>) {
        let state = &mut *self.lock();
        match made {
            Some(Ok(index)) => {
                state.index = index;
                let _ = state.kernel.mark_device(index, self.table);
                // The kernel deleted the routes with the old device.
                let routed: Vec<IpAddr> = state.reconciler.routed().collect();
                for to in routed {
                    if let Err(error) = self.apply(state, &Repair::SetRoute(to)) {
                        self.refused(state, &Repair::SetRoute(to), &error.to_string());
                    }
                }
            }
            Some(Err(error)) => self.refused(state, &Repair::MakeDevice, &error.to_string()),
            None => {
                self.refused(state, &Repair::MakeDevice, "the thread that carries packets does not answer")
            }
        }
        log(&mut state.reconciler);
    }

    fn refused(&self, state: &mut State, repair: &Repair, error: &str) {
        tracing::debug!(?repair, error, "not repaired");
        state.reconciler.handle_refused(self.now(), repair);
    }

    /// Lists the kernel's state.
    fn observe(&self, state: &mut State, beats: u64) -> io::Result<KernelState> {
        let State { kernel, reconciler, index } = state;
        let mut observed = KernelState {
            beats,
            device_is_up: kernel.device_is_up(*index)?,
            host_filters: filters("all"),
            device_filters: filters(&self.device),
            ..KernelState::default()
        };
        for is_ipv6 in reconciler.families() {
            observed.rules.extend(kernel.rules(is_ipv6)?);
            let routes = kernel.routes(is_ipv6, self.table)?;
            observed.routes.extend(routes.iter().filter(|(at, _)| at == index).map(|(_, route)| *route));
        }
        for to in reconciler.routed() {
            if !kernel.goes_by(to, *index)? {
                observed.bypassed.push(to);
            }
        }
        Ok(observed)
    }

    fn apply(&self, state: &mut State, repair: &Repair) -> Result<(), RoutingError> {
        let State { kernel, reconciler, index } = state;
        match repair {
            Repair::MakeDevice => Ok(()),
            Repair::RaiseDevice => {
                let what = format!("device `{}`", self.device);
                kernel.raise_device(*index).map_err(|error| refused(what, error))
            }
            Repair::StopFilter => {
                let path = filter_path(&self.device);
                std::fs::write(&path, "0").map_err(|error| refused(path, error))
            }
            Repair::AddRule(rule) => match kernel.add_rule(rule) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    Err(refused(format!("rule of priority {}", rule.priority), error))
                }
                _ => Ok(()),
            },
            Repair::SetRoute(to) => reconciler.route(*to).map_or(Ok(()), |route| {
                let set = kernel.set_route(self.table, *index, route);
                set.map_err(|error| refused(format!("route to {to}"), error))
            }),
            // Deleting a rule or route that does not exist is not an error.
            Repair::DeleteRule(rule) => {
                let _ = kernel.delete_rule(rule);
                Ok(())
            }
            Repair::DeleteRoute(to) => {
                let _ = kernel.delete_route(self.table, *index, *to);
                Ok(())
            }
        }
    }
}

impl Drop for Routing {
    fn drop(&mut self) {
        let State { kernel, .. } = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let _ = kernel.delete_rules(self.table);
    }
}

fn refused(what: String, error: impl Into<io::Error>) -> RoutingError {
    RoutingError::Refused { what, error: error.into() }
}

fn filter_path(device: &str) -> String {
    format!("/proc/sys/net/ipv4/conf/{device}/rp_filter")
}

/// Returns true if the kernel's reverse-path filter drops IPv4 packets of a device whose answers
/// would take another route. A kernel without the file filters nothing.
fn filters(device: &str) -> bool {
    std::fs::read_to_string(filter_path(device)).is_ok_and(|value| value.trim() != "0")
}

fn log(reconciler: &mut Reconciler) {
    while let Some(event) = reconciler.poll_event() {
        match event {
            Event::Found(fault) => tracing::warn!("{fault}: it is repaired, as often as that helps"),
            Event::GaveUp(fault, Duration::ZERO) => tracing::warn!("{fault}: TCP goes the ordinary way"),
            Event::GaveUp(fault, hold) => {
                tracing::warn!(
                    "{fault}, and repairs do not help: TCP goes the ordinary way, and they are tried again after {hold}"
                );
            }
            Event::Recovered => tracing::info!("rules, routes and the device are in order again"),
        }
    }
}
