//! Services: a row a name, gone with its session's lease.

use tenure_mesh::services::service::Facts;
use tenure_mesh::store::record::{ServiceRecord, StoreWrite};
use tenure_proto::service::{ServiceKind, ServiceMetadata};

use super::messages::{apply, mesh, session};
use super::{Engine, end, lease, put};
use crate::Store;

/// A service of session `n`.
pub(crate) fn service(n: u8, name: &str) -> ServiceRecord {
    let metadata = ServiceMetadata::default();
    let facts = Facts { kind: ServiceKind::Tcp, ttl_ms: 30_000 + u64::from(n), metadata };
    ServiceRecord { name: name.parse().unwrap(), session: session(n), since: 1_000 + u64::from(n), facts }
}

fn found(store: &mut impl Store) -> Vec<ServiceRecord> {
    store.restore(&mesh()).unwrap().services
}

pub(crate) fn a_service_reads_as_it_was_put<E: Engine>() {
    let engine = E::new();
    let mut store = engine.open();
    let full = ServiceRecord {
        facts: Facts {
            kind: ServiceKind::Http,
            ttl_ms: 3_600_000,
            metadata: ServiceMetadata {
                description: Some("what \"it\" is: \u{1F980}".to_owned()),
                tags: vec!["a".to_owned(), String::new()],
                owner: Some("somebody".to_owned()),
                hide: true,
            },
        },
        ..service(1, "web")
    };
    let mut run = service(1, "agent");
    run.facts.kind = ServiceKind::Run;
    apply(&mut store, StoreWrite::PutServices(vec![full.clone(), run.clone(), service(2, "db")]));
    drop(store);
    let mut store = engine.open();
    assert_eq!(found(&mut store), [run.clone(), service(2, "db"), full], "by name");
    let changed = ServiceRecord { facts: service(1, "web").facts, ..service(1, "web") };
    apply(&mut store, StoreWrite::PutServices(vec![changed.clone()]));
    assert_eq!(found(&mut store), [run, service(2, "db"), changed]);
}

pub(crate) fn a_lease_takes_its_services_with_it<E: Engine>() {
    let engine = E::new();
    let mut store = engine.open();
    store.begin_run(0).unwrap();
    let name = mesh().to_string();
    let (one, two) = (lease(&name, 1), lease(&name, 2));
    store.apply(&[put(&one), put(&two)]).unwrap();
    let write = StoreWrite::PutServices(vec![service(1, "a"), service(1, "b"), service(2, "c")]);
    apply(&mut store, write);
    assert_eq!(store.check().unwrap(), Vec::<String>::new());
    let mut other = lease(&name, 1);
    other.lease = "another".parse().unwrap();
    store.apply(&[end(&other)]).unwrap();
    assert_eq!(found(&mut store).len(), 3, "not that lease");
    store.apply(&[end(&one)]).unwrap();
    assert_eq!(found(&mut store), [service(2, "c")]);
    drop(store);
    assert_eq!(found(&mut engine.open()), [service(2, "c")]);
}

pub(crate) fn a_name_has_one_row_and_only_its_holder_drops_it<E: Engine>() {
    let place = E::new();
    let mut store = place.open();
    apply(&mut store, StoreWrite::PutServices(vec![service(1, "a")]));
    apply(&mut store, StoreWrite::PutServices(vec![service(2, "a"), service(2, "b")]));
    assert_eq!(found(&mut store), [service(2, "a"), service(2, "b")]);
    let names = vec!["a".parse().unwrap(), "never-there".parse().unwrap()];
    apply(&mut store, StoreWrite::DropServices(session(1), names.clone()));
    assert_eq!(found(&mut store).len(), 2);
    apply(&mut store, StoreWrite::DropServices(session(2), names));
    assert_eq!(found(&mut store), [service(2, "b")]);
}
