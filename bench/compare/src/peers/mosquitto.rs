//! Mosquitto, MQTT 5 with QoS 1 and persistent sessions, by `rumqttc`.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rumqttc::v5::mqttbytes::QoS;
use rumqttc::v5::mqttbytes::v5::{LastWill, LastWillProperties, Packet, Publish as Incoming};
use rumqttc::v5::{AsyncClient, Event, EventLoop, MqttOptions};
use rumqttc::{NetworkOptions, Outgoing};
use tempfile::TempDir;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;

use super::nats::jitter;
use super::{Ground, library};
use crate::crowd::{Crowd, Notes};
use crate::peer::{About, Answer, Fut, PREFETCH, Peer, Place, Publish, Read, Readers};
use crate::server::{Line, READY, Server, find_program, free_port};

/// Publishes that a session which waits may have under way.
const IDLE_PUBLISHES: u16 = 16;
/// How long the broker keeps a session whose client is away.
const EXPIRY_SECONDS: u32 = 3_600;
/// How long the broker waits before it tells others that somebody is gone: our lease's time.
const WILL_DELAY_SECONDS: u32 = 90;
/// The largest packet that a client takes.
const PACKET: u32 = 1 << 20;
/// Sessions of a crowd that connect at a time.
const CONNECTING: usize = 64;

/// A running broker.
pub(super) struct Mosquitto {
    about: About,
    server: Server,
    port: u16,
    _dir: TempDir,
}

/// Starts one; nothing when it is not installed.
pub(super) async fn start(ground: &Ground) -> Result<Answer<Mosquitto>> {
    let Some(program) = find_program("mosquitto", &[]) else {
        return Ok(Answer::No("mosquitto is not installed"));
    };
    let dir = ground.fresh_dir()?;
    let port = free_port()?;
    let config = format!(
        "listener {port} 127.0.0.1\nallow_anonymous true\npersistence true\npersistence_location {}/\n\
         user root\nset_tcp_nodelay true\nmax_inflight_messages 0\nmax_queued_messages 0\nlog_type none\n",
        dir.path().display()
    );
    let file = dir.path().join("mosquitto.conf");
    std::fs::write(&file, config)?;
    let line = Line::new(&program).arg("-c").arg(file.display().to_string());
    let mut server = Server::start(line, dir.path())?;
    let address = format!("127.0.0.1:{port}");
    server.until_ready(async || Ok(tokio::net::TcpStream::connect(&address).await?)).await?;
    let about = About {
        key: "mosquitto",
        name: "Mosquitto, MQTT 5 QoS 1",
        version: version(&program),
        client: library("rumqttc"),
        durable: "in memory; written to the disk every half hour and when the broker stops",
        syncs: false,
        ack: "PUBACK sent; no answer",
        acks_answered: false,
        config: vec![
            "persistence true, autosave as it comes (1800 s): saving at every change writes the whole database anew"
                .to_owned(),
            "max_inflight_messages 0, max_queued_messages 0 (no limits); TCP_NODELAY at the broker and its clients".to_owned(),
            format!("clean start off, session expiry {EXPIRY_SECONDS} s, receive maximum {PREFETCH}; competing readers by $share"),
        ],
    };
    Ok(Answer::Yes(Mosquitto { about, server, port, _dir: dir }))
}

/// It says so on stderr or stdout, with a code that depends on the version.
fn version(program: &std::path::Path) -> String {
    let output = std::process::Command::new(program).arg("-h").output();
    let said = output.map(|output| [output.stdout, output.stderr].concat()).unwrap_or_default();
    let said = String::from_utf8_lossy(&said).into_owned();
    let version = said.split("version ").nth(1).and_then(|rest| rest.split_whitespace().next());
    version.unwrap_or("unknown").to_owned()
}

impl Mosquitto {
    fn options(&self, id: &str) -> MqttOptions {
        let mut options = MqttOptions::new(id, "127.0.0.1", self.port);
        options.set_clean_start(false).set_session_expiry_interval(Some(EXPIRY_SECONDS));
        options.set_keep_alive(Duration::from_secs(30)).set_connection_timeout(30);
        options.set_max_packet_size(Some(PACKET)).set_receive_maximum(Some(PREFETCH));
        // Otherwise a small write waits until the one before it is acknowledged.
        let mut network = NetworkOptions::new();
        network.set_tcp_nodelay(true);
        options.set_network_options(network);
        options
    }

    fn client(place: &Place, index: usize) -> String {
        format!("{}-r{index}", place.name)
    }

    /// Makes the session of a reader, with what it is subscribed to, and leaves.
    async fn subscribe(&self, place: &Place, index: usize) -> Result<()> {
        let (client, mut events) = AsyncClient::new(self.options(&Mosquitto::client(place, index)), 16);
        client.subscribe(filter(place), QoS::AtLeastOnce).await?;
        let subscribed = async {
            while !matches!(events.poll().await?, Event::Incoming(Packet::SubAck(_))) {}
            anyhow::Ok(())
        };
        tokio::time::timeout(READY, subscribed).await.context("mosquitto does not answer")??;
        client.disconnect().await?;
        // It ends with the connection, in whatever way that is told.
        while events.poll().await.is_ok_and(|event| event != Event::Outgoing(Outgoing::Disconnect)) {}
        Ok(())
    }

    /// Ends the session of a reader and drops what waits for it.
    async fn forget(&self, place: &Place, index: usize) -> Result<()> {
        let mut options = self.options(&Mosquitto::client(place, index));
        options.set_clean_start(true).set_session_expiry_interval(Some(0));
        let (client, mut events) = AsyncClient::new(options, 16);
        while !matches!(events.poll().await?, Event::Incoming(Packet::ConnAck(_))) {}
        client.disconnect().await?;
        while events.poll().await.is_ok_and(|event| event != Event::Outgoing(Outgoing::Disconnect)) {}
        Ok(())
    }
}

fn filter(place: &Place) -> String {
    match place.readers {
        Readers::Competing(count) if count > 1 => format!("$share/all/{}", place.name),
        _ => place.name.clone(),
    }
}

impl Peer for Mosquitto {
    fn about(&self) -> &About {
        &self.about
    }

    fn pids(&self) -> Vec<u32> {
        self.server.pid().into_iter().collect()
    }

    fn open<'a>(&'a self, place: &'a Place) -> Fut<'a, ()> {
        Box::pin(async move {
            // Without a session that is subscribed a message is confirmed and thrown away.
            for index in 0..place.readers.count().max(1) {
                self.subscribe(place, index).await?;
            }
            Ok(())
        })
    }

    fn purge<'a>(&'a self, place: &'a Place) -> Fut<'a, ()> {
        Box::pin(async move {
            for index in 0..place.readers.count().max(1) {
                self.forget(place, index).await?;
                self.subscribe(place, index).await?;
            }
            Ok(())
        })
    }

    fn close<'a>(&'a self, place: &'a Place) -> Fut<'a, ()> {
        Box::pin(async move {
            for index in 0..place.readers.count().max(1) {
                self.forget(place, index).await?;
            }
            Ok(())
        })
    }

    fn publishers<'a>(&'a self, place: &'a Place, count: usize) -> Fut<'a, Vec<Box<dyn Publish>>> {
        Box::pin(async move {
            let mut publishers: Vec<Box<dyn Publish>> = Vec::with_capacity(count);
            for index in 0..count {
                let mut options = self.options(&format!("{}-p{index}", place.name));
                options.set_clean_start(true).set_session_expiry_interval(Some(0));
                publishers.push(Box::new(Publisher::start(options, &place.name, false)));
            }
            Ok(publishers)
        })
    }

    fn reader<'a>(&'a self, place: &'a Place, index: usize) -> Fut<'a, Box<dyn Read>> {
        Box::pin(async move {
            let mut options = self.options(&Mosquitto::client(place, index));
            options.set_manual_acks(true);
            let (client, events) = AsyncClient::new(options, 2 * usize::from(PREFETCH));
            let (told, messages) = mpsc::unbounded_channel();
            let mut task = JoinSet::new();
            task.spawn(read(events, client.clone(), filter(place), told));
            Ok(Box::new(Reader { client, messages, _task: task }) as Box<dyn Read>)
        })
    }

    fn kill(&mut self) -> Result<()> {
        self.server.kill()
    }

    fn start_again(&mut self) -> Result<()> {
        self.server.start_again()
    }

    fn crowd<'a>(&'a self, count: usize) -> Fut<'a, Answer<Box<dyn Crowd>>> {
        Box::pin(async move {
            let crowd = Sessions::start(self, count).await?;
            Ok(Answer::Yes(Box::new(crowd) as Box<dyn Crowd>))
        })
    }
}

/// Publishes that wait to be sent, and those that wait for their PUBACK.
#[derive(Debug, Default)]
struct Waiting {
    sent: VecDeque<oneshot::Sender<()>>,
    acked: BTreeMap<u16, oneshot::Sender<()>>,
}

struct Publisher {
    client: AsyncClient,
    topic: String,
    waiting: Arc<Mutex<Waiting>>,
    _task: JoinSet<()>,
}

impl Publisher {
    /// Publishes to `topic`; dials again after a break, or leaves it at that.
    fn start(options: MqttOptions, topic: &str, returns: bool) -> Publisher {
        let (client, events) = AsyncClient::new(options, 4_096);
        let waiting = Arc::<Mutex<Waiting>>::default();
        let mut task = JoinSet::new();
        task.spawn(confirm(events, waiting.clone(), returns));
        Publisher { client, topic: topic.to_owned(), waiting, _task: task }
    }

    async fn publish_to(&self, topic: &str, body: Vec<u8>) -> Result<()> {
        let (done, confirmed) = oneshot::channel();
        {
            // Under one lock, so that the order of those who wait is the order of what was handed over.
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            self.client.try_publish(topic, QoS::AtLeastOnce, false, body)?;
            waiting.sent.push_back(done);
        }
        confirmed.await.context("mosquitto closed a connection")
    }
}

/// Tells each publish that it is confirmed: they leave in the order in which they were handed over.
async fn confirm(mut events: EventLoop, waiting: Arc<Mutex<Waiting>>, returns: bool) {
    loop {
        let event = match events.poll().await {
            Ok(event) => event,
            Err(_) if returns => {
                tokio::time::sleep(jitter(1)).await;
                continue;
            }
            Err(_) => break,
        };
        let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Outgoing(Outgoing::Publish(id)) => {
                // After a break the same id is sent again, and whoever waits for it waits already.
                if !waiting.acked.contains_key(&id)
                    && let Some(done) = waiting.sent.pop_front()
                {
                    waiting.acked.insert(id, done);
                }
            }
            Event::Incoming(Packet::PubAck(ack)) => {
                if let Some(done) = waiting.acked.remove(&ack.pkid) {
                    // Whoever published may have gone home.
                    let _ = done.send(());
                }
            }
            _ => {}
        }
    }
    // Whoever waits hears by the closing of its channel that the connection is gone.
    *waiting.lock().unwrap_or_else(PoisonError::into_inner) = Waiting::default();
}

impl Publish for Publisher {
    fn publish<'a>(&'a self, body: &'a str) -> Fut<'a, ()> {
        Box::pin(self.publish_to(&self.topic, body.as_bytes().to_vec()))
    }
}

/// Hands on what comes; there is never more of it than may be without an ack. A broker that has forgotten the session, as
/// after a crash, is told anew what it is subscribed to.
async fn read(
    mut events: EventLoop,
    client: AsyncClient,
    filter: String,
    told: mpsc::UnboundedSender<Incoming>,
) {
    while let Ok(event) = events.poll().await {
        let goes_on = match event {
            Event::Incoming(Packet::ConnAck(connack)) if !connack.session_present => {
                client.try_subscribe(filter.clone(), QoS::AtLeastOnce).is_ok()
            }
            Event::Incoming(Packet::Publish(message)) => told.send(message).is_ok(),
            _ => true,
        };
        if !goes_on {
            return;
        }
    }
}

struct Reader {
    client: AsyncClient,
    messages: mpsc::UnboundedReceiver<Incoming>,
    _task: JoinSet<()>,
}

impl Read for Reader {
    fn read<'a>(&'a mut self, seen: &'a mut (dyn FnMut(&[u8]) + Send)) -> Fut<'a, u64> {
        Box::pin(async move {
            let mut messages = Vec::new();
            let count = self.messages.recv_many(&mut messages, usize::from(PREFETCH)).await;
            if count == 0 {
                bail!("mosquitto closed a connection");
            }
            messages.iter().for_each(|message| seen(&message.payload));
            for message in &messages {
                self.client.ack(message).await?;
            }
            Ok(count as u64)
        })
    }
}

/// Persistent sessions with a topic of their own, and wills that are late enough not to be seen for a short break.
struct Sessions {
    count: usize,
    notes: Arc<Notes>,
    cut: watch::Sender<u64>,
    presence: Arc<AtomicU64>,
    sender: Publisher,
    _tasks: JoinSet<()>,
}

impl Sessions {
    async fn start(broker: &Mosquitto, count: usize) -> Result<Sessions> {
        let (notes, cut) = (Notes::new(count), watch::Sender::new(0));
        let mut tasks = JoinSet::new();
        for from in (0..count).step_by(CONNECTING) {
            for index in from..count.min(from + CONNECTING) {
                tasks.spawn(keep(broker.session(index), index, notes.clone(), cut.subscribe()));
            }
            let wanted = count.min(from + CONNECTING);
            let all = async {
                while notes.ever() < wanted {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            tokio::time::timeout(READY, all).await.context("sessions do not connect to mosquitto")?;
        }
        let presence = Arc::<AtomicU64>::default();
        tasks.spawn(look(broker.options("watcher"), presence.clone()));
        let sender = Publisher::start(broker.options("sender"), "", true);
        Ok(Sessions { count, notes, cut, presence, sender, _tasks: tasks })
    }
}

impl Mosquitto {
    fn session(&self, index: usize) -> MqttOptions {
        let mut options = self.options(&format!("s{index}"));
        let properties = LastWillProperties { delay_interval: Some(WILL_DELAY_SECONDS), ..will_properties() };
        let topic = format!("presence/{index}");
        options.set_last_will(LastWill::new(topic, "left", QoS::AtLeastOnce, false, Some(properties)));
        options
    }
}

fn will_properties() -> LastWillProperties {
    LastWillProperties {
        delay_interval: None,
        payload_format_indicator: None,
        message_expiry_interval: None,
        content_type: None,
        response_topic: None,
        correlation_data: None,
        user_properties: Vec::new(),
    }
}

/// One session: says that it is here when the broker does not know it, and comes back when it is cut off.
async fn keep(mut options: MqttOptions, index: usize, notes: Arc<Notes>, mut cut: watch::Receiver<u64>) {
    // The client has a place for each publish that it may ever have under way: 14 MB of them, unless told otherwise.
    options.set_outgoing_inflight_upper_limit(IDLE_PUBLISHES);
    let (client, mut events) = AsyncClient::new(options, 16);
    let mut failures = 0;
    loop {
        // Cancelling a poll may lose what it was at; it is only cancelled to break the socket.
        let event = tokio::select! {
            event = events.poll() => event,
            _ = cut.changed() => {
                events.clean();
                tokio::time::sleep(jitter(1)).await;
                continue;
            }
        };
        match event {
            Ok(Event::Incoming(Packet::ConnAck(connack))) => {
                failures = 0;
                if connack.session_present {
                    notes.attached(index);
                } else {
                    let _ = client.try_subscribe(format!("mail/{index}"), QoS::AtLeastOnce);
                    let _ =
                        client.try_publish(format!("presence/{index}"), QoS::AtLeastOnce, false, "joined");
                }
            }
            Ok(Event::Incoming(Packet::SubAck(_))) => notes.attached(index),
            Ok(Event::Incoming(Packet::Publish(message))) => {
                if let Some(number) =
                    std::str::from_utf8(&message.payload).ok().and_then(|text| text.parse().ok())
                {
                    notes.received(number);
                }
            }
            Ok(_) => {}
            Err(_) => {
                failures += 1;
                tokio::time::sleep(jitter(failures)).await;
            }
        }
    }
}

/// Counts what is said of presence.
async fn look(options: MqttOptions, presence: Arc<AtomicU64>) {
    let (client, mut events) = AsyncClient::new(options, 16);
    loop {
        match events.poll().await {
            Ok(Event::Incoming(Packet::ConnAck(connack))) if !connack.session_present => {
                let _ = client.try_subscribe("presence/#", QoS::AtLeastOnce);
            }
            Ok(Event::Incoming(Packet::Publish(_))) => _ = presence.fetch_add(1, Ordering::Relaxed),
            Ok(_) => {}
            Err(_) => tokio::time::sleep(jitter(1)).await,
        }
    }
}

impl Crowd for Sessions {
    fn count(&self) -> usize {
        self.count
    }

    fn notes(&self) -> &Arc<Notes> {
        &self.notes
    }

    fn what(&self) -> &'static str {
        "a persistent session subscribed to a topic of its own at QoS 1"
    }

    fn cut(&self) -> Fut<'_, ()> {
        Box::pin(async move {
            // A count, not a call: whoever is busy just now sees it later.
            self.cut.send_modify(|cuts| *cuts += 1);
            Ok(())
        })
    }

    fn send<'a>(&'a self, to: usize, number: u64) -> Fut<'a, ()> {
        Box::pin(async move {
            self.sender.publish_to(&format!("mail/{to}"), number.to_string().into_bytes()).await
        })
    }

    fn presence(&self) -> Option<u64> {
        Some(self.presence.load(Ordering::Relaxed))
    }

    fn presence_by(&self) -> &'static str {
        "a last will, 90 s late, and a word when the broker does not know the session"
    }
}
