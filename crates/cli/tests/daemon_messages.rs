//! Messages by way of the daemon and the command: handed over at once, sent when there is a broker, read once.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::host::{Host, NOWHERE, kill, stderr, until};
use common::proc::Proc;
use common::{Broker, World};
use serde_json::{Value, json};

/// A machine whose daemon is with its broker.
async fn connected() -> (Host, Broker) {
    let world = World::new();
    let broker = world.broker().await;
    let host = Host { world, broker: format!("ws://{}", broker.addr) };
    host.connected();
    (host, broker)
}

fn bodies(lines: &[Value]) -> Vec<&str> {
    lines.iter().map(|line| line["body"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_sent_without_a_broker_is_kept_and_arrives_when_there_is_one() {
    let world = World::new();
    let addr = world.broker().await.kill().await;
    let host = Host { world, broker: format!("ws://{addr}") };
    let output = host.run(&["send", "topic:jobs", "x", "-v"]);
    assert_eq!(output.status.code(), Some(5), "without a daemon nobody takes it: {}", stderr(&output));
    assert!(stderr(&output).contains("straight to the broker") && stderr(&output).contains("no daemon runs"));
    host.good(&["daemon", "up"]);
    let first = host.good(&["send", "topic:jobs", "one", "-v"]);
    assert!(stderr(&first).contains("through the daemon at "), "{}", stderr(&first));
    let id = String::from_utf8(first.stdout).unwrap().trim().to_owned();
    let shown: Value = serde_json::from_str(&host.text(&["outbox", "show", &id, "--json"])).unwrap();
    assert_eq!(
        (&shown["status"], &shown["to"], &shown["id"]),
        (&json!("pending"), &json!("topic:jobs"), &json!(1))
    );
    let late =
        host.run(&["send", "topic:jobs", "two", "--id", "second", "--wait", "--timeout", "100ms", "--json"]);
    assert_eq!(late.status.code(), Some(6), "{}", stderr(&late));
    assert!(stderr(&late).contains("second stays queued"), "{}", stderr(&late));
    assert_eq!(serde_json::from_slice::<Value>(&late.stdout).unwrap()["clientMessageId"], "second");
    let mut waiting =
        Proc::spawn("sender", host.command(&["send", "topic:jobs", "three", "--id", "third", "--wait"]));
    until("it is taken", || host.run(&["outbox", "show", "third"]).status.success());
    waiting.signal("INT");
    assert_eq!(waiting.exit_code().await, Some(1));
    assert!(waiting.stderr().contains("third stays queued"), "{}", waiting.stderr());
    assert_eq!(host.status()["outbox"]["pending"], 3);
    // Sent again under its id, also with another word for the same wish, it is one message.
    host.good(&["send", "topic:jobs", "two", "--id", "second"]);
    host.fails(&["send", "topic:jobs", "other", "--id", "second"], 4, &["idempotency_key_reused"]);
    host.fails(&["peers"], 5, &["unavailable"]);
    host.fails(&["send", "somebody", "x"], 5, &["give an address"]);
    let _broker = host.world.broker_at(&addr.to_string()).await;
    let all = host.lines(&["sub", "jobs", "--group", "all", "--from", "earliest", "--count", "3", "--json"]);
    assert_eq!(bodies(&all), ["one", "two", "three"]);
    until("all are done", || host.status()["outbox"]["done"] == 3);
    let again = host.good(&["send", "topic:jobs", "two", "--id", "second", "--wait"]);
    assert!(stderr(&again).contains("sent before"), "{}", stderr(&again));
    let shown: Value = serde_json::from_str(&host.text(&["outbox", "show", "second", "--json"])).unwrap();
    assert_eq!(shown["brokerMessageId"], String::from_utf8(again.stdout).unwrap().trim());
    assert_eq!(
        host.lines(&["outbox", "list", "--json"]),
        Vec::<Value>::new(),
        "what is done is nothing to do"
    );
    assert_eq!(host.lines(&["outbox", "list", "--status", "done", "--json", "--limit", "2"]).len(), 2);
}

/// A pipe that is not read holds the command up in the middle of a page: the signal comes before the page could be marked.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_printed_before_a_signal_is_marked_as_seen() {
    use std::io::{BufRead, BufReader};

    let (host, _broker) = connected().await;
    let session = format!("session:{}", host.own());
    let body = "x".repeat(20_000);
    for _ in 0..8 {
        host.good(&["send", &session, &body]);
    }
    let unseen = || host.lines(&["inbox", "--no-ack", "--json"]).len();
    until("all have come", || unseen() == 8);
    let mut command = host.command(&["inbox", "--follow", "--json"]);
    let mut reader = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(reader.stdout.take().unwrap()).lines();
    lines.next().unwrap().unwrap();
    kill("-INT", u64::from(reader.id()));
    let printed = 1 + lines.map(Result::unwrap).count();
    assert!(reader.wait().unwrap().success());
    assert_eq!((printed, unseen()), (8, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_comes_is_printed_once_and_seen() {
    let (host, broker) = connected().await;
    let sender = Host { world: World::new(), broker: format!("ws://{}", broker.addr) };
    let own = host.own();
    let (session, member) = (format!("session:{own}"), format!("member:{own}"));
    sender.good(&["send", &session, "one", "--wait=delivered"]);
    sender.good(&["send", &member, "two", "--wait=delivered"]);
    let looked = host.lines(&["inbox", "--no-ack", "--json"]);
    assert_eq!(bodies(&looked), ["one", "two"]);
    assert_eq!((&looked[0]["recipient"], looked[0]["inboxId"].is_u64()), (&json!(session), true));
    assert_eq!(bodies(&host.lines(&["inbox", "--member", "--json"])), ["two"]);
    let mut follower = Proc::spawn("follower", host.command(&["inbox", "--follow", "--json", "-v"]));
    follower.until("one", |line| line["body"] == "one").await;
    sender.good(&["send", &session, "three", "--wait=delivered"]);
    follower.until("three", |line| line["body"] == "three").await;
    // The daemon dies and comes back; whoever follows goes on.
    kill("-KILL", host.status()["pid"].as_u64().unwrap());
    until("it is gone", || !host.run(&["daemon", "status"]).status.success());
    sender.good(&["send", &session, "four"]);
    host.good(&["daemon", "up"]);
    follower.until("four", |line| line["body"] == "four").await;
    follower.signal("INT");
    assert_eq!(follower.exit_code().await, Some(0), "{}", follower.stderr());
    let printed: Vec<Value> = follower.seen().to_vec();
    assert_eq!(bodies(&printed), ["one", "three", "four"]);
    assert!(
        follower.stderr().contains("through the daemon") && follower.stderr().contains("the daemon is back")
    );
    until("all are seen", || stderr(&host.good(&["inbox"])).contains("nothing waits"));
    host.fails(&["inbox", "--direct"], 2, &["the daemon holds the member's own session"]);
    host.status();
    // Nor when only its lock says that it runs.
    let (socket, aside) = (host.path("daemon.sock"), host.path("daemon.aside"));
    std::fs::rename(&socket, &aside).unwrap();
    host.fails(&["inbox"], 5, &["holds the member's own session and does not answer", "--as"]);
    std::fs::rename(&aside, &socket).unwrap();
    host.status();
    let peers: Value = serde_json::from_str(&host.text(&["peers", "--json"])).unwrap();
    assert!(peers.as_array().unwrap().iter().any(|peer| peer["session"] == own.as_str()), "{peers}");
    for (args, way) in [
        (&["peers", "-v"][..], "through the daemon"),
        (&["peers", "-v", "--direct"], "straight to the broker"),
        (&["peers", "-v", "--all"], "--all is the broker's alone"),
        (&["peers", "-v", "--mesh", "other"], "not in the mesh other"),
    ] {
        let output = host.run(args);
        assert!(stderr(&output).contains(way), "{args:?}: {}", stderr(&output));
    }
    let elsewhere = host.run(&["peers", "-v", "--broker", NOWHERE]);
    assert!(stderr(&elsewhere).contains("the daemon's broker is another"), "{}", stderr(&elsewhere));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sender_can_wait_for_the_broker_or_the_receiver() {
    let (host, _broker) = connected().await;
    let own = format!("session:{}", host.own());
    let sent = &host.lines(&["send", &own, "to myself", "--wait=delivered", "--json"])[0];
    assert_eq!((&sent["status"], &sent["delivery"]), (&json!("done"), &json!("delivered")));
    let accepted = host.text(&["send", "topic:news", "x", "--wait"]);
    let done = host.lines(&["outbox", "list", "--status", "done", "--json"]);
    assert_eq!(done.last().unwrap()["brokerMessageId"], accepted.as_str());
    host.fails(&["send", "topic:news", "x", "--wait=delivered"], 2, &["any number of readers"]);
    host.fails(&["send", "nobody here", "x"], 2, &["nobody called", "these are:", "session:"]);
    host.fails(&["send", &own, "x", "--timeout", "1s"], 2, &["--wait"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_follows_goes_on_in_a_new_inbox_when_the_old_one_was_damaged() {
    let (host, _broker) = connected().await;
    let own = format!("session:{}", host.own());
    let mut follower = Proc::spawn("follower", host.command(&["inbox", "--follow", "--json"]));
    for body in ["one", "two"] {
        host.good(&["send", &own, body, "--wait=delivered"]);
        follower.until(body, |line| line["body"] == body).await;
    }
    host.good(&["daemon", "down"]);
    until("its files are let go", || !host.path("inbox.db-wal").exists());
    std::fs::write(host.path("inbox.db"), vec![1u8; 5_000]).unwrap();
    host.connected();
    // The new inbox counts from the start: this is number 1 again.
    host.good(&["send", &own, "three", "--wait=delivered"]);
    follower.until("three", |line| line["body"] == "three" && line["inboxId"] == 1).await;
    until("it is told", || follower.stderr().contains("new inbox"));
}

/// A name is looked up once: sent again under its id it is the same message, also when nobody can be asked.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_sent_to_a_name_is_sent_again_without_the_broker() {
    let (host, broker) = connected().await;
    host.good(&["daemon", "session", "bob"]);
    let once = ["send", "bob", "x", "--id", "once"];
    until("bob is here", || host.run(&once).status.success());
    broker.kill().await;
    until("the broker is away", || host.status()["meshes"][0]["connected"] == false);
    host.good(&once);
    host.fails(&["send", "bob", "y", "--id", "once"], 4, &["idempotency_key_reused"]);
    host.fails(&["send", "bob", "x", "--id", "twice"], 5, &["give an address"]);
}

/// An id may look like a number: what is dropped then is the message that is meant, or none.
#[test]
fn an_id_of_digits_is_not_taken_for_the_number_of_another_row() {
    let host = Host::new(NOWHERE);
    host.good(&["daemon", "up"]);
    for id in ["first", "3", "1"] {
        host.good(&["send", "topic:jobs", "x", "--id", id]);
    }
    for verb in ["drop", "requeue", "show"] {
        host.fails(
            &["outbox", verb, "1"],
            2,
            &["several rows", "'#1'  with the id first", "'#3'  with the id 1"],
        );
    }
    assert_eq!(host.status()["outbox"]["pending"], 3, "nothing was touched");
    let number = |name: &str| host.lines(&["outbox", "show", name, "--json"])[0]["id"].clone();
    assert_eq!((number("first"), number("#3"), number("2")), (json!(1), json!(3), json!(2)));
    host.good(&["outbox", "drop", "#3"]);
    let left: Vec<Value> = host.lines(&["outbox", "list", "--status", "pending", "--json"]);
    assert_eq!(left.iter().map(|row| row["id"].clone()).collect::<Vec<_>>(), [1, 2]);
    host.fails(&["outbox", "show", "#9"], 4, &["not_found"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_dead_is_sent_anew_or_taken_back() {
    let (host, _broker) = connected().await;
    let nobody = format!("session:{}", "ab".repeat(32));
    let refused = host.run(&["send", &nobody, "x", "--wait", "--id", "a/b c"]);
    assert_eq!(refused.status.code(), Some(4), "{}", stderr(&refused));
    assert!(stderr(&refused).contains("no_such_session"), "{}", stderr(&refused));
    assert!(stderr(&refused).contains("tenure outbox show '#1'"), "{}", stderr(&refused));
    assert_eq!(refused.stdout, b"a/b c\n", "it is on the disk, so its id is told");
    let dead = host.lines(&["outbox", "list", "--status", "dead", "--json"]);
    assert_eq!((dead.len(), &dead[0]["clientMessageId"]), (1, &json!("a/b c")));
    let table = host.text(&["outbox", "list"]);
    assert!(table.starts_with("ROW") && table.contains("no_such_session"), "{table}");
    assert!(host.text(&["outbox", "show", "a/b c"]).contains("dead"));
    host.fails(&["outbox", "requeue", "1", "--new-client-id", "a/b c"], 4, &["the new id is used already"]);
    let file = host.path("body.txt");
    std::fs::write(&file, "another body").unwrap();
    let anew = host.text(&["outbox", "requeue", "1", "--patch-body", file.to_str().unwrap(), "--json"]);
    let anew: Value = serde_json::from_str(&anew).unwrap();
    assert_eq!((&anew["status"], &anew["id"]), (&json!("queued"), &json!(2)));
    let old: Value = serde_json::from_str(&host.text(&["outbox", "show", "1", "--json"])).unwrap();
    assert_eq!((&old["status"], &old["supersededBy"]), (&json!("aborted"), &json!(2)));
    until("it is dead again", || host.text(&["outbox", "show", "2"]).contains("no_such_session"));
    let fresh = host.text(&["outbox", "requeue", "2", "--new-client-id", "fresh"]);
    assert_eq!(fresh, "fresh");
    until("and again", || host.text(&["outbox", "show", "fresh"]).contains("no_such_session"));
    host.good(&["outbox", "drop", "fresh"]);
    host.fails(&["outbox", "drop", "fresh"], 4, &["conflict"]);
    host.fails(&["outbox", "show", "99"], 4, &["not_found"]);
    host.fails(&["outbox", "requeue", "1", "--patch-body", "no-such-file"], 2, &["no-such-file"]);
    host.good(&["daemon", "down"]);
    host.fails(&["outbox", "list"], 5, &["tenure daemon up"]);
}

/// Another program had used a row's id at the broker: the row was called done, its body was gone, and nobody got it.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_whose_id_another_message_has_at_the_broker_is_sent_anew() {
    let (host, _broker) = connected().await;
    for (id, body) in [("deploy-417", "mine"), ("deploy-500", "mine too")] {
        host.good(&["send", "topic:deploys", "of another program", "--id", id, "--direct"]);
        let refused = host.run(&["send", "topic:deploys", body, "--id", id, "--wait"]);
        assert_eq!(refused.status.code(), Some(4), "{}", stderr(&refused));
        assert!(stderr(&refused).contains("idempotency_key_reused"), "{}", stderr(&refused));
    }
    let taken = host.run(&["outbox", "requeue", "deploy-417", "--new-client-id", "deploy-500"]);
    assert_eq!(taken.status.code(), Some(4), "{}", stderr(&taken));
    assert!(stderr(&taken).contains("the new id is used already"), "{}", stderr(&taken));
    let anew = host.good(&["outbox", "requeue", "deploy-417", "--new-client-id", "deploy-418"]);
    assert!(stderr(&anew).contains("sent anew") && anew.stdout == b"deploy-418\n", "{}", stderr(&anew));
    let file = host.path("body.txt");
    std::fs::write(&file, "patched").unwrap();
    let patch = ["--patch-body", file.to_str().unwrap()];
    host.good(&[&["outbox", "requeue", "deploy-500", "--new-client-id", "deploy-501"][..], &patch].concat());
    until("both are with the broker", || host.status()["outbox"]["done"] == 2);
    let read = ["sub", "deploys", "--group", "all", "--from", "earliest", "--count", "4", "--json"];
    let all = host.lines(&read);
    assert_eq!(bodies(&all), ["of another program", "of another program", "mine", "patched"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shell_can_have_a_session_of_its_own() {
    let (host, _broker) = connected().await;
    let made: Value = serde_json::from_str(&host.text(&["daemon", "session", "reviewer", "--json"])).unwrap();
    let (key, token) = (made["session"].as_str().unwrap(), made["token"].as_str().unwrap());
    assert_eq!(host.text(&["daemon", "session", "reviewer"]), token, "the same name is the same session");
    let to = format!("session:{key}");
    host.good(&["send", &to, "for the reviewer", "--wait=delivered"]);
    assert!(stderr(&host.good(&["inbox"])).contains("nothing waits"), "it is not the daemon's own");
    let mut reader = host.command(&["inbox", "--json", "--no-ack"]);
    let read = reader.env("TENURE_SESSION", token).output().unwrap();
    let read: Value = serde_json::from_slice(&read.stdout).unwrap();
    assert_eq!(read["body"], "for the reviewer");
    let by_name = host.good(&["inbox", "--as", "reviewer", "--json", "-v"]);
    assert!(stderr(&by_name).contains("through the daemon"), "{}", stderr(&by_name));
    let mut answer = host.command(&["send", &format!("session:{}", host.own()), "done", "--wait=delivered"]);
    assert!(answer.env("TENURE_SESSION", token).status().unwrap().success());
    assert_eq!(host.lines(&["inbox", "--json"])[0]["from"]["session"], key);
    let mut wrong = host.command(&["inbox"]);
    let wrong = wrong.env("TENURE_SESSION", "nonsense").output().unwrap();
    assert_eq!(wrong.status.code(), Some(4), "{}", stderr(&wrong));
    let visit = host.run(&["sub", "news", "-v", "--broker", NOWHERE]);
    assert!(stderr(&visit).contains("straight to the broker"), "{}", stderr(&visit));
    let mut command = host.command(&["sub", "news", "--json", "-v"]);
    command.env("TENURE_SESSION", token);
    let mut follower = Proc::spawn("follower", command);
    until("it follows", || follower.stderr().contains("following news\n"));
    host.good(&["send", "topic:news", "from the daemon's own"]);
    until("it is heard", || !follower.seen().is_empty());
    assert_eq!(follower.seen()[0]["body"], "from the daemon's own");
    assert!(follower.stderr().contains("through the daemon"), "{}", follower.stderr());
    follower.signal("INT");
    assert_eq!(follower.exit_code().await, Some(0), "{}", follower.stderr());
    host.good(&["daemon", "session", "reviewer", "--close"]);
    until("it has left", || host.status()["sessions"].as_array().unwrap().len() == 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_follows_a_topic_is_a_visit_at_the_daemon_that_leaves_no_trace() {
    let (host, _broker) = connected().await;
    let mut follower = Proc::spawn("follower", host.command(&["sub", "news", "--json", "-v"]));
    until("it follows", || follower.stderr().contains("following news\n"));
    assert!(follower.stderr().contains("through the daemon"), "{}", follower.stderr());
    host.good(&["send", "topic:news", "one"]);
    until("it is heard", || follower.seen().len() == 1);
    host.good(&["daemon", "down"]);
    host.good(&["daemon", "up"]);
    until("it follows again", || follower.stderr().contains("the daemon has started anew"));
    until("it follows again", || follower.stderr().matches("following news").count() == 2);
    // The new daemon may have been asked before it had reached its broker.
    until("it is heard again", || {
        host.good(&["send", "topic:news", "two"]);
        follower.seen().len() > 1
    });
    assert_eq!(follower.seen()[1]["body"], "two", "the daemon's own posts are heard, each once");
    follower.signal("INT");
    assert_eq!(follower.exit_code().await, Some(0), "{}", follower.stderr());
    until("it has left", || host.status()["sessions"].as_array().unwrap().len() == 1);
    let kept = || std::fs::read_dir(host.world.home().join("sessions")).unwrap().count();
    until("only what the daemon's own session is is kept", || kept() == 1);
    let inbox = rusqlite::Connection::open(host.world.home().join("inbox.db")).unwrap();
    let letters = || inbox.query_row("SELECT count(*) FROM inbox", [], |row| row.get::<_, i64>(0)).unwrap();
    until("its letters are gone", || letters() == 0);
}
