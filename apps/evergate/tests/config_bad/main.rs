//! Bad configurations: each is refused with a problem at the right place that says what to do.

mod case;
mod cluster;
mod doubtful;
mod listeners;
mod own_files;
mod pools;
mod report;
mod schema;
