//! Writes the blocks of a ring to a file as they are, until SIGINT or SIGTERM, and prints the counters. It is the floor
//! of the recorder's cost. With a worker, another thread writes; with digests, each packet is digested before.
//!
//! `evergate-capture-raw IF FILE [mib=N] [block-kib=N] [retire-ms=N] [worker=1] [digest=many|one]`

use evergate_capture::{Block, CaptureError, Ring, RingOptions, Wait};
use evergate_digest::{Message, Sha256Digest, sha256, sha256_many};
use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::time::Duration;

const USAGE: &str =
    "usage: evergate-capture-raw IF FILE [mib=N] [block-kib=N] [retire-ms=N] [worker=1] [digest=many|one]";

/// How packets are digested.
#[derive(Clone, Copy, Default)]
enum Digests {
    #[default]
    None,
    One,
    Many,
}

/// Sums of what was written.
#[derive(Default)]
struct Written {
    how: Digests,
    digests: Vec<Sha256Digest>,
    packets: u64,
    blocks: u64,
    bytes: u64,
}

impl Written {
    fn write(&mut self, file: &mut File, block: &Block) -> io::Result<()> {
        // The head of a record, with the byte that marks a leaf.
        let head = [0; 53];
        let messages = block.packets().map(|packet| Message { head: &head, body: packet.data });
        self.digests.clear();
        match self.how {
            Digests::None => {}
            Digests::One => self.digests.extend(messages.map(|message| sha256(&message))),
            Digests::Many => sha256_many(&messages.collect::<Vec<_>>(), &mut self.digests),
        }
        file.write_all(block.bytes())?;
        self.packets += u64::from(block.packet_count());
        self.blocks += 1;
        self.bytes += block.bytes().len() as u64;
        Ok(())
    }
}

/// Takes blocks until `stop` is set and the ring is idle.
fn capture(
    ring: &mut Ring,
    retire_ms: u32,
    stop: &AtomicBool,
    mut take: impl FnMut(Block) -> io::Result<()>,
) -> Result<(), Box<dyn std::error::Error>> {
    let mut is_stopping = false;
    loop {
        while let Some(block) = ring.next_block() {
            take(block)?;
        }
        if stop.load(Ordering::Relaxed) && !is_stopping {
            is_stopping = true;
            ring.stop()?;
        }
        let idle_ms = if is_stopping { 3 * u64::from(retire_ms) } else { 100 };
        if ring.wait(Duration::from_millis(idle_ms))? == Wait::Idle && is_stopping {
            return Ok(());
        }
        ring.counters()?;
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut options = RingOptions::new(arguments.next().ok_or(USAGE)?);
    let mut file = File::create(arguments.next().ok_or(USAGE)?)?;
    let mut has_worker = false;
    let mut written = Written::default();
    for argument in arguments {
        let (key, value) = argument.split_once('=').ok_or("an option is KEY=VALUE")?;
        match key {
            "mib" => options.bytes = value.parse::<usize>()? << 20,
            "block-kib" => options.block_bytes = value.parse::<usize>()? << 10,
            "retire-ms" => options.retire_ms = value.parse()?,
            "digest" => written.how = if value == "many" { Digests::Many } else { Digests::One },
            "worker" => has_worker = value == "1",
            _ => return Err(format!("unknown option {key}").into()),
        }
    }
    let stop = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGINT, Arc::clone(&stop))?;
    signal_hook::flag::register(signal_hook::consts::SIGTERM, Arc::clone(&stop))?;
    let mut ring = open(&options)?;
    let setup_us = cpu_us();
    if has_worker {
        let (sender, blocks) = sync_channel::<Block>(ring.blocks());
        let worker = std::thread::spawn(move || -> io::Result<Written> {
            blocks.iter().try_for_each(|block| written.write(&mut file, &block)).map(|()| written)
        });
        capture(&mut ring, options.retire_ms, &stop, |block| sender.send(block).map_err(io::Error::other))?;
        drop(sender);
        written = worker.join().map_err(|_| "the worker panicked")??;
    } else {
        capture(&mut ring, options.retire_ms, &stop, |block| written.write(&mut file, &block))?;
    }
    let (counters, ring_us) = (ring.counters()?, cpu_us() - setup_us);
    println!(
        "{{\"written\":{},\"seen\":{},\"drops\":{},\"blocks\":{},\"bytes\":{},\"setup_us\":{setup_us},\
         \"ring_thread_us\":{ring_us}}}",
        written.packets, counters.seen, counters.dropped, written.blocks, written.bytes
    );
    Ok(())
}

/// Processor time of this thread.
fn cpu_us() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|field| field.parse().ok()).unwrap_or(0u64) / 1000
}

fn open(options: &RingOptions) -> Result<Ring, CaptureError> {
    let ring = Ring::open(options)?;
    evergate_capture::drop_privileges()?;
    eprintln!("listening on {}", ring.interface().name());
    Ok(ring)
}
