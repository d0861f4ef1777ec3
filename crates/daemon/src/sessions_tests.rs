use tenure_outbox::LaneId;

use super::*;

/// Sessions that nothing works for, of a daemon whose broker is away.
fn sessions(dir: &std::path::Path) -> (Sessions, Home, MeshName) {
    sessions_that_wait(dir, None)
}

/// The same, of an operator who wants messages to wait so long.
fn sessions_that_wait(dir: &std::path::Path, hours: Option<u64>) -> (Sessions, Home, MeshName) {
    let mesh: MeshName = "default".parse().unwrap();
    let choice = MeshChoice { name: mesh.clone(), broker: "ws://127.0.0.1:9".to_owned(), authority: None };
    let home = Home::hold(dir).unwrap();
    let config = Config { max_age_hours: hours, ..Config::new(dir.to_owned(), choice, "laptop") };
    (Sessions::start(&config, &home, &TaskTracker::new()).unwrap(), home, mesh)
}

#[tokio::test]
async fn a_row_that_comes_as_its_session_is_buried_is_the_daemons_own_to_send() {
    let dir = tempfile::tempdir().unwrap();
    let (sessions, home, mesh) = sessions(dir.path());
    let (agent, own) = (sessions.make(&home, &mesh, "agent").unwrap(), sessions.own(&mesh).unwrap());
    assert!(sessions.close(&mesh, &agent.key).unwrap());
    assert!(agent.queue.push(LaneId(7)), "after the last look at the disk, and before the burial");
    assert!(sessions.bury(&agent).await);
    assert_eq!(own.queue.take(), [LaneId(7)].into());
    assert!(!agent.queue.push(LaneId(8)), "who still knows it must tell another");
}

#[tokio::test]
async fn a_session_that_is_wanted_again_is_not_buried() {
    let dir = tempfile::tempdir().unwrap();
    let (sessions, home, mesh) = sessions(dir.path());
    let agent = sessions.make(&home, &mesh, "agent").unwrap();
    sessions.close(&mesh, &agent.key).unwrap();
    let again = sessions.make(&home, &mesh, "agent").unwrap();
    assert!(Arc::ptr_eq(&agent, &again) && !agent.is_closing());
    assert!(!sessions.bury(&agent).await && agent.queue.push(LaneId(1)));
}

#[tokio::test]
async fn a_damaged_file_is_put_aside_and_the_others_are_known() {
    let dir = tempfile::tempdir().unwrap();
    let (sessions, home, mesh) = self::sessions(dir.path());
    let [sound, damaged] = ["sound", "damaged"].map(|name| sessions.make(&home, &mesh, name).unwrap());
    assert!(damaged.follow("jobs".parse().unwrap()).unwrap());
    let half = std::fs::read_to_string(&damaged.path).unwrap().replace('}', "");
    std::fs::write(&damaged.path, &half).unwrap();
    drop((sessions, home));
    let (sessions, home, _) = self::sessions(dir.path());
    assert_eq!(sessions.get(&mesh, &sound.key).unwrap().token(), sound.token());
    assert!(sessions.get(&mesh, &damaged.key).is_none());
    let files = std::fs::read_dir(dir.path().join("sessions")).unwrap();
    let aside: Vec<PathBuf> = files
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.to_string_lossy().contains(".json.corrupt-"))
        .collect();
    assert_eq!(aside.len(), 1, "{aside:?}");
    assert_eq!(std::fs::read_to_string(&aside[0]).unwrap(), half, "as it was");
    let anew = sessions.make(&home, &mesh, "damaged").unwrap();
    assert_eq!((anew.key, anew.topics().len()), (damaged.key, 0), "the same session, with another token");
    assert_ne!(anew.token(), damaged.token());
}

#[tokio::test]
async fn how_long_messages_may_wait_is_known_before_the_broker_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let shown = |wanted: Option<u64>, said: Option<u64>| {
        let (sessions, home, mesh) = sessions_that_wait(dir.path(), wanted);
        let own = sessions.own(&mesh).unwrap();
        let agent = sessions.make(&home, &mesh, "agent").unwrap();
        let shown = *own.max_age_hours.borrow();
        assert_eq!(*agent.max_age_hours.borrow(), shown, "the same for every session");
        said.into_iter().for_each(|hours| own.remember_age(hours));
        shown
    };
    assert_eq!(shown(None, None), None, "nobody has said");
    assert_eq!(shown(Some(5), None), Some(5), "the operator has");
    assert_eq!(shown(Some(10_000), None), Some(PERMANENT_HOURS_CAP), "as far as any broker allows it");
    assert_eq!(shown(None, Some(144)), None, "what the operator said before is not the broker's word");
    assert_eq!(shown(None, None), Some(144), "the broker's word outlives the daemon");
    assert_eq!(shown(Some(5), None), Some(5), "the operator's goes before it");
}
