//! Every event.

use serde_json::{Value, json};

use super::frames::event;
use super::samples::{self, NOW, id, n, some};
use crate::close::{Closing, Reason};
use crate::event::{
    EventBody, HealthEvent, Notice, PresenceEvent, PresenceKind, Receipt, ReceiptState, Resync, ResyncWhat,
    Shutdown, Tick,
};
use crate::hello::{Challenge, HealthStatus};
use crate::peer::SharedPeer;
use crate::run::{RunEnd, RunEndStatus, RunEvent};
use crate::service::{ServiceEvent, ServiceEventKind, ServiceState};
use crate::subscribe::{SubscriptionEvent, SubscriptionEventKind};

pub(super) fn events() -> Vec<Value> {
    let mut events = of_the_socket();
    events.extend(of_state());
    events.extend(of_messages());
    events.extend(of_runs());
    events
}

fn of_the_socket() -> Vec<Value> {
    let challenge = Challenge {
        nonce: "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8".to_owned(),
        ts: n(NOW),
        broker: "broker-1".to_owned(),
    };
    let replaced = Closing { instance_id: Some(id("instance-2")), ..Closing::new(Reason::SessionReplaced) };
    let restart = Closing::new(Reason::Restart).retry_after(5000);
    let newer = Closing { code: 4099, reason: "of_tomorrow".to_owned(), ..Closing::new(Reason::Stale) };
    let stopping = Shutdown {
        reason: "restart".to_owned(),
        restart_expected_ms: Some(n(5000)),
        deadline_ms: n(10_000),
        reconnect_after_ms: n(1234),
    };
    let going = Shutdown { reason: "going_away".to_owned(), restart_expected_ms: None, ..stopping.clone() };
    vec![
        event("challenge", None, EventBody::Challenge(challenge)),
        event("closing, stale", None, EventBody::Closing(Closing::new(Reason::Stale))),
        event("closing, replaced", None, EventBody::Closing(replaced)),
        event("closing, restart", None, EventBody::Closing(restart)),
        event("closing, for a reason of tomorrow", None, EventBody::Closing(newer)),
        event("tick", Some(1), EventBody::Tick(Tick { ts: n(NOW) })),
        event("shutdown to come back", Some(2), EventBody::Shutdown(stopping)),
        event("shutdown for good", Some(2), EventBody::Shutdown(going)),
    ]
}

fn of_state() -> Vec<Value> {
    let presence = |kind, peer| {
        let peer = SharedPeer::new(peer);
        EventBody::Presence(PresenceEvent { kind, peer, base: n(8), version: n(9) })
    };
    let service = |kind, state, degraded| {
        let service = crate::service::Service { state, degraded, ..samples::service() };
        EventBody::Service(ServiceEvent { kind, service, base: n(3), version: n(4) })
    };
    let resync = |what: &[ResyncWhat]| EventBody::Resync(Resync { what: what.to_vec() });
    let all = [ResyncWhat::Presence, ResyncWhat::Services, ResyncWhat::Health];
    let notice =
        Notice { code: "group_deleted".to_owned(), message: "nobody used it for 30 days".to_owned() };
    vec![
        event("presence, joined", Some(127), presence(PresenceKind::Joined, samples::peer())),
        event("presence, updated", Some(128), presence(PresenceKind::Updated, samples::peer_least())),
        event("presence, left", Some(70_000), presence(PresenceKind::Left, samples::peer())),
        event("service, online", Some(3), service(ServiceEventKind::Online, ServiceState::Online, false)),
        event("service, stale", Some(4), service(ServiceEventKind::Stale, ServiceState::Stale, false)),
        event("service, updated", Some(5), service(ServiceEventKind::Updated, ServiceState::Online, true)),
        event("service, gone", Some(6), service(ServiceEventKind::Gone, ServiceState::Stale, false)),
        event(
            "health",
            Some(7),
            EventBody::Health(HealthEvent { status: HealthStatus::Draining, version: n(2) }),
        ),
        event("resync of one", Some(8), resync(&all[..1])),
        event("resync of all", Some(9), resync(&all)),
        event("notice", Some(9_007_199_254_740_991), EventBody::Notice(notice)),
    ]
}

fn of_messages() -> Vec<Value> {
    let receipt = |state, reason: Option<&str>| {
        EventBody::Receipt(Receipt {
            id: samples::message_id(),
            client_message_id: id("a b"),
            state,
            reason: reason.map(str::to_owned),
        })
    };
    let gap = SubscriptionEvent {
        sub_id: id("sub-1"),
        kind: SubscriptionEventKind::Gap,
        partition: Some(0),
        from: Some(n(5)),
        to: Some(n(9)),
        reason: None,
    };
    let closed = SubscriptionEvent {
        kind: SubscriptionEventKind::Closed,
        partition: None,
        from: None,
        to: None,
        reason: some("topic_deleted"),
        ..gap.clone()
    };
    vec![
        event("message", Some(10), EventBody::Message(Box::new(samples::delivery(samples::message(), 1)))),
        event(
            "message of bytes, again",
            Some(11),
            EventBody::Message(Box::new(samples::delivery(samples::message_bytes(), 2))),
        ),
        event("receipt, delivered", Some(12), receipt(ReceiptState::Delivered, None)),
        event("receipt, dead", Some(13), receipt(ReceiptState::Dead, Some("max_attempts"))),
        event("receipt, expired", Some(14), receipt(ReceiptState::Expired, Some("expired"))),
        event("subscription, gap", Some(15), EventBody::Subscription(gap)),
        event("subscription, closed", Some(16), EventBody::Subscription(closed)),
    ]
}

fn of_runs() -> Vec<Value> {
    let piece = RunEvent {
        run_id: samples::run_id(),
        seq: Some(n(1)),
        data: Some(json!({"text": "ü"})),
        end: None,
        cancel: false,
        gap: false,
    };
    let after_gap = RunEvent { seq: Some(n(5)), gap: true, ..piece.clone() };
    let end = RunEnd { status: RunEndStatus::Ok, result: Some(json!(42)), error: None };
    let last = RunEvent { seq: Some(n(2)), data: None, end: Some(end), ..piece.clone() };
    let cancel = RunEvent { seq: None, data: None, cancel: true, ..piece.clone() };
    vec![
        event("run, a piece", Some(17), EventBody::Run(piece)),
        event("run, a piece after a gap", Some(18), EventBody::Run(after_gap)),
        event("run, the end", Some(19), EventBody::Run(last)),
        event("run, cancel", Some(20), EventBody::Run(cancel)),
    ]
}
