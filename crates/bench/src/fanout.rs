//! placeholder
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}
pub(crate) fn run(_: &Args) -> anyhow::Result<()> {
    Ok(())
}
