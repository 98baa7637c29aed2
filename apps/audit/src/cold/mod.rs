//! Cold index: the rows of past days in Parquet files, `cold/TABLE/DAY.parquet`, which DuckDB and others open as well.
//!
//! Rows are in the order of time, in groups of 131,072. A search skips groups by their statistics and Bloom filters.
//! A hot row of the same name replaces a cold one, so that a day may be written to after it was frozen.

mod file;
mod freeze;
mod search;
mod tables;
mod writer;

pub(crate) use freeze::freeze;
pub(crate) use search::{
    cold_days, cold_envelopes, cold_extents, cold_for_each, cold_for_each_request, cold_requests,
};
pub(crate) use tables::{Kind, Table, column};
pub(crate) use writer::{Cell, TableWriter};
