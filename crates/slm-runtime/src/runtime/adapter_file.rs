//! A stored adapter: its section, and what it requires.

use std::io::Write;

use serde::{Deserialize, Serialize};
use slm_format::Limits;
use slm_format::container::{Container, ContainerWriter, SectionKind};
use slm_manifest::BaseId;
use slm_overlay::Adapter;

use crate::error::{ModelError, RuntimeError};

/// The `config` section of an adapter's file: postcard of this.
#[derive(Debug, Serialize, Deserialize)]
struct Requires {
    /// The base the adapter was resolved against; it is bound to no other.
    base: BaseId,
}

/// Writes an adapter with the base it is bound to. Deterministic.
///
/// # Errors
/// What `out` returns.
pub fn write_adapter(
    adapter: &Adapter,
    base: BaseId,
    out: &mut dyn Write,
) -> Result<(), RuntimeError> {
    let requires =
        postcard::to_stdvec(&Requires { base }).expect("BUG: a requirement could not be encoded");
    let mut writer = ContainerWriter::new();
    writer.section(SectionKind::Config, requires)?;
    writer.section(SectionKind::Adapter, adapter.to_section())?;
    writer.write_to(out)?;
    Ok(())
}

/// Reads an adapter's file; every section's hash and the adapter's identity are checked.
///
/// # Errors
/// A file that is no adapter or is damaged.
pub fn read_adapter(
    container: &Container<'_>,
    limits: &Limits,
) -> Result<(Adapter, BaseId), RuntimeError> {
    let adapter = Adapter::read(container, limits)?;
    let section = container
        .section(SectionKind::Config)
        .ok_or(ModelError::SectionMissing { section: "config" })?;
    section.verify()?;
    match postcard::take_from_bytes::<Requires>(section.bytes()) {
        Ok((requires, [])) => Ok((adapter, requires.base)),
        _ => Err(ModelError::SectionContent { section: "config" }.into()),
    }
}
