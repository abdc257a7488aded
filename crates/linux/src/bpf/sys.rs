//! The system call bpf(2): maps, programs, links, iterators.
//!
//! Source: bpf(2) and the kernel's include/uapi/linux/bpf.h, `union bpf_attr`; each command uses a
//! part of the union.

use std::io::{Error, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::btf;

/// A command of bpf(2) (`enum bpf_cmd`).
#[derive(Copy, Clone, Debug)]
#[repr(i32)]
enum Command {
    MapCreate = 0,
    MapLookupElem = 1,
    MapUpdateElem = 2,
    MapDeleteElem = 3,
    ProgLoad = 5,
    ProgGetNextId = 11,
    MapGetNextId = 12,
    ProgGetFdById = 13,
    MapGetFdById = 14,
    ObjGetInfoByFd = 15,
    BtfLoad = 18,
    LinkCreate = 28,
    IterCreate = 33,
}

const MAP_TYPE_HASH: u32 = 1;
const MAP_TYPE_ARRAY: u32 = 2;
const MAP_TYPE_SK_STORAGE: u32 = 24;
const MAP_TYPE_STRUCT_OPS: u32 = 26;
/// Flag: maps allocate memory as they fill, not at creation.
const NO_PREALLOC: u32 = 1;
/// Flag: a map of this kind takes effect only while a link to it exists.
const WITH_LINK: u32 = 1 << 13;
const PROG_TYPE_CGROUP_SKB: u32 = 8;
const PROG_TYPE_SOCK_OPS: u32 = 13;
const PROG_TYPE_TRACING: u32 = 26;
const PROG_TYPE_STRUCT_OPS: u32 = 27;
const CGROUP_INET_INGRESS: u32 = 0;
const CGROUP_SOCK_OPS: u32 = 3;
const TRACE_ITER: u32 = 28;
const STRUCT_OPS: u32 = 44;

/// The kernel lets only GPL-compatible programs read its structures; our programs have both
/// licences.
const LICENSE: &std::ffi::CStr = c"Dual MIT/GPL";

/// Size in bytes of the name of a program or a map, the terminating zero included.
const NAME_BYTES: usize = 16;

#[repr(C)]
#[derive(Default)]
struct MapCreate {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
    inner_map_fd: u32,
    numa_node: u32,
    map_name: [u8; NAME_BYTES],
    map_ifindex: u32,
    btf_fd: u32,
    btf_key_type_id: u32,
    btf_value_type_id: u32,
    btf_vmlinux_value_type_id: u32,
}

#[repr(C, align(8))]
#[derive(Default)]
struct BtfLoad {
    btf: u64,
    btf_log_buf: u64,
    btf_size: u32,
    btf_log_size: u32,
    btf_log_level: u32,
}

#[repr(C)]
#[derive(Default)]
struct GetId {
    start_id: u32,
    next_id: u32,
    open_flags: u32,
}

#[repr(C, align(8))]
struct GetInfo {
    bpf_fd: u32,
    info_len: u32,
    info: u64,
}

/// The first fields of `struct bpf_map_info`.
#[repr(C)]
#[derive(Default)]
struct MapInfo {
    map_type: u32,
    id: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
    name: [u8; NAME_BYTES],
}

/// The first fields of `struct bpf_prog_info`.
#[repr(C, align(8))]
#[derive(Default)]
struct ProgInfo {
    prog_type: u32,
    id: u32,
    tag: [u8; 8],
    jited_prog_len: u32,
    xlated_prog_len: u32,
    jited_prog_insns: u64,
    xlated_prog_insns: u64,
    load_time: u64,
    created_by_uid: u32,
    nr_map_ids: u32,
    map_ids: u64,
    name: [u8; NAME_BYTES],
}

#[repr(C, align(8))]
struct MapElement {
    map_fd: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C, align(8))]
#[derive(Default)]
struct ProgLoad {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; NAME_BYTES],
    prog_ifindex: u32,
    expected_attach_type: u32,
    prog_btf_fd: u32,
    func_info_rec_size: u32,
    func_info: u64,
    func_info_cnt: u32,
    line_info_rec_size: u32,
    line_info: u64,
    line_info_cnt: u32,
    attach_btf_id: u32,
}

#[repr(C)]
#[derive(Default)]
struct LinkCreate {
    prog_fd: u32,
    target_fd: u32,
    attach_type: u32,
    flags: u32,
}

#[repr(C)]
struct IterCreate {
    link_fd: u32,
    flags: u32,
}

/// # Safety
///
/// `T` must be the part of `union bpf_attr` that `command` reads and writes, and the addresses in
/// it must be valid for the command.
unsafe fn bpf<T>(command: Command, attributes: &mut T) -> Result<libc::c_long> {
    // SAFETY: the kernel reads and writes no more bytes than the structure has; the caller ensures
    // that its addresses are valid.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command as libc::c_int,
            std::ptr::from_mut(attributes),
            size_of::<T>() as libc::c_uint,
        )
    };
    if result < 0 { Err(Error::last_os_error()) } else { Ok(result) }
}

/// # Safety
///
/// See [`bpf`]; the command must also return a new descriptor.
unsafe fn bpf_fd<T>(command: Command, attributes: &mut T) -> Result<OwnedFd> {
    // SAFETY: the caller upholds the same contract.
    let fd = unsafe { bpf(command, attributes)? };
    // SAFETY: the descriptor is new and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// A hash table or an array in the kernel, with fixed sizes of keys and values.
#[derive(Debug)]
pub struct Map<const KEY: usize, const VALUE: usize> {
    fd: OwnedFd,
}

impl<const VALUE: usize> Map<4, VALUE> {
    /// Creates an array of zeros. Keys are indices, in the machine's byte order. Only the first 15
    /// bytes of the name are used.
    ///
    /// Errors: the system's.
    pub fn new_array(name: &str, entries: u32) -> Result<Self> {
        let mut attributes = MapCreate {
            map_name: fixed(name),
            map_type: MAP_TYPE_ARRAY,
            key_size: size_of::<u32>() as u32,
            value_size: VALUE as u32,
            max_entries: entries,
            ..MapCreate::default()
        };
        // SAFETY: these are the attributes of MAP_CREATE, which returns a descriptor.
        Ok(Self { fd: unsafe { bpf_fd(Command::MapCreate, &mut attributes)? } })
    }
}

impl<const KEY: usize, const VALUE: usize> Map<KEY, VALUE> {
    /// Creates an empty hash table.
    ///
    /// Errors: the system's.
    pub fn new(entries_max: u32) -> Result<Self> {
        let mut attributes = MapCreate {
            map_type: MAP_TYPE_HASH,
            key_size: KEY as u32,
            value_size: VALUE as u32,
            max_entries: entries_max,
            map_flags: NO_PREALLOC,
            ..MapCreate::default()
        };
        // SAFETY: these are the attributes of MAP_CREATE, which returns a descriptor.
        Ok(Self { fd: unsafe { bpf_fd(Command::MapCreate, &mut attributes)? } })
    }

    /// The descriptor, for [`super::asm::Assembler::set_map`].
    pub fn raw_fd(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    fn element(&self, key: &[u8; KEY], value: u64) -> MapElement {
        let map_fd = self.fd.as_raw_fd() as u32;
        MapElement { map_fd, key: key.as_ptr() as u64, value, flags: 0 }
    }

    /// The value of a key; `None` if the table has no such key.
    ///
    /// Errors: the system's.
    pub fn find(&self, key: &[u8; KEY]) -> Result<Option<[u8; VALUE]>> {
        let mut value = [0; VALUE];
        let mut attributes = self.element(key, value.as_mut_ptr() as u64);
        // SAFETY: the kernel reads KEY bytes and writes VALUE bytes, the sizes with which the map
        // was created.
        match unsafe { bpf(Command::MapLookupElem, &mut attributes) } {
            Ok(_) => Ok(Some(value)),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Adds or replaces an entry.
    ///
    /// Errors: the system's; the table is full.
    pub fn insert(&self, key: &[u8; KEY], value: &[u8; VALUE]) -> Result<()> {
        let mut attributes = self.element(key, value.as_ptr() as u64);
        // SAFETY: the kernel reads KEY and VALUE bytes, the sizes with which the map was created.
        unsafe { bpf(Command::MapUpdateElem, &mut attributes).map(drop) }
    }

    /// Removes an entry if it exists.
    ///
    /// Errors: the system's.
    pub fn remove(&self, key: &[u8; KEY]) -> Result<()> {
        let mut attributes = self.element(key, 0);
        // SAFETY: the kernel reads KEY bytes, the size with which the map was created.
        match unsafe { bpf(Command::MapDeleteElem, &mut attributes) } {
            Err(error) if error.raw_os_error() != Some(libc::ENOENT) => Err(error),
            _ => Ok(()),
        }
    }
}

/// Storage of one 32-bit number for each socket (`BPF_MAP_TYPE_SK_STORAGE`). The kernel frees a
/// number with its socket.
#[derive(Debug)]
pub struct SocketStorage {
    fd: OwnedFd,
}

impl SocketStorage {
    /// Creates storage, which no socket uses yet. Only the first 15 bytes of the name are used.
    ///
    /// Errors: the system's.
    pub fn new(name: &str) -> Result<Self> {
        // The kernel requires type information for key and value.
        let types = load_btf(&btf::one_integer())?;
        let mut attributes = MapCreate {
            map_type: MAP_TYPE_SK_STORAGE,
            key_size: size_of::<u32>() as u32,
            value_size: size_of::<u32>() as u32,
            map_flags: NO_PREALLOC,
            map_name: fixed(name),
            btf_fd: types.as_raw_fd() as u32,
            btf_key_type_id: btf::INTEGER,
            btf_value_type_id: btf::INTEGER,
            ..MapCreate::default()
        };
        // SAFETY: these are the attributes of MAP_CREATE, which returns a descriptor.
        Ok(Self { fd: unsafe { bpf_fd(Command::MapCreate, &mut attributes)? } })
    }

    /// The descriptor, for [`super::asm::Assembler::set_map`].
    pub fn raw_fd(&self) -> i32 {
        self.fd.as_raw_fd()
    }
}

/// A hook of a cgroup at which the kernel calls programs.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum CgroupHook {
    /// Events of TCP connections (`BPF_PROG_TYPE_SOCK_OPS`).
    SockOps,
    /// Packets that arrive for a socket, from the IP header on (`BPF_PROG_TYPE_CGROUP_SKB`).
    Ingress,
}

impl CgroupHook {
    /// Numbers of the program type and of the attachment type.
    const fn types(self) -> (u32, u32) {
        match self {
            Self::SockOps => (PROG_TYPE_SOCK_OPS, CGROUP_SOCK_OPS),
            Self::Ingress => (PROG_TYPE_CGROUP_SKB, CGROUP_INET_INGRESS),
        }
    }
}

/// Loads a program for sockets of a cgroup. Only the first 15 bytes of its name are used.
///
/// Errors: the system's; a program that the kernel's verifier refuses.
pub fn load_for_cgroup(name: &str, code: &[u64], hook: CgroupHook) -> Result<OwnedFd> {
    load(name, code, for_cgroup(hook))
}

/// The verifier's log of a program that [`load_for_cgroup`] has refused.
pub(super) fn cgroup_log(code: &[u64], hook: CgroupHook) -> String {
    verifier_log(code, for_cgroup(hook))
}

fn for_cgroup(hook: CgroupHook) -> ProgLoad {
    let (prog_type, expected_attach_type) = hook.types();
    ProgLoad { prog_type, expected_attach_type, ..ProgLoad::default() }
}

/// Loads a program for an iterator. `function` is the number of the iterator's function in the
/// kernel's types.
///
/// Errors: see [`load_for_cgroup`].
pub fn load_iterator(name: &str, code: &[u64], function: u32) -> Result<OwnedFd> {
    let kind = ProgLoad {
        prog_type: PROG_TYPE_TRACING,
        expected_attach_type: TRACE_ITER,
        attach_btf_id: function,
        ..ProgLoad::default()
    };
    load(name, code, kind)
}

/// Loads a program for a member of a structure of functions, both given by their numbers in the
/// kernel's types.
///
/// Errors: see [`load_for_cgroup`].
pub(super) fn load_struct_ops(name: &str, code: &[u64], structure: u32, member: u32) -> Result<OwnedFd> {
    load(name, code, struct_ops(structure, member))
}

/// The verifier's log of a program that [`load_struct_ops`] has refused.
pub(super) fn struct_ops_log(code: &[u64], structure: u32, member: u32) -> String {
    verifier_log(code, struct_ops(structure, member))
}

fn verifier_log(code: &[u64], kind: ProgLoad) -> String {
    let mut log = vec![0u8; LOG_BYTES];
    let kind =
        ProgLoad { log_level: 1, log_size: LOG_BYTES as u32, log_buf: log.as_mut_ptr() as u64, ..kind };
    let _ = load("", code, kind);
    let text = log.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).trim().to_owned()
}

/// Size in bytes of the buffer for the verifier's log.
const LOG_BYTES: usize = 64 << 10;

fn struct_ops(structure: u32, member: u32) -> ProgLoad {
    ProgLoad {
        prog_type: PROG_TYPE_STRUCT_OPS,
        expected_attach_type: member,
        attach_btf_id: structure,
        ..ProgLoad::default()
    }
}

/// The first 15 bytes of a name, padded with zeros.
fn fixed(name: &str) -> [u8; NAME_BYTES] {
    let mut bytes = [0; NAME_BYTES];
    bytes[..NAME_BYTES - 1].iter_mut().zip(name.bytes()).for_each(|(to, from)| *to = from);
    bytes
}

fn load(name: &str, code: &[u64], kind: ProgLoad) -> Result<OwnedFd> {
    let mut attributes = ProgLoad {
        prog_name: fixed(name),
        insn_cnt: code.len() as u32,
        insns: code.as_ptr() as u64,
        license: LICENSE.as_ptr() as u64,
        ..kind
    };
    // SAFETY: the kernel reads the given number of instructions, and a C string; both outlive the
    // call.
    unsafe { bpf_fd(Command::ProgLoad, &mut attributes) }
}

/// Attaches a program that was loaded for `hook` to a cgroup. Closing the returned descriptor
/// detaches it.
///
/// Errors: the system's.
pub fn attach_to_cgroup(program: &OwnedFd, cgroup: &OwnedFd, hook: CgroupHook) -> Result<OwnedFd> {
    let (_, attach_type) = hook.types();
    let (program, cgroup) = (program.as_raw_fd() as u32, cgroup.as_raw_fd() as u32);
    let mut attributes = LinkCreate { prog_fd: program, target_fd: cgroup, attach_type, flags: 0 };
    // SAFETY: these are the attributes of LINK_CREATE, which returns a descriptor.
    unsafe { bpf_fd(Command::LinkCreate, &mut attributes) }
}

/// Creates an iterator that runs a program; see [`run_iterator`].
pub fn link_iterator(program: &OwnedFd) -> Result<OwnedFd> {
    let mut attributes =
        LinkCreate { prog_fd: program.as_raw_fd() as u32, attach_type: TRACE_ITER, ..LinkCreate::default() };
    // SAFETY: these are the attributes of LINK_CREATE, which returns a descriptor.
    unsafe { bpf_fd(Command::LinkCreate, &mut attributes) }
}

/// Calls the iterator's program for every socket in this thread's network namespace.
pub fn run_iterator(link: &OwnedFd) -> Result<()> {
    let mut attributes = IterCreate { link_fd: link.as_raw_fd() as u32, flags: 0 };
    // SAFETY: these are the attributes of ITER_CREATE, which returns a descriptor.
    let iterator = unsafe { bpf_fd(Command::IterCreate, &mut attributes)? };
    // The program writes no output; the read only makes it run.
    let mut nothing = [0; 64];
    loop {
        match rustix::io::read(&iterator, &mut nothing) {
            Ok(0) => return Ok(()),
            Ok(_) | Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Loads type information of our own into the kernel.
///
/// Errors: the system's.
pub(super) fn load_btf(bytes: &[u8]) -> Result<OwnedFd> {
    let mut attributes =
        BtfLoad { btf: bytes.as_ptr() as u64, btf_size: bytes.len() as u32, ..BtfLoad::default() };
    // SAFETY: the kernel reads the given number of bytes; BTF_LOAD returns a descriptor.
    unsafe { bpf_fd(Command::BtfLoad, &mut attributes) }
}

/// Creates a map that holds one structure of functions. `types` is any type information of our own,
/// `value_type` the number of the map's value in the kernel's types.
///
/// Errors: the system's.
pub(super) fn make_struct_ops_map(
    name: &str,
    types: &OwnedFd,
    value_type: u32,
    value: &[u8],
) -> Result<OwnedFd> {
    let mut attributes = MapCreate {
        map_type: MAP_TYPE_STRUCT_OPS,
        key_size: size_of::<u32>() as u32,
        value_size: value.len() as u32,
        max_entries: 1,
        map_flags: WITH_LINK,
        map_name: fixed(name),
        btf_fd: types.as_raw_fd() as u32,
        btf_vmlinux_value_type_id: value_type,
        ..MapCreate::default()
    };
    // SAFETY: these are the attributes of MAP_CREATE, which returns a descriptor.
    let map = unsafe { bpf_fd(Command::MapCreate, &mut attributes)? };
    let key = 0u32;
    let mut attributes = MapElement {
        map_fd: map.as_raw_fd() as u32,
        key: std::ptr::from_ref(&key) as u64,
        value: value.as_ptr() as u64,
        flags: 0,
    };
    // SAFETY: the kernel reads a key of 4 bytes, and as many bytes of value as the map was created
    // with.
    unsafe { bpf(Command::MapUpdateElem, &mut attributes)? };
    Ok(map)
}

/// Puts the structure of functions in a map into use. Closing the returned descriptor ends the use.
///
/// Errors: the system's.
pub(super) fn link_struct_ops(map: &OwnedFd) -> Result<OwnedFd> {
    let mut attributes =
        LinkCreate { prog_fd: map.as_raw_fd() as u32, attach_type: STRUCT_OPS, ..LinkCreate::default() };
    // SAFETY: these are the attributes of LINK_CREATE, which returns a descriptor.
    unsafe { bpf_fd(Command::LinkCreate, &mut attributes) }
}

/// A kind of object to which the kernel gives numbers.
trait Object {
    /// Two commands: the next number, and the descriptor of a number.
    const COMMANDS: (Command, Command);

    /// The object's name, padded with zeros.
    fn name(&self) -> [u8; NAME_BYTES];
}

impl Object for MapInfo {
    const COMMANDS: (Command, Command) = (Command::MapGetNextId, Command::MapGetFdById);

    fn name(&self) -> [u8; NAME_BYTES] {
        self.name
    }
}

impl Object for ProgInfo {
    const COMMANDS: (Command, Command) = (Command::ProgGetNextId, Command::ProgGetFdById);

    fn name(&self) -> [u8; NAME_BYTES] {
        self.name
    }
}

/// All objects of a kind, whichever programs created them.
fn objects<T: Object + Default>() -> Result<Vec<T>> {
    let (next_id, fd_by_id) = T::COMMANDS;
    let (mut found, mut id) = (Vec::new(), GetId::default());
    loop {
        // SAFETY: these are the attributes of the commands for the next number, which write
        // `next_id`.
        match unsafe { bpf(next_id, &mut id) } {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(found),
            next => drop(next?),
        }
        id.start_id = id.next_id;
        let mut by_id = GetId { start_id: id.next_id, ..GetId::default() };
        // SAFETY: these are the attributes of the commands for a descriptor, which return one.
        let object = match unsafe { bpf_fd(fd_by_id, &mut by_id) } {
            // The object has been freed meanwhile.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => continue,
            object => object?,
        };
        let mut info = T::default();
        let mut attributes = GetInfo {
            bpf_fd: object.as_raw_fd() as u32,
            info_len: size_of::<T>() as u32,
            info: std::ptr::from_mut(&mut info) as u64,
        };
        // SAFETY: the kernel writes at most `info_len` bytes of information, and their number to
        // `info_len`. Zeros in the information request no further buffers.
        unsafe { bpf(Command::ObjGetInfoByFd, &mut attributes)? };
        found.push(info);
    }
}

/// Names of the maps that hold structures of functions, whichever programs created them.
///
/// Errors: the system's.
pub(super) fn struct_ops_maps() -> Result<Vec<String>> {
    let maps = objects::<MapInfo>()?.into_iter().filter(|map| map.map_type == MAP_TYPE_STRUCT_OPS);
    Ok(maps
        .map(|map| {
            let name = map.name.split(|byte| *byte == 0).next().unwrap_or_default();
            String::from_utf8_lossy(name).into_owned()
        })
        .collect())
}

/// Number of the machine's programs, and number of its maps, with this name. A link keeps its
/// program or map alive, so two zeros mean that no link is left either.
///
/// Errors: the system's; listing needs CAP_SYS_ADMIN.
pub fn count_named(name: &str) -> Result<(usize, usize)> {
    let name = fixed(name);
    let programs = objects::<ProgInfo>()?.iter().filter(|program| program.name() == name).count();
    let maps = objects::<MapInfo>()?.iter().filter(|map| map.name() == name).count();
    Ok((programs, maps))
}
