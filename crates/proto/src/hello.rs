//! The handshake: `challenge`, `hello` and its result.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{self, IntoDeserializer};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::feature::FeatureWishes;
use crate::ids::{ConnId, Epoch, InstanceId, MemberKey, MessageId, SessionKey, SubId};
use crate::name::{Cap, MeshName};
use crate::number::U53;
use crate::peer::{Profile, SharedPeer};
use crate::reconcile::{ReconcileParams, ReconcileResult};
use crate::run::RunInfo;
use crate::service::Service;
use crate::subscribe::Subscription;

/// `event challenge`: the first frame on every socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Challenge {
    /// 32 random bytes in base64url, good for one hello on this socket.
    pub nonce: String,
    /// The broker's wall clock, Unix milliseconds.
    pub ts: U53,
    /// The broker's id, to be signed in the proof.
    pub broker: String,
}

/// A range of protocol versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct ProtocolRange {
    /// The oldest spoken.
    pub min: u32,
    /// The newest spoken.
    pub max: u32,
}

/// Who is calling: informational, but for `instanceId`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ClientInfo {
    /// The program.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Its platform.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<String>,
    /// Random per process.
    pub instance_id: InstanceId,
}

/// A member's word for a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Attestation {
    /// Unix milliseconds after which no hello may use it; at most 24 h ahead.
    pub expires_at: U53,
    /// What the session may do; absent is everything the member may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caps: Option<Vec<Cap>>,
    /// By the member key over `tenure-attest.v1|mesh|member|session|expiresAt|caps`, see [`crate::canonical::Attested`].
    pub signature: String,
}

/// Where the client was when its last socket broke. Whatever is wrong with it costs the client what it asks for, never its
/// hello: what does not read is taken for absent, and a token that does not read is one that is not ours.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ResumeParams {
    /// The newest token it got.
    #[serde(default, deserialize_with = "crate::lenient::or_default")]
    #[cfg_attr(any(test, feature = "schema"), schemars(required))]
    pub token: String,
    /// The epoch of its event stream.
    #[serde(
        default,
        deserialize_with = "crate::lenient::or_default",
        skip_serializing_if = "Option::is_none"
    )]
    #[cfg_attr(any(test, feature = "schema"), schemars(required, with = "Epoch"))]
    pub epoch: Option<Epoch>,
    /// The last event it has.
    #[serde(
        default,
        deserialize_with = "crate::lenient::or_default",
        skip_serializing_if = "Option::is_none"
    )]
    #[cfg_attr(any(test, feature = "schema"), schemars(required, with = "U53"))]
    pub last_seq: Option<U53>,
}

/// The newest entry that a client has of one log: its place, and the id of the message there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct LogPosition {
    /// The log, as in the `log` of a message.
    pub log: String,
    /// The entry.
    pub seq: U53,
    /// The id of the message there.
    pub id: MessageId,
}

/// Which inboxes a session reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum InboxChoice {
    /// Its own.
    #[default]
    Session,
    /// Its member's.
    Member,
    /// Both.
    Both,
    /// Neither.
    None,
}

/// A credential, where the mesh asks for one.
#[derive(Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Credential {
    /// A bearer token.
    Token(String),
    /// An invite link's secret.
    Invite(String),
}

// By hand, because an enum would not ignore unknown fields beside the one that it knows.
impl<'de> Deserialize<'de> for Credential {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Either {
            token: Option<String>,
            invite: Option<String>,
        }
        match Either::deserialize(deserializer)? {
            Either { token: Some(token), invite: None } => Ok(Credential::Token(token)),
            Either { token: None, invite: Some(invite) } => Ok(Credential::Invite(invite)),
            _ => Err(de::Error::custom("auth has either token or invite")),
        }
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Secrets never reach a log.
        f.write_str(match self {
            Credential::Token(_) => "Token(…)",
            Credential::Invite(_) => "Invite(…)",
        })
    }
}

/// Reconciliation in the hello itself, or announced for the next frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum HelloReconcile {
    /// The literal `"later"`: the next frame is `req reconcile`.
    Later(Later),
    /// All of it, now.
    Now(Box<ReconcileParams>),
}

// By hand, so that an error says which field was wrong and not that nothing matched.
impl<'de> Deserialize<'de> for HelloReconcile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visit;
        impl<'de> de::Visitor<'de> for Visit {
            type Value = HelloReconcile;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"later\" or an object")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<HelloReconcile, E> {
                Later::deserialize(text.into_deserializer()).map(HelloReconcile::Later)
            }
            fn visit_map<A: de::MapAccess<'de>>(self, access: A) -> Result<HelloReconcile, A::Error> {
                let params = ReconcileParams::deserialize(MapAccessDeserializer::new(access))?;
                Ok(HelloReconcile::Now(Box::new(params)))
            }
        }
        deserializer.deserialize_any(Visit)
    }
}

/// The literal `"later"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Later {
    /// `"later"`.
    Later,
}

/// The params of `hello`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct HelloParams {
    /// The versions the client speaks.
    pub protocol: ProtocolRange,
    /// Who is calling.
    pub client: ClientInfo,
    /// The mesh to join.
    pub mesh: MeshName,
    /// Who vouches.
    pub member: MemberKey,
    /// Who joins; equal to `member` for a member's own session.
    pub session: SessionKey,
    /// The member's word; needed unless `session` is the member or a good resume token is beside it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attestation: Option<Attestation>,
    /// By the session key over `tenure-hello.v1|mesh|member|session|nonce|broker|host`, see [`crate::canonical::Proof`].
    pub proof: String,
    /// Where the last socket broke.
    #[serde(
        default,
        deserialize_with = "crate::lenient::or_some_default",
        skip_serializing_if = "Option::is_none"
    )]
    pub resume: Option<ResumeParams>,
    /// What the client believes about its subscriptions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reconcile: Option<HelloReconcile>,
    /// The newest entry that the client has of each log it reads, inboxes included, and behind those some older ones that
    /// tell when a newer one is gone; at most 256. The broker compares them with its store, and the answer lists under `rewound` the logs whose history is another one.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "crate::null::or_default")]
    pub positions: Vec<LogPosition>,
    /// Which inboxes it reads.
    #[serde(default, deserialize_with = "crate::null::or_default")]
    pub inbox: InboxChoice,
    /// What peers see.
    pub profile: Profile,
    /// Feature bits.
    #[serde(default, deserialize_with = "crate::null::or_default")]
    pub features: FeatureWishes,
    /// A credential, where the mesh asks for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth: Option<Credential>,
}

/// Whether the lease existed before this hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum LeaseFate {
    /// It begins now; peers saw `joined`.
    New,
    /// It lived on; peers saw nothing.
    Kept,
}

/// What became of the resume token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ResumeOutcome {
    /// None was presented.
    New,
    /// It selected this lease.
    Resumed,
    /// It was ours, but its lease has ended.
    ResumeNotFound,
    /// It was not ours, or not this session's.
    ResumeRejected,
}

/// What became of the resume token, why, and the next one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct ResumeResult {
    /// What became of the token presented.
    pub outcome: ResumeOutcome,
    /// Why, when it was not accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The token to present next time.
    pub token: String,
}

/// The broker's numbers that a client works with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Policy {
    /// Milliseconds between pings, from both sides.
    pub ping_interval_ms: U53,
    /// Milliseconds of silence after which the broker drops a socket.
    pub stale_after_ms: U53,
    /// Milliseconds after which an idle socket gets a `tick`.
    pub tick_interval_ms: U53,
    /// Bytes of a body.
    pub max_payload: U53,
    /// Bytes that may wait for this socket.
    pub max_buffered_bytes: U53,
    /// Messages that may wait for this socket.
    pub max_buffered_messages: U53,
    /// Requests that may wait for their answer.
    pub max_inflight: U53,
    /// What "accepted" means.
    pub durability: Durability,
}

/// What "accepted" means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// On disk: synced before the answer.
    #[default]
    Fsync,
    /// By the operator's choice, written but not synced.
    Relaxed,
}

/// Which broker answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct BrokerInfo {
    /// Its id, as in the challenge.
    pub id: String,
    /// Its version.
    pub version: String,
}

/// Whether the event stream goes on where it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Replay {
    /// Everything after `lastSeq` follows.
    Complete,
    /// It could not: a new epoch begins with a snapshot.
    Resync,
}

/// The event stream of this session from here on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct EventsResult {
    /// The numbering in force.
    pub epoch: Epoch,
    /// The number of the first event on this socket, replay included.
    pub next_seq: U53,
    /// Whether it goes on where it was.
    pub replay: Replay,
}

/// How a broker is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum HealthStatus {
    /// All is well.
    Ok,
    /// It serves, but something needs a person.
    Degraded,
    /// It is stopping.
    Draining,
}

/// Versions of the three maps a client may mirror; they replace what it had, even when lower.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
pub struct StateVersion {
    /// Of presence.
    pub presence: U53,
    /// Of services.
    pub services: U53,
    /// Of health.
    pub health: U53,
}

/// Enough to draw a screen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    /// The first peers, ordered by session key.
    pub presence: Vec<SharedPeer>,
    /// Whether there are more peers: `presence.list` goes on after the last one here.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub more: bool,
    /// The first services, ordered by name; hidden ones are left out.
    pub services: Vec<Service>,
    /// Whether there are more services: `services.list` goes on after the last one here.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub more_services: bool,
    /// This session's subscriptions.
    pub subscriptions: Vec<Subscription>,
    /// What waits for this session in each of them, and in its inboxes; one that never had anything is left out.
    #[serde(default)]
    pub queues: Vec<Queue>,
    /// The first runs that have not ended and that this session's member called or this session answers.
    #[serde(default)]
    pub runs: Vec<RunInfo>,
    /// Whether there are more of them: `runs.list` goes on after the last one here.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub more_runs: bool,
    /// How the broker is.
    pub health: HealthStatus,
    /// How long it has been up.
    pub uptime_ms: U53,
}

/// What waits for a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Queue {
    /// The subscription; `inbox` and `member` are the inboxes.
    pub sub_id: SubId,
    /// Messages that nobody has settled; of a group, for all its members.
    pub depth: U53,
}

/// The result of `hello`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct HelloResult {
    /// The version spoken from here on.
    pub protocol: u32,
    /// The oldest client that this broker's operator wants to see.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_client: Option<String>,
    /// Which broker answered.
    pub broker: BrokerInfo,
    /// This socket.
    pub conn_id: ConnId,
    /// This session: its key.
    pub session_id: SessionKey,
    /// Whether the lease existed before.
    pub lease: LeaseFate,
    /// What became of the token.
    pub resume: ResumeResult,
    /// Milliseconds from the last proof of life to the end of the lease.
    pub lease_ttl_ms: U53,
    /// The broker's numbers.
    pub policy: Policy,
    /// Feature bits that are here, each `{version, …params}`.
    pub features: BTreeMap<String, Value>,
    /// The event stream from here on.
    pub events: EventsResult,
    /// Enough to draw a screen; absent when replay is complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<Box<Snapshot>>,
    /// Versions of the maps.
    pub state_version: StateVersion,
    /// Results of reconciliation, when asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reconcile: Option<Box<ReconcileResult>>,
    /// Logs of the hello's `positions` that end before that place, or have another message there: the store was wiped or
    /// restored, and their seqs name other messages than before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rewound: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Codec;

    fn read<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, String> {
        Codec::Json.decode(text.as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_credential_is_one_thing_and_ignores_what_it_does_not_know() {
        assert_eq!(read(r#"{"token":"t","new":1}"#), Ok(Credential::Token("t".into())));
        assert_eq!(read(r#"{"token":null,"invite":"i"}"#), Ok(Credential::Invite("i".into())));
        assert!(read::<Credential>(r#"{"token":"t","invite":"i"}"#).is_err());
        assert!(read::<Credential>("{}").is_err());
    }

    #[test]
    fn what_does_not_read_of_a_resume_is_absent_and_the_rest_is_there() {
        #[derive(Debug, Deserialize)]
        struct Hello {
            #[serde(default, deserialize_with = "crate::lenient::or_some_default")]
            resume: Option<ResumeParams>,
        }
        let whole = |token: &str, epoch: Option<&str>, last_seq: Option<u64>| {
            let epoch = epoch.map(|epoch| epoch.parse().unwrap());
            Some(ResumeParams { token: token.into(), epoch, last_seq: last_seq.map(U53::saturating) })
        };
        let cases = [
            (r#"{}"#, None),
            (r#"{"resume":null}"#, None),
            (r#"{"resume":{"token":"t","epoch":"e","lastSeq":4}}"#, whole("t", Some("e"), Some(4))),
            (r#"{"resume":{"token":"t","epoch":"","lastSeq":4}}"#, whole("t", None, Some(4))),
            (r#"{"resume":{"token":"t","epoch":"a b","lastSeq":-4}}"#, whole("t", None, None)),
            (r#"{"resume":{"token":7,"epoch":{"x":[1]},"lastSeq":"4"}}"#, whole("", None, None)),
            (r#"{"resume":{}}"#, whole("", None, None)),
            (r#"{"resume":"t"}"#, whole("", None, None)),
            (r#"{"resume":[1,2]}"#, whole("", None, None)),
            (r#"{"resume":false}"#, whole("", None, None)),
        ];
        for (text, resume) in cases {
            assert_eq!(read::<Hello>(text).unwrap().resume, resume, "{text}");
            let value: Value = serde_json::from_str(text).unwrap();
            let packed = Codec::MsgPack.encode(&value);
            assert_eq!(Codec::MsgPack.decode::<Hello>(&packed).unwrap().resume, resume, "{text}");
        }
    }

    #[test]
    fn a_wrong_reconcile_says_what_is_wrong() {
        assert!(read::<HelloReconcile>(r#""soon""#).unwrap_err().contains("later"));
        assert!(read::<HelloReconcile>(r#"{"policy":"eager"}"#).unwrap_err().contains("eager"));
        assert!(read::<HelloReconcile>("7").unwrap_err().contains("an object"));
    }
}
