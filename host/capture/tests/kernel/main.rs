//! Rings on real interfaces: pairs of virtual Ethernet cards in namespaces of their own. Needs root, ip and ethtool.

mod blocks;
mod fanout;
mod interfaces;
mod losses;
#[path = "../partition/frames.rs"]
mod random_frames;
mod support;
mod tags;
