//! pcapng: the secrets of the sessions before their packets, so that other tools decrypt as they read.

use crate::cli::Failure;
use crate::export::{Writer, unwritten};
use crate::sessions::{Outcome, SecretFile, Selected, Sink};
use evergate_evidence::pcapng::{push_interface, push_packet, push_secrets, push_section};
use evergate_player::key_log::lines_of;
use evergate_player::{Event, Report, SecretSource};
use std::fs::File;
use std::io::{BufWriter, Write};
use zeroize::Zeroizing;

const ETHERNET: u16 = 1;

pub(super) struct PcapngWriter {
    out: BufWriter<File>,
    block: Vec<u8>,
}

impl PcapngWriter {
    pub(super) fn new(
        out: BufWriter<File>,
        sessions: &[Selected],
        names: &[String],
        secrets: &SecretFile,
    ) -> Result<PcapngWriter, Failure> {
        let mut writer = PcapngWriter { out, block: Vec::new() };
        push_section(&mut writer.block, "evergate-audit export");
        names.iter().for_each(|name| push_interface(&mut writer.block, name, ETHERNET, 0, ""));
        writer.flush()?;
        for random in sessions.iter().filter_map(|session| session.client_random) {
            let Some(list) = secrets.secrets(&random) else { continue };
            let lines = Zeroizing::new(lines_of(&random, &list));
            push_secrets(&mut writer.block, lines.as_bytes());
            writer.flush()?;
        }
        Ok(writer)
    }

    fn flush(&mut self) -> Result<(), Failure> {
        self.out.write_all(&self.block).map_err(|error| unwritten(&error))?;
        self.block.clear();
        Ok(())
    }
}

impl Sink for PcapngWriter {
    fn on_packet(
        &mut self,
        _: usize,
        source: usize,
        time_ns: u64,
        wire_bytes: u32,
        frame: &[u8],
    ) -> Result<(), Failure> {
        push_packet(&mut self.block, source as u32, time_ns, wire_bytes, frame);
        self.flush()
    }

    fn on_event(&mut self, _: usize, _: Event) -> Result<bool, Failure> {
        Ok(false)
    }

    fn on_end(&mut self, _: usize, _: &Report, _: Outcome) -> Result<(), Failure> {
        Ok(())
    }
}

impl Writer for PcapngWriter {
    fn finish(self: Box<Self>) -> Result<File, Failure> {
        self.out.into_inner().map_err(|error| unwritten(&error))
    }
}
