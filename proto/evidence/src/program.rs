//! Classic BPF programs: instructions, and an assembler with labels.
//!
//! Pure code. A jump goes forward by at most 255 instructions, as the kernel demands.

/// One instruction, as `struct sock_filter`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// Operation.
    pub code: u16,
    /// Instructions to skip if the condition holds.
    pub if_true: u8,
    /// Instructions to skip if it does not.
    pub if_false: u8,
    /// Constant.
    pub k: u32,
}

/// Operations that programs of this crate use (`linux/bpf_common.h`). A is the accumulator, X the index register, M the
/// scratch memory.
pub mod op {
    /// A = 32-bit word of the frame at k.
    pub const LOAD_ABSOLUTE: u16 = 0x20;
    /// A = 32-bit word of the frame at X + k.
    pub const LOAD_WORD: u16 = 0x40;
    /// A = 16-bit word of the frame at X + k.
    pub const LOAD_HALF: u16 = 0x48;
    /// A = byte of the frame at X + k.
    pub const LOAD_BYTE: u16 = 0x50;
    /// A = length of the frame.
    pub const LOAD_LENGTH: u16 = 0x80;
    /// A = M\[k\].
    pub const LOAD_MEMORY: u16 = 0x60;
    /// X = k.
    pub const SET_X: u16 = 0x01;
    /// X = M\[k\].
    pub const LOAD_X_MEMORY: u16 = 0x61;
    /// M\[k\] = A.
    pub const STORE: u16 = 0x02;
    /// M\[k\] = X.
    pub const STORE_X: u16 = 0x03;
    /// A = A + k.
    pub const ADD: u16 = 0x04;
    /// A = A - k.
    pub const SUBTRACT: u16 = 0x14;
    /// A = A * k.
    pub const MULTIPLY: u16 = 0x24;
    /// A = A & k.
    pub const AND: u16 = 0x54;
    /// A = A << k.
    pub const SHIFT_LEFT: u16 = 0x64;
    /// A = A >> k.
    pub const SHIFT_RIGHT: u16 = 0x74;
    /// A = A + X.
    pub const ADD_X: u16 = 0x0c;
    /// Jump by k.
    pub const JUMP: u16 = 0x05;
    /// Jump if A == k.
    pub const JUMP_EQUAL: u16 = 0x15;
    /// Jump if A >= k.
    pub const JUMP_AT_LEAST: u16 = 0x35;
    /// Jump if A & k != 0.
    pub const JUMP_BITS: u16 = 0x45;
    /// Jump if A >= X.
    pub const JUMP_AT_LEAST_X: u16 = 0x3d;
    /// X = A.
    pub const A_TO_X: u16 = 0x07;
    /// A = X.
    pub const X_TO_A: u16 = 0x87;
    /// End: the frame is cut to k bytes; 0 refuses it.
    pub const RETURN: u16 = 0x06;
    /// Constant of [`LOAD_ABSOLUTE`]: 1 when the kernel holds the frame's outer VLAN tag in its metadata, else 0.
    pub const VLAN_TAG_PRESENT: u32 = 0xffff_f000 + 48;
}

/// A program that refuses every frame.
pub fn refuse_all() -> Vec<Instruction> {
    accept_all(0)
}

/// A program that accepts every frame and cuts it to `snaplen` bytes.
pub fn accept_all(snaplen: u32) -> Vec<Instruction> {
    vec![Instruction { code: op::RETURN, if_true: 0, if_false: 0, k: snaplen }]
}

/// Place in a program that jumps lead to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Label(usize);

/// Assembler: instructions in order, with jumps to labels that follow.
#[derive(Debug, Default)]
pub(crate) struct Assembler {
    program: Vec<Instruction>,
    /// Instruction and targets of each conditional jump; `None` is the next instruction.
    jumps: Vec<(usize, Option<Label>, Option<Label>)>,
    /// Place of each label.
    labels: Vec<Option<usize>>,
}

impl Assembler {
    pub(crate) fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// Puts a label in front of the next instruction.
    pub(crate) fn place(&mut self, label: Label) {
        self.labels[label.0] = Some(self.program.len());
    }

    pub(crate) fn emit(&mut self, code: u16, k: u32) {
        self.program.push(Instruction { code, if_true: 0, if_false: 0, k });
    }

    /// A conditional jump; `None` is the next instruction.
    pub(crate) fn branch(&mut self, code: u16, k: u32, if_true: Option<Label>, if_false: Option<Label>) {
        self.jumps.push((self.program.len(), if_true, if_false));
        self.emit(code, k);
    }

    pub(crate) fn jump(&mut self, to: Label) {
        self.jumps.push((self.program.len(), Some(to), None));
        self.emit(op::JUMP, 0);
    }

    /// The finished program. Panics if a label has no place, lies behind its jump or too far away: mistakes of the
    /// calling code, independent of any input.
    pub(crate) fn finish(mut self) -> Vec<Instruction> {
        for (at, if_true, if_false) in std::mem::take(&mut self.jumps) {
            let distance = |label: Option<Label>| match label {
                Some(label) => {
                    self.labels[label.0].and_then(|to| to.checked_sub(at + 1)).expect("a label behind")
                }
                None => 0,
            };
            let (yes, no) = (distance(if_true), distance(if_false));
            let instruction = &mut self.program[at];
            if instruction.code == op::JUMP {
                instruction.k = yes as u32;
            } else {
                instruction.if_true = u8::try_from(yes).expect("a near label");
                instruction.if_false = u8::try_from(no).expect("a near label");
            }
        }
        self.program
    }
}
