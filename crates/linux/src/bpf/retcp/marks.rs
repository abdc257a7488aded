//! Marks: the programs that read marks from packets, and the window jumps.
//!
//! A packet's mark is stored with the socket before TCP handles the packet. ECE is an event: its
//! program is called only for marked packets, so the next acknowledgement clears the stored mark.
//! DSCP is a state: its program sees every packet.
//!
//! Source: Mukerjee (2018), section 2.4.4; the kernel's include/uapi/linux/bpf.h (`enum
//! bpf_func_id`, `BPF_SOCK_OPS_*`). Read [`Marks`].

use super::fields::{BASE_BYTES, Fields, SOCKET, STACK};
use super::{AttachError, Counter, Mark};
use crate::bpf::asm::{Assembler, Helper, Label, Width};
use crate::bpf::congestion::NAME_BYTES_MAX;

// Events of a connection (`BPF_SOCK_OPS_*_CB`).
const ACTIVE_ESTABLISHED: i32 = 4;
const PASSIVE_ESTABLISHED: i32 = 5;
const PARSE_HEADER: i32 = 13;
/// Flag: the kernel calls the program also for headers without unknown options.
const PARSE_ALL_FLAG: i32 = 16;

/// Flag of socket storage: create it if the socket has none.
const CREATE: i32 = 1;
/// ECE among the flags of TCP (RFC 9293, section 3.1).
const ECE: i32 = 0x40;
const ETHERTYPE_IP: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;

/// Offset in the private area of a word that is 1 while the window is doubled.
const JUMPED: i16 = BASE_BYTES as i16;

/// A mark, and the descriptors of the maps that its programs use.
#[derive(Copy, Clone, Debug)]
pub(super) struct Marks {
    pub(super) mark: Mark,
    pub(super) storage: i32,
    pub(super) counters: i32,
}

impl Marks {
    /// Creates the storage of a new connection; part of `init`.
    pub(super) fn begin(self, asm: &mut Assembler, fields: &Fields<'_>) {
        asm.store_value(Width::Word, SOCKET, fields.private + JUMPED, 0);
        find_storage(asm, self.storage, SOCKET, CREATE);
    }

    /// Reads the mark of the acknowledgement that TCP is handling, and changes the window on a
    /// transition; part of `in_ack_event`.
    pub(super) fn react(self, asm: &mut Assembler, fields: &Fields<'_>) {
        let (unmarked, up, down, end) = (asm.label(), asm.label(), asm.label(), asm.label());
        self.count(asm, Counter::Acks);
        find_storage(asm, self.storage, SOCKET, 0);
        asm.jump_if_equal(0, 0, end);
        asm.load(Width::Word, 7, 0, 0);
        if self.mark == Mark::Ece {
            asm.store_value(Width::Word, 0, 0, 0);
        }
        asm.load(Width::Word, 8, SOCKET, fields.private + JUMPED);
        asm.jump_if_equal(7, 0, unmarked);
        self.count(asm, Counter::MarkedAcks);
        asm.jump_if_equal(8, 0, up);
        asm.jump(end);
        asm.place(unmarked);
        asm.jump_if_unequal(8, 0, down);
        asm.jump(end);

        asm.place(up);
        asm.load(Width::Word, 1, SOCKET, fields.cwnd);
        asm.shift_left(1, 1);
        self.jump_to(asm, fields, 1, Counter::JumpsUp);
        asm.jump(end);

        asm.place(down);
        let positive = asm.label();
        asm.load(Width::Word, 1, SOCKET, fields.cwnd);
        asm.shift_right(1, 1);
        asm.jump_if_unequal(1, 0, positive);
        asm.set(1, 1);
        asm.place(positive);
        self.jump_to(asm, fields, 0, Counter::JumpsDown);
        asm.place(end);
    }

    /// Sets the window to `R1`, records the jump, and counts it.
    fn jump_to(self, asm: &mut Assembler, fields: &Fields<'_>, jumped: i32, counter: Counter) {
        asm.store(Width::Word, SOCKET, fields.cwnd, 1);
        asm.set(1, jumped);
        asm.store(Width::Word, SOCKET, fields.private + JUMPED, 1);
        self.count(asm, counter);
    }

    /// Adds 1 to a counter. The argument registers are overwritten.
    fn count(self, asm: &mut Assembler, counter: Counter) {
        let uncounted = asm.label();
        asm.store_value(Width::Word, STACK, -4, counter as i32);
        asm.set_map(1, self.counters);
        asm.copy(2, STACK);
        asm.add(2, -4);
        asm.call(Helper::MapLookupElem);
        asm.jump_if_equal(0, 0, uncounted);
        asm.set(1, 1);
        asm.atomic_add(0, 0, 1);
        asm.place(uncounted);
    }
}

/// `R0` = the socket's storage, or null.
fn find_storage(asm: &mut Assembler, storage: i32, socket: u8, flags: i32) {
    asm.set_map(1, storage);
    asm.copy(2, socket);
    asm.set(3, 0);
    asm.set(4, flags);
    asm.call(Helper::SkStorageGet);
}

/// A program for connections: requests the headers of connections under the congestion control
/// `name`, and stores ECE.
pub(super) fn watch_ece(storage: i32, name: &str, fields: &Fields<'_>) -> Result<Vec<u64>, AttachError> {
    const NAME: i16 = -16;
    let [op, cb_flags, socket, tcp_flags] =
        fields.of("bpf_sock_ops", ["op", "bpf_sock_ops_cb_flags", "sk", "skb_tcp_flags"])?;
    let mut asm = Assembler::default();
    let (established, end) = (asm.label(), asm.label());
    asm.copy(6, 1);
    asm.load(Width::Word, 1, 6, op);
    asm.jump_if_equal(1, ACTIVE_ESTABLISHED, established);
    asm.jump_if_equal(1, PASSIVE_ESTABLISHED, established);
    asm.jump_if_unequal(1, PARSE_HEADER, end);
    asm.load(Width::Word, 1, 6, tcp_flags);
    asm.and(1, ECE);
    asm.jump_if_equal(1, 0, end);
    asm.load(Width::Double, 7, 6, socket);
    note(&mut asm, storage, 7, end);
    asm.store_value(Width::Word, 0, 0, 1);
    asm.jump(end);

    asm.place(established);
    asm.store_value(Width::Double, STACK, NAME, 0);
    asm.store_value(Width::Double, STACK, NAME + 8, 0);
    asm.copy(1, 6);
    asm.set(2, libc::IPPROTO_TCP);
    asm.set(3, libc::TCP_CONGESTION);
    asm.copy(4, STACK);
    asm.add(4, NAME.into());
    asm.set(5, NAME_BYTES_MAX as i32 + 1);
    asm.call(Helper::Getsockopt);
    asm.jump_if_unequal(0, 0, end);
    let mut words = [[0; 8]; 2];
    words.as_flattened_mut().iter_mut().zip(name.bytes()).for_each(|(to, from)| *to = from);
    for (word, at) in words.into_iter().zip([NAME, NAME + 8]) {
        asm.load(Width::Double, 1, STACK, at);
        asm.set_wide(2, u64::from_ne_bytes(word));
        asm.jump_if_registers_unequal(1, 2, end);
    }
    asm.load(Width::Word, 2, 6, cb_flags);
    asm.or(2, PARSE_ALL_FLAG);
    asm.copy(1, 6);
    asm.call(Helper::SockOpsCbFlagsSet);
    asm.place(end);
    asm.set(0, 1);
    asm.exit();
    Ok(asm.finish())
}

/// A program for arriving packets: stores whether their DSCP is `value`. All packets pass.
pub(super) fn watch_dscp(storage: i32, value: u8, fields: &Fields<'_>) -> Result<Vec<u64>, AttachError> {
    const HEADER: i16 = -8;
    let [protocol, socket] = fields.of("__sk_buff", ["protocol", "sk"])?;
    let mut asm = Assembler::default();
    let (six, compare, store, end) = (asm.label(), asm.label(), asm.label(), asm.label());
    asm.copy(6, 1);
    asm.load(Width::Double, 1, 6, socket);
    asm.jump_if_equal(1, 0, end);
    asm.call(Helper::SkFullsock);
    asm.copy(7, 0);
    note(&mut asm, storage, 7, end);
    asm.copy(8, 0);
    asm.load(Width::Word, 9, 6, protocol);
    asm.copy(1, 6);
    asm.set(2, 0);
    asm.copy(3, STACK);
    asm.add(3, HEADER.into());
    asm.set(4, 2);
    asm.call(Helper::SkbLoadBytes);
    asm.jump_if_unequal(0, 0, end);
    // The first two bytes of the header. IPv4: version, header length, then the DSCP and ECN field.
    // IPv6: version, the field, and a part of the flow label.
    asm.load(Width::Half, 1, STACK, HEADER);
    asm.host_order(1, 16);
    asm.jump_if_equal(9, ETHERTYPE_IPV6.to_be().into(), six);
    asm.jump_if_unequal(9, ETHERTYPE_IP.to_be().into(), end);
    asm.shift_right(1, 2);
    asm.jump(compare);
    asm.place(six);
    asm.shift_right(1, 6);
    asm.place(compare);
    asm.and(1, super::DSCP_MAX.into());
    asm.set(2, 1);
    asm.jump_if_equal(1, value.into(), store);
    asm.set(2, 0);
    asm.place(store);
    asm.store(Width::Word, 8, 0, 2);
    asm.place(end);
    asm.set(0, 1);
    asm.exit();
    Ok(asm.finish())
}

/// `R0` = the storage of the socket in a register. Jumps to `end` if there is no socket or no
/// storage.
fn note(asm: &mut Assembler, storage: i32, socket: u8, end: Label) {
    asm.jump_if_equal(socket, 0, end);
    find_storage(asm, storage, socket, 0);
    asm.jump_if_equal(0, 0, end);
}
