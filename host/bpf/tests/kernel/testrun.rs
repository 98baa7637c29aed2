//! One packet in, one packet out: the programs run on a frame without an interface.

use evergate_bpf::PacketGate;
use libbpf_rs::libbpf_sys as sys;
use std::io;
use std::os::fd::AsRawFd;

const LOOPBACK: u32 = 1;

/// At which hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hook {
    /// A frame that would leave.
    Egress,
    /// A frame that has come in.
    Ingress,
}

/// What a program did with a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// The tc action: 0 pass, 2 drop, 4 stolen, 7 redirect.
    pub(crate) action: u32,
    /// The frame afterwards.
    pub(crate) frame: Vec<u8>,
}

/// Test runs of a gate's programs.
pub(crate) trait TestRun {
    /// Runs the program of a hook on `frame`, with `mark` as the packet's mark, on an interface of the calling thread's
    /// network namespace.
    fn run_on(&self, interface: u32, hook: Hook, frame: &[u8], mark: u32) -> io::Result<Outcome>;

    /// Runs it on the loopback interface.
    fn run(&self, hook: Hook, frame: &[u8], mark: u32) -> io::Result<Outcome> {
        self.run_on(LOOPBACK, hook, frame, mark)
    }
}

impl TestRun for PacketGate {
    fn run_on(&self, interface: u32, hook: Hook, frame: &[u8], mark: u32) -> io::Result<Outcome> {
        let [egress, ingress] = self.programs();
        let program = match hook {
            Hook::Egress => egress,
            Hook::Ingress => ingress,
        };
        let mut context = [0u32; 48]; // __sk_buff: the mark is its third word, the interface its eleventh
        context[2] = mark;
        context[10] = interface;
        let mut out = vec![0u8; frame.len() + 64];
        let mut options = sys::bpf_test_run_opts {
            sz: size_of::<sys::bpf_test_run_opts>() as _,
            data_in: frame.as_ptr().cast(),
            data_size_in: frame.len() as u32,
            data_out: out.as_mut_ptr().cast(),
            data_size_out: out.len() as u32,
            ctx_in: context.as_ptr().cast(),
            ctx_size_in: size_of_val(&context) as u32,
            repeat: 1,
            ..Default::default()
        };
        // SAFETY: the options describe buffers that live across the call; the kernel writes at most data_size_out
        // bytes.
        let result = unsafe { sys::bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut options) };
        if result < 0 {
            return Err(io::Error::from_raw_os_error(-result));
        }
        out.truncate(options.data_size_out as usize);
        Ok(Outcome { action: options.retval, frame: out })
    }
}
