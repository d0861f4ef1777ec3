//! Which Host names which service: `NAME.localhost`, and `NAME.DOMAIN` for each domain that an operator gave.

use tenure_proto::name::{MeshName, ServiceName};

use crate::relay::refusal::Refusal;

/// The domain that needs no configuration: browsers resolve every name below it to this machine.
const LOCAL: &str = "localhost";
/// Bytes of a Host: a name of DNS and a port.
const HOST_BYTES: usize = 260;

/// The domains below which services have names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domains(Vec<String>);

impl Default for Domains {
    fn default() -> Domains {
        Domains(vec![LOCAL.to_owned()])
    }
}

impl Domains {
    /// `localhost` and these. Gives the first that is no domain.
    pub fn new(domains: &[String]) -> Result<Domains, String> {
        let mut all = Domains::default();
        for domain in domains {
            let lower = domain.trim_matches('.').to_ascii_lowercase();
            let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'.' | b'-');
            if lower.is_empty() || lower.contains("..") || !lower.bytes().all(plain) {
                return Err(domain.clone());
            }
            if !all.0.contains(&lower) {
                all.0.push(lower);
            }
        }
        // The longest first: a name below `a.example` is not one below `example`.
        all.0.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        Ok(all)
    }

    /// The service that `host` names, with or without a port.
    pub fn service(&self, host: &str) -> Result<ServiceName, Refusal> {
        let unknown = || Refusal::unknown_host(self.example());
        if host.len() > HOST_BYTES {
            return Err(unknown());
        }
        let host = without_port(host).ok_or_else(unknown)?.to_ascii_lowercase();
        let host = host.strip_suffix('.').unwrap_or(&host);
        let below = |domain: &String| host.strip_suffix(domain.as_str())?.strip_suffix('.');
        let name = self.0.iter().find_map(below).ok_or_else(unknown)?;
        name.parse().map_err(|_| unknown())
    }

    /// Where a service is reached, for people: the first domain that is not this machine's own, if there is one.
    pub fn example(&self) -> &str {
        self.0.iter().find(|domain| *domain != LOCAL).map_or(LOCAL, String::as_str)
    }
}

/// Where a service that a Host names may be, the likeliest first. What ends in the name of a mesh is `NAME.MESH` of the
/// longest such mesh and nobody else's, also while that has no such service: else whoever takes a dotted name in another
/// mesh would be given its visitors. Everything else is as it is in the mesh that is at `home`, which needs no label.
pub fn places<'a>(
    name: &ServiceName,
    home: Option<&MeshName>,
    meshes: impl Iterator<Item = &'a MeshName>,
) -> Vec<(MeshName, ServiceName)> {
    let labelled = |mesh: &MeshName| {
        let name = name.as_str().strip_suffix(mesh.as_str())?.strip_suffix('.')?;
        Some((mesh.clone(), name.parse().ok()?))
    };
    let labelled = meshes.filter_map(labelled).max_by_key(|(mesh, _)| mesh.as_str().len());
    let elsewhere = labelled.as_ref().is_some_and(|(mesh, _)| Some(mesh) != home);
    let plain = home.filter(|_| !elsewhere).map(|mesh| (mesh.clone(), name.clone()));
    labelled.into_iter().chain(plain).collect()
}

/// `host` without its port; nothing when what follows the colon is none.
fn without_port(host: &str) -> Option<&str> {
    match host.rsplit_once(':') {
        None => Some(host),
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) && port.len() <= 5 => Some(name),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stands_before_one_of_our_domains() {
        let domains = Domains::new(&["Relay.Example.".into(), "example".into()]).unwrap();
        for (host, name) in [
            ("web.localhost", "web"),
            ("WEB.LocalHost:7480", "web"),
            ("web.localhost.", "web"),
            ("a.b.localhost", "a.b"),
            ("web.relay.example:443", "web"),
            ("web.example", "web"),
        ] {
            assert_eq!(
                domains.service(host).map(|name| name.to_string()).ok().as_deref(),
                Some(name),
                "{host}"
            );
        }
        for host in [
            "",
            "localhost",
            "localhost:7480",
            ".localhost",
            "127.0.0.1:7480",
            "[::1]:7480",
            "web.elsewhere",
            "webrelay.other",
            "-.localhost",
            "dead.localhost",
            "web.localhost:x",
            "web.localhost:123456",
            "w eb.localhost",
            "wéb.localhost",
            "web.localhost/..",
            "a@web.localhost:",
            "evil.com#.localhost",
            &format!("{}.localhost", "x".repeat(65)),
            &format!("{}.localhost", "x.".repeat(200)),
        ] {
            let refusal = domains.service(host).unwrap_err();
            assert_eq!(refusal.status, 404, "{host}");
        }
    }

    #[test]
    fn a_mesh_is_named_behind_its_service_unless_it_is_at_home() {
        let meshes: Vec<MeshName> = ["a", "b", "x.b"].iter().filter_map(|mesh| mesh.parse().ok()).collect();
        let found = |name: &str, home: Option<usize>| {
            let home = home.map(|index| &meshes[index]);
            let places = places(&name.parse().unwrap(), home, meshes.iter());
            places.iter().map(|(mesh, name)| format!("{name}@{mesh}")).collect::<Vec<_>>()
        };
        assert_eq!(found("web", Some(0)), ["web@a"]);
        assert_eq!(found("web.b", Some(0)), ["web@b"], "a dotted name at home shadows no other mesh");
        assert_eq!(found("web.x.b", Some(0)), ["web@x.b"], "nor does one of a mesh with a shorter name");
        assert_eq!(found("web.x.b", Some(1)), ["web@x.b"]);
        assert_eq!(found("web.a", Some(0)), ["web@a", "web.a@a"], "both are at home");
        assert_eq!(found("web.c", Some(0)), ["web.c@a"], "no mesh has that name");
        assert_eq!(found("webb", Some(0)), ["webb@a"]);
        assert_eq!(found("b", Some(0)), ["b@a"]);
        assert_eq!(found("b", None), Vec::<String>::new());
    }

    #[test]
    fn a_domain_must_be_one() {
        assert_eq!(Domains::new(&["exa mple".into()]), Err("exa mple".to_owned()));
        assert_eq!(Domains::new(&["".into()]), Err(String::new()));
        assert_eq!(Domains::default().example(), "localhost");
        assert_eq!(Domains::new(&["relay.example".into()]).unwrap().example(), "relay.example");
    }
}
