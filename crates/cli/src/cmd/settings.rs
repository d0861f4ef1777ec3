//! `tenure settings`: the numbers of a mesh, while it runs.

use clap::{Args as ClapArgs, Subcommand};
use hyper::Method;
use serde_json::{Map, Value, json};
use tenure_broker::setting_name;

use super::administer::{Administer, cell};
use crate::exit::Failure;
use crate::output::{print, println, table};

/// Look at the settings of a mesh, or change some while it runs.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  tenure settings get
  tenure settings set maxSessions=500 sendRate=100
  tenure settings set maxSessions=")]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Show one setting, or all of them
    Get {
        /// Its name
        name: Option<String>,
        #[command(flatten)]
        on: Administer,
    },
    /// Change settings; NAME= takes one back to what the broker was started with
    Set {
        /// NAME=VALUE
        #[arg(required = true, value_name = "NAME=VALUE")]
        changes: Vec<String>,
        /// Only if they are still at this version [default: the one that is read first]
        #[arg(long, value_name = "N")]
        version: Option<u64>,
        #[command(flatten)]
        on: Administer,
    },
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    match &args.what {
        What::Get { name, on } => {
            let settings = on.of_mesh(Method::GET, "/settings", None)?;
            show(&settings, name.as_deref(), on.json)
        }
        What::Set { changes, version, on } => {
            let values = changes.iter().map(|change| read(change)).collect::<Result<Map<_, _>, _>>()?;
            let version = match version {
                Some(version) => *version,
                None => on.of_mesh(Method::GET, "/settings", None)?["version"].as_u64().unwrap_or_default(),
            };
            let wanted = json!({"version": version, "values": values});
            let settings = on.of_mesh(Method::PATCH, "/settings", Some(&wanted))?;
            show(&settings, None, on.json)
        }
    }
}

/// `NAME=VALUE`: a number if it is one, nothing if it is empty.
fn read(change: &str) -> Result<(String, Value), Failure> {
    let usage = || Failure::Usage(format!("a change is NAME=VALUE, not {change:?}"));
    let (name, value) = change.split_once('=').filter(|(name, _)| !name.is_empty()).ok_or_else(usage)?;
    let value = match value {
        "" => Value::Null,
        text => text.parse::<u64>().map_or_else(|_| json!(text), |number| json!(number)),
    };
    Ok((name.to_owned(), value))
}

fn show(settings: &Value, name: Option<&str>, json: bool) -> Result<(), Failure> {
    if let Some(name) = name {
        let kept = setting_name(name);
        let value = settings["values"].get(kept);
        let value = value.ok_or_else(|| Failure::Usage(format!("there is no setting {name:?}")))?;
        println(&if json { value.to_string() } else { cell(&settings["values"], kept) });
        return Ok(());
    }
    if json {
        println(&settings.to_string());
        return Ok(());
    }
    let changed: Vec<&str> =
        settings["changed"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let row = |(name, _): (&String, &Value)| {
        let mark = if changed.contains(&name.as_str()) { "set" } else { "" };
        vec![name.clone(), cell(&settings["values"], name), mark.to_owned()]
    };
    let rows: Vec<Vec<String>> = settings["values"].as_object().into_iter().flatten().map(row).collect();
    print(&table(&["SETTING", "VALUE", ""], &rows));
    eprintln!("version {}", settings["version"]);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_a_number_a_text_or_nothing() {
        assert_eq!(read("a=5").unwrap(), ("a".to_owned(), json!(5)));
        assert_eq!(read("a=1.2").unwrap(), ("a".to_owned(), json!("1.2")));
        assert_eq!(read("a=").unwrap(), ("a".to_owned(), Value::Null));
        assert!(read("a").is_err() && read("=5").is_err());
    }
}
