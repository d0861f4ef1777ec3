//! Frames in and out: bytes to calls, answers and events to bytes. Connection tasks do this, many at a time, so that
//! whoever owns the mesh never parses, hashes, signs or encodes.

use std::fmt;
use std::sync::Arc;

use tenure_proto::codec::{Codec, delivery_frame, presence_frame};
use tenure_proto::dead::{DeadLetter, DeadListResult};
use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::event::EventBody;
use tenure_proto::frame::{self, FrameType, Head, Response};
use tenure_proto::hello::{BrokerInfo, EventsResult, HelloResult, ResumeResult};
use tenure_proto::ids::{ConnId, RequestId};
use tenure_proto::limits::{PROTOCOL, RELAY_TICKET_MS};
use tenure_proto::log::LogName;
use tenure_proto::message::{DamagedEntry, Delivery, HistoryResult, SendParams};
use tenure_proto::method::{Empty, Method, StoreHealth};
use tenure_proto::name::MeshName;
use tenure_proto::number::U53;
use tenure_proto::service::{RelayOpenResult, RelayRole, ServiceEvent};
use tenure_proto::subscribe::FetchResult;
use tenure_proto::ticket::RelayTicket;
use tenure_proto::token::ResumeToken;

use crate::call::{Desk, Prepare};
use crate::conn::feature;
use crate::conn::identity::House;
use crate::effect::{Answer, Batch, HelloAnswer, Push};
use crate::input::Call;
use crate::messages::envelope::Entry;
use crate::services::route::Opening;
use crate::store::record::{DAMAGED, DeadEntry};

/// What a frame may need that only a shell can get; asked for no sooner than it is needed.
pub trait Supply {
    /// Randomness for the id of a message; nothing if the system has none to give.
    fn entropy(&mut self) -> Option<u128>;
    /// How the store is.
    fn store(&self) -> StoreHealth;
}

/// What a frame of a session asks for.
#[derive(Debug)]
pub enum Incoming {
    /// Something for the mesh.
    Call(RequestId, Call),
    /// Something that is answered with an error at once.
    Refused(RequestId, WireError),
    /// Something that cannot even be answered.
    Garbled(String),
}

/// Whether a message is of the codec's kind, or what to send instead.
pub fn check_kind(codec: Codec, binary: bool) -> Result<(), &'static str> {
    match codec {
        _ if codec.is_binary() == binary => Ok(()),
        Codec::Json => Err("this socket speaks JSON: send text messages"),
        Codec::MsgPack => Err("this socket speaks MessagePack: send binary messages"),
    }
}

/// Reads a frame of a session that has said hello.
pub fn read(
    codec: Codec,
    binary: bool,
    bytes: &[u8],
    wall: u64,
    house: &House,
    supply: &mut impl Supply,
) -> Incoming {
    if let Err(help) = check_kind(codec, binary) {
        return Incoming::Garbled(help.to_owned());
    }
    if looks_like_a_send(codec, bytes)
        && let Some((id, params)) = frame::request::<SendParams>(codec, Method::Send.as_str(), bytes)
    {
        let send = params.prepare(&mut Desk { wall, house, supply });
        return incoming(id, send.map(Call::Send));
    }
    let head = match Head::decode(codec, bytes) {
        Ok(head) => head,
        Err(error) => return Incoming::Garbled(clipped(format!("not a frame: {error}"))),
    };
    let (FrameType::Req, Some(id)) = (head.kind, head.id) else {
        return Incoming::Garbled("only requests with an id are answered".to_owned());
    };
    incoming(id, call(codec, head.method.as_deref(), bytes, wall, house, supply))
}

fn incoming(id: RequestId, call: Result<Call, WireError>) -> Incoming {
    match call {
        Ok(call) => Incoming::Call(id, call),
        Err(error) => Incoming::Refused(id, WireError { message: clipped(error.message), ..error }),
    }
}

/// Whether it is worth trying to read this as a `send`, which is most of what a broker reads: its name is near the
/// beginning. A guess that costs time if it is wrong, and nothing else.
fn looks_like_a_send(codec: Codec, bytes: &[u8]) -> bool {
    const NEAR: usize = 80;
    let name: &[u8] = match codec {
        Codec::Json => b"\"send\"",
        Codec::MsgPack => b"\xa4send",
    };
    bytes[..bytes.len().min(NEAR)].windows(name.len()).any(|part| part == name)
}

/// A sentence without most of what it quotes: an answer must not be as long as what it answers.
pub fn clipped(text: String) -> String {
    const ENDS: usize = 200;
    if text.len() <= 3 * ENDS {
        return text;
    }
    let (head, tail) = (text.floor_char_boundary(ENDS), text.ceil_char_boundary(text.len() - ENDS));
    format!("{} … {}", &text[..head], &text[tail..])
}

fn call(
    codec: Codec,
    method: Option<&str>,
    bytes: &[u8],
    wall: u64,
    house: &House,
    supply: &mut impl Supply,
) -> Result<Call, WireError> {
    let name = method.ok_or_else(|| WireError::bad_request("a request needs a method"))?;
    let unknown = || {
        let name: String = name.chars().filter(|c| !c.is_control()).take(64).collect();
        WireError::new(ErrorCode::UnknownMethod, format!("this broker has no method {name:?}"))
    };
    let method = Method::from_wire(name).ok_or_else(unknown)?;
    Call::read(method, codec, bytes, &mut Desk { wall, house, supply })
}

/// Where a connection came in: through which of our names, to which mesh.
#[derive(Clone, Debug)]
pub struct Whence {
    /// The Host header that the client sent.
    pub host: String,
    /// The mesh that it said hello to.
    pub mesh: MeshName,
}

/// The response to a request.
pub fn response(
    codec: Codec,
    conn: ConnId,
    request: RequestId,
    outcome: Result<Answer, WireError>,
    wall: u64,
    house: &House,
    whence: Option<&Whence>,
) -> Vec<u8> {
    let maker = Maker { conn, wall, house, whence };
    match outcome {
        Err(error) => codec.encode(&Response::<Empty>::new(request, Err(error))),
        Ok(answer) => maker.encode(codec, request, answer),
    }
}

/// What a result is made from besides what the mesh knows: the connection.
#[derive(Debug)]
pub struct Maker<'a> {
    conn: ConnId,
    wall: u64,
    house: &'a House,
    whence: Option<&'a Whence>,
}

/// A result that the mesh does not make itself: the connection that writes it does, from what the mesh knows.
pub trait Render: Sized {
    /// What the mesh knows.
    type From: Clone + fmt::Debug;

    /// Makes the result.
    fn render(from: Self::From, maker: &Maker<'_>) -> Result<Self, WireError>;
}

macro_rules! results {
    (@arms $maker:ident $codec:ident $request:ident $answer:ident [$($done:tt)*]) => {
        match $answer {
            Answer::Empty => $codec.encode(&Response::new($request, Ok(Empty {}))),
            Answer::Settle(result) => $codec.encode(&Response::new($request, Ok(result))),
            Answer::Hello(answer) => {
                let Maker { conn, wall, house, .. } = *$maker;
                $codec.encode(&Response::new($request, Ok(hello(conn, *answer, wall, house))))
            }
            $($done)*
        }
    };
    (@arms $m:ident $c:ident $r:ident $a:ident [$($done:tt)*]
        $variant:ident $name:literal $params:tt ($result:ident none) $right:ident $size:ident; $($rest:tt)*) => {
        results!(@arms $m $c $r $a [$($done)*] $($rest)*)
    };
    (@arms $m:ident $c:ident $r:ident $a:ident [$($done:tt)*]
        $variant:ident $name:literal $params:tt ($result:ident shared) $right:ident $size:ident; $($rest:tt)*) => {
        results!(@arms $m $c $r $a [$($done)*] $($rest)*)
    };
    (@arms $m:ident $c:ident $r:ident $a:ident [$($done:tt)*]
        $variant:ident $name:literal $params:tt ($result:ident rendered) $right:ident $size:ident; $($rest:tt)*) => {
        results!(@arms $m $c $r $a [$($done)*
            Answer::$variant(from) => $c.encode(&Response::new($r, $result::render(from, $m))),
        ] $($rest)*)
    };
    (@arms $m:ident $c:ident $r:ident $a:ident [$($done:tt)*]
        $variant:ident $name:literal $params:tt ($($result:ident)*) $right:ident $size:ident; $($rest:tt)*) => {
        results!(@arms $m $c $r $a [$($done)*
            Answer::$variant(result) => $c.encode(&Response::new($r, Ok(result))),
        ] $($rest)*)
    };
    ($($row:tt)*) => {
        impl Maker<'_> {
            fn encode(&self, codec: Codec, request: RequestId, answer: Answer) -> Vec<u8> {
                let maker = self;
                results!(@arms maker codec request answer [] $($row)*)
            }
        }
    };
}

tenure_proto::with_methods!(results);

impl Render for FetchResult {
    type From = Vec<Push>;

    fn render(pushes: Vec<Push>, _: &Maker<'_>) -> Result<FetchResult, WireError> {
        Ok(FetchResult { messages: pushes.iter().map(typed).collect() })
    }
}

impl Render for HistoryResult {
    /// The entries, the places of damaged ones, and where to go on.
    type From = (Vec<Arc<Entry>>, Vec<u64>, Option<u64>);

    fn render((entries, damaged, next): Self::From, _: &Maker<'_>) -> Result<HistoryResult, WireError> {
        let messages = entries.iter().map(|entry| entry.message()).collect();
        let mark = |seq| DamagedEntry { seq: U53::saturating(seq), reason: DAMAGED.to_owned() };
        let damaged = damaged.into_iter().map(mark).collect();
        Ok(HistoryResult { messages, next: next.map(U53::saturating), damaged })
    }
}

impl Render for DeadListResult {
    /// The letters, and after which seq to go on.
    type From = (Vec<DeadEntry>, Option<u64>);

    fn render((letters, next): Self::From, _: &Maker<'_>) -> Result<DeadListResult, WireError> {
        Ok(dead_list(letters, next))
    }
}

impl Render for RelayOpenResult {
    type From = Box<Opening>;

    fn render(opening: Box<Opening>, maker: &Maker<'_>) -> Result<RelayOpenResult, WireError> {
        relay(*opening, maker.wall, maker.house, maker.whence)
    }
}

/// Dead letters as they are listed.
pub fn dead_list(letters: Vec<DeadEntry>, next: Option<u64>) -> DeadListResult {
    DeadListResult { letters: letters.iter().map(letter).collect(), next: next.map(U53::saturating) }
}

fn typed(push: &Push) -> Delivery {
    Delivery {
        sub_id: push.sub.clone(),
        tag: push.tag().to_tag(),
        attempt: push.attempt,
        redelivered: push.redelivered,
        message: push.entry.message(),
    }
}

fn letter(dead: &DeadEntry) -> DeadLetter {
    DeadLetter {
        message: dead.entry.message(),
        group: dead.group.clone(),
        attempts: dead.attempts,
        reason: dead.reason.clone(),
        at: U53::saturating(dead.at),
    }
}

/// Hello's result: what the mesh knows, what we know, and the token, which is signed here so that ten thousand
/// returning sessions are not signed for one after the other.
fn hello(conn: ConnId, answer: HelloAnswer, wall: u64, house: &House) -> HelloResult {
    let token = ResumeToken {
        sub: answer.session,
        mid: answer.mesh,
        bid: house.cluster.clone(),
        lid: answer.lease_id,
        iat: U53::saturating(wall),
    };
    // The numbers that the mesh goes by since this hello, not those of the start.
    let config = answer.config;
    HelloResult {
        protocol: PROTOCOL,
        min_client: config.min_client.clone(),
        broker: BrokerInfo { id: house.broker_id.clone(), version: house.version.clone() },
        conn_id: conn,
        session_id: answer.session,
        lease: answer.lease,
        resume: ResumeResult {
            outcome: answer.outcome,
            reason: answer.reason.map(str::to_owned),
            token: token.issue(&house.key),
        },
        lease_ttl_ms: U53::saturating(config.lease_ttl_ms),
        policy: config.policy(),
        features: feature::in_force(&config),
        events: EventsResult {
            epoch: answer.epoch,
            next_seq: U53::saturating(answer.next_seq),
            replay: answer.replay,
        },
        snapshot: answer.snapshot,
        state_version: answer.state_version,
        reconcile: answer.reconcile,
        rewound: answer.rewound.iter().map(LogName::spelled).collect(),
    }
}

/// The result of `relay.open`: the ticket is signed here, as tokens are.
fn relay(
    opening: Opening,
    wall: u64,
    house: &House,
    whence: Option<&Whence>,
) -> Result<RelayOpenResult, WireError> {
    let unknown = || WireError::new(ErrorCode::Internal, "this socket has said no hello");
    let Whence { host, mesh } = whence.ok_or_else(unknown)?;
    let Opening { role, session, member, name, peer, run, id } = opening;
    let exp = U53::saturating(wall.saturating_add(RELAY_TICKET_MS));
    let (mesh, run, id) = (mesh.clone(), U53::saturating(run), U53::saturating(id));
    let ticket = RelayTicket { mesh, role, session, member, name, peer, run, id, exp };
    let scheme = if house.secure { "wss" } else { "ws" };
    Ok(RelayOpenResult {
        ticket: ticket.issue(&house.key),
        url: format!("{scheme}://{host}/v1/relay"),
        expires_at: exp,
        peer,
        public: house.relay.clone().filter(|_| role == RelayRole::Publish),
    })
}

/// Appends a delivery to `out`, around the bytes that all its readers share.
pub fn delivery(codec: Codec, out: &mut Vec<u8>, seq: u64, push: &Push) {
    let Push { sub, attempt, redelivered, entry, .. } = push;
    delivery_frame(codec, out, seq, sub.as_str(), &push.tag(), *attempt, *redelivered, entry.encoded(codec));
}

/// Hands the events of a batch before its deliveries to `push`, in the order of their numbers.
pub fn events(codec: Codec, batch: &Batch, mut push: impl FnMut(&[u8])) {
    for (seq, event) in &batch.direct {
        push(&event.encode(codec, Some(*seq)));
    }
    if let Some((first, delta)) = &batch.presence {
        let mut base = delta.base;
        for (step, seq) in delta.steps.iter().zip(*first..) {
            push(&presence_frame(codec, seq, step.kind, &step.peer, base, step.version));
            base = step.version;
        }
    }
    if let Some((first, delta)) = &batch.services {
        let mut base = delta.base;
        for (step, seq) in delta.steps.iter().zip(*first..) {
            let event = ServiceEvent {
                kind: step.kind,
                service: (*step.service).clone(),
                base: U53::saturating(base),
                version: U53::saturating(step.version),
            };
            push(&EventBody::Service(event).encode(codec, Some(seq)));
            base = step.version;
        }
    }
}

/// An event without a number: `challenge` and `closing`.
pub fn unnumbered(codec: Codec, event: &EventBody) -> Vec<u8> {
    event.encode(codec, None)
}

#[cfg(test)]
#[path = "frames_tests.rs"]
mod tests;
