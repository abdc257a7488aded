//! DCTCP (RFC 8257) by programs of this room, with window jumps on marks.
//!
//! Once per window, the sender estimates the share of bytes that met congestion, and reduces its
//! window in proportion. The receiver echoes each change of the congestion state immediately.
//! Source: RFC 8257, section 3; the kernel's net/ipv4/tcp_dctcp.c, from which the constants are
//! taken. Leaves out: a fallback to Reno for peers without ECN. Without ECN marks the window is
//! halved only on loss, as in Reno. Read [`programs`].

use super::AttachError;
use super::fields::{Fields, SOCKET, load_arguments};
use super::marks::Marks;
use super::reno::Programs;
use crate::bpf::asm::{Assembler, Helper, Register, Width};

/// Fixed-point value of a share of 1.
const ALPHA_MAX: i32 = 1 << ALPHA_BITS;
const ALPHA_BITS: i32 = 10;
/// Negative binary logarithm of the weight of a new sample (RFC 8257, section 4.2: g is 1/16).
const GAIN_BITS: i32 = 4;
/// Minimum window after congestion, in packets.
const CWND_MIN: i32 = 2;

// Events (`enum tcp_ca_event`), then states (`enum tcp_ca_state`).
const EVENT_LOSS: i32 = 3;
const EVENT_NO_CE: i32 = 4;
const EVENT_CE: i32 = 5;
const RECOVERY: i32 = 3;
/// Bits of the state within its byte.
const STATE_MASK: i32 = 0x1f;
/// Flags of an acknowledgement that is due after a delay (`ICSK_ACK_TIMER`), then of one that is
/// due immediately (`ICSK_ACK_NOW`).
const ACK_TIMER: i32 = 2;
const ACK_NOW: i32 = 16;
/// Acknowledgements carry ECE (`TCP_ECN_DEMAND_CWR`).
const DEMAND_CWR: i32 = 4;
/// Maximum difference of two sequence numbers that counts as forward.
const FORWARD_MAX: i32 = i32::MAX;

/// Words of the private area, in order.
#[derive(Copy, Clone, Debug)]
enum PrivateWord {
    Alpha,
    WindowEnd,
    OldDelivered,
    OldDeliveredCe,
    LossCwnd,
    CeState,
    PriorReceived,
}

impl PrivateWord {
    /// Offset of the word in a socket.
    fn of(self, fields: &Fields<'_>) -> i16 {
        fields.private + self as i16 * 4
    }
}

/// The programs of DCTCP.
///
/// Errors: the kernel lacks a function or field that they use.
pub(super) fn programs(fields: &Fields<'_>, marks: Option<Marks>) -> Result<Programs, AttachError> {
    Ok(vec![
        ("init", begin(fields, marks)),
        ("in_ack_event", acknowledge(fields, marks)),
        ("cwnd_event", event(fields)),
        ("set_state", set_state(fields)),
        ("ssthresh", ssthresh(fields)),
        ("cong_avoid", fields.forward_void("tcp_reno_cong_avoid", 3)?),
        ("undo_cwnd", undo(fields)),
    ])
}

fn begin(fields: &Fields<'_>, marks: Option<Marks>) -> Vec<u64> {
    let mut asm = Assembler::default();
    load_arguments(&mut asm, 1);
    asm.store_value(Width::Word, SOCKET, PrivateWord::Alpha.of(fields), ALPHA_MAX);
    asm.store_value(Width::Word, SOCKET, PrivateWord::LossCwnd.of(fields), 0);
    asm.store_value(Width::Word, SOCKET, PrivateWord::CeState.of(fields), 0);
    asm.load(Width::Word, 1, SOCKET, fields.received);
    asm.store(Width::Word, SOCKET, PrivateWord::PriorReceived.of(fields), 1);
    begin_window(&mut asm, fields);
    if let Some(marks) = marks {
        marks.begin(&mut asm, fields);
    }
    asm.set(0, 0);
    asm.exit();
    asm.finish()
}

/// Stores the start of a new sampling window: its end sequence number, and the current delivery
/// counters.
fn begin_window(asm: &mut Assembler, fields: &Fields<'_>) {
    for (from, to) in [
        (fields.next, PrivateWord::WindowEnd),
        (fields.delivered, PrivateWord::OldDelivered),
        (fields.delivered_ce, PrivateWord::OldDeliveredCe),
    ] {
        asm.load(Width::Word, 1, SOCKET, from);
        asm.store(Width::Word, SOCKET, to.of(fields), 1);
    }
}

/// `to` = the socket's counter at offset `now` minus the counter in the private area.
fn difference(asm: &mut Assembler, fields: &Fields<'_>, to: Register, now: i16, before: PrivateWord) {
    asm.load(Width::Word, to, SOCKET, now);
    asm.load(Width::Word, 1, SOCKET, before.of(fields));
    asm.subtract_register(to, 1);
    asm.keep_word(to);
}

/// `in_ack_event`: updates the estimate once per window, then handles the mark.
fn acknowledge(fields: &Fields<'_>, marks: Option<Marks>) -> Vec<u64> {
    let alpha = PrivateWord::Alpha.of(fields);
    let mut asm = Assembler::default();
    let [sampled, decay, divide, cap, store] = std::array::from_fn(|_| asm.label());
    load_arguments(&mut asm, 1);
    difference(&mut asm, fields, 2, fields.una, PrivateWord::WindowEnd);
    asm.jump_if_greater(2, FORWARD_MAX, sampled);
    difference(&mut asm, fields, 7, fields.delivered, PrivateWord::OldDelivered);
    difference(&mut asm, fields, 8, fields.delivered_ce, PrivateWord::OldDeliveredCe);
    asm.load(Width::Word, 9, SOCKET, alpha);
    // A share below 1/16 of the fixed-point unit is set to zero, because the shift would never
    // reduce it.
    asm.copy(1, 9);
    asm.shift_right(1, GAIN_BITS);
    asm.jump_if_unequal(1, 0, decay);
    asm.copy(1, 9);
    asm.place(decay);
    asm.subtract_register(9, 1);
    asm.jump_if_equal(8, 0, store);
    asm.jump_if_unequal(7, 0, divide);
    asm.set(7, 1);
    asm.place(divide);
    asm.shift_left(8, ALPHA_BITS - GAIN_BITS);
    asm.divide_register(8, 7);
    asm.add_register(9, 8);
    asm.jump_if_greater(9, ALPHA_MAX, cap);
    asm.jump(store);
    asm.place(cap);
    asm.set(9, ALPHA_MAX);
    asm.place(store);
    asm.store(Width::Word, SOCKET, alpha, 9);
    begin_window(&mut asm, fields);
    asm.place(sampled);
    if let Some(marks) = marks {
        marks.react(&mut asm, fields);
    }
    asm.set(0, 0);
    asm.exit();
    asm.finish()
}

/// `R0` = the window minus half of its congested share.
fn ssthresh(fields: &Fields<'_>) -> Vec<u64> {
    let mut asm = Assembler::default();
    let end = asm.label();
    load_arguments(&mut asm, 1);
    asm.load(Width::Word, 0, SOCKET, fields.cwnd);
    asm.store(Width::Word, SOCKET, PrivateWord::LossCwnd.of(fields), 0);
    asm.load(Width::Word, 1, SOCKET, PrivateWord::Alpha.of(fields));
    asm.multiply_register(1, 0);
    asm.shift_right(1, ALPHA_BITS + 1);
    asm.subtract_register(0, 1);
    asm.jump_if_greater(0, CWND_MIN, end);
    asm.set(0, CWND_MIN);
    asm.place(end);
    asm.exit();
    asm.finish()
}

/// `R0` = the window before a spurious loss, or the current window if that is larger.
fn undo(fields: &Fields<'_>) -> Vec<u64> {
    let mut asm = Assembler::default();
    let end = asm.label();
    load_arguments(&mut asm, 1);
    asm.load(Width::Word, 0, SOCKET, fields.cwnd);
    asm.load(Width::Word, 1, SOCKET, PrivateWord::LossCwnd.of(fields));
    asm.jump_if_registers_greater(0, 1, end);
    asm.copy(0, 1);
    asm.place(end);
    asm.exit();
    asm.finish()
}

/// Sets the slow start threshold to half of the congestion window, as Reno does on loss.
fn react_to_loss(asm: &mut Assembler, fields: &Fields<'_>) {
    let is_enough = asm.label();
    asm.load(Width::Word, 1, SOCKET, fields.cwnd);
    asm.store(Width::Word, SOCKET, PrivateWord::LossCwnd.of(fields), 1);
    asm.shift_right(1, 1);
    asm.jump_if_greater(1, CWND_MIN, is_enough);
    asm.set(1, CWND_MIN);
    asm.place(is_enough);
    asm.store(Width::Word, SOCKET, fields.ssthresh, 1);
}

fn set_state(fields: &Fields<'_>) -> Vec<u64> {
    let mut asm = Assembler::default();
    let end = asm.label();
    load_arguments(&mut asm, 2);
    asm.jump_if_unequal(SOCKET + 1, RECOVERY, end);
    asm.load(Width::Byte, 1, SOCKET, fields.state);
    asm.and(1, STATE_MASK);
    asm.jump_if_equal(1, RECOVERY, end);
    react_to_loss(&mut asm, fields);
    asm.place(end);
    asm.set(0, 0);
    asm.exit();
    asm.finish()
}

/// `cwnd_event`: the receiver's echo of congestion, and the sender's timeout.
fn event(fields: &Fields<'_>) -> Vec<u64> {
    let mut asm = Assembler::default();
    let [is_ce, changes, is_now, is_same, loss, end] = std::array::from_fn(|_| asm.label());
    load_arguments(&mut asm, 2);
    asm.jump_if_equal(SOCKET + 1, EVENT_LOSS, loss);
    asm.set(8, 1);
    asm.jump_if_equal(SOCKET + 1, EVENT_CE, is_ce);
    asm.set(8, 0);
    asm.jump_if_unequal(SOCKET + 1, EVENT_NO_CE, end);
    asm.place(is_ce);
    asm.load(Width::Word, 9, SOCKET, PrivateWord::CeState.of(fields));
    asm.jump_if_registers_unequal(8, 9, changes);
    asm.jump(is_same);
    asm.place(changes);
    // A delayed acknowledgement belongs to the previous congestion state.
    asm.load(Width::Byte, 1, SOCKET, fields.ack_pending);
    asm.and(1, ACK_TIMER);
    asm.jump_if_equal(1, 0, is_now);
    echo(&mut asm, fields, 9);
    asm.copy(1, SOCKET);
    asm.load(Width::Word, 2, SOCKET, PrivateWord::PriorReceived.of(fields));
    asm.call(Helper::TcpSendAck);
    asm.place(is_now);
    asm.load(Width::Byte, 1, SOCKET, fields.ack_pending);
    asm.or(1, ACK_NOW);
    asm.store(Width::Byte, SOCKET, fields.ack_pending, 1);
    asm.place(is_same);
    asm.load(Width::Word, 1, SOCKET, fields.received);
    asm.store(Width::Word, SOCKET, PrivateWord::PriorReceived.of(fields), 1);
    asm.store(Width::Word, SOCKET, PrivateWord::CeState.of(fields), 8);
    echo(&mut asm, fields, 8);
    asm.jump(end);
    asm.place(loss);
    react_to_loss(&mut asm, fields);
    asm.place(end);
    asm.set(0, 0);
    asm.exit();
    asm.finish()
}

/// Sets ECE in acknowledgements if `ce` is not 0, and clears it otherwise.
fn echo(asm: &mut Assembler, fields: &Fields<'_>, ce: Register) {
    let (is_off, store) = (asm.label(), asm.label());
    asm.load(Width::Byte, 1, SOCKET, fields.ecn_flags);
    asm.jump_if_equal(ce, 0, is_off);
    asm.or(1, DEMAND_CWR);
    asm.jump(store);
    asm.place(is_off);
    asm.and(1, !DEMAND_CWR);
    asm.place(store);
    asm.store(Width::Byte, SOCKET, fields.ecn_flags, 1);
}
