//! `cargo xtask fuzz [--minutes N] [TARGET …]`: every parser that reads bytes from outside, by libFuzzer.
//!
//! Needs the nightly toolchain; cargo-fuzz is installed under `target/`, by name, if it is missing. Targets and seeds are those of
//! `crates/fuzz`. Two targets run at a time on two cores; together they take the minutes that were given. A crash fails the
//! command and names the input, which is kept in `fuzz/artifacts`.

use std::collections::VecDeque;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::run;

const TOOL: &str = "cargo-fuzz";
const TOOL_VERSION: &str = "0.13.2";
/// Minutes unless told otherwise.
const MINUTES: u64 = 5;
/// Seconds that a target gets at least.
const SECONDS_MIN: u64 = 5;
/// Bytes of an input: a head of the relay, two pages of an outbox.
const INPUT_BYTES: u32 = 16 * 1024;
/// Seconds that one input may take.
const INPUT_SECONDS: u32 = 10;

/// What became of one target.
struct Finding {
    target: String,
    executions: u64,
    seconds: u64,
    failed: bool,
    log: PathBuf,
}

/// Builds the targets, runs each for its share of the time, and prints what came of it.
pub(crate) fn start(args: &[String]) -> Result<ExitCode> {
    let (minutes, wanted) = arguments(args)?;
    if !run::works(Command::new("rustup").args(["run", "nightly", "rustc", "--version"])) {
        bail!("libFuzzer needs the nightly compiler; `rustup toolchain install nightly` gets it");
    }
    let tools = tool()?;
    let dir = run::root().join("fuzz");
    let corpus = dir.join("corpus");
    let seeds = run::output(run::cargo(&["run", "--quiet", "--package", "tenure-fuzz", "--"]).arg(&corpus))?;
    let all: Vec<String> = String::from_utf8(seeds)?.lines().map(str::to_owned).collect();
    if let Some(unknown) = wanted.iter().find(|name| !all.contains(name)) {
        bail!("there is no target `{unknown}`; there are {}", all.join(", "));
    }
    let targets = if wanted.is_empty() { all } else { wanted };
    run::succeed(fuzz(&tools, &dir).arg("build"))?;
    let lanes = std::thread::available_parallelism().map_or(1, usize::from).min(targets.len());
    let seconds = (minutes * 60 * lanes as u64 / targets.len() as u64).max(SECONDS_MIN);
    eprintln!("fuzz: {} targets, {seconds} s each, {lanes} at a time", targets.len());
    let findings = run_all(&tools, &dir, targets, seconds, lanes)?;
    Ok(tell(&findings))
}

fn arguments(args: &[String]) -> Result<(u64, Vec<String>)> {
    let (mut minutes, mut wanted) = (MINUTES, Vec::new());
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--minutes" => {
                let number = args.next().context("--minutes takes a number")?;
                minutes = number.parse().ok().filter(|minutes| (1..=10_000).contains(minutes)).with_context(
                    || format!("--minutes takes a whole number from 1 to 10000, not `{number}`"),
                )?;
            }
            flag if flag.starts_with('-') => {
                bail!("`fuzz` does not know `{flag}`; it takes --minutes N and targets")
            }
            target => wanted.push(target.to_owned()),
        }
    }
    Ok((minutes, wanted))
}

/// Where cargo-fuzz is, if not on the path; it is installed if it is nowhere.
fn tool() -> Result<Option<PathBuf>> {
    if run::works(Command::new(TOOL).arg("--version")) {
        return Ok(None);
    }
    let root = run::target_directory()?.join("fuzz-tools");
    let bin = root.join("bin");
    if !run::works(Command::new(bin.join(TOOL)).arg("--version")) {
        eprintln!("fuzz: installing {TOOL} {TOOL_VERSION} under {}", root.display());
        let install = ["install", TOOL, "--locked", "--version", TOOL_VERSION, "--root"];
        run::succeed(run::cargo(&install).arg(&root))?;
    }
    Ok(Some(bin))
}

/// `cargo fuzz` with the nightly toolchain, in the workspace of the targets.
fn fuzz(tools: &Option<PathBuf>, dir: &Path) -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", "nightly", "cargo", "fuzz"]).current_dir(dir);
    // Cargo tells its children which cargo they run under, and which toolchain; these run under another.
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("CARGO") && name != "CARGO_HOME") {
            command.env_remove(&name);
        }
    }
    command.env_remove("RUSTUP_TOOLCHAIN");
    if let Some(tools) = tools {
        let mut path = vec![tools.clone()];
        path.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
        if let Ok(path) = std::env::join_paths(path) {
            command.env("PATH", path);
        }
    }
    command
}

fn run_all(
    tools: &Option<PathBuf>,
    dir: &Path,
    targets: Vec<String>,
    seconds: u64,
    lanes: usize,
) -> Result<Vec<Finding>> {
    let (queue, found) = (Mutex::new(VecDeque::from(targets)), Mutex::new(Vec::new()));
    let lane = || -> Result<()> {
        loop {
            let next = queue.lock().ok().and_then(|mut queue| queue.pop_front());
            let Some(target) = next else { return Ok(()) };
            let finding = run_one(tools, dir, &target, seconds)?;
            if let Ok(mut found) = found.lock() {
                found.push(finding);
            }
        }
    };
    std::thread::scope(|scope| {
        let lanes: Vec<_> = (0..lanes).map(|_| scope.spawn(lane)).collect();
        lanes.into_iter().try_for_each(|lane| match lane.join() {
            Ok(outcome) => outcome,
            Err(_) => bail!("a thread that ran targets died"),
        })
    })?;
    let mut found = found.into_inner().unwrap_or_default();
    found.sort_by(|a: &Finding, b: &Finding| a.target.cmp(&b.target));
    Ok(found)
}

fn run_one(tools: &Option<PathBuf>, dir: &Path, target: &str, seconds: u64) -> Result<Finding> {
    let logs = dir.join("target").join("logs");
    std::fs::create_dir_all(&logs)?;
    let log = logs.join(format!("{target}.log"));
    let out = File::create(&log).with_context(|| format!("write {}", log.display()))?;
    let began = Instant::now();
    let options = [
        format!("-max_total_time={seconds}"),
        format!("-max_len={INPUT_BYTES}"),
        format!("-timeout={INPUT_SECONDS}"),
        "-rss_limit_mb=4096".to_owned(),
        "-print_final_stats=1".to_owned(),
    ];
    let status = fuzz(tools, dir)
        .args(["run", target, "--"])
        .args(options)
        .stdin(Stdio::null())
        .stdout(out.try_clone()?)
        .stderr(out)
        .status()
        .context("start `cargo fuzz run`")?;
    let text =
        std::fs::read(&log).map(|text| String::from_utf8_lossy(&text).into_owned()).unwrap_or_default();
    let spent: Duration = began.elapsed();
    let executions = executions(&text);
    Ok(Finding {
        target: target.to_owned(),
        executions,
        seconds: spent.as_secs(),
        failed: !status.success(),
        log,
    })
}

/// How many inputs libFuzzer says that it ran.
fn executions(log: &str) -> u64 {
    let stat =
        log.lines().filter_map(|line| line.strip_prefix("stat::number_of_executed_units:")).next_back();
    stat.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
}

fn tell(findings: &[Finding]) -> ExitCode {
    println!("{:<16} {:>12} {:>8}  crashes", "target", "executions", "seconds");
    for Finding { target, executions, seconds, failed, log } in findings {
        let crashes = if *failed { format!("see {}", log.display()) } else { "0".to_owned() };
        println!("{target:<16} {executions:>12} {seconds:>8}  {crashes}");
    }
    let executions: u64 = findings.iter().map(|finding| finding.executions).sum();
    let failed = findings.iter().filter(|finding| finding.failed || finding.executions == 0).count();
    println!("{executions} executions, {failed} targets failed");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(args: &[&str]) -> Vec<String> {
        args.iter().map(|&arg| arg.to_owned()).collect()
    }

    #[test]
    fn minutes_and_targets_are_read_and_the_rest_is_refused() {
        assert_eq!(arguments(&[]).unwrap(), (MINUTES, Vec::new()));
        assert_eq!(arguments(&strings(&["mux", "--minutes", "20"])).unwrap(), (20, strings(&["mux"])));
        for bad in [&["--minutes"][..], &["--minutes", "0"], &["--minutes", "x"], &["--fast"]] {
            assert!(arguments(&strings(bad)).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn executions_are_what_the_last_statistics_say() {
        let log = "#2 INITED\nstat::number_of_executed_units: 41\nstat::average_exec_per_sec: 3\n";
        assert_eq!(executions(log), 41);
        assert_eq!(executions("panicked"), 0);
    }
}
