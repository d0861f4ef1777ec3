//! Admission: is this hello by whom it says, to us, now? Pure and stateless, so that connection tasks can spend
//! the signature checks in parallel before the mesh decides what the hello means.

use core::net::IpAddr;

use tenure_kit::host::Doors;
use tenure_kit::mutant::{self, Mutant};
use tenure_proto::canonical::{Attested, Proof};
use tenure_proto::close::{Closing, Reason};
use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::hello::{
    Attestation, ClientInfo, Credential, HelloParams, HelloReconcile, InboxChoice, LogPosition,
};
use tenure_proto::ids::{ClusterId, Epoch, InstanceId, LeaseId, MemberKey, SessionKey};
use tenure_proto::invite::Invite;
use tenure_proto::limits::{
    ATTESTATION_AHEAD_MS, ATTESTATION_CAPS, BEARER_BYTES, POSITIONS_PER_HELLO, PROTOCOL,
};
use tenure_proto::name::{Cap, MeshName};
use tenure_proto::peer::Profile;
use tenure_proto::token::{ResumeToken, bearer_hash};

use crate::access::Presented;
use crate::config::MeshConfig;
use crate::conn::feature;

/// What a hello is told to wait when only the reserve of connections is left, in milliseconds.
const FULL_RETRY_MS: u64 = 5_000;

/// What the hello is checked against.
#[derive(Clone, Copy, Debug)]
pub struct Gate<'a> {
    /// The nonce of this socket's challenge.
    pub nonce: &'a str,
    /// Our broker id, as in the challenge.
    pub broker_id: &'a str,
    /// The Host header that was received.
    pub host: &'a str,
    /// What hosts are ours.
    pub doors: &'a Doors,
    /// The public half of the key that signs resume tokens.
    pub token_key: &'a [u8; 32],
    /// Our store's cluster id.
    pub cluster: &'a ClusterId,
    /// The wall clock.
    pub wall: u64,
    /// Why only who was here before is let in, if so.
    pub wait: Option<Wait>,
    /// The numbers of the mesh, which features are made of.
    pub config: &'a MeshConfig,
}

/// Why only a session that was here before may come in now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Its address has said hello too often, and may again after so many milliseconds.
    TooOften(u64),
    /// Only the reserve of connections is left.
    Full,
}

/// A hello that is by whom it says.
#[derive(Clone, Debug, PartialEq)]
pub struct Admission {
    /// The mesh to join.
    pub mesh: MeshName,
    /// Who vouches.
    pub member: MemberKey,
    /// Who joins.
    pub session: SessionKey,
    /// The process.
    pub instance: InstanceId,
    /// What peers see.
    pub profile: Profile,
    /// Which inboxes it reads.
    pub inbox: InboxChoice,
    /// Whether and how the member vouches.
    pub voucher: Voucher,
    /// What became of the resume token, as far as its bytes tell.
    pub token: TokenVerdict,
    /// Where its event stream was, if it presented a token.
    pub position: Option<(Epoch, u64)>,
    /// What it believes about its subscriptions, or that it will say so next.
    pub reconcile: Option<HelloReconcile>,
    /// The newest entry that it has of each log; at most [`POSITIONS_PER_HELLO`].
    pub positions: Vec<LogPosition>,
    /// Who is calling, for the log.
    pub client: String,
    /// Whether what it does is counted against its member's rates.
    pub counted: bool,
    /// What it brings for a mesh that asks for something.
    pub presented: Presented,
    /// Where it comes from, if that is known.
    pub from: Option<IpAddr>,
}

/// Whether and how the member vouches for the session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Voucher {
    /// The session is the member, or an attestation holds; with the caps it grants.
    Attested(Option<Vec<Cap>>),
    /// No attestation: only good beside a token that selects a living lease.
    TokenOnly,
}

/// What a resume token is worth before the lease table is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenVerdict {
    /// None was presented.
    Absent,
    /// Not ours, or not this session's; and why.
    Rejected(&'static str),
    /// Ours: it selects this lease, if that lives.
    Selects(LeaseId),
}

/// A hello that is turned away: what it is answered, and how the socket closes.
#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    /// The answer.
    pub error: WireError,
    /// The close that follows.
    pub closing: Closing,
}

impl Refusal {
    /// A refusal for `reason`.
    pub fn new(error: WireError, reason: Reason) -> Refusal {
        let mut closing = Closing::new(reason);
        closing.retry_after_ms = error.retry_after_ms;
        Refusal { error, closing }
    }

    fn wait(wait: Wait) -> Refusal {
        let (code, text, ms) = match wait {
            Wait::TooOften(ms) => {
                let text = "this address says hello too often; wait as long as retryAfterMs says";
                (ErrorCode::RateLimited, text, ms)
            }
            Wait::Full => {
                let text = "this broker has as many connections as it may, and keeps the rest for sessions that come \
                            back; try again later";
                (ErrorCode::Busy, text, FULL_RETRY_MS)
            }
        };
        Refusal::new(WireError::new(code, text).retry_after(ms), Reason::Busy)
    }

    fn unauthorized(message: &str) -> Refusal {
        Refusal::new(WireError::new(ErrorCode::Unauthorized, message), Reason::Unauthorized)
    }

    /// A hello that is well addressed but malformed.
    pub fn malformed(error: WireError) -> Refusal {
        Refusal::new(error, Reason::BadFirstFrame)
    }
}

/// Checks a hello. The order is: can we talk, is it well formed, do you hold the key, does somebody vouch.
pub fn admit(hello: HelloParams, gate: &Gate<'_>) -> Result<Admission, Box<Refusal>> {
    check_protocol(&hello)?;
    feature::check(&hello.features.require, gate.config)?;
    hello.profile.check().map_err(Refusal::malformed)?;
    if hello.positions.len() > POSITIONS_PER_HELLO {
        let text = format!("a hello lists at most {POSITIONS_PER_HELLO} positions; list the newest");
        return Err(Box::new(Refusal::malformed(WireError::bad_request(text))));
    }
    let token = token_verdict(&hello, gate);
    if let Some(wait) = gate.wait
        && !matches!(token, TokenVerdict::Selects(_))
    {
        return Err(Box::new(Refusal::wait(wait)));
    }
    if !(mutant::on(Mutant::TokenWithoutProof) && matches!(token, TokenVerdict::Selects(_))) {
        check_proof(&hello, gate)?;
    }
    let voucher = voucher(&hello, gate, &token)?;
    let presented = presented(&hello);
    let position = hello.resume.and_then(|r| Some((r.epoch?, r.last_seq?.get())));
    let client = client_of(&hello.client);
    Ok(Admission {
        mesh: hello.mesh,
        member: hello.member,
        session: hello.session,
        instance: hello.client.instance_id,
        profile: hello.profile,
        inbox: hello.inbox,
        voucher,
        token,
        position,
        reconcile: hello.reconcile,
        positions: hello.positions,
        client,
        counted: false,
        presented,
        from: None,
    })
}

/// What the hello's credential is worth before the roll is asked. A bad one refuses nobody whom the mesh lets in anyway.
fn presented(hello: &HelloParams) -> Presented {
    match &hello.auth {
        None => Presented::Nothing,
        Some(Credential::Token(token)) if token.len() > BEARER_BYTES => {
            let text = format!("a bearer token has at most {BEARER_BYTES} bytes");
            Presented::Bad(Box::new(WireError::new(ErrorCode::Unauthorized, text)))
        }
        Some(Credential::Token(token)) => Presented::Token(bearer_hash(token)),
        Some(Credential::Invite(text)) => match Invite::verify(text) {
            Ok(invite) if invite.mesh == hello.mesh => Presented::Invite(Box::new(invite)),
            Ok(invite) => {
                let text = format!("this invite is to the mesh {}, not to {}", invite.mesh, hello.mesh);
                Presented::Bad(Box::new(WireError::new(ErrorCode::Unauthorized, text)))
            }
            Err(error) => Presented::Bad(Box::new(WireError::new(ErrorCode::Unauthorized, error.message))),
        },
    }
}

/// The name and version of a client, as the log has them.
pub fn client_of(client: &ClientInfo) -> String {
    format!("{}/{}", clip(&client.name), clip(&client.version))
}

fn clip(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(64).collect()
}

fn check_protocol(hello: &HelloParams) -> Result<(), Refusal> {
    if (hello.protocol.min..=hello.protocol.max).contains(&PROTOCOL) {
        return Ok(());
    }
    let error = WireError::new(
        ErrorCode::ProtocolMismatch,
        format!("this broker speaks protocol {PROTOCOL} only; use a client that does"),
    )
    .with_details(serde_json::json!({"min": PROTOCOL, "max": PROTOCOL}));
    Err(Refusal::new(error, Reason::ProtocolMismatch))
}

fn check_proof(hello: &HelloParams, gate: &Gate<'_>) -> Result<(), Refusal> {
    let proves = |host: &str| {
        let Gate { nonce, broker_id: broker, .. } = *gate;
        let HelloParams { mesh, member, session, .. } = hello;
        Proof { mesh, member, session, nonce, broker, host }.verify(&hello.proof)
    };
    if gate.doors.signed_hosts(gate.host).iter().any(|host| proves(host)) {
        return Ok(());
    }
    Err(Refusal::unauthorized(
        "the proof does not hold: sign mesh, member, session, this socket's nonce, the broker id and the Host you sent",
    ))
}

fn token_verdict(hello: &HelloParams, gate: &Gate<'_>) -> TokenVerdict {
    let Some(resume) = &hello.resume else { return TokenVerdict::Absent };
    let token = match ResumeToken::verify(&resume.token, gate.token_key) {
        Ok(token) => token,
        Err(tenure_proto::token::TokenError::Malformed) => return TokenVerdict::Rejected("malformed"),
        Err(tenure_proto::token::TokenError::BadSignature) => {
            // Clusters have keys of their own: a token of another one names it, and no key of ours can have signed it.
            let foreign =
                ResumeToken::unverified(&resume.token).is_ok_and(|token| token.bid != *gate.cluster);
            return TokenVerdict::Rejected(if foreign { "other_cluster" } else { "bad_signature" });
        }
    };
    if token.bid != *gate.cluster {
        TokenVerdict::Rejected("other_cluster")
    } else if token.mid != hello.mesh {
        TokenVerdict::Rejected("other_mesh")
    } else if token.sub != hello.session {
        TokenVerdict::Rejected("other_session")
    } else {
        TokenVerdict::Selects(token.lid)
    }
}

fn voucher(hello: &HelloParams, gate: &Gate<'_>, token: &TokenVerdict) -> Result<Voucher, Refusal> {
    if hello.session.is_member(&hello.member) {
        return Ok(Voucher::Attested(None));
    }
    let selects = matches!(token, TokenVerdict::Selects(_));
    let Some(attestation) = &hello.attestation else {
        return if selects {
            Ok(Voucher::TokenOnly)
        } else {
            Err(Refusal::unauthorized(
                "a session other than the member's own needs an attestation by the member's key",
            ))
        };
    };
    check_attestation(hello, attestation)?;
    let expires_at = attestation.expires_at.get();
    if expires_at <= gate.wall {
        // A lease outlives the attestation that began it; beside a token an expired one is as good as none.
        return if selects {
            Ok(Voucher::TokenOnly)
        } else {
            Err(Refusal::unauthorized("the attestation has expired; mint one per connect"))
        };
    }
    if expires_at > gate.wall.saturating_add(ATTESTATION_AHEAD_MS) {
        return Err(Refusal::unauthorized("an attestation may expire at most 24 hours ahead"));
    }
    Ok(Voucher::Attested(attestation.caps.clone()))
}

fn check_attestation(hello: &HelloParams, attestation: &Attestation) -> Result<(), Refusal> {
    if attestation.caps.as_ref().is_some_and(|caps| caps.len() > ATTESTATION_CAPS) {
        let error =
            WireError::bad_request(format!("an attestation may name at most {ATTESTATION_CAPS} caps"));
        return Err(Refusal::malformed(error));
    }
    let HelloParams { mesh, member, session, .. } = hello;
    let (expires_at, caps) = (attestation.expires_at.get(), attestation.caps.as_deref());
    if (Attested { mesh, member, session, expires_at, caps }).verify(&attestation.signature) {
        return Ok(());
    }
    Err(Refusal::unauthorized("the attestation is not by this member for this session in this mesh"))
}

#[cfg(test)]
#[path = "admit_tests.rs"]
mod tests;
