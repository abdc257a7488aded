//! Offsets of the fields that the programs read and write, from the running kernel's types.
//!
//! Source: the kernel's include/net/inet_connection_sock.h (`icsk_ca_priv`), include/linux/tcp.h
//! (`struct tcp_sock`) and include/uapi/linux/bpf.h. Read [`Fields`].

use super::AttachError;
use crate::bpf::asm::{Assembler, Register, Width};
use crate::bpf::btf::Btf;

/// Register of the socket in all programs of a congestion control, set by their first instructions.
pub(super) const SOCKET: Register = 6;
/// Register of the stack's top.
pub(super) const STACK: Register = 10;

/// Bytes of a congestion control's private area that are reserved for the base congestion control.
/// The kernel's CUBIC uses 60, our DCTCP 36.
pub(super) const BASE_BYTES: usize = 88;

/// Offsets of fields in a socket. `private` is the congestion control's private area of 104 bytes.
#[derive(Debug)]
pub(super) struct Fields<'a> {
    types: &'a Btf<'a>,
    pub(super) cwnd: i16,
    pub(super) ssthresh: i16,
    pub(super) una: i16,
    pub(super) next: i16,
    pub(super) received: i16,
    pub(super) delivered: i16,
    pub(super) delivered_ce: i16,
    pub(super) ecn_flags: i16,
    pub(super) sent_at: i16,
    pub(super) private: i16,
    pub(super) ack_pending: i16,
    pub(super) state: i16,
}

impl<'a> Fields<'a> {
    /// Errors: a field is missing.
    pub(super) fn new(types: &'a Btf<'a>) -> Result<Self, AttachError> {
        let [cwnd, ssthresh, una, next, received, delivered, delivered_ce, ecn_flags, sent_at] = offsets(
            types,
            "tcp_sock",
            [
                "snd_cwnd",
                "snd_ssthresh",
                "snd_una",
                "snd_nxt",
                "rcv_nxt",
                "delivered",
                "delivered_ce",
                "ecn_flags",
                "lsndtime",
            ],
        )?;
        // The first byte of `icsk_ack` has the flags of delayed acknowledgements.
        let [private, ack_pending, state] =
            offsets(types, "inet_connection_sock", ["icsk_ca_priv", "icsk_ack", "icsk_ca_state"])?;
        Ok(Self {
            types,
            cwnd,
            ssthresh,
            una,
            next,
            received,
            delivered,
            delivered_ce,
            ecn_flags,
            sent_at,
            private,
            ack_pending,
            state,
        })
    }

    /// Number of a kernel function, for calls.
    ///
    /// Errors: the kernel does not export it.
    pub(super) fn function(&self, name: &str) -> Result<u32, AttachError> {
        self.types.function(name).ok_or_else(|| AttachError::Missing { name: name.to_owned() })
    }

    /// Size of a structure in bytes.
    ///
    /// Errors: the kernel has no structure of this name.
    pub(super) fn size(&self, structure: &str) -> Result<usize, AttachError> {
        let missing = || AttachError::Missing { name: structure.to_owned() };
        self.types.structure(structure).map(|(_, bytes)| bytes).ok_or_else(missing)
    }

    /// Offsets of fields in another structure.
    ///
    /// Errors: a field is missing.
    pub(super) fn of<const N: usize>(
        &self,
        structure: &str,
        names: [&str; N],
    ) -> Result<[i16; N], AttachError> {
        offsets(self.types, structure, names)
    }

    /// A program that passes its first arguments to a kernel function, and returns the function's
    /// result.
    ///
    /// Errors: the kernel does not export the function.
    pub(super) fn forward(&self, function: &str, arguments: u8) -> Result<Vec<u64>, AttachError> {
        let mut asm = Assembler::default();
        // The first argument is loaded last, because its register points to the program's
        // arguments.
        for argument in (1..=arguments).rev() {
            asm.load(Width::Double, argument, 1, argument_offset(argument));
        }
        asm.call_kernel(self.function(function)?);
        asm.exit();
        Ok(asm.finish())
    }

    /// Does the same as [`Fields::forward`], for a function without a result.
    ///
    /// Errors: the kernel does not export the function.
    pub(super) fn forward_void(&self, function: &str, arguments: u8) -> Result<Vec<u64>, AttachError> {
        let mut asm = Assembler::default();
        for argument in (1..=arguments).rev() {
            asm.load(Width::Double, argument, 1, argument_offset(argument));
        }
        asm.call_kernel(self.function(function)?);
        asm.set(0, 0);
        asm.exit();
        Ok(asm.finish())
    }
}

/// Loads the program's arguments: the socket into [`SOCKET`], and further arguments into the
/// following registers.
pub(super) fn load_arguments(asm: &mut Assembler, arguments: u8) {
    for argument in 1..=arguments {
        asm.load(Width::Double, SOCKET + argument - 1, 1, argument_offset(argument));
    }
}

fn argument_offset(argument: u8) -> i16 {
    i16::from(argument - 1) * 8
}

fn offsets<const N: usize>(
    types: &Btf<'_>,
    structure: &str,
    names: [&str; N],
) -> Result<[i16; N], AttachError> {
    let missing = |name: &str| AttachError::Missing { name: format!("{structure}.{name}") };
    let mut found = [0; N];
    for (offset, name) in found.iter_mut().zip(names) {
        [*offset] = types.offsets(structure, [name]).ok_or_else(|| missing(name))?;
    }
    Ok(found)
}
