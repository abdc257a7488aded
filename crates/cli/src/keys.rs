//! Sets of keys for systems without a topology: made anew, or added to by the authority that is there.

use anabranch_net::keys::{SetRequest, add_to_set, make_set, write_set};
use std::path::Path;

/// Makes keys for those in the request, by the authority in `out` if there is one, and by a new one otherwise.
///
/// Errors: nobody to make them for; one line for the user.
pub fn make_or_add(out: &Path, request: &SetRequest, quiet: bool) -> anyhow::Result<()> {
    let names: Vec<_> = request.sites.iter().chain(&request.operators).map(String::as_str).collect();
    anyhow::ensure!(!names.is_empty(), "keys for nobody: name somebody");
    let is_there = out.join("ca.key").exists();
    let set = if is_there { add_to_set(out, request)? } else { make_set(request)? };
    write_set(out, &set)?;
    if !quiet {
        eprintln!(
            "keys for {} in {}/: each machine needs ca.pem and its own pair",
            names.join(", "),
            out.display()
        );
    }
    Ok(())
}
