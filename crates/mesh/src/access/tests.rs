//! The table of rights, and the rules of the roll.

use tenure_proto::error::ErrorCode;
use tenure_proto::ids::MemberKey;
use tenure_proto::method::Method;
use tenure_proto::number::U53;

use super::*;

fn caps(names: &[&str]) -> Vec<Cap> {
    names.iter().map(|name| name.parse().unwrap()).collect()
}

#[test]
fn every_method_needs_what_the_contract_says() {
    let table: Vec<String> = Method::ALL
        .iter()
        .map(|method| format!("{} {}", method.as_str(), method.needs().map_or("-", Right::as_str)))
        .collect();
    let expected = "hello -|bye -|ping -|reconcile -|presence.list -|profile.set -|health -|send send|send.status send|\
        subscribe read|unsubscribe -|fetch read|ack read|nack read|progress read|history read|topics.list read|\
        topics.create send|topics.delete send|groups.list read|groups.delete read|dead.list read|dead.retry read|\
        dead.drop read|run.start run|run.chunk run|run.end run|run.cancel run|run.get run|runs.list run|services.list -|\
        service.renew serve|service.withdraw -|relay.open -";
    assert_eq!(table.join("|"), expected);
}

#[test]
fn rights_only_narrow() {
    let member = Rights::of(Role::Member);
    assert!(!member.allow(Right::Admin) && Rights::of(Role::Operator).allow(Right::Admin));
    assert_eq!(member.narrowed(None), member);
    assert_eq!(member.narrowed(Some(&[])), Rights::NONE);
    // Naming a right does not give it.
    let wished = member.narrowed(Some(&caps(&["admin", "send", "unheard-of"])));
    assert_eq!(wished.names().collect::<Vec<_>>(), ["send"]);
    assert_eq!(wished.narrowed(Some(&caps(&["read", "send"]))), wished);
    assert_eq!(wished.narrowed(Some(&caps(&["read"]))), Rights::NONE);
}

fn key(n: u8) -> MemberKey {
    MemberKey([n; 32])
}

/// A roll with operator 1 and member 2, at time 1000.
fn roll() -> Roll {
    let mut roll = Roll::new(&RestoredAccess { founded: Some(1_000), ..RestoredAccess::default() });
    roll.put_member(Roll::owner(key(1), 1_000)).unwrap();
    roll.put_member(MemberRecord { role: Role::Member, ..Roll::owner(key(2), 1_000) }).unwrap();
    roll
}

fn invite(by: u8, uses: u32, exp: u64) -> Invite {
    Invite {
        mesh: "m".parse().unwrap(),
        id: "i".parse().unwrap(),
        by: key(by),
        role: Role::Member,
        caps: None,
        uses,
        exp: U53::saturating(exp),
    }
}

fn entry(roll: &Roll, member: u8, invite: &Invite) -> Result<Entry, ErrorCode> {
    let presented = Presented::Invite(Box::new(invite.clone()));
    roll.entry(&key(member), &presented, 2_000).map_err(|error| error.code)
}

#[test]
fn an_open_mesh_asks_for_nothing_and_any_other_for_something() {
    assert_eq!(Roll::default().entry(&key(9), &Presented::Nothing, 0), Ok(Entry::Open));
    let roll = roll();
    assert_eq!(roll.entry(&key(2), &Presented::Nothing, 0), Ok(Entry::Member));
    let error = roll.entry(&key(9), &Presented::Nothing, 0).unwrap_err();
    assert_eq!((error.code, error.retryable), (ErrorCode::Unauthorized, false));
    assert!(error.message.contains("tenure join"));
}

#[test]
fn only_an_operator_invites_and_only_in_time() {
    let mut roll = roll();
    assert!(entry(&roll, 9, &invite(1, 1, 2_001)).is_ok());
    for bad in [invite(2, 1, 9_000), invite(7, 1, 9_000), invite(1, 1, 2_000), invite(1, 1, u64::MAX >> 12)] {
        assert_eq!(entry(&roll, 9, &bad), Err(ErrorCode::Unauthorized), "{bad:?}");
    }
    // An operator who may not is as good as none.
    roll.put_member(Roll::owner(key(3), 0)).unwrap();
    roll.put_member(MemberRecord { caps: Some(caps(&["send"])), ..Roll::owner(key(1), 0) }).unwrap();
    assert_eq!(entry(&roll, 9, &invite(1, 1, 9_000)), Err(ErrorCode::Unauthorized));
}

#[test]
fn an_invite_hands_on_no_more_than_its_signer_may() {
    let mut roll = roll();
    let redeemed = |roll: &mut Roll, member: u8, role: Role, wish: Option<&[&str]>| {
        let id = format!("i{member}").parse().unwrap();
        let invite = Invite { id, role, caps: wish.map(caps), ..invite(1, 1, 9_000) };
        assert!(entry(roll, member, &invite).is_ok());
        roll.redeem(key(member), &invite, 2_000);
        let record = &roll.members[&key(member)];
        (record.caps.clone(), record.rights().names().collect::<Vec<_>>())
    };
    // Who may everything passes on what the invite says, as it says it.
    assert_eq!(redeemed(&mut roll, 5, Role::Operator, None).0, None);
    assert_eq!(redeemed(&mut roll, 6, Role::Member, Some(&["send"])).0, Some(caps(&["send"])));
    roll.put_member(MemberRecord { caps: Some(caps(&["admin", "read"])), ..Roll::owner(key(1), 0) }).unwrap();
    assert_eq!(redeemed(&mut roll, 7, Role::Operator, None).1, ["read", "admin"]);
    assert_eq!(redeemed(&mut roll, 8, Role::Member, None).1, ["read"]);
    assert_eq!(redeemed(&mut roll, 9, Role::Member, Some(&["send", "read", "serve"])).1, ["read"]);
    assert_eq!(redeemed(&mut roll, 10, Role::Operator, Some(&["send"])).1, [""; 0]);
}

#[test]
fn a_use_is_taken_with_the_member_and_given_back_if_that_fails() {
    let (mut roll, one) = (roll(), invite(1, 1, 9_000));
    let changes = roll.redeem(key(5), &one, 2_000);
    assert!(
        matches!(&changes[..], [Change::PutInvite(i), Change::PutMember(m)] if i.used == 1 && m.member == key(5))
    );
    assert_eq!(entry(&roll, 5, &one), Ok(Entry::Member), "the same key again");
    assert_eq!(entry(&roll, 6, &one), Err(ErrorCode::Busy), "whether it holds is not known yet");
    roll.unredeem(&key(5), &one.id);
    assert!(entry(&roll, 6, &one).is_ok() && entry(&roll, 5, &one).is_ok());
    roll.redeem(key(6), &one, 2_000);
    roll.redeemed(&one.id);
    assert_eq!(roll.pending(), 0);
    assert_eq!(entry(&roll, 5, &one), Err(ErrorCode::Unauthorized), "used up");
    assert_eq!(entry(&roll, 6, &one), Ok(Entry::Member));
}

#[test]
fn a_revoked_invite_lets_nobody_in_seen_or_unseen() {
    let mut roll = roll();
    let unseen = roll.revoke(&"i".parse().unwrap(), 2_000).unwrap();
    assert!(unseen.revoked && unseen.expires_at > 2_000);
    assert_eq!(entry(&roll, 9, &invite(1, 5, 9_000)), Err(ErrorCode::Unauthorized));
}

#[test]
fn a_full_memory_of_invites_forgets_those_that_have_ended() {
    let mut roll = roll();
    for n in 0..INVITES_MAX {
        let id: tenure_proto::ids::GrantId = format!("o{n}").parse().unwrap();
        let ended = if n < 10 { 1_500 } else { 9_000 };
        let record =
            InviteRecord { id: id.clone(), by: None, used: 1, uses: 1, expires_at: ended, revoked: false };
        roll.invites.insert(id, record);
    }
    let fresh = invite(1, 1, 9_000);
    assert!(entry(&roll, 9, &fresh).is_ok());
    let changes = roll.redeem(key(9), &fresh, 2_000);
    assert_eq!(changes.iter().filter(|change| matches!(change, Change::DropInvite(_))).count(), 10);
    assert_eq!(roll.invites.len(), INVITES_MAX - 9);
}

#[test]
fn the_last_operator_stays() {
    let mut roll = roll();
    assert_eq!(roll.drop_member(&key(1)).unwrap_err().code, ErrorCode::Conflict);
    let demoted = MemberRecord { role: Role::Member, ..Roll::owner(key(1), 0) };
    assert_eq!(roll.put_member(demoted.clone()).unwrap_err().code, ErrorCode::Conflict);
    roll.put_member(Roll::owner(key(2), 0)).unwrap();
    roll.put_member(demoted).unwrap();
    assert_eq!(roll.drop_member(&key(2)).unwrap_err().code, ErrorCode::Conflict);
    assert_eq!(roll.drop_member(&key(7)).unwrap_err().code, ErrorCode::NotFound);
    assert!(roll.drop_member(&key(1)).is_ok());
}

#[test]
fn a_token_is_good_by_its_hash_until_it_ends_or_is_revoked() {
    let mut roll = roll();
    let id: tenure_proto::ids::GrantId = "t".parse().unwrap();
    let token = TokenRecord {
        id: id.clone(),
        hash: [7; 32],
        caps: Some(caps(&["send", "admin"])),
        name: String::new(),
        since: 0,
        expires_at: Some(5_000),
    };
    roll.put_token(token.clone());
    let bring = |roll: &Roll, hash, wall| roll.entry(&key(9), &Presented::Token(hash), wall);
    assert_eq!(bring(&roll, [7; 32], 4_999), Ok(Entry::Token(id.clone())));
    assert!(bring(&roll, [7; 32], 5_000).unwrap_err().message.contains("expired"));
    assert!(bring(&roll, [8; 32], 0).is_err());
    let rights = roll.rights(&key(9), Some(&id));
    assert_eq!(rights.names().collect::<Vec<_>>(), ["send"], "a token makes nobody an operator");
    roll.put_token(TokenRecord { hash: [8; 32], ..token });
    assert!(bring(&roll, [7; 32], 0).is_err() && bring(&roll, [8; 32], 0).is_ok(), "it was replaced");
    assert!(roll.drop_token(&id) && !roll.drop_token(&id));
    assert!(bring(&roll, [8; 32], 0).is_err());
    assert_eq!(roll.rights(&key(9), Some(&id)), Rights::NONE);
}
