//! An assembler of BPF instructions in the kernel's binary format.
//!
//! Leaves out: instructions that our programs do not use. Source: RFC 9669, sections 3 to 5. Read
//! [`Assembler`].

/// A register. `R0` holds results, `R1` to `R5` hold arguments and are overwritten by calls, `R6`
/// to `R9` survive calls, and `R10` is the stack's top.
pub type Register = u8;

/// Target of jumps.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Label(usize);

/// Size of a load or store: the size bits of its opcode (RFC 9669, section 5).
#[derive(Copy, Clone, Debug)]
#[repr(u8)]
pub enum Width {
    /// 4 bytes.
    Word = 0x00,
    /// 2 bytes.
    Half = 0x08,
    /// 1 byte.
    Byte = 0x10,
    /// 8 bytes.
    Double = 0x18,
}

/// A helper function of the kernel, numbered as in `enum bpf_func_id` (include/uapi/linux/bpf.h).
#[derive(Copy, Clone, Debug)]
#[repr(i32)]
pub enum Helper {
    /// Returns a pointer to a map's value, or null.
    MapLookupElem = 1,
    /// Writes a map's value.
    MapUpdateElem = 2,
    /// Copies bytes of a packet.
    SkbLoadBytes = 26,
    /// Returns the socket's cookie.
    GetSocketCookie = 46,
    /// Sets a socket's option.
    Setsockopt = 49,
    /// Reads a socket's option.
    Getsockopt = 57,
    /// Selects the events of a connection for which a program is called.
    SockOpsCbFlagsSet = 59,
    /// Returns the full socket, with all its fields, or null.
    SkFullsock = 95,
    /// Returns a pointer to the socket's storage, or null.
    SkStorageGet = 107,
    /// Sends an acknowledgement.
    TcpSendAck = 116,
    /// Returns the number of ticks since boot.
    Jiffies64 = 118,
    /// Returns the cookie of a socket's network namespace.
    GetNetnsCookie = 122,
}

/// Collects instructions and resolves jumps.
#[derive(Debug, Default)]
pub struct Assembler {
    code: Vec<u64>,
    /// Index of the instruction at each label; `None` until the label is placed.
    labels: Vec<Option<usize>>,
    /// Index of each jump instruction, and its target label.
    jumps: Vec<(usize, Label)>,
}

impl Assembler {
    /// Creates a label, to be placed with [`Assembler::place`].
    pub fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// Places the label at the next instruction.
    pub fn place(&mut self, label: Label) {
        self.labels[label.0] = Some(self.code.len());
    }

    fn push(&mut self, opcode: u8, dst: Register, src: Register, offset: i16, immediate: i32) {
        // In memory the fields have this order. The nibbles of the registers' byte depend on the
        // byte order.
        let registers = if cfg!(target_endian = "little") { src << 4 | dst } else { dst << 4 | src };
        let [o0, o1] = offset.to_ne_bytes();
        let [i0, i1, i2, i3] = immediate.to_ne_bytes();
        self.code.push(u64::from_ne_bytes([opcode, registers, o0, o1, i0, i1, i2, i3]));
    }

    /// `dst = src`.
    pub fn copy(&mut self, dst: Register, src: Register) {
        self.push(0xbf, dst, src, 0, 0);
    }

    /// `dst = value`, sign-extended.
    pub fn set(&mut self, dst: Register, value: i32) {
        self.push(0xb7, dst, 0, 0, value);
    }

    /// `dst += value`.
    pub fn add(&mut self, dst: Register, value: i32) {
        self.push(0x07, dst, 0, 0, value);
    }

    /// `dst |= value`.
    pub fn or(&mut self, dst: Register, value: i32) {
        self.push(0x47, dst, 0, 0, value);
    }

    /// `dst &= value`, sign-extended.
    pub fn and(&mut self, dst: Register, value: i32) {
        self.push(0x57, dst, 0, 0, value);
    }

    /// `dst <<= bits`.
    pub fn shift_left(&mut self, dst: Register, bits: i32) {
        self.push(0x67, dst, 0, 0, bits);
    }

    /// `dst >>= bits`, filled with zeros.
    pub fn shift_right(&mut self, dst: Register, bits: i32) {
        self.push(0x77, dst, 0, 0, bits);
    }

    /// `dst += src`.
    pub fn add_register(&mut self, dst: Register, src: Register) {
        self.push(0x0f, dst, src, 0, 0);
    }

    /// `dst -= src`.
    pub fn subtract_register(&mut self, dst: Register, src: Register) {
        self.push(0x1f, dst, src, 0, 0);
    }

    /// `dst *= src`.
    pub fn multiply_register(&mut self, dst: Register, src: Register) {
        self.push(0x2f, dst, src, 0, 0);
    }

    /// `dst /= value`, unsigned.
    pub fn divide(&mut self, dst: Register, value: i32) {
        self.push(0x37, dst, 0, 0, value);
    }

    /// `dst /= src`, unsigned; 0 if `src` is 0.
    pub fn divide_register(&mut self, dst: Register, src: Register) {
        self.push(0x3f, dst, src, 0, 0);
    }

    /// Clears the upper 32 bits of `dst`.
    pub fn keep_word(&mut self, dst: Register) {
        self.push(0xbc, dst, dst, 0, 0);
    }

    /// Converts the lowest `bits` of `dst` from network to host byte order, and clears all other
    /// bits.
    pub fn host_order(&mut self, dst: Register, bits: i32) {
        self.push(0xdc, dst, 0, 0, bits);
    }

    /// `dst = value`, 64 bits wide.
    pub fn set_wide(&mut self, dst: Register, value: u64) {
        self.push(0x18, dst, 0, 0, value as u32 as i32);
        self.push(0, 0, 0, 0, (value >> 32) as u32 as i32);
    }

    /// `dst` = the map with this descriptor.
    pub fn set_map(&mut self, dst: Register, map_fd: i32) {
        // Source 1 is BPF_PSEUDO_MAP_FD.
        self.push(0x18, dst, 1, 0, map_fd);
        self.push(0, 0, 0, 0, 0);
    }

    /// `dst = *(src + offset)`.
    pub fn load(&mut self, width: Width, dst: Register, src: Register, offset: i16) {
        self.push(0x61 | width as u8, dst, src, offset, 0);
    }

    /// `*(dst + offset) = src`.
    pub fn store(&mut self, width: Width, dst: Register, offset: i16, src: Register) {
        self.push(0x63 | width as u8, dst, src, offset, 0);
    }

    /// `*(dst + offset) = value`.
    pub fn store_value(&mut self, width: Width, dst: Register, offset: i16, value: i32) {
        self.push(0x62 | width as u8, dst, 0, offset, value);
    }

    /// Jumps to a label.
    pub fn jump(&mut self, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.push(0x05, 0, 0, 0, 0);
    }

    /// Jumps to a label if `register == value`.
    pub fn jump_if_equal(&mut self, register: Register, value: i32, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.push(0x15, register, 0, 0, value);
    }

    /// Jumps to a label if `register != value`.
    pub fn jump_if_unequal(&mut self, register: Register, value: i32, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.push(0x55, register, 0, 0, value);
    }

    /// Jumps to a label if `register > value`, unsigned; `value` is sign-extended.
    pub fn jump_if_greater(&mut self, register: Register, value: i32, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.push(0x25, register, 0, 0, value);
    }

    /// Jumps to a label if `a > b`, unsigned.
    pub fn jump_if_registers_greater(&mut self, a: Register, b: Register, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.push(0x2d, a, b, 0, 0);
    }

    /// Jumps to a label if `a == b`.
    pub fn jump_if_registers_equal(&mut self, a: Register, b: Register, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.push(0x1d, a, b, 0, 0);
    }

    /// Jumps to a label if `a != b`.
    pub fn jump_if_registers_unequal(&mut self, a: Register, b: Register, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.push(0x5d, a, b, 0, 0);
    }

    /// `R0` = the result of a helper.
    pub fn call(&mut self, helper: Helper) {
        self.push(0x85, 0, 0, 0, helper as i32);
    }

    /// `R0` = the result of a kernel function (a *kfunc*), by its number in the kernel's types
    /// ([`super::btf::Btf::function`]).
    pub fn call_kernel(&mut self, function: u32) {
        // Source 2 is BPF_PSEUDO_KFUNC_CALL.
        self.push(0x85, 0, 2, 0, function as i32);
    }

    /// `*(dst + offset) += src`, atomically, 8 bytes wide.
    pub fn atomic_add(&mut self, dst: Register, offset: i16, src: Register) {
        self.push(0xdb, dst, src, offset, 0);
    }

    /// Ends the program with the result in `R0`.
    pub fn exit(&mut self) {
        self.push(0x95, 0, 0, 0, 0);
    }

    /// The instructions, with every jump resolved.
    ///
    /// Panics: if the target label of a jump was never placed, or is more than 32,767 instructions
    /// away.
    pub fn finish(mut self) -> Vec<u64> {
        for (at, label) in self.jumps {
            let to = self.labels[label.0].expect("every label that is jumped to is placed");
            let distance =
                i16::try_from(to as i64 - at as i64 - 1).expect("no jump is longer than 32,767 instructions");
            let mut bytes = self.code[at].to_ne_bytes();
            bytes[2..4].copy_from_slice(&distance.to_ne_bytes());
            self.code[at] = u64::from_ne_bytes(bytes);
        }
        self.code
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_endian = "little")]
    #[test]
    fn instructions_match_rfc_9669() {
        let mut asm = Assembler::default();
        let end = asm.label();
        asm.jump_if_equal(1, 7, end);
        asm.load(Width::Half, 2, 6, -4);
        asm.store_value(Width::Double, 10, -8, -1);
        asm.place(end);
        asm.exit();
        let bytes: Vec<_> = asm.finish().into_iter().map(u64::to_le_bytes).collect();
        assert_eq!(
            bytes,
            [
                [0x15, 0x01, 2, 0, 7, 0, 0, 0],
                [0x69, 0x62, 0xfc, 0xff, 0, 0, 0, 0],
                [0x7a, 0x0a, 0xf8, 0xff, 0xff, 0xff, 0xff, 0xff],
                [0x95, 0, 0, 0, 0, 0, 0, 0],
            ]
        );
    }
}
