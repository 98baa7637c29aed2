//! Time stamps of RFC 3161 over checkpoints: what bounds back-dating by the owner of the log's key.
//!
//! The imprint is the SHA-256 of the checkpoint file. Its bytes stay as `tsa/SIZE.checkpoint`, because the file itself
//! changes, and the response as `tsa/SIZE.tsr`; the log has the response as an entry. Nothing here verifies signatures
//! of the authority: `evergate-audit verify` does, with the authority that its reader trusts.

use crate::checkpoint_file::CheckpointFile;
use crate::config::TsaConfig;
use crate::http::Url;
use crate::journal::replace_file;
use crate::metrics::{Metrics, count};
use crate::sequencer::Input;
use evergate_evidence::entry::{Event, TEXT_BYTES_MAX, Timestamp};
use evergate_evidence::merkle::{Hash, sha256};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

/// Client of an authority.
pub struct Timestamping {
    /// Authority and interval.
    pub config: TsaConfig,
    /// Folder of the log.
    pub folder: PathBuf,
    /// The checkpoint.
    pub file: Arc<CheckpointFile>,
    /// The sequencer.
    pub inputs: SyncSender<Input>,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// Longest time for an answer.
    pub limit: Duration,
}

impl Timestamping {
    /// Stamps the newest checkpoint at each interval, until the process ends.
    pub fn run(&self) {
        let mut stamped = 0;
        loop {
            std::thread::sleep(self.config.interval);
            let Some(checkpoint) = self.file.newest() else { continue };
            let size = checkpoint.checkpoint().size;
            if size == stamped {
                continue;
            }
            match self.stamp(size, &checkpoint.to_bytes()) {
                Ok(()) => {
                    stamped = size;
                    count(&self.metrics.timestamps);
                }
                Err(error) => {
                    count(&self.metrics.tsa_failures);
                    let url = &self.config.url;
                    eprintln!(
                        "evergate-master: no time stamp from {url}: {error}; trying again at the next interval"
                    );
                }
            }
        }
    }

    fn stamp(&self, size: u64, checkpoint: &[u8]) -> Result<(), String> {
        let imprint = sha256(checkpoint);
        let nonce = nonce();
        let url = Url::parse(&self.config.url).ok_or("unusable url")?;
        let answer = url.post("application/timestamp-query", &request(&imprint, nonce), self.limit)?;
        if answer.status != 200 {
            return Err(format!("status {}", answer.status));
        }
        let token = answer.body;
        check_response(&token, &imprint, nonce)?;
        let folder = self.folder.join("tsa");
        let write = |name: String, bytes: &[u8]| {
            replace_file(&folder.join(name), bytes, || ())
                .map_err(|error| format!("cannot be stored: {error}"))
        };
        std::fs::create_dir_all(&folder).map_err(|error| format!("cannot be stored: {error}"))?;
        write(format!("{size}.checkpoint"), checkpoint)?;
        write(format!("{size}.tsr"), &token)?;
        let event = Event::Timestamp(Timestamp { size, imprint, token });
        self.inputs.send(Input::Internal(event)).map_err(|_| "the Master stops".into())
    }
}

/// Random number of 8 bytes that DER writes as it is.
fn nonce() -> [u8; 8] {
    let mut nonce: [u8; 8] = evergate_crypto::random_bytes();
    nonce[0] = nonce[0] & 0x3f | 0x40;
    nonce
}

/// TimeStampReq: version 1, SHA-256 imprint, nonce, certificates wanted.
fn request(imprint: &Hash, nonce: [u8; 8]) -> Vec<u8> {
    let head = [0x30, 0x43, 0x02, 0x01, 0x01];
    [&head[..], &message_imprint(imprint), &[0x02, 0x08], &nonce, &[0x01, 0x01, 0xff]].concat()
}

fn message_imprint(imprint: &Hash) -> Vec<u8> {
    let sha256 = [
        0x30, 0x31, 0x30, 0x0d, 0x06, 0x09, 0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, 0x01, 0x05, 0x00,
        0x04, 0x20,
    ];
    [&sha256[..], imprint].concat()
}

/// Tag, content and rest of the first DER element.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = bytes.split_first()?;
    let (&first, mut rest) = rest.split_first()?;
    let mut len = usize::from(first);
    if first >= 0x80 {
        let count = usize::from(first & 0x7f);
        if !(1..=3).contains(&count) {
            return None;
        }
        let (digits, behind) = rest.split_at_checked(count)?;
        len = digits.iter().fold(0, |len, &digit| len << 8 | usize::from(digit));
        rest = behind;
    }
    let (content, rest) = rest.split_at_checked(len)?;
    Some((tag, content, rest))
}

/// Error unless the authority granted a token over this imprint with this nonce.
fn check_response(bytes: &[u8], imprint: &Hash, nonce: [u8; 8]) -> Result<(), String> {
    let malformed = || "its answer is no time-stamp response".to_owned();
    if bytes.len() > TEXT_BYTES_MAX {
        return Err("its answer is longer than an entry of the log".into());
    }
    let (0x30, response, []) = element(bytes).ok_or_else(malformed)? else { return Err(malformed()) };
    let (0x30, status, token) = element(response).ok_or_else(malformed)? else { return Err(malformed()) };
    let (0x02, number, mut details) = element(status).ok_or_else(malformed)? else { return Err(malformed()) };
    let number = number.iter().fold(0_u64, |number, &byte| number << 8 | u64::from(byte));
    if number > 1 {
        let mut reason = format!("refused with status {number}");
        while let Some((tag, content, rest)) = element(details) {
            match tag {
                0x30 => {
                    let text = element(content).map_or(&[][..], |(_, text, _)| text);
                    reason.push_str(&format!(": {}", String::from_utf8_lossy(text).escape_default()));
                }
                0x03 => reason.push_str(&format!(" (failure bits {content:02x?})")),
                _ => {}
            }
            details = rest;
        }
        return Err(reason);
    }
    let has = |part: &[u8]| token.windows(part.len()).any(|window| window == part);
    if !has(&message_imprint(imprint)[2..]) || !has(&[&[0x02, 0x08][..], &nonce].concat()) {
        return Err("its token is over another checkpoint or another request".into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_is_one_der_element() {
        let request = request(&[7; 32], nonce());
        let (tag, content, rest) = element(&request).unwrap();
        assert_eq!((tag, content.len(), rest.len()), (0x30, 67, 0));
    }

    #[test]
    fn refusals_have_their_reason() {
        let refused = [
            &[0x30, 0x13, 0x30, 0x11, 0x02, 0x01, 0x02, 0x30, 0x06, 0x0c, 0x04][..],
            b"busy",
            &[0x03, 0x04, 0x00, 0x00, 0x00, 0x01],
        ]
        .concat();
        let error = check_response(&refused, &[0; 32], [0; 8]).unwrap_err();
        assert_eq!(error, "refused with status 2: busy (failure bits [00, 00, 00, 01])");
        let granted = [0x30, 0x05, 0x30, 0x03, 0x02, 0x01, 0x00];
        assert!(check_response(&granted, &[0; 32], [0; 8]).unwrap_err().contains("another checkpoint"));
    }

    #[test]
    fn hostile_answers_are_refused() {
        for len in 0..40 {
            for fill in [0, 0x30, 0x82, 0x84, 0xff] {
                assert!(check_response(&vec![fill; len], &[0; 32], [0; 8]).is_err());
            }
        }
        assert!(check_response(&vec![0x30; 70_000], &[0; 32], [0; 8]).is_err());
    }
}
