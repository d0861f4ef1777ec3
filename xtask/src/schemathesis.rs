//! `cargo xtask schemathesis`: a third-party tool reads the OpenAPI documents of the daemon and of the broker's admin API, and
//! tries to make them lie.
//!
//! Schemathesis comes from PyPI into a virtual environment under `target/`, once. A broker and a daemon are started; the
//! tool makes requests that the document allows and requests that it forbids, and checks that every answer is
//! documented, has the shape it should have, and is never a server's error. `cargo xtask test` does the same with fewer
//! requests.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{apt, run};

/// The tool, as it is known to work.
const PACKAGE: &str = "schemathesis==4.32.5";
/// Requests for each operation and kind, unless told otherwise.
const EXAMPLES: u32 = 100;
/// Requests for each operation and kind in `cargo xtask test`.
const FEW: u32 = 8;
/// What valid data may be told: as the tool has it, and 422, which we answer where values are good by themselves and not
/// together, or not what a mesh's policy wants. No schema says that.
const CONFIG: &str = "[checks.positive_data_acceptance]\n\
    expected-statuses = [\"2xx\", \"3xx\", \"401\", \"403\", \"404\", \"409\", \"422\", \"429\", \"5xx\"]\n";
/// What is not asked of a daemon: a stream of events has no end to wait for; its own tests read it.
const STREAMS: &str = "/v1/events";
/// What is not asked of a broker: it would stop, and the rest would be asked of nobody; its own tests do.
const STOPS: &str = "/v1/admin/drain";

/// `[--examples N]`, with a release build.
pub(crate) fn start(args: &[String]) -> Result<ExitCode> {
    let examples = match args {
        [] => EXAMPLES,
        [flag, number] if flag == "--examples" => {
            number.parse().with_context(|| format!("`{number}` is not a number of examples"))?
        }
        _ => bail!("`schemathesis` takes --examples N and nothing else"),
    };
    check("release", examples)?;
    Ok(ExitCode::SUCCESS)
}

/// The short form, with the build that tests use. Where the tool cannot be had, that is said, and not a failure.
pub(crate) fn quick() -> Result<()> {
    match install(&run::target_directory()?.join("schemathesis")) {
        Ok(_) => check("debug", FEW),
        Err(error) => {
            eprintln!("not run, because schemathesis cannot be installed: {error:#}");
            Ok(())
        }
    }
}

fn check(profile: &str, examples: u32) -> Result<()> {
    let mut build = run::cargo(&["build", "--quiet", "--package", "tenure-cli", "--package", "tenure-bench"]);
    if profile == "release" {
        build.arg("--release");
    }
    run::succeed(&mut build)?;
    let target = run::target_directory()?;
    let tool = install(&target.join("schemathesis"))?;
    let house = House::start(&target.join(profile).join("tenure-bench"))?;
    let dir = target.join("schemathesis");
    fs::write(dir.join("schemathesis.toml"), CONFIG).context("write the tool's configuration")?;
    // The daemon first: an operator may do away with its session.
    for (address, token, left_out) in
        [(&house.tcp, &house.token, STREAMS), (&house.broker, &house.broker_token, STOPS)]
    {
        let mut command = Command::new(&tool);
        command
            .arg("run")
            .arg(format!("http://{address}/v1/openapi.json"))
            .args(["--header", &format!("Authorization: Bearer {token}")])
            .args(["--checks", "all", "--mode", "all", "--exclude-path", left_out, "--seed", "7"])
            .args(["--max-examples", &examples.to_string(), "--continue-on-failure", "--no-color"])
            // It keeps what it found in a directory of its own.
            .current_dir(&dir);
        run::succeed(&mut command)?;
    }
    Ok(())
}

/// The tool's program; brought from PyPI the first time.
fn install(dir: &Path) -> Result<PathBuf> {
    let tool = dir.join("bin").join("schemathesis");
    let stamp = dir.join("installed");
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == PACKAGE) {
        return Ok(tool);
    }
    eprintln!("installing {PACKAGE} from PyPI into {}", dir.display());
    if !run::works(Command::new("python3").args(["-m", "venv", "--help"])) {
        eprintln!("python3 with venv is missing");
        apt::install("python3-venv").context("schemathesis needs python3 with venv")?;
    }
    run::succeed(Command::new("python3").args(["-m", "venv", "--clear"]).arg(dir))?;
    let pip = dir.join("bin").join("pip");
    run::succeed(Command::new(pip).args(["install", "--quiet", "--disable-pip-version-check", PACKAGE]))?;
    fs::write(&stamp, PACKAGE).context("note what is installed")?;
    Ok(tool)
}

/// A broker and a daemon; dropping it ends both.
struct House {
    child: Child,
    tcp: String,
    token: String,
    broker: String,
    broker_token: String,
}

impl House {
    fn start(binary: &Path) -> Result<House> {
        let mut child = Command::new(binary)
            .arg("daemon-house")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("start {}", binary.display()))?;
        let mut line = String::new();
        let stdout = child.stdout.take().context("take the stdout of the daemon")?;
        BufReader::new(stdout).read_line(&mut line).context("wait for the daemon")?;
        let ready: Value = serde_json::from_str(&line).context("the daemon did not start")?;
        let text =
            |field: &str| ready[field].as_str().map(str::to_owned).context("the daemon says not where");
        let (broker, broker_token) = (text("broker")?, text("brokerToken")?);
        Ok(House { tcp: text("tcp")?, token: text("token")?, broker, broker_token, child })
    }
}

impl Drop for House {
    fn drop(&mut self) {
        // It ends when nobody can speak to it any more.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}
