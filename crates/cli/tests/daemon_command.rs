//! `tenure daemon` with real processes: it starts once, answers, says who holds what, and ends when it is told.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::World;
use common::host::{Host, NOWHERE, alive, kill, mode, stderr, until};
use common::proc::Proc;
use serde_json::Value;

#[test]
fn it_starts_once_answers_and_ends() {
    let host = Host::new(NOWHERE);
    host.fails(&["daemon", "status"], 5, &["tenure daemon up"]);
    assert!(stderr(&host.good(&["daemon", "down"])).contains("no daemon runs"));
    let up = host.good(&["daemon", "up", "--json", "--name", "desk"]);
    let ready: Value = serde_json::from_slice(&up.stdout).unwrap();
    let (pid, status) = (ready["pid"].as_u64().unwrap(), host.status());
    assert_eq!((&ready["event"], &status["pid"]), (&Value::from("ready"), &Value::from(pid)));
    assert_eq!(
        (&status["meshes"][0]["broker"], &status["meshes"][0]["connected"]),
        (&NOWHERE.into(), &false.into())
    );
    assert_eq!(
        (&status["sessions"][0]["name"], &status["sessions"][0]["own"]),
        (&"desk".into(), &true.into())
    );
    for (name, wanted) in
        [("daemon.sock", 0o600), ("daemon.log", 0o600), ("daemon.lock", 0o600), ("outbox.db", 0o600)]
    {
        assert_eq!(mode(&host.path(name)), wanted, "{name}");
    }
    let text = String::from_utf8(host.good(&["daemon", "status"]).stdout).unwrap();
    for word in ["desk", "not connected", "0 pending", "daemon.sock"] {
        assert!(text.contains(word), "{text}");
    }
    host.fails(
        &["daemon", "up"],
        1,
        &["another daemon", &format!("process {pid} since 20"), "tenure daemon down"],
    );
    host.fails(&["daemon", "up", "--foreground", "--timeout", "1s"], 2, &["--timeout"]);
    assert!(alive(pid));
    host.good(&["daemon", "down"]);
    // Its lock was free when the command returned; it may still be on its way out.
    until("it is gone", || !alive(pid));
    assert!(!host.path("daemon.sock").exists());
    host.fails(&["daemon", "status"], 5, &[]);
    let log = String::from_utf8(host.good(&["daemon", "logs"]).stdout).unwrap();
    assert!(log.contains("ready") && log.trim_end().ends_with("event=\"stopped\""), "{log}");
    assert_eq!(
        host.good(&["daemon", "logs", "-n", "1"]).stdout.iter().filter(|byte| **byte == b'\n').count(),
        1
    );
}

/// What whoever starts it has open, sits at and stands in is let go.
#[test]
fn in_the_background_it_keeps_nothing_of_whoever_started_it() {
    let host = Host::new(NOWHERE);
    let kept = host.path("kept-open");
    let script = format!("exec 7>{}; exec {} daemon up", kept.display(), env!("CARGO_BIN_EXE_tenure"));
    let mut command = Command::new("sh");
    command.args(["-c", &script]).env("TENURE_HOME", host.world.home()).env("TENURE_BROKER", NOWHERE);
    let output = command.output().expect("its output ends although the daemon goes on");
    assert!(output.status.success(), "{}", stderr(&output));
    let pid = host.status()["pid"].as_u64().unwrap();
    let link = |name: &str| std::fs::read_link(format!("/proc/{pid}/{name}")).unwrap();
    assert_eq!(link("cwd"), Path::new("/"));
    assert_eq!(link("fd/0"), Path::new("/dev/null"));
    let open: Vec<PathBuf> = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok())
        .collect();
    assert!(!open.contains(&kept), "{open:?}");
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    // State, parent, group, session, terminal.
    assert_eq!((fields[3], fields[4]), (pid.to_string().as_str(), "0"), "a session of its own, no terminal");
}

#[test]
fn what_a_crash_left_is_replaced() {
    let host = Host::new(NOWHERE);
    host.good(&["daemon", "up"]);
    let pid = host.status()["pid"].as_u64().unwrap();
    kill("-KILL", pid);
    // The first thread of a killed process may be gone before the last, which still holds the socket.
    until("it is dead", || UnixStream::connect(host.path("daemon.sock")).is_err());
    assert!(host.path("daemon.sock").exists(), "nobody was there to remove it");
    host.fails(&["daemon", "status"], 5, &["tenure daemon up"]);
    host.good(&["daemon", "up"]);
    assert_ne!(host.status()["pid"].as_u64(), Some(pid));
}

#[tokio::test(flavor = "multi_thread")]
async fn in_the_foreground_it_says_when_it_is_ready_and_ends_on_a_signal() {
    let host = Host::new(NOWHERE);
    for signal in ["TERM", "INT"] {
        let mut daemon = Proc::spawn("daemon", host.command(&["daemon", "up", "--foreground", "--json"]));
        daemon.until("ready", |line| line["event"] == "ready").await;
        host.status();
        let mut second = Proc::spawn("second", host.command(&["daemon", "up", "--foreground"]));
        assert_eq!(second.exit_code().await, Some(1));
        assert!(second.stderr().contains("another daemon runs here: process "), "{}", second.stderr());
        daemon.signal(signal);
        assert_eq!(daemon.exit_code().await, Some(0), "{}", daemon.stderr());
        assert!(daemon.stderr().contains("event=\"stopped\""), "{}", daemon.stderr());
    }
}

/// Two brokers' worth of one address: the second process takes the daemon's session over, and that is its end.
#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_cannot_go_on_ends_with_a_sentence() {
    let world = World::new();
    let broker = world.broker().await;
    let host = Host { world, broker: format!("ws://{}", broker.addr) };
    let mut daemon = Proc::spawn("daemon", host.command(&["daemon", "up", "--foreground", "--json"]));
    daemon.until("ready", |line| line["event"] == "ready").await;
    until("connected", || host.status()["meshes"][0]["connected"] == true);
    let twin = TempTwin::of(&host);
    let taken = twin.command(&["inbox"]).env("TENURE_BROKER", &host.broker).output().unwrap();
    assert!(taken.status.success(), "{}", stderr(&taken));
    assert_eq!(daemon.exit_code().await, Some(4), "{}", daemon.stderr());
    let said = daemon.stderr();
    let last = said.lines().last().unwrap();
    assert!(last.starts_with("tenure: mesh default: "), "{said}");
}

/// Another home with the same keys: a machine that was restored twice from one backup.
struct TempTwin(World);

impl TempTwin {
    fn of(host: &Host) -> TempTwin {
        let twin = World::new();
        std::fs::create_dir(twin.home().join("keys")).unwrap();
        std::fs::copy(host.path("keys/member.key"), twin.home().join("keys/member.key")).unwrap();
        TempTwin(twin)
    }

    fn command(&self, args: &[&str]) -> Command {
        self.0.tenure(args)
    }
}

#[test]
fn configurations_that_cannot_be_meant_are_refused_by_line_and_field() {
    let host = Host::new(NOWHERE);
    let file = host.path("daemon.toml");
    for (text, says) in [
        ("name = \"a\"\nlisten = 1\n", "daemon.toml:2: unknown field `listen`"),
        ("tcp = \"0.0.0.0:1\"\n", "daemon.toml: tcp: the daemon listens on loopback only"),
        ("tcp = \"here\"\n", "daemon.toml:1: "),
        ("max_age_hours = 0\n", "daemon.toml: max_age_hours: at least 1"),
        ("outbox_cap_bytes = 5\n", "daemon.toml: outbox_cap_bytes: at least"),
        ("log_format = \"xml\"\n", "daemon.toml: log_format: json or pretty"),
        ("name = \"\"\n", "daemon.toml: name: "),
        ("oops\n", "daemon.toml:1: "),
    ] {
        std::fs::write(&file, text).unwrap();
        host.fails(&["daemon", "up"], 2, &[says]);
    }
    let mut meshes = host.world.tenure(&["daemon", "up"]);
    std::fs::write(&file, "[[mesh]]\nname = \"a\"\nbroker = \"http://x\"\n").unwrap();
    let output = meshes.output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("daemon.toml: mesh.broker: a broker's address is"),
        "{}",
        stderr(&output)
    );
    std::fs::write(&file, "name = \"deep\"\n[[mesh]]\nname = \"a\"\nbroker = \"ws://127.0.0.1:1\"\n[[mesh]]\nname = \"b\"\nbroker = \"ws://127.0.0.1:1\"\n").unwrap();
    assert!(meshes.output().unwrap().status.success());
    let status = host.status();
    assert_eq!((&status["meshes"][0]["name"], &status["meshes"][1]["name"]), (&"a".into(), &"b".into()));
    host.good(&["daemon", "down"]);
    host.fails(&["daemon", "up", "--config", "no-such-file"], 2, &["no-such-file"]);
}

/// The socket is its owner's alone, really: another user's connect is refused by the system.
#[test]
fn another_user_is_kept_out() {
    let host = Host::new(NOWHERE);
    host.good(&["daemon", "up"]);
    // The directory above must not be what keeps them out.
    std::fs::set_permissions(host.world.home(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let nobody = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    let can =
        Command::new("setpriv").args(nobody).arg(env!("CARGO_BIN_EXE_tenure")).arg("--version").output();
    if !can.is_ok_and(|output| output.status.success()) {
        eprintln!("only the mode was looked at: nobody else can be tried without root and setpriv");
        assert_eq!(mode(&host.path("daemon.sock")), 0o600);
        return;
    }
    let mut other = Command::new("setpriv");
    other.args(nobody).args([env!("CARGO_BIN_EXE_tenure"), "daemon", "status"]);
    let output = other.env("TENURE_HOME", host.world.home()).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("somebody else's"), "{}", stderr(&output));
    host.status();
}

#[test]
fn a_home_that_everybody_can_write_to_is_refused_by_a_daemon_and_told_by_every_command() {
    let host = Host::new(NOWHERE);
    std::fs::set_permissions(host.world.home(), std::fs::Permissions::from_mode(0o777)).unwrap();
    host.fails(&["daemon", "up"], 2, &["can be written by everybody", "(mode 0777)", "chmod 700"]);
    host.fails(&["daemon", "up", "--foreground"], 2, &["can be written by everybody"]);
    let keys = host.good(&["keys"]);
    let warned = stderr(&keys).matches("warning: everybody on this machine can put keys into").count();
    assert_eq!(warned, 1, "{}", stderr(&keys));
    std::fs::set_permissions(host.world.home(), std::fs::Permissions::from_mode(0o700)).unwrap();
    assert!(!stderr(&host.good(&["keys"])).contains("warning"), "nothing is wrong any more");
    host.good(&["daemon", "up"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn it_says_how_long_a_message_may_wait() {
    for (override_hours, hours) in [("", 648), ("max_age_hours = 100\n", 100)] {
        let world = World::new();
        let broker = world.broker().await;
        let host = Host::new(&format!("ws://{}", broker.addr));
        std::fs::write(host.path("daemon.toml"), override_hours).unwrap();
        host.connected();
        assert_eq!(host.status()["meshes"][0]["maxAgeHours"], hours);
        let told = format!("; messages may wait {hours} h");
        let text = host.text(&["daemon", "status"]);
        assert!(text.contains(&told), "{text}");
        broker.kill().await;
        until("the broker is away", || host.status()["meshes"][0]["connected"] == false);
        assert_eq!(host.status()["meshes"][0]["maxAgeHours"], hours, "it holds while the broker is away");
    }
}
