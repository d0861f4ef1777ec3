//! One `tenure send` as a shell runs it, beside processes that do less.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::TARGET;
use crate::report::{Report, round};
use crate::sample::Times;

/// How long each took.
pub(super) struct Commands {
    nothing: Times,
    version: Times,
    send: Times,
}

/// Runs each `count` times, in turns; nothing if that is not at all.
pub(super) fn run(tenure: &Path, home: &Path, broker: &str, count: usize) -> Result<Option<Commands>> {
    if count == 0 {
        return Ok(None);
    }
    let command = |program: &Path, args: &[&str]| {
        let mut command = Command::new(program);
        command.args(args).env("TENURE_HOME", home).env("TENURE_BROKER", broker);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command
    };
    let mut commands =
        Commands { nothing: Times::default(), version: Times::default(), send: Times::default() };
    for _ in 0..count {
        timed(&mut commands.nothing, &mut command(Path::new("/bin/true"), &[]))?;
        timed(&mut commands.version, &mut command(tenure, &["--version"]))?;
        timed(&mut commands.send, &mut command(tenure, &["send", TARGET, "hello"]))?;
    }
    Ok(Some(commands))
}

fn timed(times: &mut Times, command: &mut Command) -> Result<()> {
    let started = Instant::now();
    let status = command.status().with_context(|| format!("run {command:?}"))?;
    times.add(started.elapsed());
    ensure!(status.success(), "{command:?} failed ({status}); --commands 0 leaves commands out");
    Ok(())
}

impl Commands {
    pub(super) fn tell(mut self, report: &mut Report) {
        report.heading(format!("One command from a shell, {} of each in turns", self.send.count()));
        let all = [
            ("nothing", "a process that does nothing", &mut self.nothing),
            ("version", "tenure --version", &mut self.version),
            ("send", "tenure send", &mut self.send),
        ];
        for (key, name, times) in all {
            let (p50, p99) = (times.at(0.5), times.at(0.99));
            report.figure(
                &format!("{key}P50Ms"),
                round(p50, 2),
                &format!("{name}, p50 / p99"),
                format!("{p50:.2} / {p99:.2} ms"),
            );
            report.number(&format!("{key}P99Ms"), round(p99, 2));
        }
    }
}
