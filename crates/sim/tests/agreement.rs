//! What one machine of rules says of itself, another understands.

use tenure_mesh::MeshConfig;
use tenure_mesh::conn::feature::in_force;
use tenure_outbox::window::{Window, window};

#[test]
fn a_daemon_understands_how_long_a_broker_remembers_ids() {
    let of = |dedupe_days| window(&in_force(&MeshConfig { dedupe_days, ..MeshConfig::default() }));
    assert_eq!((of(Some(30)).unwrap(), of(None).unwrap()), (Window::Days(30), Window::Permanent));
}
