//! What is said where nobody can hear it: on a stderr that is closed, or on a disk that is full.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use common::World;
use serde_json::Value;

/// Ends with the test.
struct Ending(Child);

impl Drop for Ending {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A file that takes nothing, as on a full disk.
fn full() -> Stdio {
    File::options().write(true).open("/dev/full").unwrap().into()
}

/// A broker that cannot log to `stderr`, or not any more once it is ready; and its address.
fn broker(world: &World, stderr: Stdio) -> (Ending, String) {
    let args = ["broker", "--json", "--log", "debug", "--listen", "127.0.0.1:0"];
    let mut command = world.tenure(&args);
    let mut child = Ending(command.stdout(Stdio::piped()).stderr(stderr).spawn().unwrap());
    let mut ready = String::new();
    BufReader::new(child.0.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    // Nobody reads on.
    drop(child.0.stderr.take());
    let ready: Value = serde_json::from_str(&ready).unwrap();
    (child, format!("ws://{}", ready["listen"].as_str().unwrap()))
}

/// A command whose stderr is full.
fn unheard(world: &World, url: &str, args: &[&str]) -> String {
    let mut command: Command = world.tenure(args);
    let output = command.env("TENURE_BROKER", url).stdin(Stdio::null()).stderr(full()).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{args:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_broker_that_cannot_log_works_all_the_same() {
    for stderr in [full(), Stdio::piped()] {
        let world = World::new();
        let (mut broker, url) = broker(&world, stderr);
        for number in 0..3 {
            unheard(&world, &url, &["send", "topic:jobs", &format!("message {number}")]);
        }
        let history = unheard(&world, &url, &["history", "jobs"]);
        assert_eq!(history.lines().count(), 3, "{history}");
        assert!(broker.0.try_wait().unwrap().is_none(), "it runs");
    }
}

#[test]
fn a_command_whose_talk_nobody_hears_does_what_it_is_for() {
    let world = World::new();
    assert!(unheard(&world, common::host::NOWHERE, &["keys", "--json"]).contains("member"));
    assert!(!unheard(&world, common::host::NOWHERE, &["keys"]).is_empty());
    // What went wrong is still in the code.
    let failed =
        world.tenure(&["status", "--broker", common::host::NOWHERE]).stderr(full()).status().unwrap();
    assert_eq!(failed.code(), Some(5));
}
