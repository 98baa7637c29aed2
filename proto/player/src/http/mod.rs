//! HTTP/1.1 messages of both directions, and which response belongs to which request.
//!
//! Heads are read by `evergate-http`, as the front end itself reads them. What it refuses, HTTP/2 and tunnels are not
//! messages here: their bytes go out as data. A hole within a body leaves the body with zeros in its place, and named;
//! a hole elsewhere loses the message boundaries until a record begins with a head.

mod message;
mod reader;

pub use message::{BodyHole, Head, Message};
pub use reader::HttpReader;
