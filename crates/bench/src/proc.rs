//! What the kernel says of a process: memory, processor time, limits. Linux only, like the figures.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result, bail};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The kernel counts processor time for `/proc` in hundredths of a second, whatever its own clock.
const TICKS_PER_SECOND: f64 = 100.0;
/// Descriptors that a process needs besides its sockets.
const SPARE_FILES: u64 = 64;

/// Resident memory of a process, in bytes.
pub fn rss_bytes(pid: u32) -> Result<u64> {
    status_bytes(pid, "VmRSS:")
}

/// The most memory that a process ever had resident, in bytes.
pub fn peak_bytes(pid: u32) -> Result<u64> {
    status_bytes(pid, "VmHWM:")
}

fn status_bytes(pid: u32, field: &str) -> Result<u64> {
    let status = read(&format!("/proc/{pid}/status"))?;
    let kib = status
        .lines()
        .find_map(|line| line.strip_prefix(field))
        .and_then(|rest| rest.split_whitespace().next())
        .and_then(|number| number.parse::<u64>().ok())
        .with_context(|| format!("the process has no {field} is it gone?"))?;
    Ok(kib * 1024)
}

/// Open files of a process.
pub fn open_files(pid: u32) -> Result<usize> {
    Ok(fs::read_dir(format!("/proc/{pid}/fd")).context("read the open files of a process")?.count())
}

/// Processor time that a process has used, user and system, all threads, in seconds.
pub fn cpu_seconds(pid: u32) -> Result<f64> {
    let stat = read(&format!("/proc/{pid}/stat"))?;
    ticks(&stat).map(|ticks| ticks as f64 / TICKS_PER_SECOND).context("the process's stat does not read")
}

/// Processor time that each thread of a process has used, in seconds, by name; threads of one name together.
pub fn threads(pid: u32) -> Result<BTreeMap<String, f64>> {
    let mut threads = BTreeMap::new();
    for task in fs::read_dir(format!("/proc/{pid}/task")).context("read the threads of a process")? {
        let task = task?.path();
        // A thread may end while we look.
        let (Ok(name), Ok(schedstat)) =
            (fs::read_to_string(task.join("comm")), fs::read_to_string(task.join("schedstat")))
        else {
            continue;
        };
        let nanos: u64 =
            schedstat.split_whitespace().next().and_then(|ns| ns.parse().ok()).context("schedstat")?;
        *threads.entry(name.trim().to_owned()).or_default() += nanos as f64 / 1e9;
    }
    Ok(threads)
}

/// Processor time that this thread has used, in nanoseconds, so that neighbours on the machine do not count.
pub fn thread_cpu_nanos() -> Result<u64> {
    let schedstat = read("/proc/thread-self/schedstat")?;
    schedstat.split_whitespace().next().and_then(|ns| ns.parse().ok()).context("schedstat does not read")
}

/// Refuses a count of sockets that the file limit does not allow: one end is in this process, the other in a
/// child with the same limit.
pub fn check_files(sockets: usize) -> Result<()> {
    raise_files();
    let limit = file_limit(&read("/proc/self/limits")?).context("/proc/self/limits does not read")?;
    let needed = sockets as u64 + SPARE_FILES;
    if needed > limit {
        bail!(
            "{sockets} sockets need {needed} open files, and this process may have {limit}: \
             raise `ulimit -n` or ask for a --count of at most {}",
            limit.saturating_sub(SPARE_FILES)
        );
    }
    Ok(())
}

/// Lets this process, and those that it starts, have as many files as it may give itself.
fn raise_files() {
    let limit = getrlimit(Resource::Nofile);
    // Where that is not allowed, what there is must do, and is checked.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

fn read(path: &str) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("read {path}"))
}

/// User plus system time of a stat line; the name in it may hold spaces and brackets.
fn ticks(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

/// The soft limit of open files.
fn file_limit(limits: &str) -> Option<u64> {
    let rest = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    match rest.split_whitespace().next()? {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_does_not_shift_the_fields() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 9 0 0 0 120 34 0 0 20 0 3 0 5";
        assert_eq!(ticks(stat), Some(154));
    }

    #[test]
    fn the_soft_limit_is_the_one_that_counts() {
        let limits = "Limit        Soft Limit   Hard Limit  Units\nMax open files   1024   20000   files\n";
        assert_eq!(file_limit(limits), Some(1024));
        assert_eq!(file_limit("Max open files unlimited unlimited files"), Some(u64::MAX));
    }

    #[test]
    fn this_process_has_memory_and_has_used_time() {
        let pid = std::process::id();
        // In this order: what is held may grow between two looks.
        let now = rss_bytes(pid).unwrap();
        assert!(peak_bytes(pid).unwrap() >= now);
        assert!(cpu_seconds(pid).unwrap() >= 0.0);
        assert!(thread_cpu_nanos().unwrap() > 0);
        assert!(open_files(pid).unwrap() > 2);
        assert!(threads(pid).unwrap().values().sum::<f64>() > 0.0);
    }
}
