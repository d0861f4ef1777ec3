//! Which plots are drawn of what was found.

use super::claims::US;
use super::findings::{Break, Case, Findings, Series, Workload, size};
use super::plot::{self, Bar, Line, Tone};
use tenure_bench::sample::median;

/// One plot.
#[derive(Clone, Debug)]
pub(crate) struct Figure {
    /// A name for a file.
    pub(crate) name: String,
    pub(crate) title: String,
    pub(crate) svg: String,
    /// Whether it stands in the documentation; the page has all of them.
    pub(crate) main: bool,
}

/// The body of the plots in the documentation.
const MAIN_BODY: usize = 1024;

/// All plots, in the order of workloads.
pub(crate) fn all(findings: &Findings) -> Vec<Figure> {
    let mut figures = Vec::new();
    for case in findings.cases(Workload::Publish) {
        let main = case.body == MAIN_BODY;
        let title = format!("Publish to confirm: {}, {} outstanding", size(case.body), case.load);
        let name = format!("publish-{}-{}", case.body, case.load);
        figures.push(rates(findings, &case, &name, &title, "confirmed a second", main));
        let title = format!("Latency of a confirmed publish: {}, {} outstanding", size(case.body), case.load);
        figures.push(latencies(findings, &case, &format!("{name}-latency"), &title, main));
    }
    for case in findings.cases(Workload::Flow) {
        let main = case.body == MAIN_BODY;
        let title = format!("Publish, receive, ack: {}, {}", size(case.body), case.readers);
        let name = format!("flow-{}-{}", case.body, case.readers.replace([':', ' '], "-"));
        figures.push(rates(findings, &case, &name, &title, "deliveries acked a second", main));
        let title = format!("Latency from publish to reader: {}, {}", size(case.body), case.readers);
        figures.push(latencies(findings, &case, &format!("{name}-latency"), &title, false));
    }
    for (workload, what, name) in [
        (Workload::PacedConfirm, "until it is confirmed", "paced-confirm"),
        (Workload::PacedReceive, "until it is received", "paced-receive"),
    ] {
        for case in findings.cases(workload) {
            let title = format!("{} messages a second, from when one is due {what}", case.load);
            figures.push(latencies(findings, &case, name, &title, true));
        }
    }
    figures.extend(idle(findings));
    figures.extend([Break::Cut, Break::Restart].iter().filter_map(|how| storms(findings, *how)));
    figures.extend(recoveries(findings));
    figures
}

/// What colour a system has.
pub(crate) fn tone(findings: &Findings, system: &str) -> Tone {
    if system.starts_with("floor") {
        Tone::Floor
    } else if system.starts_with(US) {
        Tone::Ours
    } else if findings.syncs(system) {
        Tone::Synced
    } else {
        Tone::Unsynced
    }
}

/// The series of a case with figures, the fastest first.
pub(crate) fn sorted<'a>(findings: &'a Findings, case: &Case) -> Vec<&'a Series> {
    let mut series: Vec<&Series> =
        findings.series.iter().filter(|series| series.case == *case && !series.rounds.is_empty()).collect();
    let rate = |series: &Series| series.median(|stretch| stretch.per_second);
    series.sort_by(|left, right| rate(right).total_cmp(&rate(left)));
    series
}

/// A system's name for people; floors are not among the systems.
pub(crate) fn name(findings: &Findings, system: &str) -> String {
    match system {
        super::publish::FLOOR_APPEND => "floor: append + fdatasync".to_owned(),
        super::publish::FLOOR_ECHO => "floor: bare WebSocket echo".to_owned(),
        super::publish::FLOOR_TOGETHER => "floor: WebSocket echo, answered together".to_owned(),
        other => findings.name(other),
    }
}

fn rates(findings: &Findings, case: &Case, file: &str, title: &str, unit: &str, main: bool) -> Figure {
    let bars: Vec<Bar> = sorted(findings, case)
        .into_iter()
        .map(|series| Bar {
            label: name(findings, series.system),
            value: series.median(|stretch| stretch.per_second),
            range: series.range(|stretch| stretch.per_second),
            tone: tone(findings, series.system),
        })
        .collect();
    figure(file, title, plot::bars(title, unit, &bars), main)
}

fn latencies(findings: &Findings, case: &Case, file: &str, title: &str, main: bool) -> Figure {
    let mut series = sorted(findings, case);
    series.sort_by(|left, right| {
        left.median(|stretch| stretch.p50_ms).total_cmp(&right.median(|stretch| stretch.p50_ms))
    });
    let lines: Vec<Line> = series
        .into_iter()
        .map(|series| Line {
            label: name(findings, series.system),
            ms: [
                series.median(|stretch| stretch.p50_ms),
                series.median(|stretch| stretch.p99_ms),
                series.median(|stretch| stretch.p999_ms),
            ],
            tone: tone(findings, series.system),
        })
        .collect();
    figure(file, title, plot::percentiles(title, &lines), main)
}

fn idle(findings: &Findings) -> Vec<Figure> {
    let mut counts: Vec<usize> = findings.idle.iter().map(|idle| idle.sessions).collect();
    counts.sort_unstable();
    counts.dedup();
    let one = |count: usize| {
        let mut rows: Vec<_> = findings.idle.iter().filter(|idle| idle.sessions == count).collect();
        rows.sort_by(|left, right| left.bytes_per_session.total_cmp(&right.bytes_per_session));
        let bars: Vec<Bar> = rows
            .into_iter()
            .map(|idle| {
                let kilobytes = idle.bytes_per_session / 1_000.0;
                let (label, tone) = (name(findings, idle.system), tone(findings, idle.system));
                Bar { label, value: kilobytes, range: (kilobytes, kilobytes), tone }
            })
            .collect();
        let title = format!("Memory of an idle session, {count} of them");
        figure(&format!("idle-{count}"), &title, plot::bars(&title, "KB each in the server", &bars), true)
    };
    counts.into_iter().map(one).collect()
}

fn storms(findings: &Findings, how: Break) -> Option<Figure> {
    let rows: Vec<_> = findings.storms.iter().filter(|storm| storm.how == how).collect();
    let sessions = rows.first()?.sessions;
    let bars: Vec<Bar> = rows
        .into_iter()
        .map(|storm| Bar {
            label: name(findings, storm.system),
            value: storm.last_ms,
            range: (storm.p50_ms, storm.last_ms),
            tone: tone(findings, storm.system),
        })
        .collect();
    let (title, file) = match how {
        Break::Cut => (format!("{sessions} sessions cut off: the last is back"), "storm-cut"),
        Break::Restart => {
            (format!("{sessions} sessions, server killed and started: the last is back"), "storm-restart")
        }
    };
    Some(figure(file, &title, plot::bars(&title, "ms after the break, from p50 to the last", &bars), true))
}

fn recoveries(findings: &Findings) -> Option<Figure> {
    let bars: Vec<Bar> = findings
        .recoveries
        .iter()
        .map(|recovery| {
            let (low, high) = recovery
                .publish_ms
                .iter()
                .fold((f64::MAX, f64::MIN), |(low, high), ms| (low.min(*ms), high.max(*ms)));
            Bar {
                label: name(findings, recovery.system),
                value: median(recovery.publish_ms.iter().copied()),
                range: (low, high),
                tone: tone(findings, recovery.system),
            }
        })
        .collect();
    let title = "After kill -9 with a backlog: the first new publish is confirmed";
    let figure =
        || figure("recovery", title, plot::bars(title, "ms from the start of the process", &bars), true);
    (!bars.is_empty()).then(figure)
}

fn figure(name: &str, title: &str, svg: String, main: bool) -> Figure {
    Figure { name: name.to_owned(), title: title.to_owned(), svg, main }
}
