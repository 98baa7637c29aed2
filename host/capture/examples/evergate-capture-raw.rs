//! Writes the blocks of a ring to a file as they are, until SIGINT or SIGTERM, and prints the counters. It is the floor
//! of the recorder's cost: `evergate-capture-raw IF FILE [mib=N] [block-kib=N] [retire-ms=N]`.

use evergate_capture::{Ring, RingOptions, Wait};
use std::fs::File;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: evergate-capture-raw IF FILE [mib=N] [block-kib=N] [retire-ms=N]";
    let mut options = RingOptions::new(arguments.next().ok_or(usage)?);
    let mut file = File::create(arguments.next().ok_or(usage)?)?;
    for argument in arguments {
        let (key, value) = argument.split_once('=').ok_or("an option is KEY=VALUE")?;
        match key {
            "mib" => options.bytes = value.parse::<usize>()? << 20,
            "block-kib" => options.block_bytes = value.parse::<usize>()? << 10,
            "retire-ms" => options.retire_ms = value.parse()?,
            _ => return Err(format!("unknown option {key}").into()),
        }
    }
    let stop = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGINT, Arc::clone(&stop))?;
    signal_hook::flag::register(signal_hook::consts::SIGTERM, Arc::clone(&stop))?;
    let mut ring = Ring::open(&options)?;
    evergate_capture::drop_privileges()?;
    eprintln!("listening");
    let (mut packets, mut blocks, mut bytes) = (0, 0u64, 0);
    let mut is_stopping = false;
    loop {
        while let Some(block) = ring.next_block() {
            file.write_all(block.bytes())?;
            packets += u64::from(block.packet_count());
            bytes += block.bytes().len();
            blocks += 1;
        }
        if stop.load(Ordering::Relaxed) && !is_stopping {
            is_stopping = true;
            ring.stop()?;
        }
        let idle = Duration::from_millis(if is_stopping { 3 * u64::from(options.retire_ms) } else { 100 });
        if ring.wait(idle)? == Wait::Idle && is_stopping && ring.ready_blocks() == 0 {
            break;
        }
        ring.counters()?;
    }
    let counters = ring.counters()?;
    println!(
        "{{\"written\":{packets},\"seen\":{},\"drops\":{},\"blocks\":{blocks},\"bytes\":{bytes}}}",
        counters.seen, counters.dropped
    );
    Ok(())
}
