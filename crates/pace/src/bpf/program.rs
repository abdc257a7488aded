//! The two BPF programs. The kernel calls the first when a connection opens and at each RTT sample,
//! and the second for each existing socket.
//!
//! Both programs do the same for a socket whose addresses and ports are in the map of wanted rates,
//! unless the entry has another socket's cookie. They store the socket's `SO_MAX_PACING_RATE` in
//! the map of earlier rates, and set the wanted rate. So one write to a map changes a rate, for
//! present and future sockets.
//!
//! Source: the kernel's include/uapi/linux/bpf.h, `struct bpf_sock_ops` and the helpers' notes.
//! Read [`sock_ops`].

use anabranch_linux::bpf::asm::{Assembler, Helper, Label, Width};
use anabranch_linux::bpf::btf::Btf;
use anabranch_linux::socket_options::SO_MAX_PACING_RATE;

/// Bytes of a map's key: both addresses (IPv4 as IPv4-mapped), then both ports, each as a number of
/// 32 bits.
pub(crate) const KEY_BYTES: usize = 40;
/// Bytes of a rate in a map.
pub(crate) const RATE_BYTES: usize = 4;
/// Bytes of a wanted rate in a map: the rate, four bytes of padding, and the cookie of its socket
/// (zero for any socket).
pub(crate) const WANTED_BYTES: usize = 16;
const WANTED_COOKIE: i16 = 8;

// Fields of `struct bpf_sock_ops`.
const OP: i16 = 0;
const FAMILY: i16 = 20;
const REMOTE_IP4: i16 = 24;
const LOCAL_IP4: i16 = 28;
const REMOTE_IP6: i16 = 32;
const LOCAL_IP6: i16 = 48;
const REMOTE_PORT: i16 = 64;
const LOCAL_PORT: i16 = 68;
const CB_FLAGS: i16 = 84;

// Values of `op`: events of a connection.
const ACTIVE_ESTABLISHED: i32 = 4;
const PASSIVE_ESTABLISHED: i32 = 5;
const RTT: i32 = 12;

const RTT_FLAG: i32 = 8;
const SOL_SOCKET: i32 = libc::SOL_SOCKET;

/// Flags of a map's update.
const ANY: i32 = 0;
const NOEXIST: i32 = 1;

// Offsets on the stack.
const KEY: i16 = -(KEY_BYTES as i16);
const KEY_LOCAL: i16 = KEY;
const KEY_REMOTE: i16 = KEY + 16;
const KEY_LOCAL_PORT: i16 = KEY + 32;
const KEY_REMOTE_PORT: i16 = KEY + 36;
const CURRENT: i16 = KEY - 4;
const WANTED: i16 = KEY - 8;

const STACK: u8 = 10;

/// Descriptors of the two maps.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Maps {
    pub(crate) wanted: i32,
    pub(crate) before: i32,
}

/// Program of type `BPF_PROG_TYPE_SOCK_OPS`; handles only connections of the network namespace with
/// this cookie.
pub(crate) fn sock_ops(maps: Maps, netns_cookie: u64) -> Vec<u64> {
    let mut asm = Assembler::default();
    let (opened, sample, done) = (asm.label(), asm.label(), asm.label());
    let (six, ports) = (asm.label(), asm.label());
    asm.copy(6, 1);
    asm.set(8, ANY);
    asm.load(Width::Word, 7, 6, OP);
    asm.jump_if_equal(7, ACTIVE_ESTABLISHED, opened);
    asm.jump_if_equal(7, PASSIVE_ESTABLISHED, opened);
    asm.jump_if_unequal(7, RTT, done);
    asm.set(8, NOEXIST);
    asm.jump(sample);
    asm.place(opened);
    asm.copy(1, 6);
    asm.load(Width::Word, 2, 6, CB_FLAGS);
    asm.or(2, RTT_FLAG);
    asm.call(Helper::SockOpsCbFlagsSet);
    asm.place(sample);
    asm.copy(1, 6);
    asm.call(Helper::GetNetnsCookie);
    asm.set_wide(1, netns_cookie);
    asm.jump_if_registers_unequal(0, 1, done);
    asm.load(Width::Word, 1, 6, FAMILY);
    asm.jump_if_equal(1, libc::AF_INET6, six);
    asm.jump_if_unequal(1, libc::AF_INET, done);
    four(&mut asm, LOCAL_IP4, REMOTE_IP4);
    asm.jump(ports);
    asm.place(six);
    copy_words(&mut asm, LOCAL_IP6, REMOTE_IP6);
    asm.place(ports);
    asm.load(Width::Word, 1, 6, LOCAL_PORT);
    asm.store(Width::Word, STACK, KEY_LOCAL_PORT, 1);
    asm.load(Width::Word, 1, 6, REMOTE_PORT);
    asm.host_order(1, 32);
    asm.store(Width::Word, STACK, KEY_REMOTE_PORT, 1);
    apply(&mut asm, maps, done);
    asm.place(done);
    asm.set(0, 1);
    asm.exit();
    asm.finish()
}

/// Program of type `BPF_PROG_TYPE_TRACING`, as an iterator over TCP sockets (`bpf_iter/tcp`);
/// `None` if the kernel's types lack a field that it reads.
pub(crate) fn iterator(maps: Maps, btf: &Btf<'_>) -> Option<Vec<u64>> {
    let [family, local4, remote4, local6, remote6, local_port, remote_port] = btf.offsets(
        "sock_common",
        [
            "skc_family",
            "skc_rcv_saddr",
            "skc_daddr",
            "skc_v6_rcv_saddr",
            "skc_v6_daddr",
            "skc_num",
            "skc_dport",
        ],
    )?;
    let mut asm = Assembler::default();
    let (six, ports, done) = (asm.label(), asm.label(), asm.label());
    // The context: the part that every iterator gets, then the socket, which is null after the last
    // one.
    asm.load(Width::Double, 6, 1, 8);
    asm.jump_if_equal(6, 0, done);
    asm.set(8, NOEXIST);
    asm.load(Width::Half, 1, 6, family);
    asm.jump_if_equal(1, libc::AF_INET6, six);
    asm.jump_if_unequal(1, libc::AF_INET, done);
    four(&mut asm, local4, remote4);
    asm.jump(ports);
    asm.place(six);
    copy_words(&mut asm, local6, remote6);
    asm.place(ports);
    asm.load(Width::Half, 1, 6, local_port);
    asm.store(Width::Word, STACK, KEY_LOCAL_PORT, 1);
    asm.load(Width::Half, 1, 6, remote_port);
    asm.host_order(1, 16);
    asm.store(Width::Word, STACK, KEY_REMOTE_PORT, 1);
    apply(&mut asm, maps, done);
    asm.place(done);
    asm.set(0, 0);
    asm.exit();
    Some(asm.finish())
}

/// Writes both IPv4 addresses into the key, as IPv4-mapped IPv6 addresses.
fn four(asm: &mut Assembler, local: i16, remote: i16) {
    for (to, from) in [(KEY_LOCAL, local), (KEY_REMOTE, remote)] {
        asm.store_value(Width::Double, STACK, to, 0);
        asm.store_value(Width::Word, STACK, to + 8, i32::from_ne_bytes([0, 0, 0xff, 0xff]));
        asm.load(Width::Word, 1, 6, from);
        asm.store(Width::Word, STACK, to + 12, 1);
    }
}

/// Writes both IPv6 addresses into the key.
fn copy_words(asm: &mut Assembler, local: i16, remote: i16) {
    for (to, from) in [(KEY_LOCAL, local), (KEY_REMOTE, remote)] {
        for word in [0, 4, 8, 12] {
            asm.load(Width::Word, 1, 6, from + word);
            asm.store(Width::Word, STACK, to + word, 1);
        }
    }
}

/// Sets the socket to the wanted rate, if there is one. Expects the key on the stack, the socket in
/// `R6` and the flags for map updates in `R8`.
fn apply(asm: &mut Assembler, maps: Maps, done: Label) {
    let (is_its, known) = (asm.label(), asm.label());
    asm.set_map(1, maps.wanted);
    asm.copy(2, STACK);
    asm.add(2, KEY.into());
    asm.call(Helper::MapLookupElem);
    asm.jump_if_equal(0, 0, done);
    asm.load(Width::Word, 7, 0, 0);
    asm.store(Width::Word, STACK, WANTED, 7);
    asm.load(Width::Double, 9, 0, WANTED_COOKIE);
    asm.jump_if_equal(9, 0, is_its);
    asm.copy(1, 6);
    asm.call(Helper::GetSocketCookie);
    asm.jump_if_registers_unequal(0, 9, done);
    asm.place(is_its);

    asm.store_value(Width::Word, STACK, CURRENT, 0);
    socket_option(asm, Helper::Getsockopt, CURRENT);
    asm.jump_if_equal(0, 0, known);
    // Kernels before 6.0 do not report the present rate. No limit is assumed, because programs
    // rarely set one themselves.
    asm.store_value(Width::Word, STACK, CURRENT, -1);
    asm.place(known);
    asm.load(Width::Word, 1, STACK, CURRENT);
    asm.jump_if_registers_equal(1, 7, done);

    asm.set_map(1, maps.before);
    asm.copy(2, STACK);
    asm.add(2, KEY.into());
    asm.copy(3, STACK);
    asm.add(3, CURRENT.into());
    asm.copy(4, 8);
    asm.call(Helper::MapUpdateElem);

    socket_option(asm, Helper::Setsockopt, WANTED);
}

fn socket_option(asm: &mut Assembler, helper: Helper, value: i16) {
    asm.copy(1, 6);
    asm.set(2, SOL_SOCKET);
    asm.set(3, SO_MAX_PACING_RATE);
    asm.copy(4, STACK);
    asm.add(4, value.into());
    asm.set(5, RATE_BYTES as i32);
    asm.call(helper);
}
