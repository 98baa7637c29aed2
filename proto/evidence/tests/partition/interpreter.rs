//! Interpreter of classic BPF, for the operations that the programs use. A load behind the end refuses the frame, as in
//! the kernel.

use evergate_evidence::program::{Instruction, op};

/// Runs a program; returns the accepted length.
pub(crate) fn run(program: &[Instruction], frame: &[u8], tag_in_metadata: bool) -> u32 {
    let (mut a, mut x, mut memory, mut at) = (0u32, 0u32, [None::<u32>; 16], 0usize);
    loop {
        let Instruction { code, if_true, if_false, k } = program[at];
        at += 1;
        let load = |x: u32, size: usize| {
            let start = x.checked_add(k)? as usize;
            let bytes = frame.get(start..start.checked_add(size)?)?;
            Some(bytes.iter().fold(0u32, |value, byte| value << 8 | u32::from(*byte)))
        };
        let branch = |condition: bool| usize::from(if condition { if_true } else { if_false });
        let loaded = |value: Option<u32>| value.ok_or(());
        let step = match code {
            op::LOAD_ABSOLUTE if k == op::VLAN_TAG_PRESENT => Ok(Some(u32::from(tag_in_metadata))),
            op::LOAD_ABSOLUTE => loaded(load(0, 4)).map(Some),
            op::LOAD_WORD => loaded(load(x, 4)).map(Some),
            op::LOAD_HALF => loaded(load(x, 2)).map(Some),
            op::LOAD_BYTE => loaded(load(x, 1)).map(Some),
            op::LOAD_LENGTH => Ok(Some(frame.len() as u32)),
            op::LOAD_MEMORY => Ok(Some(memory[k as usize].expect("memory was stored"))),
            op::ADD => Ok(Some(a.wrapping_add(k))),
            op::SUBTRACT => Ok(Some(a.wrapping_sub(k))),
            op::MULTIPLY => Ok(Some(a.wrapping_mul(k))),
            op::AND => Ok(Some(a & k)),
            op::SHIFT_LEFT => Ok(Some(a << k)),
            op::SHIFT_RIGHT => Ok(Some(a >> k)),
            op::ADD_X => Ok(Some(a.wrapping_add(x))),
            op::X_TO_A => Ok(Some(x)),
            op::RETURN => return k,
            _ => Ok(None),
        };
        match step {
            Ok(Some(value)) => a = value,
            Err(()) => return 0,
            Ok(None) => match code {
                op::SET_X => x = k,
                op::LOAD_X_MEMORY => x = memory[k as usize].expect("memory was stored"),
                op::STORE => memory[k as usize] = Some(a),
                op::STORE_X => memory[k as usize] = Some(x),
                op::A_TO_X => x = a,
                op::JUMP => at += k as usize,
                op::JUMP_EQUAL => at += branch(a == k),
                op::JUMP_AT_LEAST => at += branch(a >= k),
                op::JUMP_AT_LEAST_X => at += branch(a >= x),
                op::JUMP_BITS => at += branch(a & k != 0),
                other => panic!("unknown operation {other:#x}"),
            },
        }
    }
}
