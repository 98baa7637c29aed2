//! Clocks of different nodes, which no message compares.

use crate::null_workers::Idle;
use crate::world::{World, eventually, privileged};
use evergate::agent::{Running, Startup};
use evergate_base::Micros;
use evergate_config::{self as config, Config};

#[test]
fn nodes_whose_clocks_differ_by_a_minute_agree() {
    if !privileged() {
        return;
    }
    let world = World::new(2);
    let text = world.config(&World::entries(2), "");
    let folder = world.folder.path("");
    let nodes = [(1, Micros(0)), (2, Micros::from_ms(60_000))].map(|(number, ahead)| {
        let mut config = config::parse(&text, "test.toml", &folder).unwrap().config;
        config::choose_node(&mut config, Some(number), "test.toml").unwrap();
        world.host(number).run(move || start(&config, ahead))
    });
    eventually("both are in one view and back up each other's buckets", || {
        let all: Vec<_> = nodes.iter().map(|node| node.handle().status()).collect();
        let views: Vec<_> =
            all.iter().filter_map(|status| Some(status.view.as_ref()?.members.clone())).collect();
        let owned: u64 = all.iter().map(|status| status.buckets.owned).sum();
        let bare: u64 = all.iter().map(|status| status.buckets.without_backup).sum();
        let agreed = views == [vec![1, 2], vec![1, 2]] && owned == 1024 && bare == 0;
        (agreed && all.iter().all(|status| status.phase == "active")).then_some(())
    });
    for node in nodes {
        node.stop().unwrap();
    }
}

fn start(config: &Config, ahead: Micros) -> Running {
    let cluster = config.cluster.as_ref().unwrap();
    let ground = Startup::prepare_with_clock(config, cluster, ahead).unwrap();
    let workers = config.node.worker_count().get();
    let reporters = (0..workers).map(|worker| ground.reporter(worker)).collect();
    let idle = Idle::new(ground.gate().owners(), reporters);
    ground.start(move |worker, instruction| idle.follow(worker, &instruction), || true).unwrap()
}
