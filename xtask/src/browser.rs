//! `cargo xtask browser`: what a person would do with the relay, with the programs a person has.
//!
//! A static file server (Python's) and a WebSocket echo are exposed by name; curl fetches a file, Chromium loads a page
//! that fetches it too and speaks to the echo; then the publisher's machine sleeps for forty seconds. What is missing is
//! installed from Debian, by name.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitCode, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::{apt, run};

/// What is needed, and the Debian package that has it.
const TOOLS: &[(&str, &str)] = &[("chromium", "chromium"), ("curl", "curl"), ("python3", "python3")];
/// Bytes of the file that is fetched.
const FILE_BYTES: usize = 8 * 1024 * 1024;
/// How long the machine sleeps: longer than a service's thirty seconds, shorter than a lease.
const ASLEEP: Duration = Duration::from_secs(40);
/// When, after it fell asleep, somebody asks for the page.
const ASKED: Duration = Duration::from_secs(33);
/// How long anything else may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// The page: fetches the file, sends its length to the echo, and reports what came back by asking for a path.
const PAGE: &str = "<!doctype html><title>relay</title><script>
const echo = new URLSearchParams(location.search).get('echo');
const report = text => fetch('/report/' + encodeURIComponent(text));
(async () => {
    const file = await (await fetch('/file')).arrayBuffer();
    const socket = new WebSocket(echo);
    socket.onopen = () => socket.send('got ' + file.byteLength);
    socket.onmessage = event => report(event.data);
    socket.onerror = () => report('the socket failed');
})().catch(error => report(String(error)));
</script>";

/// Takes nothing.
pub(crate) fn start(args: &[String]) -> Result<ExitCode> {
    ensure!(args.is_empty(), "`browser` takes no arguments");
    TOOLS.iter().try_for_each(|(program, package)| install(program, package))?;
    let build = ["build", "--quiet", "--release", "--package", "tenure-cli", "--package", "tenure-bench"];
    run::succeed(&mut run::cargo(&build))?;
    let bin = run::target_directory()?.join("release");
    let home = bin.join("browser-home");
    let _ = fs::remove_dir_all(&home);
    let site = home.join("site");
    fs::create_dir_all(&site).with_context(|| format!("make {}", site.display()))?;
    let file: Vec<u8> = (0..FILE_BYTES).map(|n| (n % 251) as u8).collect();
    fs::write(site.join("file"), &file)?;
    fs::write(site.join("index.html"), PAGE)?;
    let house = House::start(&bin, &home, &site)?;
    house.curl(&file)?;
    house.browse()?;
    house.sleep()?;
    drop(house);
    let _ = fs::remove_dir_all(&home);
    Ok(ExitCode::SUCCESS)
}

fn install(program: &str, package: &str) -> Result<()> {
    if run::works(Command::new(program).arg("--version")) {
        return Ok(());
    }
    eprintln!("{program} is missing");
    apt::install(package)
}

/// A program that ends with us.
struct Proc(Child);

impl Proc {
    fn spawn(command: &mut Command) -> Result<Proc> {
        let program = command.get_program().to_string_lossy().into_owned();
        Ok(Proc(command.spawn().with_context(|| format!("start {program}"))?))
    }

    fn signal(&self, name: &str) -> Result<()> {
        run::succeed(Command::new("kill").arg(format!("-{name}")).arg(self.0.id().to_string()))
    }
}

impl Drop for Proc {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The lines that a program prints, as they come.
fn lines(from: impl std::io::Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

/// The first line that `find` makes something of.
fn wait_for<T>(lines: &Receiver<String>, what: &str, find: impl Fn(&str) -> Option<T>) -> Result<T> {
    let until = Instant::now() + PATIENCE;
    loop {
        match lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                if let Some(found) = find(&line) {
                    return Ok(found);
                }
            }
            Err(RecvTimeoutError::Timeout) => bail!("{what} did not come within a minute"),
            Err(RecvTimeoutError::Disconnected) => bail!("{what} will not come: the program has ended"),
        }
    }
}

fn taken<T>(end: Option<T>) -> Result<T> {
    end.context("a program has no output")
}

fn json(line: &str) -> Option<Value> {
    serde_json::from_str(line).ok()
}

/// A broker, two services on this machine, and whoever exposes them.
struct House {
    tenure: PathBuf,
    home: PathBuf,
    broker: String,
    /// Where the two are reached.
    site: String,
    echo: String,
    publisher: Proc,
    /// What the file server was asked for.
    asked: Receiver<String>,
    _others: [Proc; 4],
}

impl House {
    fn start(bin: &Path, home: &Path, site: &Path) -> Result<House> {
        let tenure = bin.join("tenure");
        let mut broker = Command::new(&tenure);
        broker
            .args([
                "broker",
                "--json",
                "--log",
                "warn",
                "--listen",
                "127.0.0.1:0",
                "--relay-listen",
                "127.0.0.1:0",
            ])
            .arg("--data-dir")
            .arg(home.join("broker"))
            .stdout(Stdio::piped());
        let mut broker = Proc::spawn(&mut broker)?;
        let ready = lines(taken::<ChildStdout>(broker.0.stdout.take())?);
        let listen = wait_for(&ready, "the broker", |line| Some(json(line)?["listen"].as_str()?.to_owned()))?;
        let address = format!("ws://{listen}");
        let mut files = Proc::spawn(
            Command::new("python3")
                .args(["-u", "-m", "http.server", "--bind", "127.0.0.1", "0"])
                .current_dir(site)
                .stdout(Stdio::piped())
                .stderr(Stdio::piped()),
        )?;
        let said = lines(taken::<ChildStdout>(files.0.stdout.take())?);
        let port = |line: &str| line.split(" port ").nth(1)?.split(' ').next()?.parse::<u16>().ok();
        let files_port = wait_for(&said, "the file server", port)?;
        let asked = lines(taken::<ChildStderr>(files.0.stderr.take())?);
        let mut echo =
            Proc::spawn(Command::new(bin.join("tenure-bench")).arg("floor-server").stdout(Stdio::piped()))?;
        let said = lines(taken::<ChildStdout>(echo.0.stdout.take())?);
        let port = |line: &str| line.rsplit(':').next()?.parse::<u16>().ok();
        let echo_port = wait_for(&said, "the echo", port)?;
        let (publisher, site) = expose(&tenure, home, &address, "site", files_port)?;
        let (second, echo_url) = expose(&tenure, home, &address, "echo", echo_port)?;
        let echo_url = echo_url.replacen("http://", "ws://", 1);
        println!("exposed: {site} and {echo_url}");
        Ok(House {
            tenure,
            home: home.to_owned(),
            broker: address,
            site,
            echo: echo_url,
            publisher,
            asked,
            _others: [broker, files, echo, second],
        })
    }

    /// A file, byte for byte.
    fn curl(&self, file: &[u8]) -> Result<()> {
        let started = Instant::now();
        let fetched =
            run::output(Command::new("curl").args(["-sS", "--fail"]).arg(format!("{}file", self.site)))?;
        ensure!(fetched == file, "curl got {} bytes, and others than were served", fetched.len());
        println!("curl: {} MiB through the relay in {} ms", file.len() >> 20, started.elapsed().as_millis());
        Ok(())
    }

    /// A page with a WebSocket, in a real browser.
    fn browse(&self) -> Result<()> {
        let page = format!("{}?echo={}", self.site, self.echo);
        let profile = self.home.join("chromium");
        let browser = Proc::spawn(
            Command::new("chromium")
                .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
                .arg(format!("--user-data-dir={}", profile.display()))
                .arg(page)
                .stdout(Stdio::null())
                .stderr(Stdio::null()),
        )?;
        let report = |line: &str| Some(line.split("/report/").nth(1)?.split(' ').next()?.to_owned());
        let report = wait_for(&self.asked, "the page's report", report)?;
        drop(browser);
        ensure!(report == format!("got%20{FILE_BYTES}"), "the page says {report:?}");
        println!("chromium: the page, the file and the WebSocket echo, through the relay");
        Ok(())
    }

    /// The publisher stands still as on a laptop that sleeps: stale, then back, and never gone.
    fn sleep(&self) -> Result<()> {
        let mut watch = Proc::spawn(
            Command::new(&self.tenure)
                .args(["services", "--watch", "--json", "--broker", &self.broker])
                .env("TENURE_HOME", self.home.join("watch"))
                .stdout(Stdio::piped()),
        )?;
        let events = lines(taken::<ChildStdout>(watch.0.stdout.take())?);
        let kind = |line: &str| {
            let event = json(line)?;
            (event["service"]["name"] == "site").then(|| event["kind"].as_str().map(str::to_owned))?
        };
        wait_for(&events, "the list of services", |line| kind(line).filter(|kind| kind == "here"))?;
        let began = Instant::now();
        self.publisher.signal("STOP")?;
        let stale = wait_for(&events, "the stale mark", kind)?;
        let stale_after = began.elapsed();
        ensure!(stale == "stale", "a publisher that sleeps is told as {stale}");
        std::thread::sleep(ASKED.saturating_sub(began.elapsed()));
        let mut asked = Proc::spawn(
            Command::new("curl")
                .args(["-sS", "--fail", "--output", "/dev/null", "--write-out", "%{http_code} %{time_total}"])
                .arg(&self.site)
                .stdout(Stdio::piped()),
        )?;
        std::thread::sleep(ASLEEP.saturating_sub(began.elapsed()));
        self.publisher.signal("CONT")?;
        let woke = Instant::now();
        let answer = lines(taken::<ChildStdout>(asked.0.stdout.take())?);
        let answer = wait_for(&answer, "the page of whoever waited", |line| Some(line.to_owned()))?;
        ensure!(answer.starts_with("200 "), "who asked while it slept got {answer:?}");
        let online = wait_for(&events, "the word that it is back", kind)?;
        ensure!(online == "online", "a publisher that is back is told as {online}");
        println!(
            "sleep: {} s; stale after {:.1} s; a request waited {} s for it; online {:.1} s after it woke; never gone",
            ASLEEP.as_secs(),
            stale_after.as_secs_f64(),
            answer.trim_start_matches("200 "),
            woke.elapsed().as_secs_f64()
        );
        Ok(())
    }
}

fn expose(tenure: &Path, home: &Path, broker: &str, name: &str, port: u16) -> Result<(Proc, String)> {
    let mut publisher = Proc::spawn(
        Command::new(tenure)
            .args(["expose", &port.to_string(), "--http", "--name", name, "--json", "--broker", broker])
            .env("TENURE_HOME", home.join(name))
            .stdout(Stdio::piped()),
    )?;
    let said = lines(taken::<ChildStdout>(publisher.0.stdout.take())?);
    let url = |line: &str| {
        let line = json(line)?;
        (line["event"] == "ready").then(|| line["url"].as_str().map(str::to_owned))?
    };
    let url = wait_for(&said, "the address of what is exposed", url)?;
    // Its further words must not block it.
    std::thread::spawn(move || said.iter().for_each(drop));
    Ok((publisher, url))
}
