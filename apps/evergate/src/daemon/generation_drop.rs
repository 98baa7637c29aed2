//! Replaced generations, until no worker uses them any more.
//!
//! The last owner of a generation frees it, which takes a tenth of a second with 100,000 rules. All connections of a
//! worker would stand still for that time, so the last owner is always this list.

use evergate_worker::pools::Generation;
use std::sync::Arc;

/// Oldest first.
#[derive(Debug, Default)]
pub(super) struct Retired(Vec<Arc<Generation>>);

impl Retired {
    /// This one was just replaced.
    pub(super) fn push(&mut self, generation: Arc<Generation>) {
        self.0.push(generation);
    }

    /// Frees unused generations on another thread.
    pub(super) fn sweep(&mut self, current: &Generation) {
        let unused = self.take_unused(current);
        if !unused.is_empty() {
            // Without a thread they have been dropped here, which only operators wait for.
            let _ = std::thread::Builder::new().name("retired".to_owned()).spawn(move || drop(unused));
        }
    }

    /// The generations that no worker has, and those whose large parts a later one keeps.
    fn take_unused(&mut self, current: &Generation) -> Vec<Arc<Generation>> {
        let (mut kept, mut unused) = (Vec::new(), Vec::new());
        while let Some(generation) = self.0.pop() {
            let later = || kept.iter().map(Arc::as_ref).chain([current]);
            let (rules, hits) = (&generation.snapshot.rules, &generation.rule_hits);
            // The workers' own snapshots have the rules too.
            let rules_used = Arc::strong_count(rules) > 1
                && !later().any(|later| Arc::ptr_eq(&later.snapshot.rules, rules));
            let hits_used =
                Arc::strong_count(hits) > 1 && !later().any(|later| Arc::ptr_eq(&later.rule_hits, hits));
            match rules_used || hits_used {
                true => kept.push(generation),
                false => unused.push(generation),
            }
        }
        kept.reverse();
        self.0 = kept;
        unused
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generation::{CarriedState, assemble};
    use evergate_config::{Machine, parse_with};
    use std::path::Path;

    fn generation(rule: &str) -> Arc<Generation> {
        let text = format!(
            "[[listeners]]\nname = \"in\"\naddress = \"127.0.0.1:1\"\nprotocol = \"http\"\npool = \"web\"\n\
             [[pools]]\nname = \"web\"\nservers = [{{ address = \"127.0.0.1:2\" }}]\n\
             [[rules]]\nname = \"{rule}\"\nwhen = 'path == \"/{rule}\"'\ndeny = 403\n"
        );
        let loaded = parse_with(&text, "test.toml", Path::new("/"), &Machine).unwrap();
        assemble(&loaded.config, None, &mut CarriedState::default()).unwrap().generation
    }

    fn numbers(all: &[Arc<Generation>]) -> Vec<u64> {
        all.iter().map(|one| one.snapshot.generation).collect()
    }

    #[test]
    fn worker_never_drops_the_last_reference() {
        let (mut retired, current) = (Retired::default(), generation("now"));
        let (used, unused) = (generation("used"), generation("unused"));
        let in_worker = used.for_worker();
        retired.push(used.clone());
        retired.push(unused);
        drop(used);
        assert_eq!(retired.take_unused(&current).len(), 1);
        let connection = in_worker.snapshot.clone(); // it lives on after its worker's own
        drop(in_worker);
        assert_eq!((retired.take_unused(&current).len(), retired.0.len()), (0, 1));
        drop(connection);
        assert_eq!((retired.take_unused(&current).len(), retired.0.len()), (1, 0));
    }

    #[test]
    fn newest_of_several_with_the_same_rules_is_enough() {
        let (mut retired, first) = (Retired::default(), generation("same"));
        // As after a reload of certificates alone.
        let [second, third] = [(); 2].map(|()| Arc::new(first.for_worker()));
        let in_worker = first.for_worker();
        retired.push(first);
        retired.push(second);
        assert_eq!(retired.take_unused(&third).len(), 2, "what is in force keeps the rules");
        retired.push(third.clone());
        let current = generation("now");
        assert_eq!(numbers(&retired.take_unused(&current)), [0; 0]);
        drop((in_worker, third));
        assert_eq!(retired.take_unused(&current).len(), 1);
    }
}
