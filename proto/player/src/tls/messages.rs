//! Handshake messages of one direction, put together from records.

/// Longest message that is kept whole, in bytes.
const MESSAGE_BYTES_MAX: usize = 128 << 10;

pub(super) const HELLO_REQUEST: u8 = 0;
pub(super) const CLIENT_HELLO: u8 = 1;
pub(super) const SERVER_HELLO: u8 = 2;
pub(super) const ENCRYPTED_EXTENSIONS: u8 = 8;
pub(super) const CERTIFICATE: u8 = 11;
pub(super) const FINISHED: u8 = 20;
pub(super) const KEY_UPDATE: u8 = 24;
pub(super) const COMPRESSED_CERTIFICATE: u8 = 25;

/// Messages that span records.
#[derive(Debug, Default)]
pub(super) struct Messages {
    /// The message that is not whole yet.
    begun: Vec<u8>,
    /// Bytes of a message that nothing here needs.
    skipped: usize,
}

impl Messages {
    /// Takes the content of a record. Answers type and bytes of each message that is whole, its header included;
    /// messages that nothing here needs have no bytes.
    pub(super) fn push(&mut self, mut content: &[u8]) -> Vec<(u8, Vec<u8>)> {
        let mut done = Vec::new();
        while !content.is_empty() {
            if self.skipped > 0 {
                let passed = self.skipped.min(content.len());
                self.skipped -= passed;
                content = &content[passed..];
                continue;
            }
            let wanted = self.wanted();
            let taken = wanted.saturating_sub(self.begun.len()).min(content.len());
            self.begun.extend_from_slice(&content[..taken]);
            content = &content[taken..];
            let Some((&[kind, a, b, c], body)) = self.begun.split_first_chunk::<4>() else { continue };
            let length = u32::from_be_bytes([0, a, b, c]) as usize;
            let is_needed =
                matches!(kind, CLIENT_HELLO | SERVER_HELLO | ENCRYPTED_EXTENSIONS | FINISHED | KEY_UPDATE);
            if !is_needed || length > MESSAGE_BYTES_MAX {
                done.push((kind, Vec::new()));
                self.skipped = length;
                self.begun.clear();
            } else if body.len() == length {
                done.push((kind, std::mem::take(&mut self.begun)));
            }
        }
        done
    }

    /// Forgets the message that is not whole: its rest is missing.
    pub(super) fn forget(&mut self) {
        *self = Messages::default();
    }

    /// Length of the message's known part: its header, then all of it.
    fn wanted(&self) -> usize {
        match self.begun.first_chunk::<4>() {
            Some(&[_, a, b, c]) => 4 + u32::from_be_bytes([0, a, b, c]) as usize,
            None => 4,
        }
    }
}

/// First protocol of the ALPN extension in EncryptedExtensions: the one that the server chose.
pub(super) fn chosen_protocol(message: &[u8]) -> Option<Vec<u8>> {
    const ALPN: [u8; 2] = [0, 16];
    let mut extensions = message.get(4 + 2..)?;
    while let Some((&[a, b, high, low], rest)) = extensions.split_first_chunk::<4>() {
        let (value, next) = rest.split_at_checked(usize::from(u16::from_be_bytes([high, low])))?;
        if [a, b] == ALPN {
            let length = usize::from(*value.get(2)?);
            return value.get(3..3 + length).map(<[u8]>::to_vec);
        }
        extensions = next;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_the_same_in_records_of_any_size() {
        let stream =
            [&[11, 0, 0, 5][..], b"xxxxx", &[20, 0, 0, 3], b"abc", &[24, 0, 0, 1, 0], &[4, 0, 0, 0]].concat();
        for size in 1..stream.len() {
            let mut messages = Messages::default();
            let done: Vec<_> = stream.chunks(size).flat_map(|chunk| messages.push(chunk)).collect();
            let kinds: Vec<u8> = done.iter().map(|(kind, _)| *kind).collect();
            assert_eq!(kinds, [11, 20, 24, 4], "{size}");
            assert_eq!(done[1].1, [&[20, 0, 0, 3][..], b"abc"].concat());
        }
    }

    #[test]
    fn server_choice_of_a_protocol_is_read() {
        let extensions = [&[0, 10, 0, 1, 9][..], &[0, 16, 0, 5, 0, 3, 2], b"h2"].concat();
        let message = [&[8, 0, 0, 16, 0, 14][..], &extensions].concat();
        assert_eq!(chosen_protocol(&message).as_deref(), Some(&b"h2"[..]));
        for length in 0..message.len() {
            let _ = chosen_protocol(&message[..length]);
        }
    }
}
