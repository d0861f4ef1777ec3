//! From the upgrade to an admitted hello.

use tenure_kit::time::{Millis, Now};
use tenure_proto::close::{Closing, Reason};
use tenure_proto::codec::Codec;
use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::event::EventBody;
use tenure_proto::frame::{self, FrameType, Head};
use tenure_proto::hello::{Challenge, HelloParams};
use tenure_proto::ids::{ConnId, RequestId};
use tenure_proto::limits::{FRAME_BEFORE_HELLO_BYTES, HELLO_TIMEOUT_MS, NONCE_BYTES};
use tenure_proto::number::U53;
use tenure_proto::text::b64url;

use crate::conn::admit::{Admission, Gate, Refusal, TokenVerdict, Wait, admit, client_of};
use crate::conn::frames::{self, Whence};
use crate::conn::identity::House;
use crate::conn::{Conn, ConnEffect, ConnNote, Due, Gone, Outlet, Pace, Patience, Phase, Received};
use crate::input::Input;

/// Bytes of a frame that may have to leave before a socket that is let go is told why.
const LAST_BYTES: usize = 64 * 1024;

/// A connection that has not said hello.
#[derive(Debug)]
pub(super) struct Stranger {
    /// What its hello must sign.
    nonce: String,
    /// The Host header that it sent.
    host: String,
    /// How long its hello may take.
    patience: Patience,
}

impl Stranger {
    /// Whether the hello should have been here by now.
    pub(super) fn is_late(&mut self, now: Millis) -> bool {
        self.patience.is_over(now)
    }

    pub(super) fn next_deadline(&self) -> Millis {
        self.patience.next_deadline()
    }

    /// Reads and checks a hello, with its signatures.
    fn read_hello(
        &self,
        codec: Codec,
        wall: u64,
        binary: bool,
        bytes: &[u8],
        wait: Option<Wait>,
        house: &House,
    ) -> Result<(RequestId, Admission), Turned> {
        let malformed = |request, text: String| Turned {
            request,
            client: String::new(),
            refusal: Box::new(Refusal::malformed(WireError::bad_request(text))),
        };
        frames::check_kind(codec, binary).map_err(|help| malformed(None, help.to_owned()))?;
        let head =
            Head::decode(codec, bytes).map_err(|error| malformed(None, format!("not a frame: {error}")))?;
        let (FrameType::Req, Some(request)) = (head.kind, head.id) else {
            return Err(malformed(None, "the first frame must be the request hello".to_owned()));
        };
        if head.method.as_deref() != Some("hello") {
            return Err(malformed(Some(request), "the first request must be hello".to_owned()));
        }
        let params: HelloParams = match frame::params(codec, bytes) {
            Ok(params) => params,
            Err(error) => return Err(malformed(Some(request), frames::clipped(format!("hello: {error}")))),
        };
        let client = client_of(&params.client);
        match self.admit(params, wall, wait, house) {
            Ok(admission) => Ok((request, admission)),
            Err(refusal) => Err(Turned { request: Some(request), client, refusal }),
        }
    }

    /// Whether a hello is by whom it says, to this socket, and for a mesh that is here.
    fn admit(
        &self,
        params: HelloParams,
        wall: u64,
        wait: Option<Wait>,
        house: &House,
    ) -> Result<Admission, Box<Refusal>> {
        let token_key = house.key.verifying_key().to_bytes();
        let gate = Gate {
            nonce: &self.nonce,
            broker_id: &house.broker_id,
            host: &self.host,
            doors: &house.doors,
            token_key: &token_key,
            cluster: &house.cluster,
            wall,
            wait,
            config: house.rooms.get(&params.mesh).map_or(&house.config, |config| config),
        };
        let admission = admit(params, &gate)?;
        if !house.rooms.contains_key(&admission.mesh) {
            let text = format!("there is no mesh {} on this broker", admission.mesh);
            let error = WireError::new(ErrorCode::NotFound, text);
            return Err(Box::new(Refusal::new(error, Reason::Forbidden)));
        }
        Ok(admission)
    }
}

/// A first frame that is turned away: what it is answered, if it can be.
struct Turned {
    request: Option<RequestId>,
    /// The client's name and version; empty if it has not said them.
    client: String,
    refusal: Box<Refusal>,
}

impl Conn {
    /// A connection that was just made, by a request with this Host header, and is challenged with `nonce`, which
    /// nobody could have guessed.
    pub fn new(
        id: ConnId,
        codec: Codec,
        host: String,
        nonce: [u8; NONCE_BYTES],
        now: Now,
        house: &House,
        out: &mut impl Outlet,
    ) -> Conn {
        let nonce = b64url(&nonce);
        let (broker, ts) = (house.broker_id.clone(), U53::saturating(now.wall));
        let challenge = EventBody::Challenge(Challenge { nonce: nonce.clone(), ts, broker });
        let patience = Patience::new(now.at, HELLO_TIMEOUT_MS, house.config.lease_ttl_ms);
        let mut conn = Conn {
            id,
            codec,
            phase: Phase::Stranger(Box::new(Stranger { nonce, host, patience })),
            due: Due::default(),
            frames: 0,
            batch: false,
            pace: Pace::default(),
            whence: None,
            held: None,
            partial: None,
            backlog: Default::default(),
        };
        conn.send(&frames::unnumbered(codec, &challenge), out);
        conn
    }

    /// The broker stops: a socket without a session is let go. Those with one hear it from their mesh.
    pub fn stop(&mut self, now: Now, house: &House, out: &mut impl Outlet) -> Option<ConnEffect> {
        let error = WireError::new(ErrorCode::Draining, "this broker is stopping; try again in a moment");
        let refusal = Refusal::new(error.retry_after(1_000), Reason::Draining);
        match &self.phase {
            Phase::Stranger(_) => Some(self.close(now, &refusal.closing, None, out)),
            Phase::Knocking(request) => {
                let request = RequestId::clone(request);
                Some(self.refuse(now, Some(request), "", refusal, house, out))
            }
            Phase::Session | Phase::Leaving(_) | Phase::Over => None,
        }
    }

    /// Room is needed, or too much is held: lets the socket go. What it has not read is dropped; its session is in
    /// grace, and what it missed comes again. It is told why, unless much of a frame would have to leave before that:
    /// whoever does not read would keep that memory until the deadline.
    pub fn let_go(&mut self, now: Now, out: &mut impl Outlet) -> Option<ConnEffect> {
        match &self.phase {
            Phase::Stranger(_) => Some(self.close(now, &Closing::new(Reason::Busy), None, out)),
            Phase::Knocking(_) | Phase::Session => {
                out.skip();
                let gone = Gone { by_client: false, at: None };
                if out.waiting() > LAST_BYTES {
                    self.leave(now, false, Some(gone));
                    return Some(self.end(now.at));
                }
                Some(self.close(now, &Closing::new(Reason::SlowConsumer), Some(gone), out))
            }
            Phase::Leaving(_) | Phase::Over => None,
        }
    }

    /// What came on a socket that has not said hello. A hello that has arrived counts, however late we come to
    /// read it.
    pub(super) fn greeted(
        &mut self,
        now: Now,
        what: Received<'_>,
        house: &House,
        out: &mut impl Outlet,
    ) -> Option<ConnEffect> {
        let Phase::Stranger(stranger) = &self.phase else { return None };
        match what {
            Received::Ping | Received::Pong => self.tick(now, out),
            Received::Close => Some(self.finish(now, None)),
            Received::Data { binary, bytes } if bytes.len() <= FRAME_BEFORE_HELLO_BYTES => {
                out.noted(ConnNote::Read);
                let wait = out.greets(now.at).err();
                Some(match stranger.read_hello(self.codec, now.wall, binary, bytes, wait, house) {
                    Ok((request, mut admission)) => {
                        if wait.is_none() && matches!(admission.token, TokenVerdict::Selects(_)) {
                            out.was_here();
                        }
                        admission.counted = out.is_counted();
                        admission.from = out.from();
                        self.enter(request, admission)
                    }
                    Err(Turned { request, client, refusal }) => {
                        self.refuse(now, request, &client, *refusal, house, out)
                    }
                })
            }
            Received::Data { .. } | Received::TooLarge => {
                Some(self.close(now, &Closing::new(Reason::TooLarge), None, out))
            }
            Received::BadWebSocket => Some(self.close(now, &Closing::new(Reason::BadFirstFrame), None, out)),
            Received::Gone => Some(self.end(now.at)),
        }
    }

    fn enter(&mut self, request: RequestId, admission: Admission) -> ConnEffect {
        self.due.add(&request, 0);
        if let Phase::Stranger(stranger) = &self.phase {
            let (host, mesh) = (stranger.host.clone(), admission.mesh.clone());
            self.whence = Some(Box::new(Whence { host, mesh }));
        }
        self.phase = Phase::Knocking(Box::new(request.clone()));
        ConnEffect::Enter(Input::Hello { conn: self.id, request, admission: Box::new(admission) })
    }

    fn refuse(
        &mut self,
        now: Now,
        request: Option<RequestId>,
        client: &str,
        refusal: Refusal,
        house: &House,
        out: &mut impl Outlet,
    ) -> ConnEffect {
        out.noted(ConnNote::HelloRefused(self.id, client, &refusal));
        let Refusal { error, closing } = refusal;
        if let Some(request) = request {
            let answer = frames::response(self.codec, self.id, request, Err(error), now.wall, house, None);
            self.send(&answer, out);
        }
        self.close(now, &closing, None, out)
    }
}
