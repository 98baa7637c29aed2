//! Mirror channels whose other end is gone without a word.

use crate::world::{World, eventually, privileged, settled};
use std::process::Command;

/// The dead node's kernel has acknowledged everything, so nothing of ours is repeated, and its RST is lost.
#[test]
fn a_channel_on_which_nobody_answers_is_made_anew() {
    if !privileged() {
        return;
    }
    let world = World::new(2);
    world.host(2).sysctl("net.ipv4.tcp_orphan_retries", "1").unwrap();
    let mute = "ip saddr 10.71.0.2 tcp sport 7401-7402";
    world.filter(&format!(
        "table bridge mute {{\nchain forward {{\ntype filter hook forward priority 0;\n{mute} ip length > 80 drop\n\
         {mute} tcp flags & (fin | rst) != 0 drop\n}}\n}}\n"
    ));
    let config = world.config(&World::entries(2), "");
    let first = world.start(1, &config);
    first.eventually("is alone", |status| status.buckets.owned == 1024);
    let second = world.start(2, &config);
    first.eventually("copies", |status| status.buckets.syncing > 0);
    second.kill();
    first.eventually("is alone again", |status| status.buckets.syncing == 0);
    // The kernel would answer for the dead process as long as it remembers its sockets.
    eventually("nothing is left of the dead process", || {
        let left =
            world.host(2).run(|| Command::new("ss").args(["-tanH", "sport >= :7401"]).output().unwrap());
        (left.status.success() && !String::from_utf8_lossy(&left.stdout).contains(":740")).then_some(())
    });
    world.switch.run(|| assert!(Command::new("nft").args(["flush", "ruleset"]).status().unwrap().success()));
    let second = world.start(2, &config);
    settled(&[first, second]);
}
