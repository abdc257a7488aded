//! The system call bpf(2): maps, programs, links, iterators.
//!
//! Source: bpf(2) and the kernel's include/uapi/linux/bpf.h, `union bpf_attr`; each command reads a part of it.

use std::io::{Error, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const MAP_CREATE: libc::c_int = 0;
const MAP_LOOKUP_ELEM: libc::c_int = 1;
const MAP_UPDATE_ELEM: libc::c_int = 2;
const MAP_DELETE_ELEM: libc::c_int = 3;
const PROG_LOAD: libc::c_int = 5;
const LINK_CREATE: libc::c_int = 28;
const ITER_CREATE: libc::c_int = 33;

const MAP_TYPE_HASH: u32 = 1;
/// Maps take memory as they fill, not at once.
const NO_PREALLOC: u32 = 1;
const PROG_TYPE_SOCK_OPS: u32 = 13;
const PROG_TYPE_TRACING: u32 = 26;
const CGROUP_SOCK_OPS: u32 = 3;
const TRACE_ITER: u32 = 28;

/// The kernel lets only such programs read its structures; ours may be had under both.
const LICENSE: &std::ffi::CStr = c"Dual MIT/GPL";

#[repr(C)]
#[derive(Default)]
struct MapCreate {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
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
    prog_name: [u8; 16],
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
/// `T` must be the part of `union bpf_attr` that `command` reads, and the addresses in it must be good for what it does.
unsafe fn bpf<T>(command: libc::c_int, attributes: &T) -> Result<libc::c_long> {
    // SAFETY: the kernel reads as many bytes as the structure has; the caller vouches for what it points to.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attributes), size_of::<T>() as libc::c_uint)
    };
    if result < 0 { Err(Error::last_os_error()) } else { Ok(result) }
}

/// # Safety
///
/// As [`bpf`]; the command must return a fresh descriptor.
unsafe fn bpf_fd<T>(command: libc::c_int, attributes: &T) -> Result<OwnedFd> {
    // SAFETY: as the caller says.
    let fd = unsafe { bpf(command, attributes)? };
    // SAFETY: the descriptor is fresh and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// A hash table in the kernel, with keys and values of these sizes.
#[derive(Debug)]
pub struct Map<const KEY: usize, const VALUE: usize> {
    fd: OwnedFd,
}

impl<const KEY: usize, const VALUE: usize> Map<KEY, VALUE> {
    /// Makes an empty table.
    ///
    /// Errors: the system's.
    pub fn new(entries_max: u32) -> Result<Self> {
        let attributes = MapCreate {
            map_type: MAP_TYPE_HASH,
            key_size: KEY as u32,
            value_size: VALUE as u32,
            max_entries: entries_max,
            map_flags: NO_PREALLOC,
        };
        // SAFETY: these are the attributes of MAP_CREATE, which returns a descriptor.
        Ok(Self { fd: unsafe { bpf_fd(MAP_CREATE, &attributes)? } })
    }

    /// The descriptor, for [`super::asm::Assembler::set_map`].
    pub fn raw_fd(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    fn element(&self, key: &[u8; KEY], value: u64) -> MapElement {
        let map_fd = self.fd.as_raw_fd() as u32;
        MapElement { map_fd, key: key.as_ptr() as u64, value, flags: 0 }
    }

    /// The value of a key; `None` without an entry.
    ///
    /// Errors: the system's.
    pub fn find(&self, key: &[u8; KEY]) -> Result<Option<[u8; VALUE]>> {
        let mut value = [0; VALUE];
        let attributes = self.element(key, value.as_mut_ptr() as u64);
        // SAFETY: the kernel reads KEY bytes and writes VALUE bytes, the sizes that the map was made with.
        match unsafe { bpf(MAP_LOOKUP_ELEM, &attributes) } {
            Ok(_) => Ok(Some(value)),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Adds or replaces an entry.
    ///
    /// Errors: the system's; a table that is full.
    pub fn insert(&self, key: &[u8; KEY], value: &[u8; VALUE]) -> Result<()> {
        let attributes = self.element(key, value.as_ptr() as u64);
        // SAFETY: the kernel reads KEY and VALUE bytes, the sizes that the map was made with.
        unsafe { bpf(MAP_UPDATE_ELEM, &attributes).map(drop) }
    }

    /// Removes an entry, if there is one.
    ///
    /// Errors: the system's.
    pub fn remove(&self, key: &[u8; KEY]) -> Result<()> {
        let attributes = self.element(key, 0);
        // SAFETY: the kernel reads KEY bytes, the size that the map was made with.
        match unsafe { bpf(MAP_DELETE_ELEM, &attributes) } {
            Err(error) if error.raw_os_error() != Some(libc::ENOENT) => Err(error),
            _ => Ok(()),
        }
    }
}

/// Loads a program for connections of a cgroup.
pub fn load_sock_ops(code: &[u64]) -> Result<OwnedFd> {
    load(code, ProgLoad { prog_type: PROG_TYPE_SOCK_OPS, expected_attach_type: CGROUP_SOCK_OPS, ..name() })
}

/// Loads a program for an iterator, by the number of its function in the kernel's BTF.
pub fn load_iterator(code: &[u64], function: u32) -> Result<OwnedFd> {
    let kind = ProgLoad {
        prog_type: PROG_TYPE_TRACING,
        expected_attach_type: TRACE_ITER,
        attach_btf_id: function,
        ..name()
    };
    load(code, kind)
}

fn name() -> ProgLoad {
    ProgLoad { prog_name: *b"anabranch_pace\0\0", ..ProgLoad::default() }
}

fn load(code: &[u64], kind: ProgLoad) -> Result<OwnedFd> {
    let attributes = ProgLoad {
        insn_cnt: code.len() as u32,
        insns: code.as_ptr() as u64,
        license: LICENSE.as_ptr() as u64,
        ..kind
    };
    // SAFETY: the kernel reads as many instructions as there are, and a C string; both outlive the call.
    unsafe { bpf_fd(PROG_LOAD, &attributes) }
}

/// Attaches a program to a cgroup until the descriptor returned is closed.
pub fn attach_to_cgroup(program: &OwnedFd, cgroup: &OwnedFd) -> Result<OwnedFd> {
    let (program, cgroup) = (program.as_raw_fd() as u32, cgroup.as_raw_fd() as u32);
    let attributes =
        LinkCreate { prog_fd: program, target_fd: cgroup, attach_type: CGROUP_SOCK_OPS, flags: 0 };
    // SAFETY: these are the attributes of LINK_CREATE, which returns a descriptor.
    unsafe { bpf_fd(LINK_CREATE, &attributes) }
}

/// Makes an iterator of a program; see [`run_iterator`].
pub fn link_iterator(program: &OwnedFd) -> Result<OwnedFd> {
    let attributes =
        LinkCreate { prog_fd: program.as_raw_fd() as u32, attach_type: TRACE_ITER, ..LinkCreate::default() };
    // SAFETY: these are the attributes of LINK_CREATE, which returns a descriptor.
    unsafe { bpf_fd(LINK_CREATE, &attributes) }
}

/// Has the iterator's program called for every socket of this thread's network namespace.
pub fn run_iterator(link: &OwnedFd) -> Result<()> {
    let attributes = IterCreate { link_fd: link.as_raw_fd() as u32, flags: 0 };
    // SAFETY: these are the attributes of ITER_CREATE, which returns a descriptor.
    let iterator = unsafe { bpf_fd(ITER_CREATE, &attributes)? };
    // The program writes nothing; reading is what runs it.
    let mut nothing = [0; 64];
    loop {
        match rustix::io::read(&iterator, &mut nothing) {
            Ok(0) => return Ok(()),
            Ok(_) | Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
