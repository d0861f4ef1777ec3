//! Writes `vectors/` and `schemas/`, or checks them: `cargo xtask vectors [--check]`.

use std::path::Path;
use std::process::ExitCode;

const USAGE: &str =
    "run `cargo xtask vectors` to write the files, or `cargo xtask vectors --check` to compare them";

fn main() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [] => write(&root),
        ["--check"] => check(&root),
        _ => {
            eprintln!("vectors: {USAGE}");
            ExitCode::from(2)
        }
    }
}

fn write(root: &Path) -> ExitCode {
    for (path, text) in tenure_proto::vectors::files() {
        if let Err(error) = std::fs::write(root.join(&path), text) {
            eprintln!("vectors: write {path}: {error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn check(root: &Path) -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    for (path, text) in tenure_proto::vectors::files() {
        if std::fs::read_to_string(root.join(&path)).ok() != Some(text) {
            eprintln!("vectors: {path} is stale; run `cargo xtask vectors`");
            code = ExitCode::FAILURE;
        }
    }
    code
}
