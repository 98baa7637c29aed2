//! Sends paced frames and prints what was sent, for measurements:
//! `evergate-traffic IF [rate=N] [seconds=N] [flows=N] [bytes=N] [ipv6=1] [vlan=ID] [both=1]`.

use evergate_capture::VlanTag;
use evergate_capture::generator::{Generator, Load};
use std::time::Duration;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let interface = arguments.next().ok_or("usage: evergate-traffic IF [rate=N] [seconds=N] [flows=N] ..")?;
    let mut load = Load::default();
    for argument in arguments {
        let (key, value) = argument.split_once('=').ok_or("an option is KEY=VALUE")?;
        match key {
            "rate" => load.rate = value.parse()?,
            "seconds" => load.duration = Duration::from_secs_f64(value.parse()?),
            "flows" => load.flows = value.parse()?,
            "bytes" => load.frame_bytes = value.parse()?,
            "ipv6" => load.ipv6 = value == "1",
            "both" => load.both_directions = value == "1",
            "vlan" => load.tags.push(VlanTag { tpid: 0x8100, tci: value.parse()? }),
            _ => return Err(format!("unknown option {key}").into()),
        }
    }
    let sent = Generator::open(&interface)?.run(&load)?;
    let seconds = sent.elapsed.as_secs_f64();
    let rate = sent.frames as f64 / seconds;
    println!(
        "{{\"sent\":{},\"refused\":{},\"seconds\":{seconds:.3},\"rate\":{rate:.0}}}",
        sent.frames, sent.refused
    );
    Ok(())
}
