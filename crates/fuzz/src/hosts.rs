//! Host and Origin headers.

use tenure_kit::host::Doors;
use tenure_mesh::relay::host::{Domains, places};
use tenure_proto::name::MeshName;

/// One line of an input is the Host, the next the Origin, the third a domain of the operator's.
pub(crate) fn run(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let mut lines = text.split('\n');
    let (host, origin, domain) = (lines.next(), lines.next(), lines.next());
    let doors = Doors::loopback(7400, &["mesh.example".to_owned(), "other.example:*".to_owned()], &[]);
    if doors.check(host, origin).is_ok() {
        // What was let in is ours by its plain spelling too, and is among the hosts that a proof may name.
        let host = host.unwrap_or_default();
        assert!(doors.check(Some(&host.to_ascii_lowercase()), None).is_ok(), "{host:?}");
        assert!(doors.signed_hosts(host).contains(&host.to_owned()), "{host:?}");
        let known = ["localhost:7400", "127.0.0.1:7400", "[::1]:7400", "mesh.example"];
        let lower = host.to_ascii_lowercase();
        let ours = known.contains(&lower.as_str()) || lower.starts_with("other.example");
        assert!(ours, "a stranger's Host was taken for ours: {host:?}");
    }
    let domains = domain.map(|domain| vec![domain.to_owned()]).unwrap_or_default();
    let domains = Domains::new(&domains).unwrap_or_default();
    let Ok(service) = domains.service(host.unwrap_or_default()) else { return };
    let meshes: Vec<MeshName> =
        ["default", "team", "a.b"].iter().filter_map(|name| name.parse().ok()).collect();
    let found = places(&service, meshes.first(), meshes.iter());
    assert!(found.len() <= 2, "{found:?}");
    for (mesh, name) in found {
        assert!(meshes.contains(&mesh), "{mesh}");
        assert!(service.as_str().starts_with(name.as_str()), "{service} is no {name}");
    }
}
