//! What operators do.

use std::collections::BTreeMap;

use tenure_kit::time::Millis;
use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::ids::{MemberKey, SessionKey};
use tenure_proto::invite::Role;
use tenure_proto::limits::{LABEL_CHARS, PAGE};
use tenure_proto::log::LogName;
use tenure_proto::name::TopicName;
use tenure_proto::number::U53;
use tenure_proto::service::ServicesListParams;
use tenure_proto::text::is_control_or_bidi;
use tenure_proto::topic::{GroupsListParams, TopicsListParams};

use crate::Mesh;
use crate::access::admin::{Act, OperateId, Operated, Operation};
use crate::access::setting::Values;
use crate::access::{AccessWrite, BanRecord, Change, Grant, MemberRecord, Right, Roll};
use crate::effect::{Effect, Note};
use crate::input::Banned;
use crate::messages::reads::{Purpose, seqs as check_seqs};
use crate::reply::{Reply, ReplyTo};
use crate::store::pending::Awaiting;
use crate::store::record::{GroupId, StoreRead, StoreWrite};

impl From<Reply> for Doing {
    fn from(reply: Reply) -> Doing {
        match reply {
            Reply::Now(answer) => Doing::Tell(Operated::Answer(Box::new(answer))),
            Reply::Later => Doing::Later,
        }
    }
}

/// What becomes of an operation.
enum Doing {
    /// It is answered now.
    Tell(Operated),
    /// It is answered by somebody else, later.
    Later,
    /// It is written with its row, and answered when it is on disk; what is to be done is done at once.
    Write(Vec<Change>, Operated, After),
    /// It is written with its row; what it grants holds, and it is answered, when it is on disk.
    Grant(Change, Operated, Grant),
}

/// What is done when the store has been told.
enum After {
    Nothing,
    Kick(SessionKey),
    Ban(BanRecord),
    Unban(Banned),
    PutOut(Out),
    Configure,
    ConfirmClock,
    Retry(LogName, Vec<U53>),
    Drop(LogName, Vec<U53>),
    DeleteTopic(TopicName),
    DeleteGroup(Vec<GroupId>),
}

impl After {
    /// Whether who asks is answered by what is done, and not by the row that tells of it.
    fn answers(&self) -> bool {
        use After::{DeleteGroup, DeleteTopic, Drop, Retry};
        matches!(self, Retry(..) | Drop(..) | DeleteTopic(_) | DeleteGroup(_))
    }
}

/// Who is let in no longer.
enum Out {
    Member(MemberKey),
    Token(tenure_proto::ids::GrantId),
    Strangers,
}

impl Mesh {
    /// An operator asks something.
    pub(crate) fn operate(&mut self, now: Millis, id: OperateId, operation: Operation) {
        let done = self.act(id, &operation.act);
        let outcome = done.as_ref().err().map_or("ok", |error| error.code.as_str());
        if let Some((act, subject, _)) = operation.act.audited() {
            self.effects.push_back(Effect::Note(Note::Operated { act, subject, outcome }));
        }
        let audit = operation.audit(self.clock.wall(), outcome);
        match done {
            Ok(Doing::Tell(answer)) => self.effects.push_back(Effect::Operated { id, outcome: Ok(answer) }),
            Ok(Doing::Later) => {}
            Ok(Doing::Write(changes, answer, after)) => {
                let write = StoreWrite::Access(Box::new(AccessWrite { changes, audit }));
                if after.answers() {
                    self.write(write);
                } else {
                    self.write_for(Awaiting::Operated(id, Box::new(answer)), write);
                }
                self.follow(now, id, after);
            }
            Ok(Doing::Grant(change, answer, grant)) => {
                let write = StoreWrite::Access(Box::new(AccessWrite { changes: vec![change], audit }));
                self.write_for(Awaiting::Granted(id, Box::new((answer, grant))), write);
                self.recount_rights();
            }
            Err(error) if audit.is_some() => {
                let write = StoreWrite::Access(Box::new(AccessWrite { changes: Vec::new(), audit }));
                self.write_for(Awaiting::Refused(id, Box::new(error)), write);
            }
            Err(error) => self.effects.push_back(Effect::Operated { id, outcome: Err(error) }),
        }
    }

    /// Decides about an operation. Nothing that a session could notice happens here.
    fn act(&mut self, id: OperateId, act: &Act) -> Result<Doing, WireError> {
        let done = |changes| Ok(Doing::Write(changes, Operated::Done, After::Nothing));
        match act {
            Act::Found(owner) => self.found_mesh(*owner),
            Act::Kick(session, reason) => {
                label("reason", reason)?;
                self.known(session)?;
                Ok(Doing::Write(Vec::new(), Operated::Done, After::Kick(*session)))
            }
            Act::PutMember { member, role, caps, name } => {
                let name = name.as_deref().map(|name| label("name", name)).transpose()?;
                let old = self.access.roll.members.get(member);
                let fresh =
                    MemberRecord { since: self.clock.wall(), name: String::new(), ..Roll::owner(*member, 0) };
                let record = old.cloned().unwrap_or(MemberRecord { role: Role::Member, ..fresh });
                let record = MemberRecord {
                    role: role.unwrap_or(record.role),
                    caps: caps.clone().unwrap_or(record.caps),
                    name: name.map_or(record.name, str::to_owned),
                    ..record
                };
                check_caps(record.caps.as_deref())?;
                self.access.roll.change_member(&record)?;
                let answer = Operated::Member(Box::new(record.clone()));
                Ok(Doing::Grant(Change::PutMember(record.clone()), answer, Grant::Member(record)))
            }
            Act::DropMember(member) => {
                self.access.roll.drop_member(member)?;
                let after = After::PutOut(Out::Member(*member));
                Ok(Doing::Write(vec![Change::DropMember(*member)], Operated::Done, after))
            }
            Act::RevokeInvite(id) => {
                let record = self.access.roll.revoke(id, self.clock.wall())?;
                done(vec![Change::PutInvite(record)])
            }
            Act::PutToken(token) => {
                label("name", &token.name)?;
                check_caps(token.caps.as_deref())?;
                if token.expires_at.is_some_and(|end| end <= self.clock.shown()) {
                    return Err(WireError::bad_request("expiresAt is in the past"));
                }
                self.access.roll.check_token(&token.id)?;
                let change = Change::PutToken(token.clone());
                Ok(Doing::Grant(change, Operated::Done, Grant::Token(token.clone())))
            }
            Act::DropToken(id) => {
                if !self.access.roll.drop_token(id) {
                    return Err(not_found("no such token"));
                }
                let after = After::PutOut(Out::Token(id.clone()));
                Ok(Doing::Write(vec![Change::DropToken(id.clone())], Operated::Done, after))
            }
            Act::Ban(subject, reason) => {
                label("reason", reason)?;
                if !self.access.bans.has_room(subject) {
                    let text = "there are as many bans as there may be; lift some, or ban a network";
                    return Err(WireError::new(ErrorCode::Busy, text));
                }
                let ban = BanRecord { subject: *subject, reason: reason.clone(), since: self.clock.wall() };
                Ok(Doing::Write(vec![Change::PutBan(ban.clone())], Operated::Done, After::Ban(ban)))
            }
            Act::Unban(subject) => {
                if !self.access.bans.contains(subject) {
                    return Err(not_found("there is no such ban; see the list for how it was set"));
                }
                Ok(Doing::Write(vec![Change::DropBan(*subject)], Operated::Done, After::Unban(*subject)))
            }
            // What is refused is refused here: the row that tells of it is written before it is done.
            Act::DeadRetry(log, seqs) => {
                let log = self.any_log(log)?;
                self.check_retry(&log, seqs)?;
                Ok(Doing::Write(Vec::new(), Operated::Done, After::Retry(log, seqs.clone())))
            }
            Act::DeleteTopic(name) => {
                self.check_topic(name)?;
                Ok(Doing::Write(Vec::new(), Operated::Done, After::DeleteTopic(name.clone())))
            }
            Act::DeleteGroup(topic, group) => {
                let places = self.check_group(topic, group)?;
                Ok(Doing::Write(Vec::new(), Operated::Done, After::DeleteGroup(places)))
            }
            Act::DeadDrop(log, seqs) => {
                let log = self.any_log(log)?;
                check_seqs(seqs)?;
                Ok(Doing::Write(Vec::new(), Operated::Done, After::Drop(log, seqs.clone())))
            }
            Act::Set { version, values } => self.set(*version, values),
            Act::Note(..) => done(Vec::new()),
            Act::ConfirmClock if self.clock_doubt().is_none() => Err(WireError::new(
                ErrorCode::Conflict,
                "the wall clock is believed; there is nothing to confirm",
            )),
            Act::ConfirmClock => Ok(Doing::Write(Vec::new(), Operated::Done, After::ConfirmClock)),
            Act::Topics(page) => {
                let limit = U53::saturating(page.limit.clamp(1, PAGE) as u64);
                let params = TopicsListParams { after: page.after.clone(), limit: Some(limit) };
                self.topics_list(ReplyTo::Operator(id), &params).map(Doing::from)
            }
            Act::Groups(topic, page) => {
                let limit = Some(U53::saturating(page.limit.clamp(1, PAGE) as u64));
                let params = GroupsListParams { topic: topic.clone(), after: page.after.clone(), limit };
                self.groups_list(ReplyTo::Operator(id), &params).map(Doing::from)
            }
            Act::Dead { log, page } => {
                let log = self.any_log(log)?;
                let (after, limit) = (page.after.unwrap_or(0), page.limit.clamp(1, PAGE) as u32);
                Ok(Doing::from(self.list_dead(ReplyTo::Operator(id), log, after, limit)))
            }
            Act::LeaseEnds(page) => {
                let limit = page.limit.clamp(1, crate::access::admin::LIST_PAGE) as u32;
                let read = StoreRead::LeaseEnds { before: page.after, limit };
                self.read(Purpose::LeaseEnds(id), read);
                Ok(Doing::Later)
            }
            Act::Audit(page) => {
                let limit = page.limit.clamp(1, crate::access::admin::LIST_PAGE) as u32;
                let read = StoreRead::Audit { before: page.after, limit };
                self.read(Purpose::Audit(id), read);
                Ok(Doing::Later)
            }
            Act::Services(page) => {
                let (after, limit) = (page.after.clone(), Some(U53::saturating(page.limit as u64)));
                self.services_list(&ServicesListParams { all: true, after, limit }).map(Doing::from)
            }
            look => self.listed(look).map(Doing::Tell),
        }
    }

    /// A mesh that anybody could join becomes its owner's.
    fn found_mesh(&mut self, owner: MemberKey) -> Result<Doing, WireError> {
        if !self.access.roll.is_open() {
            return Err(Roll::taken());
        }
        self.access.roll.founded = Some(self.clock.wall());
        self.access.roll.put_member(Roll::owner(owner, self.clock.wall()))?;
        let changes = Roll::founding(owner, self.clock.wall());
        Ok(Doing::Write(changes, Operated::Done, After::PutOut(Out::Strangers)))
    }

    /// Changes settings, if whoever asks has seen the latest.
    fn set(&mut self, version: u64, values: &Values) -> Result<Doing, WireError> {
        let found = self.settings.version;
        if version != found {
            let text = format!(
                "the settings are at version {found}, not {version}: somebody changed them; look again, then set"
            );
            let error = WireError::new(ErrorCode::Conflict, text);
            return Err(error.with_details(serde_json::json!({"version": found})));
        }
        let mut all = self.settings.values.clone();
        let mut named = BTreeMap::new();
        for (given, value) in values {
            let name = crate::access::setting::find(given)?.name;
            if let Some(other) = named.insert(name, given) {
                let text = format!("{other} and {given} are names of one setting; give one of them");
                let details = serde_json::json!({"field": given, "against": other});
                return Err(WireError::bad_request(text).with_details(details));
            }
            match value.is_null() {
                true => _ = all.remove(name),
                false => {
                    // Here what is wrong can be told under the name that was given.
                    crate::access::setting::check(given, value)?;
                    all.insert(name.to_owned(), value.clone());
                }
            }
        }
        self.with_settings(&all)?;
        let version = found + 1;
        (self.settings.values, self.settings.version) = (all.clone(), version);
        let change = Change::Settings { version, values: all };
        let answer = self.settings_shown();
        Ok(Doing::Write(vec![change], answer, After::Configure))
    }

    /// Does what was decided, behind the row that tells of it.
    fn follow(&mut self, now: Millis, id: OperateId, after: After) {
        match after {
            After::Nothing => {}
            After::Kick(session) => self.evict(session, tenure_proto::Reason::Kicked),
            After::Ban(ban) => self.ban(ban),
            After::Unban(subject) => self.unban(subject),
            After::ConfirmClock => self.confirm_clock(),
            After::PutOut(out) => {
                self.put_out(|mesh, session| mesh.is_out(session, &out));
                self.recount_rights();
            }
            After::Configure => {
                if let Ok(config) = self.with_settings(&self.settings.values) {
                    self.configure(now, (*config).clone());
                }
            }
            After::Retry(log, seqs) => {
                let done = self.retry_dead(ReplyTo::Operator(id), log, &seqs);
                self.reply(ReplyTo::Operator(id), done);
            }
            After::Drop(log, seqs) => {
                let done = self.drop_dead(ReplyTo::Operator(id), log, &seqs);
                self.reply(ReplyTo::Operator(id), done);
            }
            After::DeleteTopic(name) => {
                let done = self.delete_topic(ReplyTo::Operator(id), &name);
                self.reply(ReplyTo::Operator(id), done);
            }
            After::DeleteGroup(places) => {
                let done = self.delete_group(ReplyTo::Operator(id), &places);
                self.reply(ReplyTo::Operator(id), done);
            }
        }
    }

    /// A grant is on disk: from here on it holds.
    pub(crate) fn granted(&mut self, id: OperateId, answer: Operated, grant: Grant) {
        self.access.roll.grant(grant);
        self.recount_rights();
        self.effects.push_back(Effect::Operated { id, outcome: Ok(answer) });
    }

    /// Whether the lease of `session` is of somebody who is let in no longer.
    fn is_out(&self, session: &SessionKey, out: &Out) -> bool {
        let Some(lease) = self.sessions.lease(session) else { return false };
        match out {
            Out::Member(member) => lease.member == *member && lease.token.is_none(),
            Out::Token(id) => lease.token.as_ref() == Some(id),
            Out::Strangers => !self.access.roll.members.contains_key(&lease.member),
        }
    }

    /// Refuses a session that is not here.
    pub(crate) fn known(&self, session: &SessionKey) -> Result<(), WireError> {
        let known = self.sessions.is_leased(session);
        let gone = || WireError::new(ErrorCode::NoSuchSession, "there is no such session, or it has left");
        known.then_some(()).ok_or_else(gone)
    }

    /// A log that there is, whoever's.
    fn any_log(&self, name: &str) -> Result<LogName, WireError> {
        let log: LogName = name.parse()?;
        if let LogName::Topic(topic, partition) = &log
            && *partition >= self.messages.partitions(topic)
        {
            return Err(not_found(&format!("there is no log {log}")));
        }
        Ok(log)
    }
}

/// A text that is short enough for a row.
fn label<'a>(what: &str, text: &'a str) -> Result<&'a str, WireError> {
    match text.chars().count() <= LABEL_CHARS && !text.chars().any(is_control_or_bidi) {
        true => Ok(text),
        false => Err(WireError::bad_request(format!(
            "{what} must be at most {LABEL_CHARS} characters, on one line"
        ))
        .with_details(serde_json::json!({"field": what}))),
    }
}

/// Refuses caps that mean nothing: a person who misspells one would lock somebody out.
fn check_caps(caps: Option<&[tenure_proto::Cap]>) -> Result<(), WireError> {
    let unknown = |text: String| WireError::bad_request(text).about("caps");
    caps.unwrap_or_default().iter().try_for_each(|cap| Right::of(cap).map(|_| ()).map_err(unknown))
}

fn not_found(text: &str) -> WireError {
    WireError::new(ErrorCode::NotFound, text)
}
