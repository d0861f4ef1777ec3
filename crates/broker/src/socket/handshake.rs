//! From the upgrade to an admitted hello.

use std::io::ErrorKind;

use tenure_core::Input;
use tenure_core::admit::{Admission, Gate, Refusal, admit};
use tenure_core::frames;
use tenure_core::thaw::Thaw;
use tenure_proto::close::{Closing, Reason};
use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::event::EventBody;
use tenure_proto::frame::{self, FrameType, Head};
use tenure_proto::hello::{Challenge, HelloParams};
use tenure_proto::ids::RequestId;
use tenure_proto::limits::{FRAME_BEFORE_HELLO_BYTES, HELLO_TIMEOUT_MS, NONCE_BYTES};
use tenure_proto::number::U53;
use tungstenite::{Error, Message};

use super::{Io, Wire};
use crate::mailbox::Mailbox;
use crate::mesh_task::{MeshHandle, MeshMsg};

/// A first frame that is turned away: what it is answered, if it can be.
struct Turned {
    request: Option<RequestId>,
    refusal: Box<Refusal>,
}

/// Challenges the client and hands its hello to the mesh. `None` when the socket is done.
pub(super) async fn greet(wire: &mut Wire, host: String) -> Option<(MeshHandle, Mailbox)> {
    let mut nonce = [0u8; NONCE_BYTES];
    getrandom::fill(&mut nonce).ok()?;
    let nonce = tenure_proto::text::b64url(&nonce);
    let broker = wire.shared.house.broker_id.clone();
    let ts = U53::saturating(wire.shared.clock.now().wall);
    let challenge = EventBody::Challenge(Challenge { nonce: nonce.clone(), ts, broker });
    let challenge = frames::unnumbered(wire.codec, &challenge);
    wire.push(&challenge);
    let first = first_frame(wire).await?;
    match read_hello(wire, &first, &nonce, &host) {
        Ok((request, admission)) => enter(wire, request, admission).await,
        Err(Turned { request, refusal }) => {
            refuse(wire, request, *refusal).await;
            None
        }
    }
}

/// The client's first frame, in time and of a bearable size.
async fn first_frame(wire: &mut Wire) -> Option<Message> {
    let (clock, stop) = (wire.shared.clock, wire.shared.stopping.clone());
    let opened = clock.at();
    // The frozen-broker rule holds for strangers too: their time runs on thawed time.
    let mut thaw = Thaw::new(wire.shared.house.config.lease_ttl_ms, opened);
    loop {
        let now = clock.at();
        thaw.look(now);
        if thaw.thawed(now) >= opened.plus(HELLO_TIMEOUT_MS) {
            wire.close(&Closing::new(Reason::HelloTimeout)).await;
            return None;
        }
        let due = thaw.next_look().min(thaw.shell(opened.plus(HELLO_TIMEOUT_MS)));
        // In this order: a hello that has arrived counts, however late we come to read it.
        let io = tokio::select! {
            biased;
            io = wire.io() => io,
            () = stop.cancelled() => {
                wire.close(&stopping().closing).await;
                return None;
            }
            () = tokio::time::sleep_until(clock.instant(due)) => continue,
        };
        match io {
            Io::Flushed | Io::Received(Some(Ok(Message::Ping(_) | Message::Pong(_)))) => {}
            Io::Received(Some(Ok(Message::Close(_)))) => {
                wire.finish().await;
                return None;
            }
            Io::Received(Some(Ok(message))) if message.len() <= FRAME_BEFORE_HELLO_BYTES => {
                wire.shared.metrics.frames_in.inc();
                return Some(message);
            }
            Io::Received(Some(Ok(_) | Err(Error::Capacity(_)))) => {
                wire.close(&Closing::new(Reason::TooLarge)).await;
                return None;
            }
            Io::Received(Some(Err(Error::Io(error)))) if error.kind() == ErrorKind::FileTooLarge => {
                wire.close(&Closing::new(Reason::TooLarge)).await;
                return None;
            }
            Io::Received(Some(Err(error))) if super::breaks_websocket(&error) => {
                wire.close(&Closing::new(Reason::BadFirstFrame)).await;
                return None;
            }
            Io::Received(_) => return None,
        }
    }
}

/// Reads and checks a hello. The signatures are checked here, in the connection's own task.
fn read_hello(
    wire: &Wire,
    first: &Message,
    nonce: &str,
    host: &str,
) -> Result<(RequestId, Admission), Turned> {
    let malformed = |request, text: String| Turned {
        request,
        refusal: Box::new(Refusal::malformed(WireError::bad_request(text))),
    };
    frames::check_kind(wire.codec, first.is_binary()).map_err(|help| malformed(None, help.to_owned()))?;
    let bytes = super::frame_bytes(first);
    let head =
        Head::decode(wire.codec, bytes).map_err(|error| malformed(None, format!("not a frame: {error}")))?;
    let (FrameType::Req, Some(request)) = (head.kind, head.id) else {
        return Err(malformed(None, "the first frame must be the request hello".to_owned()));
    };
    if head.method.as_deref() != Some("hello") {
        return Err(malformed(Some(request), "the first request must be hello".to_owned()));
    }
    let params: HelloParams = match frame::params(wire.codec, bytes) {
        Ok(params) => params,
        Err(error) => {
            return Err(malformed(Some(request), frames::clipped(format!("hello: {error}"))));
        }
    };
    let house = &wire.shared.house;
    let token_key = house.key.verifying_key().to_bytes();
    let gate = Gate {
        nonce,
        broker_id: &house.broker_id,
        host,
        doors: &house.doors,
        token_key: &token_key,
        cluster: &house.cluster,
        wall: wire.shared.clock.now().wall,
    };
    match admit(params, &gate) {
        Ok(admission) => Ok((request, admission)),
        Err(refusal) => Err(Turned { request: Some(request), refusal }),
    }
}

/// Hands an admitted hello to its mesh, which will answer through the mailbox.
async fn enter(wire: &mut Wire, request: RequestId, admission: Admission) -> Option<(MeshHandle, Mailbox)> {
    if wire.shared.mesh().is_none() {
        refuse(wire, Some(request), stopping()).await;
        return None;
    }
    let Some(mesh) = wire.shared.mesh_named(&admission.mesh) else {
        let text = format!("there is no mesh {} on this broker", admission.mesh);
        let refusal = Refusal::new(WireError::new(ErrorCode::NotFound, text), Reason::Forbidden);
        refuse(wire, Some(request), refusal).await;
        return None;
    };
    wire.ws.get_mut().trust();
    let mailbox = Mailbox::default();
    let input = Input::Hello { conn: wire.conn, request, admission: Box::new(admission) };
    wire.unanswered += 1;
    wire.knocking = true;
    mesh.send(MeshMsg::Hello(input, wire.conn, mailbox.clone())).await.then_some((mesh, mailbox))
}

fn stopping() -> Refusal {
    let error = WireError::new(ErrorCode::Draining, "this broker is stopping; try again in a moment");
    Refusal::new(error.retry_after(1_000), Reason::Draining)
}

async fn refuse(wire: &mut Wire, request: Option<RequestId>, refusal: Refusal) {
    wire.shared.metrics.refusal(refusal.error.code.as_str());
    tracing::info!(event = "hello_refused", conn = %wire.conn, code = %refusal.error.code, reason = refusal.closing.reason);
    if let Some(request) = request {
        let wall = wire.shared.clock.now().wall;
        let answer =
            frames::response(wire.codec, wire.conn, request, Err(refusal.error), wall, &wire.shared.house);
        wire.push(&answer);
    }
    wire.close(&refusal.closing).await;
}
