//! What the commands of operators share: the admin API of a broker, and one mesh on it.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use hyper::Method;
use serde_json::Value;

use super::Where;
use crate::exit::Failure;
use crate::local::escaped;
use crate::operator::Operator;

/// Which broker, which mesh, and where the operator's token is.
#[derive(Debug, ClapArgs)]
pub(crate) struct Administer {
    #[command(flatten)]
    pub(crate) at: Where,
    /// Where the broker keeps its state, and the operator's token [default: $TENURE_HOME/broker]
    #[arg(long, value_name = "DIR", env = "TENURE_DATA_DIR")]
    data_dir: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

impl Administer {
    /// For a command that has flags of its own.
    pub(crate) fn new(at: Where, data_dir: Option<PathBuf>, json: bool) -> Administer {
        Administer { at, data_dir, json }
    }

    /// Asks the broker.
    pub(crate) fn call(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value, Failure> {
        let operator = Operator::find(&self.at, self.data_dir.as_deref())?;
        crate::block_on(async {
            let answer = operator.call(method, path, body).await;
            answer.map_err(|silence| operator.unreached(&silence))?.good()
        })
    }

    /// Asks about the mesh; `rest` follows its name.
    pub(crate) fn of_mesh(&self, method: Method, rest: &str, body: Option<&Value>) -> Result<Value, Failure> {
        self.call(method, &format!("/v1/admin/meshes/{}{rest}", escaped(self.at.mesh())), body)
    }

    /// Every row of a list, page by page; `cursor` is what goes on with `next`.
    pub(crate) fn pages(&self, list: &str, rows: &str, cursor: &str) -> Result<Vec<Value>, Failure> {
        let mut all = Vec::new();
        let mut next: Option<String> = None;
        loop {
            let query = next.as_ref().map(|next| format!("?{cursor}={}", escaped(next))).unwrap_or_default();
            let page = self.of_mesh(Method::GET, &format!("/{list}{query}"), None)?;
            all.extend(page[rows].as_array().cloned().unwrap_or_default());
            let following = match &page["next"] {
                Value::String(text) => Some(text.clone()),
                Value::Number(number) => Some(number.to_string()),
                _ => None,
            };
            if following.is_none() {
                return Ok(all);
            }
            if following == next {
                return Err(Failure::Failed("the broker's pages do not go on".to_owned()));
            }
            next = following;
        }
    }
}

/// A text of a row, as it is printed.
pub(crate) fn cell(row: &Value, field: &str) -> String {
    match &row[field] {
        Value::Null => "-".to_owned(),
        Value::String(text) => crate::output::line(text),
        Value::Array(items) => {
            items.iter().filter_map(Value::as_str).map(crate::output::line).collect::<Vec<_>>().join(",")
        }
        other => other.to_string(),
    }
}
