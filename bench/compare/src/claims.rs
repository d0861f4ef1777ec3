//! What we say of ourselves, held against what was found. A claim that a run cannot judge says so.

use tenure_client::proto::limits::LEASE_TTL_MS;

use super::findings::{Break, Case, Claim, Findings, Skipped, Workload};
use super::publish::{FLOOR_APPEND, FLOOR_ECHO};
use tenure_bench::sample::median;

/// Ourselves, by the bare client and by the SDK.
pub(crate) const US: &str = "tenure";
const OUR_SDK: &str = "tenure-sdk";
/// The share of the bare echo's rate that we want to reach, with many outstanding.
const ECHO_SHARE: f64 = 0.5;
/// How many times as fast as JetStream with every message synced we want to be.
const TIMES_NATS: f64 = 10.0;
/// How many times a sync and a round trip a lone send may take.
const LONE: f64 = 2.0;
/// Bytes of an idle session that we aim at.
const IDLE_BYTES: f64 = 11_000.0;
/// From so many outstanding on, throughput is claimed.
const MANY: usize = 256;

/// Judges all of them.
pub(crate) fn judge(findings: &Findings) -> Vec<Claim> {
    let mut claims = Vec::new();
    for case in findings.cases(Workload::Publish).iter().filter(|case| case.load >= MANY) {
        claims.push(echo_share(findings, case));
        claims.extend([US, OUR_SDK].map(|us| first(findings, case, us)));
        claims.extend([US, OUR_SDK].map(|us| times_nats(findings, case, us)));
    }
    for case in findings.cases(Workload::Publish).iter().filter(|case| case.load == 1) {
        claims.push(lone(findings, case));
    }
    for case in findings.cases(Workload::Flow) {
        claims.extend([US, OUR_SDK].map(|us| first(findings, &case, us)));
    }
    for (how, name) in [(Break::Cut, "cut off"), (Break::Restart, "through a kill and a restart")] {
        claims.push(storm(findings, how, name));
    }
    claims.push(recovery(findings));
    claims.push(idle(findings));
    claims
}

fn unknown(claim: String) -> Claim {
    Claim { claim, found: "not measured in this run".to_owned(), holds: None }
}

/// Of something that was to be measured and could not be, a claim does not hold.
fn unknown_of(findings: &Findings, us: &str, workload: &str, claim: String) -> Claim {
    let of_us =
        |skipped: &&Skipped| skipped.key == us && skipped.workload.is_none_or(|skipped| skipped == workload);
    match findings.skipped.iter().find(of_us) {
        Some(skipped) => Claim { claim, found: format!("it failed: {}", skipped.why), holds: Some(false) },
        None => unknown(claim),
    }
}

/// Whether all rounds of a series are there, and in none of them anything was missing or doubled.
fn sound(findings: &Findings, case: &Case, us: &str) -> bool {
    findings.series_of(case, us).is_some_and(|series| {
        series.failures.is_empty()
            && series.rounds.iter().all(|stretch| stretch.missing + stretch.doubled == 0)
    })
}

/// What was found, and that something was wrong with it, if so.
fn judged(claim: String, found: String, holds: bool, sound: bool) -> Claim {
    let wrong = if sound { "" } else { "; rounds failed, or messages were missing or doubled" };
    Claim { claim, found: found + wrong, holds: Some(holds && sound) }
}

fn by(us: &str) -> &'static str {
    if us == US { "the bare client" } else { "the SDK" }
}

/// The ratio of two systems' rates: within a round, neighbours are the same for both; so it is a median of ratios.
pub(crate) fn ratio(findings: &Findings, case: &Case, ours: &str, theirs: &str) -> Option<f64> {
    let (ours, theirs) = (findings.series_of(case, ours)?, findings.series_of(case, theirs)?);
    let of = |round: usize| theirs.rounds.iter().find(|theirs| theirs.round == round);
    let ratios: Vec<f64> =
        ours.rounds.iter().filter_map(|ours| Some(ours.per_second / of(ours.round)?.per_second)).collect();
    (!ratios.is_empty()).then(|| median(ratios))
}

fn echo_share(findings: &Findings, case: &Case) -> Claim {
    let claim = format!("{case}: at least half of the bare echo");
    match ratio(findings, case, US, FLOOR_ECHO) {
        Some(share) => {
            judged(claim, format!("{:.0} %", share * 100.0), share >= ECHO_SHARE, sound(findings, case, US))
        }
        None => unknown(claim),
    }
}

fn times_nats(findings: &Findings, case: &Case, us: &str) -> Claim {
    let claim = format!("{case}, {}: ten times JetStream with sync always", by(us));
    match ratio(findings, case, us, "nats-always") {
        Some(times) => judged(claim, format!("{times:.1}×"), times >= TIMES_NATS, sound(findings, case, us)),
        None => unknown(claim),
    }
}

/// Others are measured by their own clients, which cost more than a bare one: so it is claimed of both of ours.
fn first(findings: &Findings, case: &Case, us: &str) -> Claim {
    let claim = format!("{case}, {}: first among all that sync before they confirm", by(us));
    let workload = if case.workload == Workload::Flow { "flow" } else { "publish" };
    let Some(ours) = findings.series_of(case, us) else {
        return unknown_of(findings, us, workload, claim);
    };
    let ours = ours.median(|stretch| stretch.per_second);
    let others = findings.series.iter().filter(|series| {
        series.case == *case
            && !series.rounds.is_empty()
            && ![US, OUR_SDK].contains(&series.system)
            && findings.syncs(series.system)
    });
    let best = others.map(|series| (series.median(|stretch| stretch.per_second), series.system));
    match best.max_by(|left, right| left.0.total_cmp(&right.0)) {
        Some((rate, system)) => judged(
            claim,
            format!("{ours:.0}/s; next is {}, {rate:.0}/s", findings.name(system)),
            ours > rate,
            sound(findings, case, us),
        ),
        None => unknown(claim),
    }
}

fn lone(findings: &Findings, case: &Case) -> Claim {
    let claim = format!("{case}: p50 within twice one fdatasync and one round trip");
    let found = (|| {
        let sync =
            findings.series_of(case, FLOOR_APPEND)?.median(|stretch| stretch.sync_ms.unwrap_or(f64::NAN));
        let echo = findings.series_of(case, FLOOR_ECHO)?.median(|stretch| stretch.p50_ms);
        Some((sync, echo, findings.series_of(case, US)?.median(|stretch| stretch.p50_ms)))
    })();
    match found {
        Some((sync, echo, ours)) => {
            let times = ours / (sync + echo);
            let found = format!("{times:.2}×: {ours:.2} ms against {sync:.2} + {echo:.2} ms");
            Claim { claim, found, holds: Some(times <= LONE) }
        }
        None => unknown(claim),
    }
}

fn storm(findings: &Findings, how: Break, name: &str) -> Claim {
    let Some(storm) = findings.storms.iter().find(|storm| storm.how == how && storm.system == OUR_SDK) else {
        let claim = format!("sessions {name}: 0 lost, 0 doubled, 0 blinks, 0 never back");
        return unknown_of(findings, OUR_SDK, "storm", claim);
    };
    let Some(blinks) = storm.presence_events else { return unknown(format!("blinks of sessions {name}")) };
    // One that was sent to nobody is not lost; and whoever's lease ends after a while is seen to leave only then.
    let seen = storm.confirmed_least > Some(0);
    let watched = storm.watched_seconds * 1_000.0 > LEASE_TTL_MS as f64;
    Claim {
        claim: format!("{} sessions {name}: 0 lost, 0 doubled, 0 blinks, 0 never back", storm.sessions),
        found: format!(
            "{} confirmed meanwhile, {} lost, {} doubled, {blinks} blinks{}, {} never back; last after {:.0} ms",
            storm.confirmed.unwrap_or(0),
            storm.lost,
            storm.doubled,
            if watched { "" } else { " (not watched until leases would have ended)" },
            storm.never_back,
            storm.last_ms
        ),
        holds: Some(storm.lost + storm.doubled + blinks + storm.never_back == 0 && seen),
    }
}

fn recovery(findings: &Findings) -> Claim {
    let claim = "kill -9 with a backlog: 0 lost, 0 doubled".to_owned();
    let Some(found) = findings.recoveries.iter().find(|recovery| recovery.system == OUR_SDK) else {
        return unknown_of(findings, OUR_SDK, "recovery", claim);
    };
    let read = found.kills < 2 || found.read_at_kills > 0 && found.confirmed_later > 0;
    let whole = found.full && found.deliver_ms.len() == found.kills && read;
    Claim {
        claim,
        found: format!(
            "{} confirmed before and {} after the first of {} kills, {} lost, {} doubled",
            found.confirmed, found.confirmed_later, found.kills, found.lost, found.doubled
        ),
        holds: Some(found.lost + found.doubled == 0 && whole),
    }
}

fn idle(findings: &Findings) -> Claim {
    let claim = "an idle session holds at most 11 KB (an aim)".to_owned();
    let ours = findings.idle.iter().filter(|idle| idle.system == OUR_SDK).max_by_key(|idle| idle.sessions);
    match ours {
        Some(idle) => Claim {
            claim,
            found: format!("{:.1} KB with {} sessions", idle.bytes_per_session / 1_000.0, idle.sessions),
            holds: Some(idle.bytes_per_session <= IDLE_BYTES),
        },
        None => unknown(claim),
    }
}

#[cfg(test)]
mod tests {
    use super::super::findings::{Stretch, System};
    use super::*;

    fn system(key: &'static str, syncs: bool) -> System {
        let (version, config) = (String::new(), Vec::new());
        System { key, name: key, version, client: String::new(), durable: "", syncs, ack: "", config }
    }

    fn found(rates: &[(&'static str, f64)]) -> (Findings, Case) {
        let case = Case { workload: Workload::Publish, body: 1024, load: 256, readers: "" };
        let systems =
            vec![system("tenure", true), system("nats-always", true), system("redis-everysec", false)];
        let mut findings = Findings { systems, ..Findings::default() };
        for (system, rate) in rates {
            let stretch = Stretch { per_second: *rate, ..Stretch::default() };
            findings.round(&case, system, Ok(stretch));
        }
        (findings, case)
    }

    #[test]
    fn only_those_who_sync_can_be_ahead_of_us() {
        let rates = [("tenure", 50.0), ("nats-always", 5.0), ("redis-everysec", 90.0), ("floor-echo", 100.0)];
        let (findings, case) = found(&rates);
        assert_eq!(first(&findings, &case, US).holds, Some(true));
        assert_eq!(times_nats(&findings, &case, US).holds, Some(true));
        assert_eq!(echo_share(&findings, &case).holds, Some(true));
        let (findings, case) = found(&[("tenure", 4.0), ("nats-always", 5.0), ("floor-echo", 100.0)]);
        assert_eq!(first(&findings, &case, US).holds, Some(false));
        assert_eq!(echo_share(&findings, &case).holds, Some(false));
    }

    #[test]
    fn what_was_not_measured_is_not_claimed() {
        let (findings, case) = found(&[("tenure", 50.0)]);
        assert_eq!(first(&findings, &case, US).holds, None);
        assert!(judge(&Findings::default()).iter().all(|claim| claim.holds.is_none()));
    }
}
