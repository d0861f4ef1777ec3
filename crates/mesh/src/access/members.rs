//! Who is let in, and what they may do once they are.

use std::sync::Arc;

use tenure_kit::mutant::{self, Mutant};
use tenure_kit::time::Millis;
use tenure_proto::close::Reason;
use tenure_proto::error::{ErrorCode, WireError};
use tenure_proto::ids::{GrantId, MemberKey, SessionKey};

use crate::Mesh;
use crate::access::setting;
use crate::access::{AccessWrite, AuditRecord, Entry, Right, Rights};
use crate::conn::admit::{Admission, Refusal, Voucher};
use crate::effect::Effect;
use crate::input::Call;
use crate::sessions::lease::{Lease, State};
use crate::store::pending::Awaiting;
use crate::store::record::StoreWrite;

impl Mesh {
    /// What those may who were here before a start, and who of them may not be.
    pub(crate) fn recall_rights(&mut self) {
        // By which token somebody came is not kept: what those may who are no members is known when they are back.
        for lease in self.sessions.leases_mut().map(|(_, lease)| lease) {
            lease.may = self.access.roll.rights(&lease.member, None).narrowed(lease.caps.as_deref());
        }
        // A ban that was on disk before the ends of what it banned.
        let doomed: Vec<SessionKey> =
            self.sessions.keys().filter(|key| self.is_doomed(key)).copied().collect();
        for session in doomed {
            if let Some(lease) = self.sessions.lease_mut(&session) {
                lease.granted_until = Some(Millis(0));
            }
            self.reschedule(session);
        }
    }

    /// Whether any key may join.
    pub fn is_open(&self) -> bool {
        self.access.roll.is_open()
    }

    /// How a hello is let in, if it is.
    pub(crate) fn entry(&self, hello: &Admission) -> Result<Entry, Refusal> {
        self.access.roll.entry(&hello.member, &hello.presented, self.clock.shown()).map_err(|error| {
            let reason = if error.code == ErrorCode::Busy { Reason::Busy } else { Reason::Unauthorized };
            Refusal::new(error, reason)
        })
    }

    /// The token that a hello is let in by.
    pub(crate) fn token_of(&self, hello: &Admission) -> Option<GrantId> {
        match self.entry(hello) {
            Ok(Entry::Token(id)) => Some(id),
            _ => None,
        }
    }

    /// What a session may from this hello on, which is let in by `token` if by any.
    pub(crate) fn rights_by(&self, hello: &Admission, token: Option<&GrantId>) -> Rights {
        let Some(lease) = self.sessions.lease(&hello.session) else { return Rights::NONE };
        let caps = match &hello.voucher {
            Voucher::Attested(caps) => caps.as_deref(),
            _ => lease.caps.as_deref(),
        };
        self.access.roll.rights(&lease.member, token).narrowed(caps)
    }

    /// Somebody who was invited becomes a member: the use of the invite and the member's row are one write. The hello goes
    /// on as a member's, whose lease is written behind it.
    pub(crate) fn take_in(&mut self, hello: &Admission, entry: Entry) {
        let Entry::Invited(invite) = entry else { return };
        let member = hello.member;
        let changes = self.access.roll.redeem(member, &invite, self.clock.wall());
        let audit = AuditRecord {
            at: self.clock.wall(),
            who: format!("member:{member}"),
            from: hello.from.map(|from| from.to_string()).unwrap_or_default(),
            act: "member.join".to_owned(),
            subject: format!("invite:{}", invite.id),
            outcome: "ok".to_owned(),
            details: serde_json::json!({"by": invite.by, "role": invite.role, "caps": invite.caps}),
        };
        let write = StoreWrite::Access(Box::new(AccessWrite { changes, audit: Some(audit) }));
        self.write_for(Awaiting::Joined(member, invite.id.clone()), write);
    }

    /// The store could not take a member: it is none, and whoever is here as one is not.
    pub(crate) fn not_joined(&mut self, member: MemberKey, invite: &GrantId) {
        self.access.roll.unredeem(&member, invite);
        let here = self.sessions.leases().filter(|(_, lease)| {
            lease.member == member && lease.token.is_none() && matches!(lease.state, State::Online(_))
        });
        for session in here.map(|(session, _)| *session).collect::<Vec<_>>() {
            self.evict(session, Reason::Kicked);
        }
    }

    /// Whether a session may do something.
    pub(crate) fn may(&self, session: SessionKey, right: Right) -> Result<(), WireError> {
        match self.sessions.lease(&session) {
            Some(lease) if !lease.may.allow(right) => {
                let cap = right.as_str();
                let text =
                    format!("this needs the cap {cap}, which its member or its attestation does not give");
                Err(WireError::new(ErrorCode::Forbidden, text).with_details(serde_json::json!({"cap": cap})))
            }
            _ => Ok(()),
        }
    }

    /// Why a session may not ask this, if it may not. What is looked up by its id first, or has a verdict for each of its
    /// parts, asks for itself.
    pub(crate) fn forbidden(&self, session: SessionKey, call: &Call) -> Option<WireError> {
        if matches!(call, Call::Send(_) | Call::ServiceRenew(_)) || mutant::on(Mutant::RightsUnchecked) {
            return None;
        }
        self.may(session, call.method().needs()?).err()
    }

    /// What members may has changed: everybody's rights are counted anew. A person's doing, so it looks at every lease. Streams
    /// end of those who may have none any more, and what they offer is stale from here on. Whoever is put out loses all that
    /// with the lease.
    pub(crate) fn recount_rights(&mut self) {
        let (roll, mut poorer) = (&self.access.roll, Vec::new());
        for (session, lease) in self.sessions.leases_mut().filter(|(_, lease)| !lease.kicked) {
            let may = roll.rights(&lease.member, lease.token.as_ref()).narrowed(lease.caps.as_deref());
            let loses = |right| lease.may.allow(right) && !may.allow(right);
            if loses(Right::Serve) || loses(Right::Run) {
                poorer.push((*session, loses(Right::Serve)));
            }
            lease.may = may;
        }
        for (session, serves) in poorer {
            if serves {
                self.lose_services(self.clock.now(), session);
            }
            self.effects.push_back(Effect::Cut { session, name: None, reason: "forbidden" });
        }
        let mute = |(session, lease): (&SessionKey, &Lease)| {
            (!lease.kicked && !lease.may.allow(Right::Run)).then_some(*session)
        };
        for session in self.sessions.leases().filter_map(mute).collect::<Vec<_>>() {
            self.lose_runs(session);
        }
    }

    /// Ends the sessions of which `gone` says so: they are let in no longer.
    pub(crate) fn put_out(&mut self, gone: impl Fn(&Mesh, &SessionKey) -> bool) {
        let out: Vec<SessionKey> =
            self.sessions.keys().filter(|session| gone(self, session)).copied().collect();
        for session in out {
            self.evict(session, Reason::Kicked);
        }
    }

    /// The numbers with these settings, if they hold together.
    pub(crate) fn with_settings(
        &self,
        values: &setting::Values,
    ) -> Result<Arc<crate::MeshConfig>, WireError> {
        setting::apply(&self.settings.base, values).map(Arc::new)
    }
}
