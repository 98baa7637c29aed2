//! Channel between Recorders and the Master: TLS 1.3 with certificates on both ends, and frames inside.
//!
//! A Recorder connects with [`connect`] and splits the connection into a [`Sender`] and a [`Receiver`] for two threads.
//! The Master accepts with [`Channel::accept`]. The id of a peer is the SHA-256 of the SPKI of its certificate.
//!
//! A switch and a Recorder have a [`FeedChannel`]: the same frames, over a Unix socket or TLS.
//!
//! Sockets block with time limits; no runtime is needed. A receiver holds at most one frame and one TLS record more.

#![forbid(unsafe_code)]

mod channel;
mod client;
mod feed_channel;
mod identity;
mod revealer;
mod tls;

pub use channel::{Channel, ChannelError, Receiver, Sender};
pub use client::{Answer, ClientError, Connected, RecorderReceiver, RecorderSender, connect};
pub use feed_channel::{FeedAddress, FeedChannel, is_unix_path};
pub use identity::{Identity, IdentityError, id_text, parse_id};
pub use revealer::{Opened, RevealError, RevealerClient};
pub use tls::{Trust, client_config, server_config};
