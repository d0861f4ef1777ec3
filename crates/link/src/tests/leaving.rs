//! A broker that stops in good order, and an SDK that does not wait to be thrown out.

use tenure_proto::method::Method;

use super::*;
use crate::tests::peer::*;

fn shutdown(peer: &mut Peer) -> Vec<LinkEffect> {
    let told = json!({"reason": "upgrade", "restartExpectedMs": 2_000, "deadlineMs": 5_000, "reconnectAfterMs": 2_500});
    peer.event("shutdown", told)
}

/// Whether the socket was let go, and the wait before the next dial, without the back-off's own part.
fn left(peer: &Peer, effects: &[LinkEffect]) -> Option<u64> {
    let dropped = effects.iter().any(|effect| matches!(effect, LinkEffect::Drop(sock) if *sock == peer.sock));
    let waiting = effects.iter().find_map(|effect| match effect {
        LinkEffect::Deliver(SessionEvent::Waiting { ms, reason, answered: true }) if reason == "restart" => {
            Some(*ms)
        }
        _ => None,
    });
    assert_eq!(dropped, waiting.is_some(), "{effects:?}");
    waiting
}

/// The SDK stayed until the broker threw it out.
#[test]
fn an_idle_session_leaves_at_once_and_comes_back_when_it_is_asked_to() {
    let mut peer = Peer::new();
    let effects = shutdown(&mut peer);
    let told = |effect: &LinkEffect| matches!(effect, LinkEffect::Deliver(SessionEvent::Event { .. }));
    assert!(told(&effects[0]), "the application hears of it first: {effects:?}");
    let wait = left(&peer, &effects).expect("it goes");
    assert!((2_500..3_500).contains(&wait), "{wait}");
    assert!(!peer.world.link.is_attached());
    let early = peer.world.pass(2_400);
    assert!(!early.iter().any(|effect| matches!(effect, LinkEffect::Dial(_))), "not before it was asked to");
    peer.sock = peer.world.redial();
    let sock = peer.sock;
    peer.world.challenge(sock);
    peer.welcome("kept", "resumed", None);
    assert!(peer.world.link.is_attached());
}

#[test]
fn what_is_in_hand_is_settled_first_and_sends_go_on_until_then() {
    let mut peer = Peer::new();
    peer.subscribe(Some("crew"), "s1", 1);
    let id = peer.hand("s1", 1);
    let effects = shutdown(&mut peer);
    assert_eq!(left(&peer, &effects), None, "it has something in hand");
    peer.request(Method::Ping, json!({}));
    let ping = only(&peer.world.take(), "ping");
    let answered = peer.reply(id_of(&ping), json!({"ts": 1}));
    assert_eq!(left(&peer, &answered), None);
    let (_, ack) = peer.ack(id);
    let tag = ack["params"]["tags"][0].clone();
    let effects = peer.reply(id_of(&ack), json!({"settled": [tag], "stale": []}));
    assert!(left(&peer, &effects).is_some(), "nothing is in hand any more");
}

#[test]
fn what_has_left_is_answered_first_and_what_is_new_waits_for_the_next_socket() {
    let mut peer = Peer::new();
    peer.request(Method::Ping, json!({}));
    let first = only(&peer.world.take(), "ping");
    let effects = shutdown(&mut peer);
    assert_eq!(left(&peer, &effects), None, "an answer is on its way");
    peer.request(Method::Ping, json!({}));
    assert_eq!(sent(&peer.world.take()), Vec::<Value>::new());
    let effects = peer.reply(id_of(&first), json!({"ts": 1}));
    assert!(left(&peer, &effects).is_some());
    peer.sock = peer.world.redial();
    let sock = peer.sock;
    peer.world.challenge(sock);
    only(&peer.welcome("kept", "resumed", None), "ping");
}

#[test]
fn the_deadline_is_the_end_of_it_whatever_is_in_hand() {
    let mut peer = Peer::new();
    peer.subscribe(Some("crew"), "s1", 1);
    peer.hand("s1", 1);
    shutdown(&mut peer);
    let effects = peer.world.pass(4_900);
    assert_eq!(left(&peer, &effects), None);
    let effects = peer.world.pass(200);
    let wait = left(&peer, &effects).expect("it goes");
    assert!(wait < 1_000, "it had been asked to be back before that: {wait}");
}

#[test]
fn a_socket_that_breaks_after_a_shutdown_is_dialled_again_when_the_broker_asked_for_it() {
    let mut peer = Peer::new();
    peer.subscribe(Some("crew"), "s1", 1);
    peer.hand("s1", 1);
    shutdown(&mut peer);
    let sock = peer.sock;
    let effects = peer.world.input(LinkInput::Gone(sock, None));
    let waits = effects.iter().find_map(|effect| match effect {
        LinkEffect::Deliver(SessionEvent::Waiting { ms, .. }) => Some(*ms),
        _ => None,
    });
    assert!(waits.is_some_and(|ms| ms >= 2_500), "{effects:?}");
}
