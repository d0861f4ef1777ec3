//! Counts, for a scraper.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tenure_proto::limits::PROTOCOL;

use super::document::Refusals;
use super::health::PROFILE;
use super::problem::Problem;
use crate::outbox::Census;
use crate::shared::Shared;
use crate::{inbox, outbox};

type Number = Gauge<u64, AtomicU64>;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct BuildLabels {
    version: &'static str,
    protocol: u32,
    profile: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct FileLabels {
    file: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct StatusLabels {
    status: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct MeshLabels {
    mesh: String,
}

/// Counts, for a scraper.
#[utoipa::path(get, path = "/v1/metrics", responses(
    (status = 200, description = "OpenMetrics text", body = String, content_type = "application/openmetrics-text"),
    Refusals))]
pub(crate) async fn metrics(State(shared): State<Arc<Shared>>) -> Result<Response, Problem> {
    let (census, inbox) = (shared.outbox.census().await?, shared.inbox.bytes().await?);
    let mut registry = Registry::with_prefix("tenure_daemon");
    of_the_program(&mut registry, &shared);
    of_the_outbox(&mut registry, &census, shared.clock.wall());
    of_the_rest(&mut registry, &shared, inbox);
    of_meshes(&mut registry, &shared);
    let mut text = String::new();
    encode(&mut text, &registry)
        .map_err(|_| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "no metrics"))?;
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, kind)], text).into_response())
}

fn gauge(registry: &mut Registry, name: &str, help: &str, value: u64) {
    let gauge = Number::default();
    gauge.set(value);
    registry.register(name, help, gauge);
}

fn of_the_program(registry: &mut Registry, shared: &Shared) {
    let build = Family::<BuildLabels, Number>::default();
    let labels = BuildLabels { version: env!("CARGO_PKG_VERSION"), protocol: PROTOCOL, profile: PROFILE };
    build.get_or_create(&labels).set(1);
    registry.register("build_info", "The version that runs", build);
    let schema = Family::<FileLabels, Number>::default();
    for (file, version) in [("outbox", outbox::schema_version()), ("inbox", inbox::schema_version())] {
        schema.get_or_create(&FileLabels { file }).set(version as u64);
    }
    registry.register("schema_version", "The version of a file's schema", schema);
    gauge(registry, "uptime_seconds", "How long it has run", shared.clock.at().0 / 1_000);
}

fn of_the_outbox(registry: &mut Registry, census: &Census, wall: u64) {
    gauge(registry, "outbox_pending", "Rows that wait", census.pending);
    gauge(registry, "outbox_inflight", "Rows on their way to a broker", census.inflight);
    gauge(registry, "outbox_dead", "Rows that a person must look at", census.dead);
    gauge(registry, "outbox_bytes", "Bytes of the outbox in use", census.bytes);
    let rows = Family::<StatusLabels, Number>::default();
    for (status, count) in [
        ("pending", census.pending),
        ("inflight", census.inflight),
        ("done", census.done),
        ("dead", census.dead),
        ("aborted", census.aborted),
    ] {
        rows.get_or_create(&StatusLabels { status }).set(count);
    }
    registry.register("outbox_rows", "Rows by where they stand", rows);
    let age = |at: Option<u64>| at.map_or(0, |at| wall.saturating_sub(at) / 1_000);
    let help = "Age of the oldest row that waits or is on its way; 0 if none does";
    gauge(registry, "outbox_drain_lag_seconds", help, age(census.oldest_open));
    let help = "Age of the oldest dead row; 0 if there is none";
    gauge(registry, "outbox_oldest_dead_seconds", help, age(census.oldest_dead));
    let help = "When a broker last took a row, Unix seconds; 0 if none ever did";
    gauge(registry, "outbox_last_done_timestamp_seconds", help, census.last_done.unwrap_or(0) / 1_000);
}

fn of_the_rest(registry: &mut Registry, shared: &Shared, inbox: u64) {
    gauge(registry, "inbox_bytes", "Bytes of the inbox in use", inbox);
    gauge(registry, "inbox_newest", "The number of the newest message that came", *shared.arrived.borrow());
    let full = u64::from(shared.outbox.disk_full().is_some());
    gauge(registry, "disk_full", "Whether the disk is full, so that nothing new is taken", full);
    let lost = shared.config.log_lines_lost.load(Ordering::Relaxed);
    gauge(registry, "log_lines_lost", "Lines that could not be written to the log since it began", lost);
    let failed = [shared.outbox.fault(), shared.inbox.fault()].iter().flatten().count();
    gauge(registry, "disks_failed", "Files that nothing is written to any more", failed as u64);
    let sessions = shared.sessions.all();
    let attached = sessions.iter().filter(|local| local.standing.borrow().is_attached()).count();
    gauge(registry, "sessions", "Local sessions", sessions.len() as u64);
    gauge(registry, "sessions_attached", "Local sessions that a broker carries now", attached as u64);
}

fn of_meshes(registry: &mut Registry, shared: &Shared) {
    let (connected, age) = (Family::<MeshLabels, Number>::default(), Family::<MeshLabels, Number>::default());
    for choice in &shared.config.meshes {
        let Some(own) = shared.sessions.own(&choice.name) else { continue };
        let labels = MeshLabels { mesh: choice.name.to_string() };
        connected.get_or_create(&labels).set(u64::from(own.standing.borrow().is_attached()));
        if let Some(hours) = *own.max_age_hours.borrow() {
            age.get_or_create(&labels).set(hours);
        }
    }
    registry.register("connected", "Whether the broker of a mesh can be reached", connected);
    registry.register("max_age_hours", "Hours that a message may wait for the broker of a mesh", age);
}
