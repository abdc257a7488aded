//! Packets, an event queue and network elements, under any clock.
//!
//! The [`Fabric`] is a sans-IO machine: it never reads a clock. The driver injects packets with
//! [`Fabric::inject`], advances time with [`Fabric::advance`], and gets the time of the next event
//! from [`Fabric::next_deadline`]. The simulator does so in virtual time, and the emulator in real
//! time, with the same elements.
//!
//! Terms: an *element* ([`Port`], [`FifoPort`], [`Switch`], [`CircuitSwitch`]) forwards packets and
//! sees only their [`PacketMeta`]. A *node* ([`Node`]) at the edge consumes packets and creates new
//! packets. A *target* ([`Target`]) is either an element or a node.
//!
//! Invariants: injected packets = delivered + dropped + in flight ([`Totals`]); a port never sends
//! above its rate; packets of one priority leave a port in the order of arrival; simultaneous
//! events are processed in the order of arming, so that equal inputs give equal runs.
//!
//! Read [`Fabric`], [`Port`] and [`PacketMeta`] first.

mod any;
mod buffer;
mod circuit_switch;
mod element;
mod event;
mod fabric;
mod fifo_port;
mod hosts;
mod latency;
mod layer;
mod packet;
mod port;
pub mod switch;
mod target;
mod timetable;

pub use any::AnyElement;
pub use buffer::{BufferId, SharedBuffer};

pub use circuit_switch::{
    CircuitCounters, CircuitError, CircuitSettings, CircuitSwitch, Matching, PacketNetwork, QueueLimits,
    Resize, shifts,
};
pub use element::{Cx, Element};
pub use event::{Event, EventQueue, QuadHeap};
pub use fabric::{Fabric, Node, NodeCx, TappedPacket, Totals};
pub use fifo_port::FifoPort;
pub use hosts::{Hosts, HostsCx, User};
pub use latency::CircuitLatency;
pub use layer::{Envelope, Label, Layer, LayerCx, LayeredPacket};
pub use packet::{Drop, DropCounts, Fifo, Flag, FlowClass, PRIORITIES, PacketId, PacketMeta, Packets};
pub use port::{DELAY_MAX, Port, PortCounters, PortError, PortSettings, RATE_MIN, WaitSum};
pub use switch::{Policy, Switch};
pub use target::Target;
pub use timetable::{Slot, Timetable, TimetableError};
