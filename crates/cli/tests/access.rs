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
    let alias = "connection.reconnect_grace_ms";
    good(&world, &of(&["settings", "set", "connection.reconnect_grace_ms=8000"]));
    assert_eq!(good(&world, &of(&["settings", "get", alias])), "8000");
    assert_eq!(json(&world, &of(&["settings", "get", alias, "--json"])), 8_000);
    let (code, told) = bad(&world, &of(&["settings", "set", "connection.reconnect_grace_ms=soon"]));
    assert_eq!(code, 4);
    assert!(told.contains("connection.reconnect_grace_ms must be a whole number"), "{told}");
    assert!(!told.contains("reconnectGraceMs"), "by the name that was given: {told}");
    let (code, told) = bad(&world, &of(&["settings", "get", "nothing"]));
    assert!(code == 2 && told.contains("there is no setting \"nothing\""), "{told}");

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
    let set = ["settings.set"; 4];
    let newest = [&["ban.lift", "ban.set"][..], &set, &["member.join"]].concat();
    // What was refused is there too.
    assert_eq!(acts.iter().filter(|act| **act != "mesh.create").copied().collect::<Vec<_>>(), newest);
    assert_eq!(acts.iter().filter(|act| **act == "mesh.create").count(), 2);
}

#[tokio::test]
async fn tokens_and_invites_are_made_listed_and_revoked() {
    let (world, robot, late) = (World::new(), World::new(), World::new());
    let broker = world.broker().await;
    let url = format!("ws://{}", broker.addr);
    let at = ["--broker", url.as_str(), "--mesh", "team"];
    fn of<'a>(args: &[&'a str], at: &[&'a str]) -> Vec<&'a str> {
        [args, at].concat()
    }
    good(&world, &["mesh", "create", "team", "--broker", &url]);

    let create = ["token", "create", "--name", "ci", "--caps", "send,read", "--expires", "1h", "--json"];
    let made = json(&world, &of(&create, &at));
    let (id, secret) = (made["id"].as_str().expect("an id"), made["token"].as_str().expect("a secret"));
    let bring = |secret: &str| {
        let output = robot.tenure(&of(&["peers"], &at)).env("TENURE_TOKEN", secret).output().expect("run");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    assert_eq!(bring(secret).0, Some(0));
    assert_eq!(bring("tenure-token.v1.wrong").0, Some(4));
    let bare = good(&world, &of(&["token", "create"], &at));
    assert_eq!(bring(&bare).0, Some(0), "what is printed is the token and nothing else");
    let listed = json(&world, &of(&["token", "list", "--json"], &at));
    assert_eq!(listed.as_array().unwrap().len(), 2);
    let shown = good(&world, &of(&["token", "list"], &at));
    assert!(shown.contains(id) && shown.contains("send,read") && shown.contains("never"), "{shown}");
    assert!(!shown.contains(secret) && !listed.to_string().contains(secret), "a secret is shown once");
    good(&world, &of(&["token", "revoke", id], &at));
    let (code, told) = bring(secret);
    assert_eq!(code, Some(4));
    assert!(told.contains("revoked"), "{told}");
    assert_eq!(bad(&world, &of(&["token", "revoke", id], &at)).0, 4);
    assert_eq!(bad(&world, &of(&["token", "create", "--caps", "fly"], &at)).0, 4);

    let invite = json(&world, &of(&["invite", "--uses", "2", "--json"], &at));
    let (id, link) = (invite["id"].as_str().unwrap(), invite["link"].as_str().unwrap());
    good(&robot, &["join", link]);
    let used = json(&world, &of(&["invite", "--list", "--json"], &at));
    assert_eq!((&used[0]["id"], &used[0]["used"]), (&Value::from(id), &Value::from(1)));
    good(&world, &of(&["invite", "--revoke", id], &at));
    let (code, told) = bad(&late, &["join", link]);
    assert_eq!(code, 4);
    assert!(told.contains("revoked"), "{told}");
    good(&robot, &["peers"]);
    assert!(good(&world, &of(&["invite", "--list"], &at)).contains("revoked"));
    assert_eq!(bad(&world, &of(&["invite", "--revoke", id, "--uses", "3"], &at)).0, 2);
}
