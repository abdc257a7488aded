//! The network's description in the environment of the sites' programs.
//!
//! `ANABRANCH_SITE` and `ANABRANCH_ADDRESS` are the site that they run in;
//! `ANABRANCH_ADDRESS_<SITE>` is every site's address and `ANABRANCH_NETNS_<SITE>` a path for
//! `nsenter --net=PATH`, by name (in capitals, `_` for characters that are no letter or digit) and
//! by number; `ANABRANCH_DILATION` is the time dilation, and `ANABRANCH_DILATION_BASE` its base,
//! one for all programs; `ANABRANCH_SITES` has all of this as JSON, with the address of each link's
//! far end. Read [`Surroundings`].

use crate::{EmuError, Emulation, Isolation};
use anabranch_dilate::ProgramTime;
use anabranch_graph::Topology;
use anabranch_units::SiteId;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The network's description for programs in the sites.
pub struct Surroundings {
    variables: Vec<(String, String)>,
    /// Name and address of each site.
    sites: Vec<(String, String)>,
    /// Library that programs load before all others. `None` for none.
    preload: Option<PathBuf>,
    /// A process in each site, which stands for its namespace: in a user namespace our own
    /// descriptors cannot be opened from inside.
    holders: Vec<Child>,
}

impl Drop for Surroundings {
    fn drop(&mut self) {
        for holder in &mut self.holders {
            // The process may have ended already; nothing depends on it now.
            let _ = holder.kill();
            let _ = holder.wait();
        }
    }
}

impl Surroundings {
    /// The description of `topology`, which `emulation` emulates.
    ///
    /// Errors: in a user namespace, a program (`sleep`) that does not start in each site.
    pub fn new(topology: &Topology, emulation: &Emulation) -> Result<Self, EmuError> {
        let mut all = Self { variables: Vec::new(), sites: Vec::new(), preload: None, holders: Vec::new() };
        let mut sites = Vec::new();
        for id in topology.site_ids() {
            let name = &topology.site(id).name;
            let (address, path) = (emulation.site_address(id).to_string(), all.namespace(emulation, id)?);
            let links = topology.links_out(id).map(|l| {
                let to = &topology.site(topology.link(l).to).name;
                serde_json::json!({ "id": l, "to": to, "address": emulation.link_address(l).to_string() })
            });
            sites.push(serde_json::json!({
                "id": id, "name": name, "address": &address, "namespace": &path, "links": links.collect::<Vec<_>>(),
            }));
            let key: String = name
                .chars()
                .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' })
                .collect();
            for suffix in [key, id.index().to_string()] {
                all.variables.push((format!("ANABRANCH_ADDRESS_{suffix}"), address.clone()));
                all.variables.push((format!("ANABRANCH_NETNS_{suffix}"), path.clone()));
            }
            all.sites.push((name.clone(), address));
        }
        let time = ProgramTime::now(emulation.dilation());
        all.variables.extend(time.variables().map(|(name, value)| (name.to_owned(), value)));
        all.variables.push(("ANABRANCH_TOPOLOGY".into(), topology.name().to_owned()));
        all.variables.push(("ANABRANCH_SITES".into(), serde_json::Value::from(sites).to_string()));
        Ok(all)
    }

    /// Makes programs load this library before all others.
    pub fn with_preload(mut self, library: Option<PathBuf>) -> Self {
        self.preload = library;
        self
    }

    fn namespace(&mut self, emulation: &Emulation, site: SiteId) -> Result<String, EmuError> {
        if emulation.isolation() == Isolation::Root {
            return Ok(emulation.namespace_path(site).display().to_string());
        }
        let mut command = Command::new("sleep");
        command.arg("infinity").process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let holder = emulation.spawn(site, command)?;
        let path = format!("/proc/{}/ns/net", holder.id());
        self.holders.push(holder);
        Ok(path)
    }

    /// Tells it to `command`, which is to run in `site`.
    ///
    /// Panics: if the site is not of this topology.
    pub fn give(&self, command: &mut Command, site: SiteId) {
        command.envs(self.variables.iter().map(|(k, v)| (k, v)));
        if let Some(library) = &self.preload {
            command.env("LD_PRELOAD", before_inherited(library, command));
        }
        let (name, address) = &self.sites[site.index()];
        command.env("ANABRANCH_SITE", name).env("ANABRANCH_ADDRESS", address);
    }
}

/// The value of `LD_PRELOAD` for `command`: `library`, then the libraries that it has inherited.
fn before_inherited(library: &Path, command: &Command) -> OsString {
    let own = command.get_envs().find(|(name, _)| *name == OsStr::new("LD_PRELOAD"));
    let inherited = match own {
        Some((_, value)) => value.map(OsStr::to_owned),
        None => std::env::var_os("LD_PRELOAD"),
    };
    let mut all = library.as_os_str().to_owned();
    if let Some(inherited) = inherited.filter(|inherited| !inherited.is_empty()) {
        all.push(":");
        all.push(inherited);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inherited_libraries_stay_behind_ours() {
        let surroundings = Surroundings {
            variables: Vec::new(),
            sites: vec![("a".to_owned(), "10.77.0.1".to_owned())],
            preload: Some("/ours.so".into()),
            holders: Vec::new(),
        };
        let given = |command: &mut Command| {
            surroundings.give(command, SiteId(0));
            let value = command.get_envs().find(|(name, _)| *name == OsStr::new("LD_PRELOAD"));
            value.and_then(|(_, value)| value).map(OsStr::to_owned)
        };
        let expected = |text: &str| Some(OsString::from(text));
        assert_eq!(given(Command::new("true").env_remove("LD_PRELOAD")), expected("/ours.so"));
        assert_eq!(given(Command::new("true").env("LD_PRELOAD", "")), expected("/ours.so"));
        let theirs = given(Command::new("true").env("LD_PRELOAD", "/theirs.so /more.so"));
        assert_eq!(theirs, expected("/ours.so:/theirs.so /more.so"));
    }
}
