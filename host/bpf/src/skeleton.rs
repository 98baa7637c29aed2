//! The generated skeleton. Layouts of maps come from here; none is repeated by hand.

#[allow(
    missing_docs,
    unreachable_pub,
    dead_code,
    unused_imports,
    clippy::all,
    clippy::pedantic,
    clippy::undocumented_unsafe_blocks
)]
pub(crate) mod gate {
    include!(concat!(env!("OUT_DIR"), "/gate.skel.rs"));
}

#[allow(
    missing_docs,
    unreachable_pub,
    dead_code,
    unused_imports,
    clippy::all,
    clippy::pedantic,
    clippy::undocumented_unsafe_blocks
)]
pub(crate) mod accept {
    include!(concat!(env!("OUT_DIR"), "/accept.skel.rs"));
}

pub(crate) use gate::types;

const _: () = assert!(size_of::<types::slot>() == 256);
const _: () = assert!(size_of::<types::flow_key>() == 40);
const _: () = assert!(size_of::<types::address>() == 16);
const _: () = assert!(size_of::<types::address_info>() == 16);
const _: () = assert!(size_of::<types::peer_input>() == 24);
const _: () = assert!(size_of::<types::batch>() == 4 + 4 * crate::BATCH);
