//! `tenure check` on stores that are sound, and on stores that somebody has meddled with.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::path::{Path, PathBuf};
use std::process::Output;

use common::World;
use rusqlite::Connection;

fn check(world: &World, dir: &Path) -> Output {
    world.run(&["check", "--data-dir", dir.to_str().unwrap()])
}

fn text(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

/// The store of a broker that has stopped: a topic with ten messages, and a group that has settled four of them.
async fn filled(world: &World) -> PathBuf {
    let mut broker = world.broker().await;
    let url = format!("ws://{}", broker.addr);
    let good = |args: &[&str]| {
        let output = world.tenure(args).env("TENURE_BROKER", &url).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", text(&output).1);
    };
    for n in 0..10 {
        good(&["pub", "jobs", &n.to_string()]);
    }
    good(&["sub", "jobs", "--group", "crew", "--from", "earliest", "--count", "4"]);
    let dir = world.home().join("broker");
    let held = check(world, &dir);
    assert_eq!((held.status.code(), held.stdout.len()), (Some(2), 0), "it is in use");
    assert!(text(&held).1.contains("a broker has"), "{}", text(&held).1);
    broker.proc.signal("TERM");
    assert_eq!(broker.proc.exit_code().await, Some(0));
    dir
}

/// A copy of the store in which `meddle` was done.
fn meddled(world: &World, dir: &Path, name: &str, meddle: &str) -> PathBuf {
    let copy = world.home().join(name);
    std::fs::create_dir(&copy).unwrap();
    for file in std::fs::read_dir(dir).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), copy.join(file.file_name())).unwrap();
    }
    let database = Connection::open(copy.join("tenure.db")).unwrap();
    let changed = database.execute(meddle, []).unwrap();
    assert!(changed > 0, "{meddle} changed nothing");
    copy
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_of_damage_is_named() {
    let world = World::new();
    let dir = filled(&world).await;
    let sound = check(&world, &dir);
    assert_eq!(sound.status.code(), Some(0), "{:?}", text(&sound));
    assert!(text(&sound).0.starts_with("sound: "), "{:?}", text(&sound));

    let kinds = [
        ("entry", "DELETE FROM entries WHERE place & 137438953471 = 3", "topic/jobs/0 seq 3"),
        (
            "record",
            "INSERT INTO dedupe SELECT sender, 'ghost', id, fingerprint, place + 100, first_seen_at, expires_at, \
             lost FROM dedupe LIMIT 1",
            "ghost",
        ),
        ("no-record", "DELETE FROM dedupe WHERE place & 137438953471 = 5", "topic/jobs/0 seq 5"),
        ("cursor", "UPDATE groups SET cursor = 1000 WHERE name = 'crew'", "seq 1000: group"),
        (
            "body",
            "UPDATE entries SET body = 'x' WHERE place & 137438953471 = 7",
            "topic/jobs/0 seq 7: its bytes",
        ),
        (
            "open",
            "INSERT INTO open_entries (mesh, grp, seq, attempt, tries, lasting) SELECT mesh, id, 900, 1, 0, 0 FROM groups LIMIT 1",
            "seq 900",
        ),
    ];
    for (name, meddle, says) in kinds {
        let copy = meddled(&world, &dir, name, meddle);
        let found = check(&world, &copy);
        let (stdout, stderr) = text(&found);
        assert_eq!(found.status.code(), Some(1), "{name}: {stdout}{stderr}");
        assert!(stdout.contains(says), "{name} is not named by {says:?}: {stdout}");
        assert!(stderr.contains("finding"), "{name}: {stderr}");
        let json = world.run(&["check", "--json", "--data-dir", copy.to_str().unwrap()]);
        let report: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
        assert_eq!(report["findings"].as_array().unwrap().len(), stdout.lines().count(), "{report}");
    }

    let torn = meddled(&world, &dir, "torn", "UPDATE groups SET used_at = used_at");
    std::fs::write(torn.join("tenure.db"), b"this is no database, whatever its name says").unwrap();
    let found = check(&world, &torn);
    assert_eq!(found.status.code(), Some(1), "{:?}", text(&found));
    assert!(!found.stdout.is_empty());
}
