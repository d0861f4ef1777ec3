//! Running other programs from the root of the repository.
//!
//! Every child inherits the terminal, so its own words are what the reader sees; a failure adds one sentence.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    // Cargo sets the variable for `cargo run`; the compiled-in path serves a binary started by hand.
    let manifest = env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let manifest = PathBuf::from(manifest);
    manifest.parent().map(Path::to_path_buf).unwrap_or(manifest)
}

/// The cargo that started us, to be run at the root with `args`.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(root());
    command
}

/// Runs `command` to its end and fails, naming it, unless it succeeded.
pub(crate) fn succeed(command: &mut Command) -> Result<()> {
    let status = wait(command)?;
    if !status.success() {
        bail!("`{}` failed ({status})", shown(command));
    }
    Ok(())
}

/// Runs `command` to its end and passes its exit code on.
pub(crate) fn forward(command: &mut Command) -> Result<ExitCode> {
    Ok(exit_code(wait(command)?))
}

/// Whether `command` can be started and succeeds; its output is discarded.
pub(crate) fn works(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// What `command` prints; its stderr is the terminal's.
pub(crate) fn output(command: &mut Command) -> Result<Vec<u8>> {
    let output =
        command.stderr(Stdio::inherit()).output().with_context(|| format!("start `{}`", shown(command)))?;
    if !output.status.success() {
        bail!("`{}` failed ({})", shown(command), output.status);
    }
    Ok(output.stdout)
}

/// What `cargo metadata` says with these further arguments.
pub(crate) fn metadata(args: &[&str]) -> Result<Value> {
    let json = output(cargo(&["metadata", "--format-version", "1", "--locked"]).args(args))?;
    serde_json::from_slice(&json).context("read what `cargo metadata` printed")
}

/// Where builds go.
pub(crate) fn target_directory() -> Result<PathBuf> {
    let metadata = metadata(&["--no-deps"])?;
    let target =
        metadata["target_directory"].as_str().context("`cargo metadata` names no target directory")?;
    Ok(PathBuf::from(target))
}

/// Our exit code for a child that ended with `status`; a child ended by a signal counts as 1.
pub(crate) fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
    ExitCode::from(code)
}

fn wait(command: &mut Command) -> Result<ExitStatus> {
    command.status().with_context(|| format!("start `{}`", shown(command)))
}

/// The command as one would type it: the program by its last name, arguments as they are.
fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let mut line = program.file_name().unwrap_or(program.as_os_str()).to_string_lossy().into_owned();
    for arg in command.get_args() {
        line.push(' ');
        line.push_str(&arg.to_string_lossy());
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_the_command_without_its_directory() {
        let mut command = Command::new(Path::new("some").join("where").join("no-such-program"));
        let error = succeed(command.arg("--flag")).expect_err("there is no such program");
        assert_eq!(error.to_string(), "start `no-such-program --flag`");
    }

    #[test]
    fn the_root_holds_the_workspace_manifest() {
        let manifest = std::fs::read_to_string(root().join("Cargo.toml")).expect("read the manifest");
        assert!(manifest.contains("[workspace]"));
    }
}
