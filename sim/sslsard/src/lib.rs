//! Simulation of SSLSARD's section III, and its figures.
//!
//! A [`Plan`] defines the simulation (Tables I to III of the paper, or something else). [`study()`] runs it with the
//! policies of `evergate-balance`, which the data path uses too. [`report()`] draws the figures and writes the page.
//!
//! Invariants: the same plan and seed give the same bytes on any machine and with any number of threads. Time is an
//! integer. Random numbers and logarithms do not depend on the platform, sums have a fixed order, and numbers have
//! fixed decimals. This crate reads no files, writes no files, and reads no clock.

#![forbid(unsafe_code)]

pub mod chart;
mod check;
mod engine;
mod event_queue;
mod outcome;
mod parameters;
mod problem;
mod random;
mod raw;
mod report;
mod scheme;
mod study;
mod workload;

pub use parameters::{Costs, Plan};
pub use problem::{PlanError, PlanProblem};
pub use report::{ReportFile, costs, differences, report, table};
pub use scheme::Scheme;
pub use study::{Row, Study, study};
pub use workload::{Visitor, Workload};
