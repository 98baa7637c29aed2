//! kill -9 of the Recorder and of the Master, a Master that is away, and a full disk.

use crate::rig::{Rig, rig, rig_in};
use evergate_capture::generator::Load;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Kills of a plain test; `EVERGATE_AUDIT_KILLS` sets another number.
const KILLS: u64 = 6;

fn kills() -> u64 {
    std::env::var("EVERGATE_AUDIT_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(KILLS)
}

pub(crate) fn load(duration_ms: u64) -> Load {
    let duration = Duration::from_millis(duration_ms);
    Load { rate: 4_000 as _, duration, flows: 40, frame_bytes: 300, ..Load::default() }
}

/// Times that differ from run to run, and are equal in every run of the test.
fn moment(number: u64) -> Duration {
    Duration::from_micros(20_000 + number * 7_919_123 % 180_000)
}

pub(crate) fn assert_proved(rig: &Rig) {
    let report = rig.verify();
    assert!(report.ok, "{:#?}", report.findings);
}

#[test]
fn killed_recorder_continues_its_stream() {
    let Some(rig) = rig() else { return };
    let master = rig.master();
    for kill in 0..kills() {
        let recorder = rig.record(&master.options());
        let sending = rig.start(load(300));
        std::thread::sleep(moment(kill));
        recorder.kill();
        sending.join().unwrap();
    }
    let report = rig.record(&master.options()).stop();
    assert_eq!(report["last_batch"], report["acknowledged"], "{report}");
    let content = rig.content();
    assert!(content.packets > 0 && content.lost("down") > 0, "{content:?}");
    assert!(content.packets + content.lost("down") >= rig.received(), "{content:?}");
    assert_proved(&rig);
}

#[test]
fn killed_master_loses_no_acknowledged_batch() {
    let Some(rig) = rig() else { return };
    let mut master = rig.master();
    let options: Vec<String> = master.options().iter().map(|&option| option.to_owned()).collect();
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let recorder = rig.record(&options);
    let sending = rig.start(load(300 * kills()));
    for kill in 0..kills() {
        std::thread::sleep(moment(kill));
        master.process.kill();
        master = rig.master();
    }
    let sent = sending.join().unwrap();
    let report = recorder.stop();
    assert_eq!(report["last_batch"], report["acknowledged"], "{report}");
    assert_eq!(report["packets"], sent.frames, "{report}");
    assert_proved(&rig);
}

#[test]
fn statements_are_handed_in_when_the_master_comes() {
    let Some(rig) = rig() else { return };
    let master = rig.master();
    let options: Vec<String> = master.options().iter().map(|&option| option.to_owned()).collect();
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    master.process.kill();
    rig.start(load(10)).join().unwrap();
    let mut recorder = rig.record(&options);
    recorder.wait_line("statements wait on disk");
    rig.start(load(500)).join().unwrap();
    let _master = rig.master();
    let report = recorder.stop();
    assert!(report["last_batch"].as_u64() > Some(0), "{report}");
    assert_eq!(report["last_batch"], report["acknowledged"], "{report}");
    assert_proved(&rig);
}

#[test]
fn full_disk_drops_packets_and_declares_them() {
    let mut disk = None;
    let Some(rig) = rig_in(|folder| disk = Some(Disk::new(folder, 96))) else { return };
    let disk = disk.expect("prepared");
    let master = rig.master();
    let before = rig.received();
    let mut recorder = rig.record(&master.options());
    // The reserve of 64 MiB leaves 32 MiB.
    let load = Load {
        rate: 30_000 as _,
        duration: Duration::from_millis(1500),
        flows: 40,
        frame_bytes: 1400,
        ..Load::default()
    };
    let sending = rig.start(load);
    recorder.wait_line("is full");
    sending.join().unwrap();
    disk.resize(400);
    std::thread::sleep(Duration::from_millis(300));
    rig.start(self::load(200)).join().unwrap();
    let report = recorder.stop();
    let (packets, lost) = (report["packets"].as_u64().unwrap(), report["declared_lost"].as_u64().unwrap());
    assert_eq!(packets + lost, rig.received() - before, "{report}");
    let content = rig.content();
    assert!(content.lost("disk") > 0, "{content:?}");
    assert_eq!(content.lost("disk") + content.lost("ring"), lost);
    assert_proved(&rig);
}

#[test]
fn oldest_segments_go_below_the_reserve() {
    let mut disk = None;
    let Some(rig) = rig_in(|folder| disk = Some(Disk::new(folder, 96))) else { return };
    let _disk = disk.expect("prepared");
    let master = rig.master();
    let before = rig.received();
    // 64 MiB and two segments of 4 MiB stay free: 24 MiB are left.
    let mut recorder = rig.record(&[&["--segment", "4", "--reserve", "8"][..], &master.options()].concat());
    let duration = Duration::from_millis(4000);
    let load = Load { rate: 10_000 as _, duration, flows: 40, frame_bytes: 1400, ..Load::default() };
    rig.start(load).join().unwrap();
    recorder.wait_line("deleted the oldest");
    rig.wait_outbox();
    let report = recorder.stop();
    let (packets, lost) = (report["packets"].as_u64().unwrap(), report["declared_lost"].as_u64().unwrap());
    assert_eq!(packets + lost, rig.received() - before, "{report}");
    // More than the disk had room for.
    assert!(packets * 1400 > 30 << 20, "{report}");
    // The last deletion may have been on its way to the Master: the next start completes it.
    let recorder = rig.record(&[&["--reserve", "0"][..], &master.options()].concat());
    rig.wait_outbox();
    recorder.stop();
    let report = rig.verify();
    assert!(report.ok, "{:#?}", report.findings);
    assert!(report.checked.deleted_segments >= 2, "{:#?}", report.checked);
}

/// A file system of its own for the rig's store.
struct Disk(String);

impl Disk {
    fn new(folder: &Path, mib: u32) -> Disk {
        let store = folder.join("store");
        std::fs::create_dir_all(&store).unwrap();
        let disk = Disk(store.to_str().unwrap().to_owned());
        disk.mount(&format!("size={mib}m"));
        disk
    }

    fn resize(&self, mib: u32) {
        self.mount(&format!("remount,size={mib}m"));
    }

    fn mount(&self, options: &str) {
        let status =
            Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs", &self.0]).status().unwrap();
        assert!(status.success());
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").args(["-l", &self.0]).status();
    }
}
