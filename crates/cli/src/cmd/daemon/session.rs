//! `tenure daemon session`: a session of its own for a shell or an agent.

use clap::Args as ClapArgs;
use hyper::Method;
use serde_json::json;

use crate::exit::Failure;
use crate::home::Home;
use crate::local::Local;
use crate::output::println;

/// Have the daemon hold a session of this name, and print its token.
///
/// Whoever has the token in TENURE_SESSION sends and reads as that session, and hears nothing of the others. The same name
/// is the same session, with the same token, until it is closed.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  export TENURE_SESSION=$(tenure daemon session reviewer)
  tenure daemon session reviewer --close")]
pub(super) struct Args {
    /// What peers see
    name: String,
    /// The mesh [default: the daemon's first]
    #[arg(long, env = "TENURE_MESH")]
    mesh: Option<String>,
    /// Let it go: it leaves when its last message has left
    #[arg(long)]
    close: bool,
    /// Print JSON: the session's key, its mesh and its token
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    crate::block_on(async {
        let local = Local::at(&Home::find()?);
        let mut request = json!({"name": args.name});
        if let Some(mesh) = &args.mesh {
            request["mesh"] = json!(mesh);
        }
        let made = local.post("/v1/sessions", &request).await?;
        let text = |key: &str| made[key].as_str().unwrap_or_default().to_owned();
        if args.close {
            let local = local.speaking_as(Some(text("token")));
            let path = format!("/v1/sessions/{}", text("session"));
            local.call(Method::DELETE, &path, None).await?.good()?;
            eprintln!("the session is let go");
        } else if args.json {
            println(&made.to_string());
        } else {
            eprintln!("session:{}", text("session"));
            println(&text("token"));
        }
        Ok(())
    })
}
