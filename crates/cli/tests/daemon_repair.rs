//! What a service manager is told, and what is saved of a damaged outbox, by way of the command.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::process::Command;

use common::host::{Host, NOWHERE, stderr};
use serde_json::Value;

#[test]
fn what_can_be_read_of_a_damaged_outbox_is_saved() {
    let host = Host::new(NOWHERE);
    assert!(stderr(&host.good(&["daemon", "recover"])).contains("nothing to save"));
    host.good(&["daemon", "up"]);
    let body = "x".repeat(3_000);
    for n in 0..12 {
        host.good(&["send", "topic:jobs", &body, "--id", &format!("id {n}")]);
    }
    host.fails(&["daemon", "recover"], 1, &["another daemon runs here"]);
    host.good(&["daemon", "down"]);
    assert!(stderr(&host.good(&["daemon", "recover"])).contains("sound"));
    let path = host.path("outbox.db");
    let mut bytes = std::fs::read(&path).unwrap();
    // The leaf that holds the row called so: SQLite's pages are 4,096 bytes.
    let place = bytes.windows(4).rposition(|text| text == b"id 5").unwrap() / 4_096 * 4_096;
    bytes[place..place + 2_048].fill(0xa5);
    std::fs::write(&path, &bytes).unwrap();
    host.fails(&["daemon", "up"], 2, &["damaged", "tenure daemon recover"]);
    assert_eq!(std::fs::read(&path).unwrap(), bytes, "a start changes nothing");
    let output = host.run(&["daemon", "recover", "--json"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let lost: Vec<&str> = report["lost"]
        .as_array()
        .unwrap()
        .iter()
        .map(|lost| lost["clientMessageId"].as_str().unwrap())
        .collect();
    assert!(lost.contains(&"id 5"), "{report}");
    assert_eq!(report["saved"].as_u64().unwrap() + lost.len() as u64, 12, "{report}");
    assert_eq!(std::fs::read(report["kept"].as_str().unwrap()).unwrap(), bytes, "the damaged file is kept");
    host.good(&["daemon", "up"]);
    let rows = host.lines(&["outbox", "list", "--json"]);
    assert_eq!(rows.len() + lost.len(), 12);
    assert!(
        rows.iter().all(
            |row| row["status"] == "pending" && !lost.contains(&row["clientMessageId"].as_str().unwrap())
        )
    );
    let sent = host.lines(&["send", "topic:jobs", "new", "--json"]);
    assert_eq!(sent[0]["status"], "queued");
    let last = host.lines(&["outbox", "list", "--json"]);
    assert_eq!(last.last().unwrap()["id"], 13, "no number is given out twice");
}

#[test]
fn a_service_manager_is_told_what_to_run() {
    let host = Host::new(NOWHERE);
    let config = host.path("config dir");
    let run = |args: &[&str]| {
        let output = host
            .command(args)
            .env("XDG_CONFIG_HOME", &config)
            .env("HOME", host.world.home())
            .output()
            .unwrap();
        assert!(output.status.success(), "{args:?}: {}", stderr(&output));
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let (unit, _) = run(&["daemon", "install-service", "--print", "--manager", "systemd"]);
    assert!(!config.exists(), "printed is not installed");
    assert!(
        unit.contains(&format!("ExecStart=\"{}\" daemon up --foreground", env!("CARGO_BIN_EXE_tenure"))),
        "{unit}"
    );
    assert!(unit.contains(&format!("TENURE_HOME={}", host.world.home().display())), "{unit}");
    assert!(unit.contains(NOWHERE), "{unit}");
    let (path, _) = run(&["daemon", "install-service", "--no-start", "--manager", "systemd"]);
    assert_eq!(std::fs::read_to_string(path.trim()).unwrap(), unit);
    verify(path.trim());
    let (_, removed) = run(&["daemon", "uninstall", "--manager", "systemd"]);
    assert!(removed.contains("removed") && !std::path::Path::new(path.trim()).exists(), "{removed}");
    let (_, nothing) = run(&["daemon", "uninstall", "--manager", "systemd"]);
    assert!(nothing.contains("nothing is installed"), "{nothing}");
    let (list, _) = run(&["daemon", "install-service", "--print", "--manager", "launchd"]);
    assert!(list.starts_with("<?xml") && list.contains("<string>--foreground</string>"), "{list}");
    let (path, _) = run(&["daemon", "install-service", "--no-start", "--manager", "launchd"]);
    assert!(path.trim().ends_with("Library/LaunchAgents/dev.tenure.daemon.plist"), "{path}");
}

/// Has systemd read the unit, where there is a systemd.
fn verify(path: &str) {
    // It looks for a place of the user's that a machine without logins does not have.
    let runtime = tempfile::TempDir::new().unwrap();
    let mut verify = Command::new("systemd-analyze");
    match verify.args(["verify", "--user", path]).env("XDG_RUNTIME_DIR", runtime.path()).output() {
        Err(error) => eprintln!("the unit was not verified: systemd-analyze: {error}"),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            let ours: Vec<&str> = said.lines().filter(|line| line.contains("tenure-daemon")).collect();
            assert!(output.status.success() && ours.is_empty(), "{said}");
        }
    }
}
