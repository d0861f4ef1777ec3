//! Which write goes where.

use rusqlite::Connection;
use tenure_mesh::messages::accept::Accepted;
use tenure_mesh::store::record::{StoreOutcome, StoreWrite};
use tenure_proto::log::LogName;
use tenure_proto::name::MeshName;

use super::accept::Accepting;
use super::cache::Cache;
use super::evacuate::Slice;
use super::fault::Fault;
use super::{
    accept, access, call, clear, dead, entry, evacuate, group, lease, lease_end, prune, run, service,
    session, sweep, topic,
};
use crate::{LeaseRow, Result, Write};

/// Carries out the writes of a batch, in their order.
pub(super) fn all(
    connection: &Connection,
    cache: &mut Cache,
    batch: &[Write],
) -> Result<Vec<StoreOutcome>, Fault> {
    let mut accepting = Accepting::new(connection);
    batch.iter().map(|write| apply(connection, &mut accepting, cache, write)).collect()
}

/// Carries out one write of a batch.
fn apply(
    connection: &Connection,
    accepting: &mut Accepting<'_>,
    cache: &mut Cache,
    write: &Write,
) -> Result<StoreOutcome, Fault> {
    match write {
        Write::Mesh { mesh, run, write } => of_mesh((connection, accepting), cache, mesh, *run, write),
        Write::Heartbeat { run, uptime_ms, believed_at } => {
            run::heartbeat(connection, *run, *uptime_ms, *believed_at).map(|()| StoreOutcome::Done)
        }
    }
}

fn of_mesh(
    (connection, accepting): (&Connection, &mut Accepting<'_>),
    cache: &mut Cache,
    name: &MeshName,
    run: u64,
    write: &StoreWrite,
) -> Result<StoreOutcome, Fault> {
    if let StoreWrite::Sweep { now, dead_before, runs_before, limit } = write {
        return sweep::sweep(connection, cache, *now, (*dead_before, *runs_before), *limit);
    }
    let mesh = cache.mesh(connection, name)?;
    match write {
        StoreWrite::Accept(accept) => {
            let accepted = accept::accept(accepting, mesh, accept)?;
            cache.accepted += u64::from(matches!(accepted, Accepted::Fresh { .. }));
            return Ok(StoreOutcome::Accepted(accepted));
        }
        StoreWrite::Group(write) => group::write(connection, mesh, write)?,
        StoreWrite::PutLease(record) => {
            lease::put(connection, &LeaseRow::of_record(name, record, run))?;
            session::seen(connection, mesh.id, &record.session, &record.member)?;
        }
        StoreWrite::TouchLease(session, lease) => lease::touch(connection, name, session, lease, run)?,
        StoreWrite::EndLease(end) => {
            let session = &end.session;
            if lease::end(connection, name, session, &end.lease)? {
                lease_end::add(connection, mesh.id, end)?;
                session::ended(connection, mesh.id, session, end.at)?;
                topic::drop_subs(connection, mesh.id, session)?;
                group::drop_private(connection, mesh.id, session)?;
                service::drop_all(connection, mesh.id, session)?;
            }
        }
        StoreWrite::PutServices(records) => {
            records.iter().try_for_each(|record| service::put(connection, mesh.id, record))?;
        }
        StoreWrite::DropServices(session, names) => {
            names.iter().try_for_each(|name| service::drop(connection, mesh.id, session, name))?;
        }
        StoreWrite::PutTopic(topic) => topic::put(connection, mesh.id, topic)?,
        StoreWrite::EndTopic { record, if_empty } => {
            return clear::end(connection, mesh, record, *if_empty).map(StoreOutcome::Ended);
        }
        StoreWrite::ClearTopic { record, limit } => return clear::clear(connection, mesh, record, *limit),
        StoreWrite::OpenGroup { record, from, used_at } => {
            return group::open(connection, mesh, record, *from, *used_at).map(StoreOutcome::Opened);
        }
        StoreWrite::DropGroup(id) => group::drop(connection, mesh.id, *id)?,
        StoreWrite::PutSub(sub) => topic::put_sub(connection, mesh.id, sub)?,
        StoreWrite::DropSub(session, sub) => topic::drop_sub(connection, mesh.id, session, sub)?,
        StoreWrite::Bury(burial) => dead::bury(connection, mesh, burial)?,
        StoreWrite::Revive { log, seqs, crews } => {
            return dead::revive(connection, mesh, log, seqs, crews.as_deref()).map(StoreOutcome::Revived);
        }
        StoreWrite::DropDead { log, seqs } => {
            let rows = dead::forget(connection, mesh, log, seqs)?;
            return Ok(StoreOutcome::Count { rows, more: false });
        }
        StoreWrite::Evacuate { session, member, limit, after, through, at } => {
            let inbox = LogName::Session(*session);
            let slice =
                Slice { inbox: &inbox, member, limit: *limit, after: *after, through: *through, at: *at };
            let outcome = evacuate::evacuate(connection, mesh, &slice)?;
            if matches!(outcome, StoreOutcome::Evacuated { next: None, .. }) {
                session::cleared(connection, mesh.id, session)?;
            }
            return Ok(outcome);
        }
        StoreWrite::Prune { log, lane, through, before, keep_bytes, at, limit } => {
            let slice = prune::Slice {
                through: *through,
                before: *before,
                keep_bytes: *keep_bytes,
                at: *at,
                limit: *limit,
            };
            return prune::prune(connection, mesh, (log, *lane), &slice);
        }
        StoreWrite::Unexpire { log, lane, seqs } => {
            if let Some(log) = mesh.find_log(connection, log)? {
                entry::unexpire(connection, log.id, *lane, seqs)?;
            }
        }
        StoreWrite::ClaimRun { run, callee, member } => {
            call::claim(connection, mesh.id, *run, callee, member)?
        }
        StoreWrite::CancelRun(run) => call::cancel(connection, mesh.id, *run)?,
        StoreWrite::Access(write) => access::write(connection, mesh.id, write)?,
        StoreWrite::EndRun(ending) => call::end(connection, mesh.id, ending)?,
        StoreWrite::Sweep { .. } => {}
    }
    Ok(StoreOutcome::Done)
}
