//! Permanent changes of the process, each tested in a child.

use std::collections::BTreeSet;
use std::io::Write;
use std::process::Command;

/// Variable of the child with the user to change to.
const USER: &str = "EVERGATE_TEST_USER";

fn is_root() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    status.lines().any(|line| line.starts_with("Uid:") && line.split_whitespace().nth(2) == Some("0"))
}

fn numbers(text: &str) -> BTreeSet<u32> {
    text.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

#[test]
fn become_it_sets_all_groups_of_the_user() {
    if let Ok(user) = std::env::var(USER) {
        evergate_sys::Account::named(&user, None).unwrap().become_it().unwrap();
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        println!("\n{}", status.lines().find(|line| line.starts_with("Groups:")).unwrap());
        return;
    }
    if !is_root() {
        assert!(std::env::var_os("CI").is_none(), "in CI no test is skipped, and this one needs root");
        return drop(writeln!(
            std::io::stderr(),
            "skipped become_it_sets_all_groups_of_the_user: it needs root"
        ));
    }
    // A database with the user in two more groups, visible to the child alone. `id` calls getgrouplist.
    let database = std::env::temp_dir().join(format!("evergate-groups-{}", std::process::id()));
    let groups = std::fs::read_to_string("/etc/group").unwrap();
    std::fs::write(&database, groups + "evergate-a:x:47111:nobody\nevergate-b:x:47112:nobody\n").unwrap();
    let script = r#"mount --bind "$0" /etc/group && echo && id -G "$EVERGATE_TEST_USER" && exec "$@""#;
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", script])
        .arg(&database)
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", "become_it_sets_all_groups_of_the_user"])
        .env(USER, "nobody")
        .output()
        .unwrap();
    std::fs::remove_file(&database).unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text} {}", String::from_utf8_lossy(&output.stderr));
    let expected = numbers(text.lines().nth(1).unwrap());
    assert!(expected.is_superset(&BTreeSet::from([47111, 47112])), "{text}");
    assert_eq!(numbers(text.lines().find(|line| line.starts_with("Groups:")).unwrap()), expected);
}
