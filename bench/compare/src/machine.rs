//! The machine that figures were taken on, and when.

use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

/// What a reader must know of the machine.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Machine {
    pub(crate) processor: String,
    pub(crate) cores: usize,
    pub(crate) memory_bytes: u64,
    pub(crate) kernel: String,
    pub(crate) system: String,
    /// The file system that data was on.
    pub(crate) disk: String,
    /// The load average when the run began: neighbours that the figures share the machine with.
    pub(crate) load_before: f64,
    /// UTC, as `2026-11-16 14:05`.
    pub(crate) date: String,
}

impl Machine {
    /// This one, with data under `dir`.
    pub(crate) fn here(dir: &Path) -> Machine {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let (cpuinfo, meminfo) = (read("/proc/cpuinfo"), read("/proc/meminfo"));
        let field = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let memory =
            field(&meminfo, "MemTotal").and_then(|kib| kib.split_whitespace().next()?.parse::<u64>().ok());
        let system = read("/etc/os-release");
        let system = system.lines().find_map(|line| line.strip_prefix("PRETTY_NAME=")).unwrap_or("unknown");
        Machine {
            processor: field(&cpuinfo, "model name").unwrap_or_else(|| "unknown".to_owned()),
            cores: cpuinfo.lines().filter(|line| line.starts_with("processor")).count(),
            memory_bytes: memory.unwrap_or(0) * 1024,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            system: system.trim_matches('"').to_owned(),
            disk: disk(&read("/proc/mounts"), dir),
            load_before: read("/proc/loadavg")
                .split(' ')
                .next()
                .and_then(|load| load.parse().ok())
                .unwrap_or(0.0),
            date: date(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())),
        }
    }
}

/// The type of the file system that holds `dir`: of all mounts above it, the nearest.
fn disk(mounts: &str, dir: &Path) -> String {
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    let above = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (at, kind) = (fields.next()?, fields.next()?);
        dir.starts_with(at).then_some((at.len(), kind))
    });
    above.max_by_key(|(len, _)| *len).map_or_else(|| "unknown".to_owned(), |(_, kind)| kind.to_owned())
}

/// Unix seconds as a date and time of day in UTC.
fn date(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Days since 1 March of the year 0, so that a leap day is the last of its year.
    let z = days + 719_468;
    let era = z / 146_097;
    let day_of_era = z - era * 146_097;
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year}-{month:02}-{day:02} {:02}:{:02}", rest / 3_600, rest % 3_600 / 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date(0), "1970-01-01 00:00");
        assert_eq!(date(951_782_400), "2000-02-29 00:00");
        assert_eq!(date(1_794_800_645), "2026-11-16 03:44");
    }

    #[test]
    fn the_nearest_mount_counts() {
        let mounts = "a / ext4 rw 0 0\nb /proc proc rw 0 0\nc /tmp tmpfs rw 0 0\n";
        assert_eq!(disk(mounts, Path::new("/tmp")), "tmpfs");
        assert_eq!(disk(mounts, Path::new("/")), "ext4");
    }
}
