//! The membership protocol as a whole: nodes in a simulated network, and the model checker.

mod calm;
mod checker;
mod coverage;
mod loads;
mod model;
mod network_loss;
mod partial;
mod permanent_faults;
mod random;
mod replica;
mod rollouts;
mod scenarios;
mod simulation;
mod stranded;
mod votes;
mod world;
