//! What an admitted hello means: a new lease, a kept one, a takeover, or a no.

use tenure_kit::mutant::{self, Mutant};
use tenure_kit::time::Millis;
use tenure_proto::close::{Closing, Reason};
use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::hello::{InboxChoice, LeaseFate, Replay, ResumeOutcome};
use tenure_proto::ids::{ConnId, RequestId, SessionKey};
use tenure_proto::limits::CONTEST_RETRY_MS;
use tenure_proto::number::U53;
use tenure_proto::peer::Peer;

use crate::Mesh;
use crate::access::bans;
use crate::access::{Entry, Right, Rights};
use crate::conn::admit::{Admission, Refusal, TokenVerdict, Voucher};
use crate::effect::{Answer, Effect, HelloAnswer, Note};
use crate::input::LeaseRecord;
use crate::sessions::lease::{Carrier, Compared, Ending, Knock, Lease, Muted, State};
use crate::sessions::positions;
use crate::sessions::stream::Stream;
use crate::store::pending::Awaiting;
use crate::store::record::StoreWrite;

/// What a client whose hello must wait for the store is told to wait when the store cannot write.
pub(crate) const STORE_RETRY_MS: u64 = 1_000;

impl Mesh {
    pub(crate) fn hello(&mut self, now: Millis, conn: ConnId, request: RequestId, admission: Box<Admission>) {
        self.knock(now, Knock { conn, request, admission, compared: None });
    }

    /// A hello, for the first time or after it has waited.
    pub(crate) fn knock(&mut self, now: Millis, knock: Knock) {
        let entry = match self.may_enter(&knock.admission) {
            Ok(entry) => entry,
            Err(refusal) => return self.refuse_hello(knock, refusal),
        };
        if self.sessions.leases.get(&knock.admission.session).is_some_and(|lease| lease.is_outrun(&knock)) {
            let refusal = outrun(&knock.admission);
            return self.refuse_hello(knock, refusal);
        }
        let Some(knock) = self.compare(now, knock) else { return };
        let conn = knock.conn;
        self.take_in(&knock.admission, entry);
        match self.sessions.leases.get_mut(&knock.admission.session).map(|lease| &mut lease.state) {
            None => self.begin(now, knock),
            Some(State::Beginning(waiting) | State::Returning(waiting) | State::Ending(_, waiting)) => {
                self.sessions.knocking.insert(conn, knock.admission.session);
                let instance_id = Some(knock.admission.instance.clone());
                if let Some(older) = waiting.replace(knock) {
                    self.sessions.knocking.remove(&older.conn);
                    let closing = Closing { instance_id, ..Closing::new(Reason::SessionReplaced) };
                    self.effects.push_back(Effect::Close { conn: older.conn, closing });
                }
            }
            Some(State::Online(_)) => self.take_over(now, knock),
            Some(State::Grace) => self.come_back(now, knock),
        }
    }

    /// Somebody is back for a lease without a socket.
    fn come_back(&mut self, now: Millis, knock: Knock) {
        let session = knock.admission.session;
        let Some(lease) = self.sessions.leases.get_mut(&session) else { return };
        if lease.touched {
            return self.attach(now, knock, LeaseFate::Kept);
        }
        lease.touched = true;
        let write = StoreWrite::TouchLease(session, lease.id.clone());
        if mutant::on(Mutant::TouchNotAwaited) {
            self.write(write);
            return self.attach(now, knock, LeaseFate::Kept);
        }
        self.sessions.knocking.insert(knock.conn, session);
        lease.heard(now);
        lease.state = State::Returning(Some(knock));
        self.reschedule(session);
        self.write_and_await(session, write);
    }

    /// The store knows that somebody is back, or cannot write: then a lease neither begins nor ends, and this one goes on.
    pub(crate) fn returned(&mut self, now: Millis, session: SessionKey) {
        let Some(lease) = self.sessions.leases.get_mut(&session) else { return };
        match std::mem::replace(&mut lease.state, State::Grace) {
            State::Returning(Some(knock)) => self.attach(now, knock, LeaseFate::Kept),
            _ if self.is_doomed(&session) => self.expire(session),
            _ => self.reschedule(session),
        }
    }

    /// What can be refused without looking at the state of the lease.
    fn may_enter(&self, hello: &Admission) -> Result<Entry, Refusal> {
        if self.access.is_banned(&hello.session, &hello.member, hello.from) {
            return Err(bans::refusal());
        }
        let lease = self.sessions.leases.get(&hello.session);
        let selected = selected(hello, lease);
        if let Some(drain) = self.drain.as_ref().filter(|_| !selected) {
            return Err(drain.refusal(self.clock.now(), &hello.session));
        }
        let unauthorized = |text: &str| {
            Err(Refusal::new(WireError::new(ErrorCode::Unauthorized, text), Reason::Unauthorized))
        };
        if hello.voucher == Voucher::TokenOnly && !selected {
            return unauthorized("the token's lease has ended; say hello with an attestation");
        }
        let entry = self.entry(hello)?;
        match lease {
            Some(lease) if lease.member != hello.member => {
                return unauthorized("another member vouches for the living lease of this session");
            }
            Some(_) => return Ok(entry),
            None => {}
        }
        let own = hello.session.is_member(&hello.member);
        if !own && self.sessions.members.contains_key(&tenure_proto::MemberKey(hello.session.0)) {
            return unauthorized("this session key is another member's key; mint one per session");
        }
        let busy = |text: &str| {
            let error = WireError::new(ErrorCode::Busy, text);
            Err(Refusal::new(error.retry_after(STORE_RETRY_MS), Reason::Busy))
        };
        if self.sessions.leases.len() >= self.config.max_sessions {
            return busy("this mesh holds as many sessions as it may; try again later");
        }
        if self.sessions.members.get(&hello.member).is_some_and(|n| *n >= self.config.max_sessions_per_member)
        {
            return busy(
                "this member has as many sessions as it may; let some go, or wait for their leases to end",
            );
        }
        Ok(entry)
    }

    /// A lease begins: the store is told first, peers when it has answered.
    fn begin(&mut self, now: Millis, knock: Knock) {
        let Some(id) = self.new_lease_id() else { return };
        let Admission { session, member, ref instance, ref profile, ref voucher, .. } = *knock.admission;
        let caps = match voucher {
            Voucher::Attested(caps) => caps.clone(),
            Voucher::TokenOnly => Some(Vec::new()),
        };
        let record = LeaseRecord {
            session,
            lease: id.clone(),
            member,
            instance: instance.clone(),
            profile: profile.clone(),
            caps: caps.clone(),
            joined_at: self.clock.wall(),
        };
        let peer = Peer::new(session, member, instance.clone(), self.clock.wall(), profile);
        self.sessions.knocking.insert(knock.conn, session);
        let knock_inbox = knock.admission.inbox;
        let lease = Lease {
            id,
            restored: false,
            member,
            caps,
            may: Rights::NONE,
            token: self.token_of(&knock.admission),
            from: knock.admission.from,
            kicked: false,
            client: knock.admission.client.clone(),
            instance: instance.clone(),
            latest: None,
            state: State::Beginning(Some(knock)),
            told: self.config.terms(),
            proof: now,
            granted_until: None,
            stream: Stream::new(0, 0),
            stored: now,
            dirty: false,
            touched: true,
            inbox: knock_inbox,
            subs: Default::default(),
            takeovers: Default::default(),
        };
        self.sessions.leases.insert(session, lease);
        *self.sessions.members.entry(member).or_default() += 1;
        self.sessions.joining.insert(session, peer);
        self.write_and_await(session, StoreWrite::PutLease(Box::new(record)));
    }

    /// The store has the new lease: now it exists for everybody.
    pub(crate) fn begun(&mut self, now: Millis, session: SessionKey) {
        let Some(peer) = self.sessions.joining.remove(&session) else { return };
        self.sessions.presence.join(peer);
        self.place_anew(session);
        let Some(lease) = self.sessions.leases.get_mut(&session) else { return };
        match std::mem::replace(&mut lease.state, State::Grace) {
            State::Beginning(Some(knock)) => self.attach(now, knock, LeaseFate::New),
            // Banned or kicked while the store was being told: what it has now it forgets again.
            _ if self.is_doomed(&session) => self.expire(session),
            _ => self.reschedule(session),
        }
    }

    /// What is told to who needs the store, which cannot write: also why, if the shell has found that out.
    pub(crate) fn store_refusal(&self) -> Refusal {
        let text = match self.store.trouble().reason() {
            Some(reason) => format!("the store cannot write: {reason}"),
            None => "the store cannot write now; try again in a moment".to_owned(),
        };
        let error = WireError::new(ErrorCode::Unavailable, text);
        Refusal::new(error.retry_after(STORE_RETRY_MS), Reason::Busy)
    }

    /// The store could not take the new lease: it never was.
    pub(crate) fn not_begun(&mut self, session: SessionKey) {
        self.sessions.joining.remove(&session);
        let Some(lease) = self.forget(&session) else { return };
        if let State::Beginning(Some(knock)) = lease.state {
            self.sessions.knocking.remove(&knock.conn);
            let refusal = self.store_refusal();
            self.refuse_hello(knock, refusal);
        }
    }

    /// Another socket for a session that has one.
    fn take_over(&mut self, now: Millis, knock: Knock) {
        let session = knock.admission.session;
        let Some(lease) = self.sessions.leases.get_mut(&session) else { return };
        let other_process = lease.instance != knock.admission.instance;
        if other_process && lease.contested(now) {
            let error = WireError::new(
                ErrorCode::SessionContested,
                "several processes use this session key in turn; give each its own",
            );
            return self.refuse_hello(
                knock,
                Refusal::new(error.retry_after(CONTEST_RETRY_MS), Reason::SessionContested),
            );
        }
        let client = lease.client.clone();
        if let Some(conn) = lease.conn() {
            let instance_id = Some(knock.admission.instance.clone());
            let closing = Closing { instance_id, ..Closing::new(Reason::SessionReplaced) };
            self.sessions.conns.remove(&conn);
            self.forget_fetches(session);
            self.effects.push_back(Effect::Close { conn, closing });
            self.effects.push_back(Effect::Note(Note::SessionReplaced {
                session,
                conn,
                client,
                other_process,
            }));
        }
        self.attach(now, knock, LeaseFate::Kept);
    }

    /// A socket carries the lease from here on; the hello is answered.
    pub(crate) fn attach(&mut self, now: Millis, knock: Knock, fate: LeaseFate) {
        let Knock { conn, request, admission, compared } = knock;
        let Compared { mut rewound, proven } = compared.unwrap_or_default();
        self.sessions.knocking.remove(&conn);
        let session = admission.session;
        self.refresh_peer(&admission);
        // One that expired while the store was told still says when the lease is over: now.
        let token = self.access.bearer(&admission.member, &admission.presented);
        let may = self.rights_by(&admission, token.as_ref());
        self.regain_services(now, session, may.allow(Right::Serve));
        let epoch = self.next_number();
        let (version, health_version) = (self.sessions.presence.version(), self.sessions.health_version);
        let (boot, cursor_epoch) = (self.numbering.boot(), admission.position.as_ref());
        let Some(lease) = self.sessions.leases.get_mut(&session) else { return };
        let (outcome, reason) = outcome(&admission, lease, fate);
        let known =
            cursor_epoch.filter(|(name, _)| name.as_str() == format!("e{boot}-{}", lease.stream.epoch()));
        let complete = outcome == ResumeOutcome::Resumed
            && lease.stream.epoch() != 0
            && known.is_some_and(|(_, last_seq)| lease.stream.rewind(*last_seq));
        if !complete {
            let services = self.services.feed().version();
            lease.stream = Stream::new(epoch, version).with_health(health_version).with_services(services);
        }
        let (muted, auto) = (Muted::No, Vec::new());
        // Its hello is about to be answered.
        let unanswered = 1;
        let (unflushed, counted) = (None, admission.counted);
        // Of logs that it may not read it learns nothing.
        if !may.allow(Right::Read) {
            rewound.clear();
        }
        let carrier = Carrier {
            conn,
            pinged: now,
            sent: now,
            unflushed,
            muted,
            announced: None,
            unanswered,
            counted,
            auto,
            shared: positions::shared_history(&admission, &rewound),
        };
        lease.state = State::Online(carrier);
        lease.latest = Some(conn);
        lease.client.clone_from(&admission.client);
        lease.told = self.config.terms();
        lease.proof = lease.proof.max(now);
        lease.granted_until = None;
        (lease.token, lease.from, lease.kicked) = (token, admission.from, false);
        lease.inbox = admission.inbox;
        lease.subs.release_at = None;
        // Whoever waited for entries on the socket before does not any more.
        lease.subs.iter_mut().for_each(|(_, sub)| sub.lose_socket());
        let member = lease.member;
        if let Voucher::Attested(caps) = &admission.voucher
            && lease.caps != *caps
        {
            lease.caps.clone_from(caps);
            lease.dirty = true;
        }
        lease.may = may;
        if !lease.may.allow(Right::Read) {
            lease.inbox = InboxChoice::None;
        }
        let (inbox, runs) = (lease.inbox, lease.may.allow(Right::Run));
        let lease_id = lease.id.clone();
        self.sessions.conns.insert(conn, session);
        self.sessions.caught_up.remove(&session);
        self.sessions.ready.insert(session);
        if !complete {
            self.renumber_runs(session);
        }
        if !runs {
            self.lose_runs(session);
        }
        self.note_attach(&admission, conn, fate, outcome, reason, complete);
        if !rewound.is_empty() {
            self.effects.push_back(Effect::Note(Note::HistoryRewound { session, conn, logs: rewound.len() }));
        }
        self.settle_startup(&session, Some(conn));
        self.choose_inboxes(session, member, inbox);
        let resumed = outcome == ResumeOutcome::Resumed;
        let asked = admission.reconcile.as_ref();
        self.messages.know_proven(proven);
        let reconciled = self.take_up_deliveries(now, session, conn, asked, resumed);
        self.messages.know_proven(Default::default());
        let answer = self.hello_answer(&admission, fate, outcome, reason, complete, lease_id);
        let answer = answer.map(|answer| HelloAnswer { rewound, ..answer });
        match (answer, reconciled) {
            (Some(mut answer), Some((result, true))) => {
                // What it settled must be on disk before it is told so.
                answer.reconcile = Some(result);
                self.mute(session, Muted::All);
                self.store.wait_for_round(Awaiting::Hello(conn, request, Box::new(answer)));
            }
            (Some(mut answer), reconciled) => {
                answer.reconcile = reconciled.map(|(result, _)| result);
                self.effects.push_back(crate::respond(conn, request, Answer::Hello(Box::new(answer))));
            }
            (None, _) => {}
        }
        self.reschedule(session);
        self.greet_late(session);
    }

    /// Answers a hello that is not let in, and closes its socket.
    pub(crate) fn refuse_hello(&mut self, knock: Knock, refusal: Refusal) {
        let Knock { conn, request, admission, .. } = knock;
        let code = refusal.error.code.as_str();
        let (session, client) = (admission.session, admission.client.clone());
        self.effects.push_back(Effect::Note(Note::HelloRefused { session, conn, client, code }));
        self.effects.push_back(Effect::Respond { conn, request, outcome: Err(refusal.error) });
        self.effects.push_back(Effect::Close { conn, closing: refusal.closing });
    }

    #[allow(clippy::too_many_arguments)]
    fn note_attach(
        &mut self,
        admission: &Admission,
        conn: ConnId,
        fate: LeaseFate,
        outcome: ResumeOutcome,
        reason: Option<&'static str>,
        complete: bool,
    ) {
        let session = admission.session;
        if fate == LeaseFate::New {
            self.effects.push_back(Effect::Note(Note::IdentityIssued {
                session,
                conn,
                client: admission.client.clone(),
            }));
        }
        let client = admission.client.clone();
        let note = match (outcome, reason) {
            (ResumeOutcome::Resumed, _) => Note::ResumeAccepted { session, conn, client, complete },
            (ResumeOutcome::ResumeNotFound, reason) => {
                let reason = reason.unwrap_or("lease_ended");
                Note::ResumeRejected { session, conn, client, reason, known: false }
            }
            (_, Some(reason)) => Note::ResumeRejected { session, conn, client, reason, known: true },
            _ if fate == LeaseFate::Kept => Note::AttachedByKey { session, conn, client },
            _ => return,
        };
        self.effects.push_back(Effect::Note(note));
    }

    /// The hello says what the session looks like now. Peers hear of it only if they would see a difference.
    fn refresh_peer(&mut self, admission: &Admission) {
        let session = admission.session;
        let Some(old) = self.sessions.presence.get(&session) else { return };
        let old = old.get();
        let fresh = Peer {
            services: old.services.clone(),
            ..Peer::new(
                session,
                old.member,
                admission.instance.clone(),
                old.joined_at.get(),
                &admission.profile,
            )
        };
        if *old == fresh {
            return;
        }
        if old.profile().differs_visibly(&admission.profile) {
            self.sessions.presence.update(fresh);
        } else {
            self.sessions.presence.update_quietly(fresh);
        }
        if let Some(lease) = self.sessions.leases.get_mut(&session) {
            lease.instance = admission.instance.clone();
            lease.dirty = true;
        }
    }

    fn hello_answer(
        &mut self,
        admission: &Admission,
        lease: LeaseFate,
        outcome: ResumeOutcome,
        reason: Option<&'static str>,
        complete: bool,
        lease_id: tenure_proto::LeaseId,
    ) -> Option<HelloAnswer> {
        let session = admission.session;
        let snapshot = (!complete).then(|| Box::new(self.snapshot(session)));
        let stream = &self.sessions.leases.get(&session)?.stream;
        let mut state_version = self.state_version();
        if complete {
            // It replaces what the client has, and the replay goes on from there.
            state_version.presence = U53::saturating(stream.presence());
            state_version.services = U53::saturating(stream.services());
            state_version.health = U53::saturating(stream.health());
        }
        Some(HelloAnswer {
            session,
            mesh: admission.mesh.clone(),
            lease_id,
            lease,
            outcome,
            reason,
            epoch: self.epoch_name(stream.epoch())?,
            next_seq: stream.next_seq(),
            replay: if complete { Replay::Complete } else { Replay::Resync },
            snapshot,
            state_version,
            reconcile: None,
            rewound: Vec::new(),
            config: self.config.clone(),
        })
    }

    /// A socket that waited for the store is gone before the store answered.
    pub(crate) fn closed_while_waiting(&mut self, conn: ConnId) {
        let Some(session) = self.sessions.knocking.remove(&conn) else { return self.stop_comparing(conn) };
        if let Some(State::Beginning(waiting) | State::Returning(waiting) | State::Ending(_, waiting)) =
            self.sessions.leases.get_mut(&session).map(|lease| &mut lease.state)
        {
            *waiting = None;
        }
    }

    /// Whoever waits for the store to answer is told no before it has.
    pub(crate) fn turn_away(&mut self, session: SessionKey, refusal: impl FnOnce() -> Refusal) {
        if let Some(State::Beginning(waiting) | State::Returning(waiting) | State::Ending(_, waiting)) =
            self.sessions.leases.get_mut(&session).map(|lease| &mut lease.state)
            && let Some(knock) = waiting.take()
        {
            self.sessions.knocking.remove(&knock.conn);
            self.refuse_hello(knock, refusal());
        }
    }

    /// A lease whose end the store could not take lives on, with whoever came back for it meanwhile.
    pub(crate) fn not_ended(&mut self, now: Millis, session: SessionKey) {
        let Some(lease) = self.sessions.leases.get_mut(&session) else { return };
        let State::Ending(ending, waiting) = std::mem::replace(&mut lease.state, State::Grace) else {
            return;
        };
        // If its time is over it gets a little more, and then the store is asked again.
        let over =
            if matches!(ending, Ending::Banned | Ending::Kicked) { now } else { lease.until(&self.config) };
        lease.granted_until = Some(over.max(now.plus(STORE_RETRY_MS)));
        if let Ending::Bye(conn, request) = ending {
            let outcome = Err(self.store_refusal().error);
            self.effects.push_back(Effect::Respond { conn, request, outcome });
            self.effects.push_back(Effect::Close { conn, closing: self.store_refusal().closing });
        }
        match waiting {
            Some(knock) => self.come_back(now, knock),
            None => self.reschedule(session),
        }
    }
}

/// Whether the hello's token selects this living lease.
fn selected(hello: &Admission, lease: Option<&Lease>) -> bool {
    matches!((&hello.token, lease), (TokenVerdict::Selects(id), Some(lease)) if lease.id == *id)
}

fn outcome(hello: &Admission, lease: &Lease, fate: LeaseFate) -> (ResumeOutcome, Option<&'static str>) {
    match &hello.token {
        TokenVerdict::Absent => (ResumeOutcome::New, None),
        TokenVerdict::Rejected(reason) => (ResumeOutcome::ResumeRejected, Some(reason)),
        // A lease that begins now was never anybody's before.
        TokenVerdict::Selects(id) if *id == lease.id && fate == LeaseFate::Kept => {
            (ResumeOutcome::Resumed, None)
        }
        TokenVerdict::Selects(_) => (ResumeOutcome::ResumeNotFound, Some("lease_ended")),
    }
}

/// A later socket of the same process was here before this hello.
pub(crate) fn outrun(hello: &Admission) -> Refusal {
    let error = WireError::new(ErrorCode::Conflict, "a later socket of this process carries the session");
    let mut refusal = Refusal::new(error, Reason::SessionReplaced);
    refusal.closing.instance_id = Some(hello.instance.clone());
    refusal
}
