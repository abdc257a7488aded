//! Congestion controls of an emulated scenario that the machine's kernel lacks or forbids.
//!
//! Leaves out: names of congestion controls in Linux (`anabranch_transport`). Read [`check`] first.

use super::ScenarioError;
use rustix::io::Errno;
use rustix::net::sockopt::set_tcp_congestion;
use std::net::{Ipv4Addr, TcpListener};

/// Checks that this machine's kernel has a congestion control, before any host starts.
///
/// Errors: a congestion control that the kernel lacks. Its permission is the hosts' to find out,
/// because they may have more rights than this process.
pub(super) fn check(control: &str) -> Result<(), ScenarioError> {
    let trial = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    match set_tcp_congestion(&trial, control) {
        Err(error @ Errno::NOENT) => Err(refused(control, error)),
        _ => Ok(()),
    }
}

/// Error for a congestion control that the kernel refuses, with the remedy.
pub(super) fn refused(control: &str, error: Errno) -> ScenarioError {
    ScenarioError::new(match error {
        Errno::NOENT => format!(
            "congestion control {control}: this machine's kernel lacks it: choose one that `anabranch doctor` lists, or load its module (`sudo modprobe tcp_{control}`)"
        ),
        error => {
            format!("congestion control {control}: not allowed to this process: {error}: run it as root")
        }
    })
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn missing_congestion_control_is_refused_with_its_remedy() {
        let refused = check("nosuch").expect_err("no kernel has it").to_string();
        let is_whole =
            refused.contains("congestion control nosuch") && refused.contains("modprobe tcp_nosuch");
        assert!(is_whole, "{refused}");
        check("reno").expect("each kernel has it");
    }
}
