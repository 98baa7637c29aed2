//! The cluster protocol as a whole: nodes in a simulated network, and the model checker.

mod ailing;
mod calm;
mod checker;
mod loads;
mod model;
mod partial;
mod random;
mod reach;
mod replica;
mod rollouts;
mod scenarios;
mod simulation;
mod stranded;
mod world;
