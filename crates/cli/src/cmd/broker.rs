//! `tenure broker`: run a broker in the foreground.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args as ClapArgs;
use tenure_broker::{Broker, Config, RawConfig, RawDays, StartError, Stop, StoreChoice};
use tenure_store::StoreError;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

use crate::exit::Failure;
use crate::home::Home;
use crate::log::Lossy;
use crate::notify::Manager;
use crate::output::{print, println, wants_colour};

/// How long after the deadline of its drain it may take to close its store, as the service manager is told.
const CLOSING: Duration = Duration::from_secs(30);

/// What is logged unless told otherwise.
const DEFAULT_LOG: &str = "info";

/// Run a broker: on loopback, open, with an embedded store, unless told otherwise. Every option is also a
/// TENURE_* variable and a key of the TOML file; flags win over the environment, and that over the file.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Example: tenure broker --listen 127.0.0.1:7400 --data-dir ./tenure-data")]
pub(crate) struct Args {
    /// Where to listen [env: TENURE_LISTEN] [default: 127.0.0.1:7400]
    #[arg(long, value_name = "ADDR:PORT")]
    listen: Option<String>,
    /// Where services are reached over HTTP, or off [env: TENURE_RELAY_LISTEN] [default: 127.0.0.1:7480 beside the usual
    /// address of a broker, a free port beside any other]
    #[arg(long, value_name = "ADDR:PORT")]
    relay_listen: Option<String>,
    /// Where the embedded store lives [env: TENURE_DATA_DIR]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<String>,
    /// What durable state goes to: sqlite or memory [env: TENURE_STORE] [default: sqlite]
    #[arg(long, value_name = "STORE")]
    store: Option<String>,
    /// From the last proof of life to the end of a lease [env: TENURE_LEASE_TTL_MS] [default: 90000]
    #[arg(long, value_name = "MS")]
    lease_ttl_ms: Option<u64>,
    /// Between pings [env: TENURE_PING_INTERVAL_MS] [default: a third of the lease]
    #[arg(long, value_name = "MS")]
    ping_interval_ms: Option<u64>,
    /// Silence after which a socket is dropped [env: TENURE_STALE_AFTER_MS] [default: five sixths of the lease]
    #[arg(long, value_name = "MS")]
    stale_after_ms: Option<u64>,
    /// How soon an idle socket gets a tick [env: TENURE_TICK_INTERVAL_MS] [default: a third of the lease]
    #[arg(long, value_name = "MS")]
    tick_interval_ms: Option<u64>,
    /// What sessions are promised when a signal stops it; absent is nothing [env: TENURE_RESTART_IN_MS]
    #[arg(long, value_name = "MS")]
    restart_in_ms: Option<u64>,
    /// Host headers besides the listener's own, by comma [env: TENURE_PUBLIC_HOSTS]
    #[arg(long, value_name = "HOSTS")]
    public_hosts: Option<String>,
    /// The certificate and its chain, a PEM file; it is read again when it changes, or on SIGHUP [env: TENURE_TLS_CERT]
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<String>,
    /// The certificate's private key, a PEM file [env: TENURE_TLS_KEY]
    #[arg(long, value_name = "FILE")]
    tls_key: Option<String>,
    /// A proxy in front encrypts connections [env: TENURE_BEHIND_PROXY]
    #[arg(long)]
    behind_proxy: bool,
    /// Read more options from this TOML file
    #[arg(long, value_name = "FILE", env = "TENURE_CONFIG")]
    config: Option<PathBuf>,
    /// What to log, such as info or tenure_broker=debug [env: TENURE_LOG] [default: info]
    #[arg(long, value_name = "FILTER")]
    log: Option<String>,
    /// How to log: pretty or json [env: TENURE_LOG_FORMAT] [default: pretty]
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<String>,
    /// Print the configuration in force, without secrets, and exit
    #[arg(long)]
    print_config: bool,
    /// Print one line of JSON on stdout when ready
    #[arg(long)]
    json: bool,
    /// Serve a plain WebSocket echo at /test/echo, for conformance suites
    #[arg(long, hide = true)]
    test_echo: bool,
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    let raw = merged(&args)?;
    let (filter, json_log) = log_options(&raw)?;
    let default_dir =
        Home::find().map(|home| home.broker_dir()).unwrap_or_else(|_| PathBuf::from("tenure-data"));
    let mut config = raw.check(default_dir).map_err(|problem| Failure::Usage(problem.to_string()))?;
    config.test_echo = args.test_echo;
    if args.print_config {
        print(&every_key(&config, raw)?);
        return Ok(());
    }
    start_log(filter, json_log)?;
    crate::block_on(serve(config, args.json))
}

/// Flags over environment over file.
fn merged(args: &Args) -> Result<RawConfig, Failure> {
    let usage = |problem: tenure_broker::ConfigProblem| Failure::Usage(problem.to_string());
    let flags = RawConfig {
        listen: args.listen.clone(),
        relay_listen: args.relay_listen.clone(),
        data_dir: args.data_dir.clone(),
        store: args.store.clone(),
        lease_ttl_ms: args.lease_ttl_ms,
        ping_interval_ms: args.ping_interval_ms,
        stale_after_ms: args.stale_after_ms,
        tick_interval_ms: args.tick_interval_ms,
        restart_in_ms: args.restart_in_ms,
        public_hosts: args.public_hosts.clone(),
        tls_cert: args.tls_cert.clone(),
        tls_key: args.tls_key.clone(),
        behind_proxy: args.behind_proxy.then_some(true),
        log: args.log.clone(),
        log_format: args.log_format.clone(),
        ..RawConfig::default()
    };
    let env = RawConfig::from_env(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
        .map_err(usage)?;
    let file = match &args.config {
        None => RawConfig::default(),
        Some(path) => {
            let text = std::fs::read_to_string(path)
                .map_err(|error| Failure::Usage(format!("read {}: {error}", path.display())))?;
            RawConfig::from_toml(&text)
                .map_err(|problem| Failure::Usage(format!("{}: {problem}", path.display())))?
        }
    };
    Ok(flags.or(env).or(file))
}

/// Every option with its value in force, as a file that could be read again: defaults are marked, what has no value is
/// commented out.
fn every_key(config: &Config, written: RawConfig) -> Result<String, Failure> {
    let table = |raw: RawConfig| {
        toml::Table::try_from(raw.without_secrets()).map_err(|error| Failure::Failed(error.to_string()))
    };
    let (given, shown) = (table(written.clone())?, table(in_force(config, written))?);
    let line = |key: &&str| match shown.get(*key) {
        None => format!("# {key} =\n"),
        Some(value) if given.contains_key(*key) => format!("{key} = {value}\n"),
        Some(value) => format!("{key} = {value}  # default\n"),
    };
    Ok(RawConfig::KEYS.iter().map(line).collect())
}

/// The checked configuration written out, defaults and derived numbers included, over what somebody wrote.
fn in_force(config: &Config, raw: RawConfig) -> RawConfig {
    let (mesh, number) = (&config.mesh, |bytes: usize| Some(bytes as u64));
    let (store, data_dir) = match &config.store {
        StoreChoice::Sqlite(dir) => ("sqlite", Some(dir.display().to_string())),
        StoreChoice::Memory => ("memory", None),
    };
    let filled = RawConfig {
        listen: Some(config.listen.to_string()),
        relay_listen: Some(config.relay.listen.map_or_else(|| "off".to_owned(), |addr| addr.to_string())),
        relay_answer_ms: Some(config.relay.answer.as_millis() as u64),
        relay_idle_ms: Some(config.relay.idle.as_millis() as u64),
        relay_max_body: Some(config.relay.body_bytes.unwrap_or(0)),
        data_dir,
        store: Some(store.to_owned()),
        lease_ttl_ms: Some(mesh.lease_ttl_ms),
        ping_interval_ms: Some(mesh.ping_interval_ms),
        stale_after_ms: Some(mesh.stale_after_ms),
        tick_interval_ms: Some(mesh.tick_interval_ms),
        max_payload: number(mesh.max_payload),
        max_buffered_bytes: number(mesh.max_buffered_bytes),
        max_buffered_total: number(config.max_buffered_total),
        max_connections: config.max_connections.and_then(number),
        max_sessions: number(mesh.max_sessions),
        slow_consumer_ms: Some(mesh.slow_consumer_ms),
        reconnect_grace_ms: Some(mesh.reconnect_grace_ms),
        ack_timeout_ms: Some(mesh.ack_timeout_ms),
        retention_ms: Some(mesh.retention_ms),
        topic_max_bytes: Some(mesh.topic_bytes.unwrap_or(0)),
        dedupe_retention_days: Some(
            mesh.dedupe_days
                .map_or_else(|| RawDays::Word("permanent".to_owned()), |days| RawDays::Days(days.into())),
        ),
        behind_proxy: Some(config.behind_proxy),
        max_sessions_per_member: number(mesh.max_sessions_per_member),
        max_groups_per_topic: number(mesh.max_groups_per_topic),
        max_groups_per_member: number(mesh.max_groups_per_member),
        max_topics_per_member: number(mesh.max_topics_per_member),
        max_unauthenticated_sockets: number(config.max_unauthenticated),
        max_sockets_per_address: number(config.addresses.sockets),
        hello_rate: Some(config.addresses.hellos.per_second.into()),
        send_rate: Some(mesh.send_rate.per_second.into()),
        request_rate: Some(mesh.request_rate.per_second.into()),
        limit_loopback: Some(config.addresses.loopback),
        public_hosts: Some(config.public_hosts.join(",")),
        allowed_origins: Some(config.allowed_origins.join(",")),
        log: Some(raw.log.clone().unwrap_or_else(|| DEFAULT_LOG.to_owned())),
        log_format: Some(raw.log_format.clone().unwrap_or_else(|| "pretty".to_owned())),
        ..RawConfig::default()
    };
    filled.or(raw)
}

/// What to log, and whether as JSON.
fn log_options(raw: &RawConfig) -> Result<(EnvFilter, bool), Failure> {
    let filter = raw.log.as_deref().unwrap_or(DEFAULT_LOG);
    let filter =
        EnvFilter::try_new(filter).map_err(|error| Failure::Usage(format!("log filter: {error}")))?;
    match raw.log_format.as_deref() {
        None | Some("pretty") => Ok((filter, false)),
        Some("json") => Ok((filter, true)),
        Some(other) => Err(Failure::Usage(format!("log format must be json or pretty, not {other:?}"))),
    }
}

fn start_log(filter: EnvFilter, json: bool) -> Result<(), Failure> {
    let log = tracing_subscriber::fmt()
        .log_internal_errors(false)
        .with_env_filter(filter)
        .with_writer(Lossy::new(std::io::stderr(), json, Arc::default()))
        .with_target(false);
    let started = match json {
        false => crate::log::start(log.with_ansi(wants_colour(&std::io::stderr())).finish()),
        true => crate::log::start(log.json().flatten_event(true).finish()),
    };
    started.map_err(|error| Failure::Failed(format!("start the log: {error}")))
}

/// What it means for the exit code that a broker did not start: 2 where trying again cannot help before a person has done something.
fn not_started(error: StartError) -> Failure {
    match &error {
        StartError::NoMesh(_)
        | StartError::Store(StoreError::Lost(_) | StoreError::Corrupt(_) | StoreError::Newer { .. }) => {
            Failure::Usage(error.to_string())
        }
        _ => Failure::Failed(error.to_string()),
    }
}

async fn serve(config: Config, json: bool) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::Failed(format!("watch for signals: {error}"));
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let mut hangup = signal(SignalKind::hangup()).map_err(failed)?;
    let store = match &config.store {
        StoreChoice::Sqlite(dir) => dir.display().to_string(),
        StoreChoice::Memory => "memory".to_owned(),
    };
    let manager = Manager::of_this_process();
    let encrypted = config.tls.is_some();
    let broker = Broker::start(config).await.map_err(not_started)?;
    let listen = broker.addr().to_string();
    let relay = broker.relay_addr().map(|addr| addr.to_string());
    let scheme = if encrypted { "wss" } else { "ws" };
    if json {
        let ready = serde_json::json!({"event": "ready", "listen": listen, "relay": relay, "store": store});
        println(&ready.to_string());
    }
    let what = if broker.is_open() { "an open broker for this machine" } else { "a broker for members" };
    tracing::info!(event = "ready", listen = %format!("{scheme}://{listen}"), store, "{what}");
    manager.ready(&format!("listening on {scheme}://{listen}"));
    // All are cancel-safe: those that lose have taken nothing.
    let usual = Stop::default().deadline_ms;
    let (reason, deadline_ms) = loop {
        tokio::select! {
            _ = terminate.recv() => break ("terminated".to_owned(), usual),
            _ = interrupt.recv() => break ("interrupted".to_owned(), usual),
            stopping = broker.told_to_stop() => break (stopping.reason, stopping.deadline_ms),
            _ = hangup.recv() => broker.reload(),
        }
    };
    tracing::info!(event = "stopping", reason);
    let within = Duration::from_millis(deadline_ms).saturating_add(CLOSING);
    manager.stopping("draining: everybody is told, what is on its way arrives", within);
    let hurry = broker.hurry();
    let stop = broker.stop(&reason);
    tokio::pin!(stop);
    let mut asked = 0;
    loop {
        // All are cancel-safe: the stop is polled where it is, the others have taken nothing.
        tokio::select! {
            () = &mut stop => break,
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        asked += 1;
        if asked > 1 {
            // Asked a third time, do not insist: what is stored is stored.
            break;
        }
        tracing::info!(event = "hurrying", "what is on its way is not waited for");
        hurry.up().await;
    }
    tracing::info!(event = "stopped");
    Ok(())
}
