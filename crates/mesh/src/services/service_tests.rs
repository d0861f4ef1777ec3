//! What may be offered, and when a name is stale.

use tenure_proto::number::U53;

use super::*;

fn offer(name: &str) -> ServiceOffer {
    ServiceOffer {
        name: name.to_owned(),
        kind: ServiceKind::Tcp,
        ttl_ms: None,
        metadata: ServiceMetadata::default(),
        degraded: false,
    }
}

fn verdict(offer: &ServiceOffer, config: &MeshConfig) -> Result<u64, ErrorCode> {
    check(offer, config).map(|(_, facts)| facts.ttl_ms).map_err(|error| error.code)
}

#[test]
fn a_name_is_lower_case_plain_and_not_reserved() {
    let config = MeshConfig::default();
    for good in ["db", "a.b_c-d", "0", &"x".repeat(64)] {
        assert_eq!(verdict(&offer(good), &config), Ok(30_000), "{good}");
    }
    // The second is a Cyrillic a, the third a full-width one.
    for bad in [
        "DB",
        "\u{430}dmin",
        "\u{ff41}",
        "",
        "dead",
        "-a",
        "db.",
        "db-",
        "a b",
        "a/b",
        "a\0",
        &"x".repeat(65),
    ] {
        assert_eq!(verdict(&offer(bad), &config), Err(ErrorCode::NameRejected), "{bad:?}");
    }
    let says = check(&offer("My-DB"), &config).unwrap_err().message;
    assert!(says.contains("my-db"), "{says}");
}

#[test]
fn an_http_name_is_a_host_name_too() {
    let config = MeshConfig::default();
    let http = |name: &str| verdict(&ServiceOffer { kind: ServiceKind::Http, ..offer(name) }, &config);
    for good in ["a", "a.b", "web-1", &"x".repeat(63)] {
        assert_eq!(http(good), Ok(30_000), "{good}");
    }
    for bad in ["a-", "a..b", "a.-b", "a.", &"x".repeat(64)] {
        assert_eq!(http(bad), Err(ErrorCode::NameRejected), "{bad}");
    }
}

#[test]
fn a_time_to_live_is_within_the_bounds_in_force() {
    let config = MeshConfig::default();
    let ttl = |ms: u64, config: &MeshConfig| {
        verdict(&ServiceOffer { ttl_ms: Some(U53::saturating(ms)), ..offer("a") }, config)
    };
    for (ms, good) in [(0, false), (999, false), (1_000, true), (3_600_000, true), (3_600_001, false)] {
        assert_eq!(ttl(ms, &config).is_ok(), good, "{ms}");
        assert!(good || ttl(ms, &config) == Err(ErrorCode::TtlOutOfBounds));
    }
    assert_eq!(ttl(u64::MAX, &config), Err(ErrorCode::TtlOutOfBounds));
    let short = MeshConfig { service_ttl_max_ms: 10_000, ..MeshConfig::default() };
    assert_eq!(verdict(&offer("a"), &short), Ok(10_000), "who says nothing is not refused");
    assert_eq!(ttl(10_001, &short), Err(ErrorCode::TtlOutOfBounds));
}

#[test]
fn metadata_is_bounded_and_has_no_control_characters() {
    let config = MeshConfig::default();
    let with = |metadata| verdict(&ServiceOffer { metadata, ..offer("a") }, &config);
    let text = |n: usize| Some("x".repeat(n));
    let none = ServiceMetadata::default;
    let full = ServiceMetadata {
        description: text(SERVICE_DESCRIPTION_BYTES),
        tags: vec!["t".repeat(SERVICE_TAG_BYTES); SERVICE_TAGS],
        owner: text(SERVICE_OWNER_BYTES),
        hide: true,
    };
    assert_eq!(with(full), Ok(30_000));
    for bad in [
        ServiceMetadata { description: text(SERVICE_DESCRIPTION_BYTES + 1), ..none() },
        ServiceMetadata { owner: text(SERVICE_OWNER_BYTES + 1), ..none() },
        ServiceMetadata { tags: vec![String::new(); SERVICE_TAGS + 1], ..none() },
        ServiceMetadata { tags: vec!["t".repeat(SERVICE_TAG_BYTES + 1)], ..none() },
        ServiceMetadata { description: Some("a\u{1b}[2J".to_owned()), ..none() },
    ] {
        assert_eq!(with(bad.clone()), Err(ErrorCode::BadRequest), "{bad:?}");
    }
}

#[test]
fn a_name_fits_the_pattern_of_its_mesh() {
    for (pattern, good, bad) in [
        ("team-*", vec!["team-a", "team-"], vec!["team", "a-team-a"]),
        ("*", vec!["a"], vec![]),
        ("a?c", vec!["abc"], vec!["ac", "abbc"]),
        ("*-prod-*", vec!["a-prod-b", "-prod-", "a-prod-b-prod-c"], vec!["a-prod", "prod-b"]),
        ("a**b", vec!["ab", "axb", "abb"], vec!["a", "abc"]),
    ] {
        assert!(good.iter().all(|name| matches(pattern, name)), "{pattern}");
        assert!(!bad.iter().any(|name| matches(pattern, name)), "{pattern}");
    }
    let config = MeshConfig { service_names: Some("team-*".to_owned()), ..MeshConfig::default() };
    assert_eq!(verdict(&offer("team-db"), &config), Ok(30_000));
    let error = check(&offer("db"), &config).unwrap_err();
    assert_eq!(error.code, ErrorCode::NameRejected);
    assert!(error.message.contains("team-*"), "{}", error.message);
}

#[test]
fn it_is_stale_when_it_is_lost_or_not_renewed_whichever_was_first() {
    let mut slot = Slot::new(1, SessionKey([1; 32]), MemberKey([1; 32]), Millis(0), 7);
    slot.facts = check(&offer("a"), &MeshConfig::default()).ok().map(|(_, facts)| facts);
    assert_eq!(slot.state(Millis(29_999)), ServiceState::Online);
    assert_eq!(slot.state(Millis(30_000)), ServiceState::Stale);
    assert_eq!(slot.told_due(), Some(Millis(35_000)));
    slot.lost = Some(Millis(10_000));
    assert_eq!((slot.state(Millis(10_000)), slot.told_due()), (ServiceState::Stale, Some(Millis(15_000))));
    slot.stale_told = true;
    assert_eq!(slot.told_due(), None);
    assert!(slot.renew(Millis(20_000), 8), "somebody was told");
    assert!(!slot.renew(Millis(21_000), 9), "nobody is told twice");
    assert_eq!(slot.stale_since(), Millis(51_000));
}

#[test]
fn a_service_ends_ten_seconds_after_the_first_proof_of_life_past_twice_its_ttl() {
    let slot = |ttl_ms: u64| {
        let mut slot = Slot::new(1, SessionKey([1; 32]), MemberKey([1; 32]), Millis(0), 0);
        slot.facts = Some(Facts { kind: ServiceKind::Tcp, ttl_ms, metadata: ServiceMetadata::default() });
        slot
    };
    for (ttl_ms, overdue) in [(1_000, 60_000), (30_000, 60_000), (40_000, 80_000)] {
        let mut slot = slot(ttl_ms);
        assert_eq!(slot.ends_at(), Millis(overdue + 10_000), "at the earliest");
        assert_eq!(slot.lapse(Millis(overdue - 1)), Lapse::No);
        assert!(!slot.proven(Millis(overdue - 1)), "nothing waits for it");
        assert_eq!(slot.lapse(Millis(overdue)), Lapse::Waits);
        assert!(slot.proven(Millis(overdue)), "it must be later");
        assert_eq!(slot.lapse(Millis(overdue + 500_000)), Lapse::Waits, "silence ends nothing");
        assert!(!slot.proven(Millis(overdue + 500_000)));
        assert!(!slot.proven(Millis(overdue + 505_000)), "only the first counts");
        assert_eq!(slot.due(), Some(Millis(ttl_ms + 5_000)), "it was not told stale here");
        slot.stale_told = true;
        assert_eq!(slot.due(), Some(Millis(overdue + 510_000)));
        assert_eq!(slot.lapse(Millis(overdue + 509_999)), Lapse::No);
        assert_eq!(slot.lapse(Millis(overdue + 510_000)), Lapse::Over);
        slot.attach(Millis(600_000));
        assert_eq!(slot.lapse(Millis(600_000 + overdue - 1)), Lapse::No, "an attach begins anew");
        slot.renew(Millis(900_000), 5);
        assert_eq!((slot.ends_at(), slot.renewed_at), (Millis(900_000 + overdue + 10_000), Some(5)));
    }
}

#[test]
fn a_pattern_and_a_glob_must_both_fit() {
    let pattern = |text: &str| Some(crate::access::pattern::Pattern::parse(text).unwrap());
    let config = MeshConfig {
        service_names: Some("team-*".to_owned()),
        service_pattern: pattern("[a-z]+-(db|web)"),
        ..MeshConfig::default()
    };
    assert_eq!(verdict(&offer("team-db"), &config), Ok(30_000));
    for bad in ["team-x", "crew-db", "team-db2", "x.team-db"] {
        assert_eq!(verdict(&offer(bad), &config), Err(ErrorCode::NameRejected), "{bad}");
    }
    let says = check(&offer("team-x"), &config).unwrap_err().message;
    assert!(says.contains("(db|web)"), "{says}");
}
