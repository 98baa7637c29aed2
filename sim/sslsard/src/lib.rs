//! The simulation of SSLSARD's section III, and its figures.
//!
//! A [`Plan`] says what is simulated (Tables I to III of the paper, or something else), [`study`] carries it out with
//! the policies of `evergate-balance`, the very code that the switch runs, and [`report`] draws the figures and writes
//! the page.
//!
//! Invariants: the same plan and seed give the same bytes on any machine and with any number of threads. Time is an
//! integer, random numbers and logarithms are own or `libm`'s, sums are in a fixed order, and numbers are printed with
//! fixed decimals. What it does not do: read files, write files, or look at a clock.

#![forbid(unsafe_code)]

mod agenda;
mod chart;
mod check;
mod engine;
mod outcome;
mod plan;
mod problem;
mod random;
mod raw;
mod report;
mod scheme;
mod study;

pub use plan::{Costs, Plan};
pub use problem::{PlanError, PlanProblem};
pub use report::{ReportFile, costs, differences, report, table};
pub use scheme::Scheme;
pub use study::{Row, Study, study};
