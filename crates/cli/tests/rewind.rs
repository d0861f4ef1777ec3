//! A broker that comes back with another history, with real processes: its store is in memory, was wiped, or is an old copy.
//! Whoever reads goes on reading: nothing new is taken for something old, and it is told once.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::net::SocketAddr;
use std::path::Path;
use std::time::Instant;

use common::host::Host;
use common::proc::Proc;
use common::{Broker, World, patience};
use tenure_client::{
    Events, InboxChoice, Options, ReconcilePolicy, Session, SessionEvent, Subscription, To, random_key,
};

/// How the broker loses its history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    /// Its store was in memory.
    Memory,
    /// Its directory was deleted.
    Wiped,
    /// Its directory is what it was a while ago.
    Restored,
}

/// A broker that can lose its history, in a world of its own.
struct Stage {
    /// Before the directory that its files are in: it says so when they are taken away.
    broker: Option<Broker>,
    world: World,
    loss: Loss,
    addr: SocketAddr,
}

impl Stage {
    async fn new(loss: Loss) -> Stage {
        let world = World::new();
        let broker = start(&world, loss, "127.0.0.1:0").await;
        let addr = broker.addr;
        Stage { world, loss, broker: Some(broker), addr }
    }

    fn data(&self) -> std::path::PathBuf {
        self.world.home().join("store")
    }

    /// Keeps a copy of the store, as of now.
    async fn back_up(&mut self) {
        if self.loss == Loss::Restored {
            self.broker.take().unwrap().kill().await;
            copy(&self.data(), &self.world.home().join("copy"));
            self.broker = Some(start(&self.world, self.loss, &self.addr.to_string()).await);
        }
    }

    /// The broker dies; it comes back with the history that it has then.
    async fn lose(&mut self) {
        self.broker.take().unwrap().kill().await;
        if self.loss != Loss::Memory {
            std::fs::remove_dir_all(self.data()).unwrap();
        }
        if self.loss == Loss::Restored {
            copy(&self.world.home().join("copy"), &self.data());
        }
        self.broker = Some(start(&self.world, self.loss, &self.addr.to_string()).await);
    }

    fn url(&self) -> String {
        format!("ws://{}", self.addr)
    }

    fn spawn(&self, name: &str, args: &[&str]) -> Proc {
        let mut command = self.world.tenure(args);
        command.env("TENURE_BROKER", self.url());
        Proc::spawn(name, command)
    }

    /// A session of the test's own.
    async fn session(&self, name: &str) -> (Session, Events) {
        let options = Options::new(&self.url(), random_key().unwrap(), name).unwrap();
        let options = options.inbox(InboxChoice::Session).reconcile_policy(ReconcilePolicy::RestoreClient);
        connected(options).await
    }
}

async fn connected(options: Options) -> (Session, Events) {
    tokio::time::timeout(patience(), Session::connect(options)).await.expect("in time").expect("joined")
}

async fn start(world: &World, loss: Loss, addr: &str) -> Broker {
    let mut command = world.tenure(&["broker", "--json", "--listen", addr, "--public-hosts", "127.0.0.1:*"]);
    command.env("TENURE_DATA_DIR", world.home().join("store"));
    if loss == Loss::Memory {
        command.env("TENURE_STORE", "memory");
    }
    let mut proc = Proc::spawn("broker", command);
    let ready = proc.until("ready", |line| line["event"] == "ready").await;
    let addr = ready["listen"].as_str().and_then(|addr| addr.parse().ok()).expect("an address");
    Broker { proc, addr }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for file in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        if file.file_type().unwrap().is_file() {
            std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
        }
    }
}

/// Reads `count` messages and acks each; what they say.
async fn read(stream: &mut Subscription, count: usize) -> Vec<String> {
    let mut got = Vec::new();
    for _ in 0..count {
        let message = tokio::time::timeout(patience(), stream.next_message()).await;
        let message = message.unwrap_or_else(|_| panic!("only {got:?} came")).expect("a stream that goes on");
        got.push(message.text().unwrap().to_owned());
        message.ack().await.unwrap();
    }
    got
}

/// How often it was told that history was rewound, until `events` ends or nothing more comes.
async fn told(events: &mut Events) -> usize {
    let mut told = 0;
    while let Ok(Ok(event)) = tokio::time::timeout(std::time::Duration::from_millis(50), events.next()).await
    {
        told += usize::from(matches!(event, SessionEvent::HistoryRewound { .. }));
    }
    told
}

async fn post(session: &Session, to: &To, bodies: &[String]) {
    for body in bodies {
        session.send(to.clone(), body.as_str()).await.unwrap();
    }
}

fn words(prefix: &str, count: usize) -> Vec<String> {
    (1..=count).map(|n| format!("{prefix}{n}")).collect()
}

/// Everything that reads a topic, and an inbox, through a loss: what was new is read, once.
async fn readers_go_on(loss: Loss) {
    let mut stage = Stage::new(loss).await;
    let topic = To::topic("t").unwrap();
    let (sender, _) = stage.session("sender").await;
    post(&sender, &topic, &words("before", 3)).await;
    let (reader, mut events) = stage.session("reader").await;
    let mut group = reader.subscribe("t").group("g").await.unwrap();
    let mut private = reader.subscribe("t").await.unwrap();
    let (other, mut other_events) = stage.session("other").await;
    let mut glance = other.subscribe("t").auto_ack().await.unwrap();
    let mut inbox = reader.inbox().unwrap();
    let mail = To::from(reader.key());
    post(&sender, &topic, &words("a", 2)).await;
    post(&sender, &mail, &words("m", 2)).await;
    for stream in [&mut group, &mut private, &mut glance] {
        assert_eq!(read(stream, 2).await, words("a", 2));
    }
    assert_eq!(read(&mut inbox, 2).await, words("m", 2));
    stage.back_up().await;
    post(&sender, &topic, &words("b", 3)).await;
    post(&sender, &mail, &words("n", 3)).await;
    for stream in [&mut group, &mut private, &mut glance] {
        assert_eq!(read(stream, 3).await, words("b", 3));
    }
    assert_eq!(read(&mut inbox, 3).await, words("n", 3));
    drop(sender);
    stage.lose().await;
    // Sent at once, whether the readers are back or not.
    let (sender, _) = stage.session("sender").await;
    post(&sender, &topic, &words("new", 7)).await;
    for stream in [&mut group, &mut private, &mut glance] {
        assert_eq!(read(stream, 7).await, words("new", 7), "{loss:?}");
    }
    post(&sender, &mail, &words("mail", 7)).await;
    assert_eq!(read(&mut inbox, 7).await, words("mail", 7), "{loss:?}");
    assert_eq!((told(&mut events).await, told(&mut other_events).await), (1, 1), "{loss:?}: told once");
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_go_on_when_a_store_in_memory_starts_again() {
    readers_go_on(Loss::Memory).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_go_on_when_the_store_was_wiped() {
    readers_go_on(Loss::Wiped).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_go_on_when_the_store_was_restored_from_a_copy() {
    readers_go_on(Loss::Restored).await;
}

/// Waits until a process has said this on stderr.
async fn says(process: &Proc, text: &str) {
    let start = Instant::now();
    while !process.stderr().contains(text) {
        assert!(start.elapsed() < patience(), "it never said {text:?}: {}", process.stderr());
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}

fn bodies(process: &mut Proc) -> Vec<String> {
    process.seen().iter().map(|line| line["body"].as_str().unwrap_or_default().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_that_follow_print_all_that_is_new_and_say_that_history_was_rewound() {
    let mut stage = Stage::new(Loss::Memory).await;
    let mut sub = stage.spawn("sub", &["sub", "t", "--group", "g", "--json"]);
    let mut inbox = stage.spawn("inbox", &["inbox", "--as", "bob", "--follow", "--json"]);
    says(&sub, "following t").await;
    let topic = To::topic("t").unwrap();
    let (sender, _) = stage.session("sender").await;
    let bob = async |sender: &Session| {
        let start = Instant::now();
        loop {
            let peers = sender.peers(false).await.unwrap();
            if let Some(bob) = peers.iter().find(|peer| peer.name == "bob") {
                return To::from(bob.session);
            }
            assert!(start.elapsed() < patience(), "bob never came");
        }
    };
    let to_bob = bob(&sender).await;
    post(&sender, &topic, &words("old", 5)).await;
    post(&sender, &to_bob, &words("old", 5)).await;
    for process in [&mut sub, &mut inbox] {
        process.until("the fifth", |line| line["body"] == "old5").await;
    }
    drop(sender);
    stage.lose().await;
    let (sender, _) = stage.session("sender").await;
    post(&sender, &topic, &words("new", 7)).await;
    let to_bob = bob(&sender).await;
    post(&sender, &to_bob, &words("new", 7)).await;
    for process in [&mut sub, &mut inbox] {
        process.until("the seventh", |line| line["body"] == "new7").await;
        assert_eq!(bodies(process), [words("old", 5), words("new", 7)].concat());
        says(process, "history rewound").await;
        assert_eq!(process.stderr().matches("history rewound").count(), 1, "{}", process.stderr());
        process.signal("INT");
        assert_eq!(process.exit_code().await, Some(0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn through_a_daemon_all_that_is_new_comes_and_is_said_to_be_of_another_history() {
    let mut stage = Stage::new(Loss::Memory).await;
    let host = Host { world: World::new(), broker: stage.url() };
    host.connected();
    let own = To::from(host.own().parse::<tenure_client::proto::SessionKey>().unwrap());
    let mut follower = Proc::spawn("follower", host.command(&["inbox", "--follow", "--json"]));
    let mut visitor = Proc::spawn("visitor", host.command(&["sub", "t", "--json"]));
    says(&visitor, "following t").await;
    let topic = To::topic("t").unwrap();
    let (sender, _) = stage.session("sender").await;
    // Nobody can be asked whether a private reader is there: it is when it reads something.
    let start = Instant::now();
    while visitor.seen().is_empty() {
        assert!(start.elapsed() < patience(), "the visit reads nothing: {}", visitor.stderr());
        post(&sender, &topic, &["probe".to_owned()]).await;
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    post(&sender, &own, &words("old", 5)).await;
    follower.until("the fifth", |line| line["body"] == "old5").await;
    post(&sender, &topic, &words("old", 5)).await;
    visitor.until("the fifth", |line| line["body"] == "old5").await;
    drop(sender);
    stage.lose().await;
    let (sender, _) = stage.session("sender").await;
    post(&sender, &topic, &words("new", 7)).await;
    let start = Instant::now();
    while let Err(error) = sender.send(own.clone(), "new1").id("first").await {
        assert!(start.elapsed() < patience(), "it never came back: {error}");
    }
    post(&sender, &own, &words("new", 7)[1..]).await;
    for process in [&mut follower, &mut visitor] {
        process.until("the seventh", |line| line["body"] == "new7").await;
        let got: Vec<String> = bodies(process).into_iter().filter(|body| body != "probe").collect();
        assert_eq!(got, [words("old", 5), words("new", 7)].concat());
        says(process, "history rewound").await;
        assert_eq!(process.stderr().matches("history rewound").count(), 1, "{}", process.stderr());
    }
    let log = std::fs::read_to_string(host.path("daemon.log")).unwrap_or_default();
    assert!(log.contains("history_rewound"), "{log}");
}
