//! The handshake from the client's side: answer the challenge, take up the session.

use tenure_kit::mutant::{self, Mutant};
use tenure_kit::time::{Millis, Now};
use tenure_proto::canonical::{Attested, Proof};
use tenure_proto::error::WireError;
use tenure_proto::frame::Response;
use tenure_proto::hello::{
    Attestation, Challenge, HelloParams, HelloResult, ProtocolRange, Replay, ResumeParams,
};
use tenure_proto::limits::{PROTOCOL, frame_bytes};
use tenure_proto::number::U53;

use crate::{Current, DIAL_MS, Link, LinkEffect, Phase, Position, SessionEvent, SockId, Voucher};

/// How long a minted attestation is good: long enough for any hello, short enough to be worth nothing later.
const ATTESTED_MS: u64 = 10 * 60 * 1000;

impl Link {
    pub(super) fn challenged(&mut self, now: Now, sock: SockId, bytes: &[u8]) {
        let Some(challenge) = crate::challenge(self.config.codec, bytes) else {
            return self.garbled(now.at, sock);
        };
        self.broker_clock = Some((now.at, challenge.ts.get()));
        let hello = self.hello(&challenge);
        let said = hello.profile.clone();
        let frame = self.hello_frame(hello);
        self.effects.push_back(LinkEffect::Send(sock, frame));
        if let Some(next) = &mut self.next {
            next.said = Some(said);
            next.phase = Phase::AwaitingHello;
            next.until = now.at.plus(DIAL_MS);
        }
    }

    fn hello(&self, challenge: &Challenge) -> HelloParams {
        let config = &self.config;
        let (mesh, member, session) = (config.mesh.clone(), config.member(), config.session());
        let proof = Proof {
            mesh: &mesh,
            member: &member,
            session: &session,
            nonce: &challenge.nonce,
            broker: &challenge.broker,
            host: &config.host,
        }
        .sign(&config.session_key);
        HelloParams {
            protocol: ProtocolRange { min: PROTOCOL, max: PROTOCOL },
            client: config.client.clone(),
            attestation: self.attestation(challenge),
            mesh,
            member,
            session,
            proof,
            resume: self.resume.as_ref().map(|position| ResumeParams {
                token: position.token.clone(),
                epoch: Some(position.epoch.clone()),
                last_seq: Some(U53::saturating(position.last_seq)),
            }),
            reconcile: None,
            positions: self.positions(),
            inbox: config.inbox,
            profile: self.profile.clone(),
            features: config.features.clone(),
            auth: config.auth.clone(),
        }
    }

    /// The member's word, minted on the broker's own clock so that ours may be wrong.
    fn attestation(&self, challenge: &Challenge) -> Option<Attestation> {
        let (key, caps) = match &self.config.voucher {
            Voucher::Own => return None,
            Voucher::Attestation(_, attestation) => return Some(attestation.clone()),
            Voucher::MemberKey(key, caps) => (key, caps),
        };
        let (member, session) = (self.config.member(), self.config.session());
        if session.is_member(&member) {
            return None;
        }
        let expires_at = challenge.ts.get() + ATTESTED_MS;
        let attested = Attested {
            mesh: &self.config.mesh,
            member: &member,
            session: &session,
            expires_at,
            caps: caps.as_deref(),
        };
        let signature = attested.sign(key);
        Some(Attestation { expires_at: U53::saturating(expires_at), caps: caps.clone(), signature })
    }

    pub(super) fn hello_answered(&mut self, now: Millis, sock: SockId, bytes: &[u8]) {
        let answer: Response<HelloResult> = match self.config.codec.decode(bytes) {
            Ok(answer) => answer,
            Err(_) => return self.garbled(now, sock),
        };
        match (answer.result, answer.error) {
            (Some(result), _) => self.attached(now, sock, result),
            (None, Some(error)) => self.refused(error),
            (None, None) => self.garbled(now, sock),
        }
    }

    /// The broker said no; its `closing` follows and says what to do about it.
    fn refused(&mut self, error: WireError) {
        if let Some(next) = &mut self.next {
            next.refused = Some(error);
        }
    }

    fn attached(&mut self, now: Millis, sock: SockId, result: HelloResult) {
        let said = self.next.take().and_then(|next| next.said);
        self.redial_at = None;
        if let Some(old) = self.current.take() {
            self.effects.push_back(LinkEffect::Drop(old.sock));
            self.broken();
        }
        self.heard = now;
        self.policy.lease_ttl_ms = result.lease_ttl_ms.get();
        self.policy.ping_interval_ms = result.policy.ping_interval_ms.get().max(1);
        self.policy.tick_interval_ms = result.policy.tick_interval_ms.get().max(1);
        let max_payload = usize::try_from(result.policy.max_payload.get()).unwrap_or(usize::MAX / 2);
        self.policy.frame_bytes = frame_bytes(max_payload);
        self.policy.max_payload = max_payload;
        let last_seq = result.events.next_seq.get().saturating_sub(1);
        self.resume = Some(Position {
            token: result.resume.token.clone(),
            epoch: result.events.epoch.clone(),
            last_seq,
        });
        self.current = Some(Current { sock, since: now, pinged: now, probe_until: None, leave: None });
        let (lease, replay, verdicts) = (result.lease, result.events.replay, result.reconcile.clone());
        let (rewound, outcome) = (result.rewound.clone(), result.resume.clone());
        self.effects.push_back(LinkEffect::Deliver(SessionEvent::Attached(Box::new(result))));
        // Before anything else is said of places in logs, or comes from them.
        self.rewind(&rewound, &outcome);
        // A reconciliation that was announced must be the next frame.
        self.reconcile(sock, lease, verdicts);
        self.send_waiting();
        if said.is_some_and(|said| said != self.profile) && !mutant::on(Mutant::HelloHasTheLastWord) {
            // The old socket took a change after this hello was written, and the hello has undone it.
            self.say_profile();
        }
        if replay == Replay::Resync {
            self.ask_receipts();
            self.ask_calls();
            self.ask_runs();
        }
        self.offer_again(now);
        self.settle_all(now);
    }
}
