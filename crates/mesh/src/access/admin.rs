//! What an operator may ask of a mesh, and what it is answered.
//!
//! An [`Operation`] comes in as [`Input::Operate`](crate::Input::Operate) and is answered once, by
//! [`Effect::Operated`](crate::Effect::Operated) with its number. What changes something is answered when it is on disk
//! with its row of the audit log; bans, kicks and narrowed rights hold at once, before that.

use serde_json::{Value, json};
use tenure_proto::ids::{GrantId, MemberKey, SessionKey};
use tenure_proto::invite::Role;
use tenure_proto::limits::PAGE;
use tenure_proto::name::Cap;
use tenure_proto::number::U53;
use tenure_proto::peer::Peer;

use crate::access::setting::Values;
use crate::access::{AuditEntry, AuditRecord, BanRecord, InviteRecord, MemberRecord, TokenRecord};
use crate::effect::Answer;
use crate::input::Banned;
use crate::store::record::LeaseEndEntry;

/// The number of an operation; its shell never uses one twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OperateId(pub u64);

/// Operations of one mesh that may be under way; its shell keeps to it.
pub const OPERATIONS_MAX: usize = 64;
/// Rows of one page of a list.
pub const LIST_PAGE: usize = 500;

/// What an operator asks, and who asks.
#[derive(Clone, Debug)]
pub struct Operation {
    /// Who.
    pub who: String,
    /// From which address.
    pub from: String,
    /// What.
    pub act: Act,
}

/// Where a list goes on, and how much of it is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<T> {
    /// After this one.
    pub after: Option<T>,
    /// At most so many; at most [`LIST_PAGE`].
    pub limit: usize,
}

impl<T> Default for Page<T> {
    /// The beginning, as much as there may be.
    fn default() -> Page<T> {
        Page { after: None, limit: LIST_PAGE }
    }
}

/// What an operator asks.
#[derive(Clone, Debug)]
pub enum Act {
    /// Make this a mesh that not everybody may join, whose first operator is this member.
    Found(MemberKey),
    /// Whether it is open, and how much there is of everything.
    Overview,
    /// Who is here.
    Sessions(Page<SessionKey>),
    /// One who is here.
    Session(SessionKey),
    /// End a session's lease now. It may come back.
    Kick(SessionKey, String),
    /// Who may come in.
    Members(Page<MemberKey>),
    /// Let somebody in, or change what they are.
    PutMember {
        /// Whom.
        member: MemberKey,
        /// As what; absent leaves it.
        role: Option<Role>,
        /// What they may do; absent leaves it, `null` is all that their role may.
        caps: Option<Option<Vec<Cap>>>,
        /// What they are called; absent leaves it.
        name: Option<String>,
    },
    /// Let somebody in no longer; their sessions end.
    DropMember(MemberKey),
    /// Invites that were used or revoked.
    Invites(Page<GrantId>),
    /// Let nobody in by an invite any more.
    RevokeInvite(GrantId),
    /// Bearer tokens.
    Tokens(Page<GrantId>),
    /// Make a bearer token.
    PutToken(TokenRecord),
    /// Revoke one; the sessions that came by it end.
    DropToken(GrantId),
    /// Who is kept out.
    Bans(Page<Banned>),
    /// Keep somebody out.
    Ban(Banned, String),
    /// Do so no longer.
    Unban(Banned),
    /// What services there are, those that hide as well.
    Services(Page<tenure_proto::ServiceName>),
    /// Topics and their groups.
    Topics(Page<tenure_proto::TopicName>),
    /// Groups of one topic.
    Groups(tenure_proto::TopicName, Page<tenure_proto::GroupName>),
    /// Delete a topic with all that it holds.
    DeleteTopic(tenure_proto::TopicName),
    /// Delete a group of a topic.
    DeleteGroup(tenure_proto::TopicName, tenure_proto::GroupName),
    /// Dead letters of a log.
    Dead {
        /// Which log.
        log: String,
        /// After which seq, and how many.
        page: Page<u64>,
    },
    /// Put dead letters back.
    DeadRetry(String, Vec<U53>),
    /// Drop dead letters for good.
    DeadDrop(String, Vec<U53>),
    /// The settings.
    Settings,
    /// Change some settings, if they are still at this version; `null` takes one back to what the broker was started
    /// with.
    Set {
        /// The version that the operator has seen.
        version: u64,
        /// What changes.
        values: Values,
    },
    /// Ends of leases, newest first, before this one.
    LeaseEnds(Page<u64>),
    /// The audit log, newest first, before this row.
    Audit(Page<u64>),
    /// Believe the wall clock although it is not where it should be.
    ConfirmClock,
    /// A row of the audit log for something that is no mesh's doing.
    Note(&'static str, Value),
}

impl Act {
    /// What the audit log calls it, of whom or what, and what else belongs to it; nothing for what only looks.
    pub fn audited(&self) -> Option<(&'static str, String, Value)> {
        let none = Value::Null;
        Some(match self {
            Act::Found(owner) => ("mesh.create", format!("member:{owner}"), none),
            Act::Kick(session, reason) => {
                ("session.kick", format!("session:{session}"), json!({"reason": clip(reason)}))
            }
            Act::PutMember { member, role, caps, name } => {
                let details = json!({"role": role, "caps": caps.as_ref().map(|caps| caps.as_deref().map(few)), "name": name.as_deref().map(clip)});
                ("member.put", format!("member:{member}"), details)
            }
            Act::DropMember(member) => ("member.remove", format!("member:{member}"), none),
            Act::RevokeInvite(id) => ("invite.revoke", format!("invite:{id}"), none),
            Act::PutToken(token) => {
                let details = json!({"name": clip(&token.name), "caps": token.caps.as_deref().map(few), "expiresAt": token.expires_at});
                ("token.create", format!("token:{}", token.id), details)
            }
            Act::DropToken(id) => ("token.revoke", format!("token:{id}"), none),
            Act::Ban(subject, reason) => ("ban.set", subject.to_string(), json!({"reason": clip(reason)})),
            Act::Unban(subject) => ("ban.lift", subject.to_string(), none),
            Act::DeleteTopic(topic) => ("topic.delete", format!("topic:{topic}"), none),
            Act::DeleteGroup(topic, group) => ("group.delete", format!("group:{topic}/{group}"), none),
            Act::DeadRetry(log, seqs) => ("dead.retry", clip(log), named(seqs)),
            Act::DeadDrop(log, seqs) => ("dead.drop", clip(log), named(seqs)),
            Act::Set { version, values } => {
                ("settings.set", String::new(), json!({"version": version, "values": known(values)}))
            }
            Act::ConfirmClock => ("clock.confirm", String::new(), none),
            Act::Note(what, details) => (what, String::new(), details.clone()),
            Act::Overview | Act::Sessions(_) | Act::Session(_) | Act::Members(_) | Act::Invites(_) => {
                return None;
            }
            Act::Tokens(_) | Act::Bans(_) | Act::Services(_) | Act::Topics(_) | Act::Dead { .. } => {
                return None;
            }
            Act::Settings | Act::Audit(_) | Act::LeaseEnds(_) | Act::Groups(..) => return None,
        })
    }
}

/// A name that somebody made up, short enough for a row.
fn clip(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(256).collect()
}

/// The first of what somebody may do: a request may name more than there are.
fn few(caps: &[Cap]) -> &[Cap] {
    caps.get(..8).unwrap_or(caps)
}

/// Values of settings that there are, short enough for a row.
fn known(values: &Values) -> Values {
    let known = values.iter().filter(|(name, _)| crate::access::setting::find(name).is_ok());
    let short = |value: &Value| match value {
        Value::String(text) => json!(clip(text)),
        Value::Array(_) | Value::Object(_) => json!("no value"),
        plain => plain.clone(),
    };
    known.map(|(name, value)| (name.clone(), short(value))).collect()
}

/// The seqs that were named, as many as may be; of a request with more, how many.
fn named(seqs: &[U53]) -> Value {
    match seqs.len() <= PAGE {
        true => json!({"seqs": seqs}),
        false => json!({"count": seqs.len()}),
    }
}

impl Operation {
    /// The row that tells of it, with this outcome; nothing for what only looks.
    pub fn audit(&self, at: u64, outcome: &str) -> Option<AuditRecord> {
        let (act, subject, details) = self.act.audited()?;
        Some(AuditRecord {
            at,
            who: self.who.clone(),
            from: self.from.clone(),
            act: act.to_owned(),
            subject,
            outcome: outcome.to_owned(),
            details,
        })
    }
}

/// A session as an operator sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionInfo {
    /// What everybody sees, with the state of its socket and the end of its lease.
    pub peer: Peer,
    /// Where its last hello came from.
    pub from: Option<core::net::IpAddr>,
    /// What it may do.
    pub rights: crate::access::Rights,
    /// Subscriptions, besides its inboxes.
    pub subscriptions: usize,
    /// Deliveries that it has in hand.
    pub in_hand: usize,
}

/// How much there is of everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overview {
    /// Since when not everybody may join; `None` is that everybody may.
    pub founded: Option<u64>,
    /// Living leases.
    pub sessions: usize,
    /// Those of them that a socket carries.
    pub online: usize,
    /// Members.
    pub members: usize,
    /// Topics.
    pub topics: usize,
    /// Runs that have not ended.
    pub runs: usize,
    /// Bans.
    pub bans: usize,
    /// Whether it stops.
    pub draining: bool,
}

/// What an operator is answered.
#[derive(Clone, Debug)]
pub enum Operated {
    /// It is done.
    Done,
    /// How much there is of everything.
    Overview(Overview),
    /// Who is here, and whether there are more.
    Sessions(Vec<SessionInfo>, bool),
    /// One who is here.
    Session(Box<SessionInfo>),
    /// Members, and whether there are more.
    Members(Vec<MemberRecord>, bool),
    /// A member, as it is from here on.
    Member(Box<MemberRecord>),
    /// Invites, and whether there are more.
    Invites(Vec<InviteRecord>, bool),
    /// Tokens, and whether there are more.
    Tokens(Vec<TokenRecord>, bool),
    /// Bans, and whether there are more.
    Bans(Vec<BanRecord>, bool),
    /// What a session would be answered.
    Answer(Box<Answer>),
    /// The settings.
    Settings {
        /// How often they were changed.
        version: u64,
        /// What each is.
        values: Values,
        /// The names of those that differ from what the broker was started with.
        changed: Vec<String>,
    },
    /// Ends of leases, newest first, and whether there are older ones.
    LeaseEnds(Vec<LeaseEndEntry>, bool),
    /// Rows of the audit log, newest first, and whether there are older ones.
    Audit(Vec<AuditEntry>, bool),
}
