//! Offers: renewed all in one frame, said anew after every break, and their verdicts told when they change.

use tenure_proto::error::WireError;
use tenure_proto::service::{ServiceKind, ServiceOffer};

use super::*;
use crate::tests::peer::*;

fn offer(name: &str) -> ServiceOffer {
    ServiceOffer {
        name: name.to_owned(),
        kind: ServiceKind::Tcp,
        ttl_ms: None,
        metadata: Default::default(),
        degraded: false,
    }
}

impl Peer {
    fn try_offer(&mut self, offer: ServiceOffer) -> Result<(OfferHandle, Vec<LinkEffect>), WireError> {
        let world = &mut self.world;
        let handle = world.link.offer(world.now, offer)?;
        Ok((handle, world.take()))
    }

    fn withdraw(&mut self, handle: OfferHandle) -> Vec<LinkEffect> {
        let world = &mut self.world;
        world.link.withdraw_offer(world.now, handle);
        world.take()
    }

    /// Answers a renewal: for each name a yes, or a code.
    fn judge(&mut self, frame: &Value, verdicts: &[(&str, Option<&str>)]) -> Vec<String> {
        let result = |(name, code): &(&str, Option<&str>)| match code {
            None => json!({"name": name, "ok": true}),
            Some(code) => {
                let error = json!({"code": code, "message": "no", "retryable": false});
                json!({"name": name, "ok": false, "error": error})
            }
        };
        let results: Vec<Value> = verdicts.iter().map(result).collect();
        told(&self.reply(id_of(frame), json!({"results": results})))
    }
}

fn told(effects: &[LinkEffect]) -> Vec<String> {
    let item = |effect: &LinkEffect| match effect {
        LinkEffect::Offer(handle, OfferItem::Verdict(Ok(()))) => Some(format!("{} ok", handle.0)),
        LinkEffect::Offer(handle, OfferItem::Verdict(Err(error))) => {
            Some(format!("{} {}", handle.0, error.code))
        }
        LinkEffect::Offer(handle, OfferItem::Ended(_)) => Some(format!("{} ended", handle.0)),
        _ => None,
    };
    effects.iter().filter_map(item).collect()
}

/// The one frame of this method among what was sent.
fn one(effects: &[LinkEffect], method: &str) -> Value {
    let mut frames: Vec<_> = sent(effects).into_iter().filter(|frame| frame["method"] == method).collect();
    assert_eq!(frames.len(), 1, "{effects:?}");
    frames.remove(0)
}

fn names(frame: &Value) -> Vec<String> {
    let services = frame["params"]["services"].as_array().unwrap();
    services.iter().map(|service| service["name"].as_str().unwrap().to_owned()).collect()
}

fn renewals(effects: &[LinkEffect]) -> Vec<Value> {
    sent(effects).into_iter().filter(|frame| frame["method"] == "service.renew").collect()
}

#[test]
fn all_are_renewed_in_one_frame_and_a_verdict_is_told_when_it_changes() {
    let mut peer = Peer::new();
    let (_, effects) = peer.try_offer(offer("db")).unwrap();
    let first = one(&effects, "service.renew");
    assert_eq!(peer.judge(&first, &[("db", None)]), ["1 ok"]);
    let (_, effects) = peer.try_offer(offer("web")).unwrap();
    let both = one(&effects, "service.renew");
    assert_eq!(names(&both), ["db", "web"]);
    assert_eq!(peer.judge(&both, &[("db", None), ("web", Some("name_taken"))]), ["2 name_taken"]);
    let effects = peer.world.pass(5_000);
    let next = one(&effects, "service.renew");
    assert_eq!(names(&next), ["db", "web"], "a name that is taken is asked for again");
    assert_eq!(peer.judge(&next, &[("db", None), ("web", Some("name_taken"))]), Vec::<String>::new());
    let next = one(&peer.world.pass(5_000), "service.renew");
    assert_eq!(peer.judge(&next, &[("db", None), ("web", None)]), ["2 ok"], "it was free at last");
}

#[test]
fn a_short_time_to_live_is_renewed_more_often() {
    let mut peer = Peer::new();
    let short = ServiceOffer { ttl_ms: Some(1_500u32.into()), ..offer("db") };
    let (_, effects) = peer.try_offer(short).unwrap();
    peer.judge(&one(&effects, "service.renew"), &[("db", None)]);
    assert_eq!(renewals(&peer.world.pass(1_500)).len(), 3);
}

#[test]
fn after_a_break_all_is_said_anew_at_once() {
    let mut peer = Peer::new();
    let (_, effects) = peer.try_offer(offer("db")).unwrap();
    one(&effects, "service.renew");
    peer.cut();
    let effects = peer.welcome("kept", "resumed", None);
    let again = one(&effects, "service.renew");
    assert_eq!(names(&again), ["db"]);
    assert_eq!(peer.judge(&again, &[("db", None)]), ["1 ok"]);
    peer.cut();
    let again = one(&peer.welcome("new", "resume_not_found", None), "service.renew");
    assert_eq!(peer.judge(&again, &[("db", Some("name_taken"))]), ["1 name_taken"], "another lease, told");
}

#[test]
fn what_is_given_up_is_withdrawn_through_a_break_unless_it_is_offered_again() {
    let mut peer = Peer::new();
    let (db, _) = peer.try_offer(offer("db")).unwrap();
    let (web, _) = peer.try_offer(offer("web")).unwrap();
    let frame = one(&peer.withdraw(db), "service.withdraw");
    assert_eq!(frame["params"]["names"], json!(["db"]));
    peer.cut();
    let effects = peer.welcome("kept", "resumed", None);
    let frame = one(&effects, "service.withdraw");
    assert_eq!(names(&one(&effects, "service.renew")), ["web"]);
    peer.reply(id_of(&frame), json!({}));
    let frame = one(&peer.withdraw(web), "service.withdraw");
    assert_eq!(frame["params"]["names"], json!(["web"]), "db is gone");
    peer.try_offer(offer("web")).unwrap();
    peer.cut();
    let effects = peer.welcome("kept", "resumed", None);
    assert!(sent(&effects).iter().all(|frame| frame["method"] != "service.withdraw"), "wanted again");
    assert_eq!(names(&one(&effects, "service.renew")), ["web"]);
}

#[test]
fn a_withdrawal_that_is_refused_for_now_is_asked_for_again() {
    let mut peer = Peer::new();
    let (db, _) = peer.try_offer(offer("db")).unwrap();
    let frame = one(&peer.withdraw(db), "service.withdraw");
    let sock = peer.sock;
    let error = json!({"code": "unavailable", "message": "no", "retryable": true});
    peer.world.frame(sock, json!({"type": "res", "id": id_of(&frame), "ok": false, "error": error}));
    let frame = one(&peer.world.pass(5_000), "service.withdraw");
    peer.reply(id_of(&frame), json!({}));
    assert_eq!(sent(&peer.world.pass(10_000)), Vec::<Value>::new(), "nothing is left to say");
}

#[test]
fn a_change_is_said_at_once_and_a_verdict_on_what_was_is_not_told() {
    let mut peer = Peer::new();
    let (db, effects) = peer.try_offer(offer("db")).unwrap();
    let first = one(&effects, "service.renew");
    let world = &mut peer.world;
    world.link.change_offer(world.now, db, |offer| offer.degraded = true);
    let second = one(&world.take(), "service.renew");
    assert_eq!(second["params"]["services"][0]["degraded"], json!(true));
    assert_eq!(peer.judge(&first, &[("db", Some("name_taken"))]), Vec::<String>::new());
    assert_eq!(peer.judge(&second, &[("db", None)]), ["1 ok"]);
    let world = &mut peer.world;
    world.link.change_offer(world.now, db, |offer| offer.degraded = true);
    assert!(world.take().is_empty(), "nothing has changed");
}

#[test]
fn a_session_offers_so_many_and_each_name_once_and_hears_its_end() {
    let mut peer = Peer::new();
    for n in 0..tenure_proto::limits::SERVICES_PER_SESSION {
        peer.try_offer(offer(&format!("s{n}"))).unwrap();
    }
    let full = peer.try_offer(offer("one-more")).unwrap_err();
    assert_eq!(full.code, tenure_proto::ErrorCode::Busy);
    let twice = peer.try_offer(offer("s0")).unwrap_err();
    assert_eq!(twice.code, tenure_proto::ErrorCode::NameTaken);
    assert!(peer.world.link.census().iter().all(|count| count.fits()));
    let world = &mut peer.world;
    world.link.bye(world.now);
    let effects = world.pass(2_000);
    assert!(ended(&effects).is_some());
    assert_eq!(told(&effects).len(), tenure_proto::limits::SERVICES_PER_SESSION);
}

#[test]
fn that_its_socket_lost_the_session_is_no_verdict_on_an_offer() {
    let mut peer = Peer::new();
    let (_, effects) = peer.try_offer(offer("web")).unwrap();
    let frame = one(&effects, "service.renew");
    assert!(told(&peer.refuse(id_of(&frame), "lease_expired", None)).is_empty());
}
