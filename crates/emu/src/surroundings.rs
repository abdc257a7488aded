//! The network's description in the environment of the sites' programs.
//!
//! `ANABRANCH_SITE` and `ANABRANCH_ADDRESS` are the name and address of the program's own site.
//! `ANABRANCH_ADDRESS_<SITE>` is a site's address, and `ANABRANCH_NETNS_<SITE>` a path for `nsenter
//! --net=PATH`. `<SITE>` is the site's number, or its name in capitals with `_` for every character
//! that is no letter or digit. `ANABRANCH_DILATION` is the time dilation, and
//! `ANABRANCH_DILATION_BASE` its base, the same for all programs. `ANABRANCH_TOPOLOGY` is the
//! topology's name. `ANABRANCH_SITES` has all sites as JSON, with the address of each link's far
//! end. Read [`SiteEnvironment`].

use crate::{EmuError, Emulation, Isolation};
use anabranch_dilate::ProgramTime;
use anabranch_graph::Topology;
use anabranch_units::SiteId;
use std::ffi::OsStr;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// The network's description for programs in the sites.
pub struct SiteEnvironment {
    variables: Vec<(String, String)>,
    /// Name and address of each site.
    sites: Vec<(String, String)>,
    /// Libraries that programs load before all other libraries.
    preload: Vec<PathBuf>,
    /// In a user namespace, one process in each site, through which programs open the site's
    /// namespace; they cannot open our own descriptors.
    holders: Vec<Child>,
}

impl Drop for SiteEnvironment {
    fn drop(&mut self) {
        for holder in &mut self.holders {
            // The process may have ended already; the error is ignored.
            let _ = holder.kill();
            let _ = holder.wait();
        }
    }
}

impl SiteEnvironment {
    /// Describes `topology`, which `emulation` emulates.
    ///
    /// Errors: in a user namespace, the program `sleep` does not start in a site.
    pub fn new(topology: &Topology, emulation: &Emulation) -> Result<Self, EmuError> {
        let mut all =
            Self { variables: Vec::new(), sites: Vec::new(), preload: Vec::new(), holders: Vec::new() };
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

    /// Adds libraries that programs load before all other libraries.
    pub fn with_preload(mut self, libraries: Vec<PathBuf>) -> Self {
        self.preload = libraries;
        self
    }

    /// Adds variables for programs.
    pub fn with_variables(mut self, variables: impl IntoIterator<Item = (String, String)>) -> Self {
        self.variables.extend(variables);
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

    /// Sets the description's variables for `command`, which is to run in `site`.
    ///
    /// Panics: if the site is not of this topology.
    pub fn give(&self, command: &mut Command, site: SiteId) {
        command.envs(self.variables.iter().map(|(k, v)| (k, v)));
        give_preload(command, &self.preload);
        let (name, address) = &self.sites[site.index()];
        command.env("ANABRANCH_SITE", name).env("ANABRANCH_ADDRESS", address);
    }
}

/// Makes `command` load these libraries first, before the libraries in its inherited `LD_PRELOAD`.
pub fn give_preload(command: &mut Command, libraries: &[PathBuf]) {
    if libraries.is_empty() {
        return;
    }
    let own = command.get_envs().find(|(name, _)| *name == OsStr::new("LD_PRELOAD"));
    let inherited = match own {
        Some((_, value)) => value.map(OsStr::to_owned),
        None => std::env::var_os("LD_PRELOAD"),
    };
    let inherited = inherited.filter(|inherited| !inherited.is_empty());
    let all = libraries.iter().map(|path| path.as_os_str()).chain(inherited.as_deref());
    let all = all.collect::<Vec<_>>().join(OsStr::new(":"));
    command.env("LD_PRELOAD", all);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsString;

    #[test]
    fn our_libraries_precede_inherited_ones_in_ld_preload() {
        let surroundings = SiteEnvironment {
            variables: Vec::new(),
            sites: vec![("a".to_owned(), "10.77.0.1".to_owned())],
            preload: vec!["/ours.so".into()],
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
