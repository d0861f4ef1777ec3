//! The command line as a user meets it: exit codes, what is printed where, and what is kept on disk.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Output, Stdio};

use common::proc::Proc;
use common::{World, join};
use serde_json::Value;
use tenure_cli::flaky::Flaky;

/// Nobody listens here: the port is reserved and needs privileges.
const NOWHERE: &str = "ws://127.0.0.1:1";

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", stderr(output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The command must fail with this code and say this.
fn fails(world: &World, args: &[&str], code: i32, says: &[&str]) {
    let output = world.run(args);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {}", stderr(&output));
    for text in says {
        assert!(stderr(&output).contains(text), "{args:?} does not say {text:?}: {}", stderr(&output));
    }
    assert_eq!(stdout(&output), "", "{args:?}: what went wrong is not data");
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn wrong_usage_is_two_and_named() {
    let world = World::new();
    fails(&world, &["frobnicate"], 2, &["frobnicate"]);
    fails(&world, &["session"], 2, &["--name"]);
    fails(&world, &["session", "--name", ""], 2, &["profile.name"]);
    fails(&world, &["session", "--name", "x", "--mesh", "No Such Mesh"], 2, &[]);
    fails(
        &world,
        &["status", "--broker", "http://127.0.0.1:1"],
        2,
        &["ws://HOST:PORT", "http://127.0.0.1:1"],
    );
    fails(&world, &["demo", "--seconds", "1"], 2, &["--seconds"]);
}

#[test]
fn a_number_of_threads_that_is_none_is_refused() {
    let world = World::new();
    for said in ["0", "many", "1025", "18446744073709551616", ""] {
        let output =
            world.tenure(&["status", "--broker", NOWHERE]).env("TOKIO_WORKER_THREADS", said).output();
        let output = output.unwrap();
        assert_eq!(output.status.code(), Some(2), "{said:?}: {}", stderr(&output));
        assert!(stderr(&output).contains("TOKIO_WORKER_THREADS is a number from 1 to 1024"), "{said:?}");
    }
    let output = world.tenure(&["status", "--broker", NOWHERE]).env("TOKIO_WORKER_THREADS", "1").output();
    assert_eq!(output.unwrap().status.code(), Some(5), "it goes on with one");
}

#[test]
fn a_broker_that_is_not_there_is_five() {
    let world = World::new();
    std::thread::scope(|scope| {
        for command in ["status", "peers"] {
            let world = &world;
            let help = &[NOWHERE, "tenure broker"];
            scope.spawn(move || fails(world, &[command, "--broker", NOWHERE], 5, help));
        }
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_turns_us_away_is_four_and_says_why() {
    let world = World::new();
    // No public hosts: whoever comes through a proxy names a host that it does not know.
    let mut broker = Proc::spawn("broker", world.tenure(&["broker", "--json", "--listen", "127.0.0.1:0"]));
    let ready = broker.until("ready", |line| line["event"] == "ready").await;
    let proxy = Flaky::start(ready["listen"].as_str().unwrap().parse().unwrap()).unwrap();
    let mut session = world.session("alice", proxy.addr());
    let url = format!("ws://{}", proxy.addr());
    fails(&world, &["status", "--broker", &url], 4, &[&url, "HTTP 403", "TENURE_PUBLIC_HOSTS"]);
    let told = |line: &Value| line["event"] == "waiting";
    let waiting = session.until("waiting", told).await;
    assert!(waiting["reason"].as_str().unwrap().starts_with("HTTP 403: "), "{waiting}");
    session.signal("TERM");
    assert_eq!(session.exit_code().await, Some(0));
    assert_eq!(session.events("waiting").len(), 1, "the same reason is told once");
    assert_eq!(session.events("bye")[0]["wasIn"], false);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_raises_its_limit_of_open_files_and_says_so() {
    let world = World::new();
    let plain = world.tenure(&["broker", "--json", "--listen", "127.0.0.1:0"]);
    let mut limited = std::process::Command::new("sh");
    limited
        .args(["-c", "ulimit -S -n 256 && exec \"$0\" \"$@\""])
        .arg(plain.get_program())
        .args(plain.get_args());
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    let mut broker = Proc::spawn("broker", limited);
    broker.until("ready", |line| line["event"] == "ready").await;
    let log = broker.stderr();
    let said = log.lines().find(|line| line.contains("the limit of open files is raised"));
    assert!(said.is_some_and(|line| line.contains("256")), "{log}");
}

#[test]
fn the_configuration_in_force_is_shown_without_its_secrets() {
    let world = World::new();
    let file = world.home().join("broker.toml");
    std::fs::write(
        &file,
        "listen = \"127.0.0.1:7401\"\nlease_ttl_ms = 60000\nadmin_token = \"s3cret-of-the-operator\"\n",
    )
    .unwrap();
    let args = ["broker", "--print-config", "--listen", "127.0.0.1:7402", "--config", file.to_str().unwrap()];
    let output = world.run(&args);
    assert!(output.status.success(), "{}", stderr(&output));
    let shown: toml::Table = stdout(&output).parse().unwrap();
    assert_eq!(shown["listen"].as_str(), Some("127.0.0.1:7402"), "flags win over the file");
    assert_eq!(shown["lease_ttl_ms"].as_integer(), Some(3_000), "and so does the environment");
    assert!(shown.contains_key("admin_token") && !stdout(&output).contains("s3cret-of-the-operator"));
    let text = stdout(&output);
    for key in tenure_broker::RawConfig::KEYS {
        let lines =
            text.lines().filter(|line| line.trim_start_matches("# ").starts_with(&format!("{key} =")));
        assert_eq!(lines.count(), 1, "{key} has one line: {text}");
    }
    assert!(text.contains("ack_timeout_ms = 600000  # default\n"), "{text}");
    assert!(text.contains("listen = \"127.0.0.1:7402\"\n"), "what was given is no default: {text}");
    assert!(text.contains("# min_client =\n"), "what has no value is commented out: {text}");
    let defaults =
        ["data_dir", "store", "ping_interval_ms", "stale_after_ms", "tick_interval_ms", "max_payload"];
    let more = ["max_buffered_bytes", "max_sessions", "public_hosts", "allowed_origins", "log", "log_format"];
    for key in defaults.iter().chain(&more) {
        assert!(shown.contains_key(*key), "{key} is not shown: {}", stdout(&output));
    }
    fails(&world, &["broker", "--print-config", "--stale-after-ms", "9000"], 2, &["9000"]);
    fails(&world, &["broker", "--print-config", "--log-format", "xml"], 2, &["xml"]);
}

#[test]
fn configurations_that_cannot_be_meant_are_refused_by_name() {
    let world = World::new();
    let file = world.home().join("broker.toml");
    std::fs::write(&file, "lisen = \"127.0.0.1:7401\"\n").unwrap();
    let path = file.to_str().unwrap();
    fails(&world, &["broker", "--config", path], 2, &["lisen", path]);
    fails(&world, &["broker", "--config", "no-such-file.toml"], 2, &["no-such-file.toml"]);
    fails(
        &world,
        &["broker", "--listen", "0.0.0.0:0"],
        2,
        &["0.0.0.0:0 is not loopback", "listen on 127.0.0.1"],
    );
    let public = ["broker", "--listen", "0.0.0.0:0", "--behind-proxy"];
    fails(&world, &public, 2, &["has no mesh yet", "tenure mesh create"]);
    fails(&world, &["broker", "--stale-after-ms", "9000"], 2, &["stale-after", "9000"]);
    fails(&world, &["broker", "--log-format", "xml"], 2, &["xml"]);
    let output = world.tenure(&["broker"]).env("TENURE_MAX_PAYLOAD", "lots").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("TENURE_MAX_PAYLOAD"), "{}", stderr(&output));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_has_one_broker_and_so_has_an_address() {
    let world = World::new();
    let broker = world.broker().await;
    fails(&world, &["broker", "--listen", "127.0.0.1:0"], 1, &["another process uses this data directory"]);
    let (other, listen) = (world.home().join("other"), broker.addr.to_string());
    let args = ["broker", "--data-dir", other.to_str().unwrap(), "--listen", &listen];
    fails(&world, &args, 1, &[&format!("listen on {listen}")]);
    assert_eq!(mode(&world.home().join("broker/tenure.db")), 0o600);
}

#[test]
fn keys_are_made_once_for_their_owner_only() {
    let world = World::new();
    let first = json(&world.run(&["keys", "--json"]));
    assert_eq!(first["member"].as_str().unwrap().len(), 64);
    assert_eq!(first["sessions"], Value::Array(Vec::new()));
    let path = Path::new(first["file"].as_str().unwrap());
    assert_eq!((mode(path), mode(path.parent().unwrap())), (0o600, 0o700));
    assert_eq!(json(&world.run(&["keys", "--json"])), first);
    assert!(stdout(&world.run(&["keys"])).contains(first["member"].as_str().unwrap()));
}

#[test]
fn a_key_that_others_can_read_is_warned_about() {
    let world = World::new();
    let first = json(&world.run(&["keys", "--json"]));
    let path = first["file"].as_str().unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o644)).unwrap();
    let output = world.run(&["keys", "--json"]);
    assert_eq!(stderr(&output).lines().count(), 1, "{}", stderr(&output));
    assert!(stderr(&output).contains("warning") && stderr(&output).contains(path), "{}", stderr(&output));
    assert_eq!(json(&output), first);
}

#[test]
fn a_broken_key_file_is_named_and_left_alone() {
    let world = World::new();
    let first = json(&world.run(&["keys", "--json"]));
    let path = first["file"].as_str().unwrap();
    std::fs::write(path, "not a key\n").unwrap();
    fails(&world, &["keys"], 1, &[path, "64 hex digits"]);
    fails(&world, &["session", "--name", "x", "--broker", NOWHERE], 1, &[path]);
    assert_eq!(std::fs::read_to_string(path).unwrap(), "not a key\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_printed_for_programs_can_be_parsed() {
    let world = World::new();
    let broker = world.broker().await;
    let url = format!("ws://{}", broker.addr);
    let alice = world.joined("alice", broker.addr).await;
    let status = json(&world.run(&["status", "--json", "--broker", &url]));
    assert_eq!((&status["status"], &status["sessions"]), (&"ok".into(), &1.into()), "visitors do not count");
    let peers = json(&world.run(&["peers", "--json", "--broker", &url]));
    assert_eq!(peers.as_array().unwrap().len(), 1);
    assert_eq!((&peers[0]["name"], &peers[0]["transport"]), (&"alice".into(), &Value::Null));
    let all = json(&world.run(&["peers", "--all", "--json", "--broker", &url]));
    assert_eq!(all[0]["transport"], "online");
    assert!(all[0]["leaseUntil"].as_u64().unwrap() > all[0]["joinedAt"].as_u64().unwrap());
    let keys = json(&world.run(&["keys", "--json"]));
    assert_eq!(keys["sessions"][0]["session"], peers[0]["session"]);
    let listing = world.run(&["peers", "--broker", &url]);
    assert!(stdout(&listing).starts_with("NAME") && stdout(&listing).contains("alice"), "{listing:?}");
    drop(alice);
}

#[tokio::test(flavor = "multi_thread")]
async fn watching_prints_who_is_here_and_then_every_change() {
    let world = World::new();
    let broker = world.broker().await;
    let url = format!("ws://{}", broker.addr);
    let alice = world.joined("alice", broker.addr).await;
    let args = ["peers", "--watch", "--json", "--broker", &url];
    let mut watch = Proc::spawn("watch", world.tenure(&args));
    watch.until("alice", |line| line["kind"] == "here" && line["peer"]["name"] == "alice").await;
    let mut bob = world.joined("bob", broker.addr).await;
    watch.until("bob", |line| line["kind"] == "joined" && line["peer"]["name"] == "bob").await;
    bob.signal("INT");
    watch.until("bob's bye", |line| line["kind"] == "left" && line["peer"]["name"] == "bob").await;
    assert_eq!(bob.exit_code().await, Some(0));
    assert_eq!(bob.events("bye").len(), 1);
    watch.signal("TERM");
    assert_eq!(watch.exit_code().await, Some(0));
    drop(alice);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_goes_away_is_no_failure_and_leaves_no_ghost() {
    let world = World::new();
    let broker = world.broker().await;
    let url = format!("ws://{}", broker.addr);
    let _here = join(broker.addr, "somebody").await;
    let mut peers = world.tenure(&["peers", "--broker", &url]);
    let mut child = peers.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), ""));
    let left = json(&world.run(&["peers", "--json", "--broker", &url]));
    let names: Vec<&Value> = left.as_array().unwrap().iter().map(|peer| &peer["name"]).collect();
    assert_eq!(names, ["somebody"]);
}

#[test]
fn the_demonstration_keeps_its_promise() {
    let world = World::new();
    let outcome = json(&world.run(&["demo", "--seconds", "8", "--json"]));
    assert!(outcome["flaps"].as_u64().unwrap() > 0, "{outcome}");
    assert_eq!((&outcome["resumes"], &outcome["blinks"]), (&outcome["flaps"], &0.into()), "{outcome}");
    assert_eq!(outcome["ok"], true);
    assert_eq!(outcome["sessions"].as_array().unwrap().len(), 3);
    assert_eq!(std::fs::read_dir(world.home()).unwrap().count(), 0, "it needs no home");
}

#[test]
fn the_demonstration_can_be_interrupted_and_says_so() {
    let world = World::new();
    let temporary = tempfile::TempDir::new().unwrap();
    let mut demo = world.tenure(&["demo"]);
    let mut child =
        demo.env("TMPDIR", temporary.path()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = String::new();
    let mut lines = std::io::BufReader::new(child.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut lines, &mut first).unwrap();
    assert!(first.contains("alice  dropped"), "{first}");
    let kill = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(kill.unwrap().success());
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut lines, &mut rest).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(rest.contains("SESSION"), "{rest}");
    assert!(stderr(&output).contains("interrupted"), "{}", stderr(&output));
    assert_eq!(std::fs::read_dir(temporary.path()).unwrap().count(), 0, "nothing is left behind");
}
