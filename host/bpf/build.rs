//! Compiles the eBPF programs with clang and generates their skeletons.

use libbpf_cargo::SkeletonBuilder;
use std::{env, path::PathBuf, process::Command};

/// Objects of their own, so that a missing kernel function in one does not block the others.
const PROGRAMS: &[&str] = &["gate", "accept"];

fn main() {
    println!("cargo:rerun-if-env-changed=BPF_CLANG");
    println!("cargo:rerun-if-changed=src/bpf");
    let clang = env::var("BPF_CLANG").unwrap_or_else(|_| "clang".into());
    if Command::new(&clang).arg("--version").output().is_err() {
        panic!(
            "compiling the eBPF programs needs clang, and {clang:?} cannot be run: \
             run scripts/setup build (Debian: apt-get install clang libelf-dev zlib1g-dev), or name it in BPF_CLANG"
        );
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    for program in PROGRAMS {
        let built = SkeletonBuilder::new()
            .source(format!("src/bpf/{program}.bpf.c"))
            .clang(&clang)
            .clang_args(["-Wall", "-Werror", "-mcpu=v3", "-nostdinc"])
            .build_and_generate(out.join(format!("{program}.skel.rs")));
        if let Err(error) = built {
            panic!("compiling src/bpf/{program}.bpf.c with {clang:?} failed: {error:#}");
        }
    }
}
