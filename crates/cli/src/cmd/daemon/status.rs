//! `tenure daemon status`: how the daemon is.

use clap::Args as ClapArgs;
use indicatif::HumanBytes;
use serde_json::Value;
use tenure_daemon::holder;

use super::super::status::duration;
use crate::exit::Failure;
use crate::home::Home;
use crate::local::Local;
use crate::output::{Colour, Paint, println, safe, sentence};

/// Say how the daemon is: exit code 0 when it answers, 5 when none runs, whatever its broker does.
#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    crate::block_on(async {
        let home = Home::find()?.absolute()?;
        let local = Local::at(&home);
        if !local.runs().await? {
            // One that starts or stops, or whose socket somebody deleted, still holds its lock.
            return Err(match holder(home.path()) {
                Ok(Some(holder)) => Failure::Unreachable(format!(
                    "{holder} holds {} and does not answer",
                    home.path().display()
                )),
                _ => local.absent(),
            });
        }
        let status = local.get("/v1/status").await?;
        if args.json {
            println(&status.to_string());
        } else {
            show(&status);
        }
        Ok(())
    })
}

fn show(status: &Value) {
    let paint = Paint::stdout();
    let text = |value: &Value| safe(value.as_str().unwrap_or_default());
    let number = |value: &Value| value.as_u64().unwrap_or_default();
    let (pid, up) = (number(&status["pid"]), duration(number(&status["uptimeMs"])));
    println(&format!("daemon    process {pid}, up {up}, version {}", text(&status["version"])));
    println(&format!("socket    {}", status["socket"].as_str().unwrap_or_default()));
    for mesh in status["meshes"].as_array().into_iter().flatten() {
        let state = match (mesh["connected"].as_bool(), mesh["reason"].as_str()) {
            (Some(true), _) => paint.paint(Colour::Good, "connected"),
            (_, Some(reason)) => {
                format!("{}: {}", paint.paint(Colour::Warn, "not connected"), sentence(reason))
            }
            (_, None) => paint.paint(Colour::Warn, "not connected"),
        };
        let age = mesh["maxAgeHours"].as_u64().map(|hours| format!("; messages may wait {hours} h"));
        let (name, broker, age) = (text(&mesh["name"]), text(&mesh["broker"]), age.unwrap_or_default());
        println(&format!("mesh      {name} at {broker}: {state}{age}"));
    }
    for session in status["sessions"].as_array().into_iter().flatten() {
        let own = if session["own"] == true { ", the daemon's own" } else { "" };
        let (name, mesh, key) = (text(&session["name"]), text(&session["mesh"]), text(&session["session"]));
        // That its mesh is away was said above.
        let lost = if session["connected"] == true || mesh_is_away(status, session) {
            String::new()
        } else {
            let why =
                session["reason"].as_str().map(|why| format!(": {}", sentence(why))).unwrap_or_default();
            format!("  {}{why}", paint.paint(Colour::Warn, "not connected"))
        };
        println(&format!("session   {name} in {mesh}{own}  session:{key}{lost}"));
    }
    let outbox = &status["outbox"];
    let [pending, inflight, dead] = ["pending", "inflight", "dead"].map(|key| number(&outbox[key]));
    let dead = if dead > 0 { paint.paint(Colour::Bad, &format!("{dead} dead")) } else { "0 dead".to_owned() };
    let (bytes, cap) = (HumanBytes(number(&outbox["bytes"])), HumanBytes(number(&outbox["cap"])));
    println(&format!("outbox    {pending} pending, {inflight} on their way, {dead}; {bytes} of {cap}"));
    for mesh in outbox["stranded"].as_array().into_iter().flatten() {
        let told = "has messages waiting, and the daemon is not in it; add it to daemon.toml, or drop them";
        println(&format!("stranded  {} {told}", paint.paint(Colour::Warn, &text(mesh))));
    }
    let inbox = &status["inbox"];
    let (bytes, cap) = (HumanBytes(number(&inbox["bytes"])), HumanBytes(number(&inbox["cap"])));
    println(&format!("inbox     {bytes} of {cap}"));
    if let Some(full) = status["diskFull"].as_str() {
        println(&format!("disk      {}", paint.paint(Colour::Bad, &sentence(full))));
    }
    for (file, fault) in [("outbox", &outbox["fault"]), ("inbox", &inbox["fault"])] {
        if let Some(fault) = fault.as_str() {
            println(&format!("{file:9} {}: {}", paint.paint(Colour::Bad, "failed"), sentence(fault)));
        }
    }
}

/// Whether the broker of a session's mesh cannot be reached.
fn mesh_is_away(status: &Value, session: &Value) -> bool {
    let mut meshes = status["meshes"].as_array().into_iter().flatten();
    meshes.any(|mesh| mesh["name"] == session["mesh"] && mesh["connected"] == false)
}
