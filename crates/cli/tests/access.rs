//! Making a mesh, joining it and being put out of it, with real processes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::World;
use serde_json::Value;

/// What a command prints, which must go well.
#[track_caller]
fn good(world: &World, args: &[&str]) -> String {
    let output = world.tenure(args).output().expect("run");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{args:?}: {told}");
    String::from_utf8(output.stdout).expect("text").trim().to_owned()
}

#[track_caller]
fn json(world: &World, args: &[&str]) -> Value {
    serde_json::from_str(&good(world, args)).expect("JSON")
}

/// The exit code and the last words of a command that must not go well.
#[track_caller]
fn bad(world: &World, args: &[&str]) -> (i32, String) {
    let output = world.tenure(args).output().expect("run");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{args:?}");
    (output.status.code().expect("a code"), told)
}

#[tokio::test]
async fn a_mesh_is_made_joined_and_left_by_force() {
    let (world, guest, late) = (World::new(), World::new(), World::new());
    let broker = world.broker().await;
    let url = format!("ws://{}", broker.addr);
    let at = ["--broker", url.as_str(), "--mesh", "team"];
    let of = |args: &[&'static str]| [args, &at[..]].concat();

    good(&world, &["mesh", "create", "team", "--broker", &url]);
    let meshes = json(&world, &["mesh", "list", "--json", "--broker", &url]);
    let names: Vec<&str> = meshes.as_array().unwrap().iter().filter_map(|m| m["name"].as_str()).collect();
    assert_eq!(names, ["default", "team"]);
    let (code, told) = bad(&world, &["mesh", "create", "team", "--broker", &url]);
    assert_eq!(code, 4);
    assert!(told.contains("conflict"), "{told}");

    // Without an invite there is no way in; with one there is, twice for the same key, and no third.
    assert_eq!(bad(&guest, &of(&["peers"])).0, 4);
    let invite = json(&world, &of(&["invite", "--uses", "1", "--expires", "10m", "--json"]));
    let link = invite["link"].as_str().expect("a link");
    assert!(link.starts_with(&format!("{url}#tenure-invite.v1.")), "{link}");
    let joined = json(&guest, &["join", link, "--json"]);
    assert_eq!((&joined["mesh"], &joined["broker"]), (&Value::from("team"), &Value::from(url.as_str())));
    good(&guest, &["join", link]);
    let (code, told) = bad(&late, &["join", link]);
    assert_eq!(code, 4);
    assert!(told.contains("used as often"), "{told}");
    assert_eq!(bad(&late, &["join", "ws://x"]).0, 2);
    // Later commands need no flags, and what is not this mesh's member's still gets no answer.
    good(&guest, &["peers"]);
    assert_eq!(bad(&late, &of(&["peers"])).0, 4);

    let members = json(&world, &of(&["members", "--json"]));
    assert_eq!(members.as_array().unwrap().len(), 2);
    let member = joined["member"].as_str().expect("its key");
    let settings = json(&world, &of(&["settings", "set", "maxSessions=50", "--json"]));
    assert_eq!(
        (&settings["version"], &settings["values"]["maxSessions"]),
        (&Value::from(1), &Value::from(50))
    );
    let (code, told) = bad(&world, &of(&["settings", "set", "maxSessions=60", "--version", "0"]));
    assert_eq!(code, 4);
    assert!(told.contains("conflict"), "{told}");
    assert_eq!(good(&world, &of(&["settings", "get", "maxSessions"])), "50");

    let subject = format!("member:{member}");
    let ban = [&["ban", subject.as_str(), "--reason", "spam"][..], &at[..]].concat();
    good(&world, &ban);
    let (code, told) = bad(&guest, &["peers"]);
    assert_eq!(code, 4);
    assert!(told.contains("banned"), "{told}");
    assert!(good(&world, &of(&["ban"])).contains("spam"));
    good(&world, &[&["unban", subject.as_str()][..], &at[..]].concat());
    good(&guest, &["peers"]);

    let acts = json(&world, &of(&["audit", "--json"]));
    let acts: Vec<&str> = acts.as_array().unwrap().iter().filter_map(|row| row["act"].as_str()).collect();
    let newest = ["ban.lift", "ban.set", "settings.set", "settings.set", "member.join", "mesh.create"];
    // The second attempt to make it was refused, and is there too.
    assert_eq!(acts.iter().filter(|act| **act != "mesh.create").copied().collect::<Vec<_>>(), newest[..5]);
    assert_eq!(acts.iter().filter(|act| **act == "mesh.create").count(), 2);
}
