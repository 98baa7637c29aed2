//! Bad configurations. Each is refused with a problem at the right place, and with advice.

mod case;
mod cluster;
mod connection_rules;
mod doubtful;
mod listeners;
mod own_files;
mod pools;
mod report;
mod schema;
