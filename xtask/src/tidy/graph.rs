//! Who depends on whom, from `cargo metadata`.
//!
//! Purity: what ships with `proto` and the rules (`kit`, `mesh`, `link`, `outbox`) reaches no runtime, clock, socket, database or source of
//! randomness. The walk follows normal dependencies on every platform and with the features the whole workspace
//! asks for, so it sees more than one build would; that is the safe direction to be wrong in.
//!
//! Direction: `proto ← kit ← {mesh, link, outbox}`; the rules do not know each other. Above them `mesh ← store ← broker`,
//! `link ← client`, `{outbox, store, client} ← daemon`; broker and client never meet.

use std::collections::BTreeMap;

use serde_json::Value;

const PURE: &[&str] = &["tenure-proto", "tenure-kit", "tenure-mesh", "tenure-link", "tenure-outbox"];

/// Packages whose presence would let I/O, time or randomness into a pure crate.
const IMPURE: &[&str] = &[
    // Runtimes and what they are made of.
    "async-io",
    "async-std",
    "futures-executor",
    "mio",
    "polling",
    "rayon",
    "smol",
    "tokio",
    "tokio-util",
    // Randomness.
    "fastrand",
    "getrandom",
    "rand",
    "rand_chacha",
    "rand_core",
    "uuid",
    // Clocks.
    "chrono",
    "jiff",
    "quanta",
    "time",
    // Sockets, disks, terminals.
    "axum",
    "clap",
    "hyper",
    "hyper-util",
    "reqwest",
    "rusqlite",
    "socket2",
    "tempfile",
    "tokio-tungstenite",
    "tower",
    "tracing-subscriber",
    "tungstenite",
];

/// The crates of the workspace that each of these may name in its manifest, for any purpose.
const DIRECTION: &[(&str, &[&str])] = &[
    ("tenure-proto", &[]),
    ("tenure-kit", &["tenure-proto"]),
    ("tenure-mesh", &["tenure-proto", "tenure-kit"]),
    ("tenure-link", &["tenure-proto", "tenure-kit"]),
    ("tenure-outbox", &["tenure-proto", "tenure-kit"]),
    ("tenure-store", &["tenure-proto", "tenure-kit", "tenure-mesh"]),
    ("tenure-mux", &["tenure-proto"]),
    ("tenure-client", &["tenure-proto", "tenure-kit", "tenure-link", "tenure-mux"]),
    (
        "tenure-sim",
        &["tenure-proto", "tenure-kit", "tenure-mesh", "tenure-link", "tenure-outbox", "tenure-store"],
    ),
    ("tenure-broker", &["tenure-proto", "tenure-kit", "tenure-mesh", "tenure-mux", "tenure-store"]),
    ("tenure-daemon", &["tenure-proto", "tenure-kit", "tenure-outbox", "tenure-client", "tenure-store"]),
];

/// One line for each impure package that a pure crate reaches, with the way there.
pub(crate) fn check_purity(metadata: &Value) -> Vec<String> {
    let names: BTreeMap<&str, &str> = packages(metadata)
        .filter_map(|package| Some((package["id"].as_str()?, package["name"].as_str()?)))
        .collect();
    let nodes: BTreeMap<&str, &Value> =
        list(&metadata["resolve"]["nodes"]).filter_map(|node| Some((node["id"].as_str()?, node))).collect();
    let mut problems = Vec::new();
    for &pure in PURE {
        match names.iter().find(|(_, name)| **name == pure) {
            Some((id, _)) => problems.extend(impure_ways(id, &names, &nodes)),
            None => problems.push(format!("`{pure}` is not in the workspace, so nothing watches its purity")),
        }
    }
    problems
}

/// One line for each dependency between our crates that goes the wrong way.
pub(crate) fn check_direction(metadata: &Value) -> Vec<String> {
    let ours: Vec<&str> = members(metadata).filter_map(|package| package["name"].as_str()).collect();
    let mut problems = Vec::new();
    for package in members(metadata) {
        let Some((name, allowed)) = DIRECTION.iter().find(|(name, _)| package["name"] == *name) else {
            continue;
        };
        let depends = list(&package["dependencies"]).filter_map(|dependency| dependency["name"].as_str());
        for dependency in depends.filter(|dependency| ours.contains(dependency)) {
            if !allowed.contains(&dependency) {
                problems.push(format!("`{name}` must not depend on `{dependency}`"));
            }
        }
    }
    problems
}

/// The packages that belong to the workspace.
pub(crate) fn members(metadata: &Value) -> impl Iterator<Item = &Value> {
    packages(metadata)
        .filter(|package| list(&metadata["workspace_members"]).any(|member| *member == package["id"]))
}

/// Every package of the graph.
pub(crate) fn packages(metadata: &Value) -> impl Iterator<Item = &Value> {
    list(&metadata["packages"])
}

/// The elements of an array; anything else has none.
pub(crate) fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn impure_ways(start: &str, names: &BTreeMap<&str, &str>, nodes: &BTreeMap<&str, &Value>) -> Vec<String> {
    let mut came_from: BTreeMap<&str, &str> = BTreeMap::new();
    let mut waiting = vec![start];
    let mut problems = Vec::new();
    while let Some(id) = waiting.pop() {
        if names.get(id).is_some_and(|name| IMPURE.contains(name)) {
            problems.push(format!("a pure crate reaches `{}`: {}", names[id], way(id, names, &came_from)));
            continue;
        }
        for next in nodes.get(id).into_iter().flat_map(|node| normal_dependencies(node)) {
            if next != start && !came_from.contains_key(next) {
                came_from.insert(next, id);
                waiting.push(next);
            }
        }
    }
    problems
}

fn normal_dependencies(node: &Value) -> impl Iterator<Item = &str> {
    list(&node["deps"])
        .filter(|dependency| list(&dependency["dep_kinds"]).any(|kind| kind["kind"].is_null()))
        .filter_map(|dependency| dependency["pkg"].as_str())
}

fn way(end: &str, names: &BTreeMap<&str, &str>, came_from: &BTreeMap<&str, &str>) -> String {
    let mut steps = vec![names.get(end).copied().unwrap_or(end)];
    let mut at = end;
    while let Some(&before) = came_from.get(at) {
        steps.push(names.get(before).copied().unwrap_or(before));
        at = before;
    }
    steps.reverse();
    steps.join(" -> ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn metadata(dependencies: &[(&str, &str, Value)]) -> Value {
        let names = [
            "tenure-proto",
            "tenure-kit",
            "tenure-mesh",
            "tenure-link",
            "tenure-outbox",
            "tenure-client",
            "tenure-broker",
            "glue",
            "tokio",
        ];
        let of = |name: &'static str| dependencies.iter().filter(move |(from, ..)| *from == name).cloned();
        json!({
            "workspace_members": names.iter().filter(|name| name.starts_with("tenure")).collect::<Vec<_>>(),
            "packages": names.map(|name| json!({
                "id": name,
                "name": name,
                "dependencies": of(name).map(|(_, to, kind)| json!({"name": to, "kind": kind})).collect::<Vec<_>>(),
            })),
            "resolve": {"nodes": names.map(|name| json!({
                "id": name,
                "deps": of(name)
                    .map(|(_, to, kind)| json!({"pkg": to, "dep_kinds": [{"kind": kind}]}))
                    .collect::<Vec<_>>(),
            }))},
        })
    }

    #[test]
    fn an_impure_package_is_found_however_far() {
        let metadata = metadata(&[
            ("tenure-mesh", "tenure-proto", Value::Null),
            ("tenure-mesh", "glue", Value::Null),
            ("glue", "tokio", Value::Null),
        ]);
        assert_eq!(check_purity(&metadata), ["a pure crate reaches `tokio`: tenure-mesh -> glue -> tokio"]);
    }

    #[test]
    fn tests_and_build_scripts_may_use_anything() {
        let metadata =
            metadata(&[("tenure-mesh", "tokio", json!("dev")), ("tenure-proto", "tokio", json!("build"))]);
        assert_eq!(check_purity(&metadata), Vec::<String>::new());
    }

    #[test]
    fn the_wrong_direction_is_refused_even_for_tests() {
        let metadata = metadata(&[
            ("tenure-mesh", "tenure-proto", Value::Null),
            ("tenure-proto", "tenure-mesh", json!("dev")),
            ("tenure-broker", "tenure-client", Value::Null),
            ("tenure-broker", "glue", Value::Null),
        ]);
        assert_eq!(
            check_direction(&metadata),
            [
                "`tenure-proto` must not depend on `tenure-mesh`",
                "`tenure-broker` must not depend on `tenure-client`"
            ]
        );
    }
}
