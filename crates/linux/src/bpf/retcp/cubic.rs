//! CUBIC by the kernel's own functions, with window jumps on marks and a clock that can be
//! stretched.
//!
//! CUBIC's window is a function of the time since the beginning of its epoch (RFC 9438, section
//! 4.2). Before each of the kernel's calculations, a program moves the epoch's beginning, so that
//! the time since then is the real time divided by the factor. The real beginning is stored
//! separately.
//!
//! Source: the kernel's net/ipv4/tcp_cubic.c (`bictcp_update`, `cubictcp_cwnd_event`). Differs:
//! three times are not stretched. These are HyStart's thresholds of 2, 4 and 16 ms, the minimum of
//! 31 ms between two calculations at an equal window, and the round trip that is added to the time
//! (RFC 9438, section 4.2). Read [`programs`].

use super::AttachError;
use super::fields::{BASE_BYTES, Fields, SOCKET, load_arguments};
use super::marks::Marks;
use super::reno::{Programs, react};
use crate::bpf::asm::{Assembler, Helper, Width};

/// Name of CUBIC's state structure in the private area.
const STATE: &str = "bictcp";
/// Event: the first packet after an idle period (`enum tcp_ca_event`).
const TX_START: i32 = 0;
/// Maximum difference of two tick counts that counts as forward.
const FORWARD_MAX: i32 = i32::MAX;

// Offsets in the private area:
/// The epoch's real beginning, in ticks.
const BEGAN: i16 = BASE_BYTES as i16 + 4;
/// The epoch's beginning in the kernel's state after the last calculation, in ticks.
const WRITTEN: i16 = BASE_BYTES as i16 + 8;

/// The programs of CUBIC.
///
/// Errors: the kernel lacks a function or field that they use.
pub(super) fn programs(
    fields: &Fields<'_>,
    marks: Option<Marks>,
    factor: u32,
) -> Result<Programs, AttachError> {
    if fields.size(STATE)? > BASE_BYTES {
        return Err(AttachError::Missing { name: format!("{STATE} of at most {BASE_BYTES} bytes") });
    }
    let mut programs = vec![
        ("ssthresh", fields.forward("cubictcp_recalc_ssthresh", 1)?),
        ("set_state", fields.forward_void("cubictcp_state", 2)?),
        ("pkts_acked", fields.forward_void("cubictcp_acked", 2)?),
        ("undo_cwnd", fields.forward("tcp_reno_undo_cwnd", 1)?),
        ("init", begin(fields, marks)?),
    ];
    if factor == 1 {
        programs.push(("cong_avoid", fields.forward_void("cubictcp_cong_avoid", 3)?));
        programs.push(("cwnd_event", fields.forward_void("cubictcp_cwnd_event", 2)?));
    } else {
        let [epoch] = fields.of(STATE, ["epoch_start"])?;
        programs.push(("cong_avoid", avoid(fields, fields.private + epoch, factor)?));
        programs.push(("cwnd_event", resume(fields, fields.private + epoch)));
    }
    if let Some(marks) = marks {
        programs.push(("in_ack_event", react(fields, marks)));
    }
    Ok(programs)
}

fn begin(fields: &Fields<'_>, marks: Option<Marks>) -> Result<Vec<u64>, AttachError> {
    let mut asm = Assembler::default();
    load_arguments(&mut asm, 1);
    asm.copy(1, SOCKET);
    asm.call_kernel(fields.function("cubictcp_init")?);
    asm.store_value(Width::Word, SOCKET, fields.private + BEGAN, 0);
    asm.store_value(Width::Word, SOCKET, fields.private + WRITTEN, 0);
    if let Some(marks) = marks {
        marks.begin(&mut asm, fields);
    }
    asm.set(0, 0);
    asm.exit();
    Ok(asm.finish())
}

/// `cong_avoid` on the stretched clock. `epoch` is the offset of the epoch's beginning in the
/// kernel's state.
fn avoid(fields: &Fields<'_>, epoch: i16, factor: u32) -> Result<Vec<u64>, AttachError> {
    let (began, written) = (fields.private + BEGAN, fields.private + WRITTEN);
    let mut asm = Assembler::default();
    let (calculate, elapsed, is_same, end) = (asm.label(), asm.label(), asm.label(), asm.label());
    load_arguments(&mut asm, 3);
    asm.load(Width::Word, 1, SOCKET, epoch);
    asm.jump_if_equal(1, 0, calculate);
    asm.call(Helper::Jiffies64);
    asm.copy(9, 0);
    asm.load(Width::Word, 1, SOCKET, began);
    asm.subtract_register(0, 1);
    asm.keep_word(0);
    asm.jump_if_greater(0, FORWARD_MAX, elapsed);
    asm.divide(0, factor as i32);
    asm.subtract_register(9, 0);
    asm.place(elapsed);
    asm.keep_word(9);
    // To the kernel, 0 means that no epoch has begun.
    let is_set = asm.label();
    asm.jump_if_unequal(9, 0, is_set);
    asm.set(9, 1);
    asm.place(is_set);
    asm.store(Width::Word, SOCKET, epoch, 9);
    asm.store(Width::Word, SOCKET, written, 9);
    asm.place(calculate);
    for (argument, register) in [(1, SOCKET), (2, SOCKET + 1), (3, SOCKET + 2)] {
        asm.copy(argument, register);
    }
    asm.call_kernel(fields.function("cubictcp_cong_avoid")?);
    asm.load(Width::Word, 1, SOCKET, epoch);
    asm.jump_if_equal(1, 0, end);
    asm.load(Width::Word, 2, SOCKET, written);
    asm.jump_if_registers_equal(1, 2, is_same);
    // The kernel has begun a new epoch.
    asm.store(Width::Word, SOCKET, began, 1);
    asm.store(Width::Word, SOCKET, written, 1);
    asm.place(is_same);
    asm.place(end);
    asm.set(0, 0);
    asm.exit();
    Ok(asm.finish())
}

/// `cwnd_event` on the stretched clock: excludes idle time from the epoch. `epoch` is as in
/// [`avoid`].
fn resume(fields: &Fields<'_>, epoch: i16) -> Vec<u64> {
    let began = fields.private + BEGAN;
    let mut asm = Assembler::default();
    let (is_past, end) = (asm.label(), asm.label());
    load_arguments(&mut asm, 2);
    asm.jump_if_unequal(SOCKET + 1, TX_START, end);
    asm.load(Width::Word, 1, SOCKET, epoch);
    asm.jump_if_equal(1, 0, end);
    asm.call(Helper::Jiffies64);
    asm.copy(9, 0);
    asm.load(Width::Word, 1, SOCKET, fields.sent_at);
    asm.subtract_register(0, 1);
    asm.keep_word(0);
    asm.jump_if_greater(0, FORWARD_MAX, end);
    asm.load(Width::Word, 8, SOCKET, began);
    asm.add_register(8, 0);
    asm.copy(1, 9);
    asm.subtract_register(1, 8);
    asm.keep_word(1);
    asm.jump_if_greater(1, FORWARD_MAX, is_past);
    asm.copy(9, 8);
    asm.place(is_past);
    asm.store(Width::Word, SOCKET, began, 9);
    asm.place(end);
    asm.set(0, 0);
    asm.exit();
    asm.finish()
}
