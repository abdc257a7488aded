//! Reno by the kernel's own functions, with window jumps on marks.
//!
//! Source: the kernel's net/ipv4/tcp_cong.c. Read [`programs`].

use super::AttachError;
use super::fields::{Fields, load_arguments};
use super::marks::Marks;
use crate::bpf::asm::Assembler;

/// Members of a congestion control, with their instructions.
pub(super) type Programs = Vec<(&'static str, Vec<u64>)>;

/// The programs of Reno.
///
/// Errors: the kernel lacks a function that they call.
pub(super) fn programs(fields: &Fields<'_>, marks: Option<Marks>) -> Result<Programs, AttachError> {
    let mut programs = vec![
        ("ssthresh", fields.forward("tcp_reno_ssthresh", 1)?),
        ("cong_avoid", fields.forward_void("tcp_reno_cong_avoid", 3)?),
        ("undo_cwnd", fields.forward("tcp_reno_undo_cwnd", 1)?),
    ];
    if let Some(marks) = marks {
        programs.push(("init", begin(fields, marks)));
        programs.push(("in_ack_event", react(fields, marks)));
    }
    Ok(programs)
}

fn begin(fields: &Fields<'_>, marks: Marks) -> Vec<u64> {
    let mut asm = Assembler::default();
    load_arguments(&mut asm, 1);
    marks.begin(&mut asm, fields);
    asm.set(0, 0);
    asm.exit();
    asm.finish()
}

/// `in_ack_event` for a base congestion control that defines none.
pub(super) fn react(fields: &Fields<'_>, marks: Marks) -> Vec<u64> {
    let mut asm = Assembler::default();
    load_arguments(&mut asm, 1);
    marks.react(&mut asm, fields);
    asm.set(0, 0);
    asm.exit();
    asm.finish()
}
