//! TLS records of both directions, opened with the secrets of one connection.
//!
//! Hellos are read in clear. TLS 1.3 (RFC 8446) then continues with handshake secrets, traffic secrets 0 and every
//! KeyUpdate; TLS 1.2 with the master secret. A ClientHello with early data may have records that no disclosed secret
//! opens: they are counted and skipped. Renegotiation is named and not followed.
//!
//! Behind a hole the next record is found by trial: a record opens only with its own sequence number, so a success is
//! a proof. Where another copy of bytes exists, a record that does not open is tried with that copy.

mod key_exchange;
mod messages;
mod reader;
mod runs;

pub use key_exchange::{RsaExchange, rsa_suite};
pub use reader::{Plain, TlsReader, TlsSummary};
