//! Checks whether this machine can emulate, with the fix for each missing requirement.

use anabranch_linux::cpu_limit::{CpuHierarchy, CpuLimit};
use anabranch_units::Finding;
use std::io::ErrorKind;

use crate::build::{self, BuildPlan, SitePlan};
use crate::{EmulationOptions, Isolation, error, sys};

/// Checks all requirements of an emulation. Creates namespaces as a test, and removes them.
pub fn doctor() -> Vec<Finding> {
    vec![
        tun(),
        isolation("namespaces as we are", Isolation::Root),
        isolation("user namespaces", Isolation::UserNamespace),
        restrictions(),
        congestion_controls(),
        socket_buffer("net.core.rmem_max"),
        socket_buffer("net.core.wmem_max"),
        cpus(),
        clock(),
        open_files(),
        kernel_clocks(),
        host_processors(),
    ]
}

fn sysctl(name: &str) -> Option<String> {
    let path = format!("/proc/sys/{}", name.replace('.', "/"));
    std::fs::read_to_string(path).ok().map(|v| v.trim().to_owned())
}

fn tun() -> Finding {
    match anabranch_linux::tun::check() {
        Ok(()) => Finding::new("TUN", true, "/dev/net/tun opens", ""),
        Err(e) => {
            let fix = match e.kind() {
                ErrorKind::NotFound => "sudo modprobe tun; in a container: --device /dev/net/tun",
                _ => "sudo chmod 666 /dev/net/tun, or run as root",
            };
            Finding::new("TUN", false, format!("/dev/net/tun: {e}"), fix)
        }
    }
}

fn isolation(name: &'static str, isolation: Isolation) -> Finding {
    let options = EmulationOptions::default();
    let site = SitePlan { name: String::new(), address: options.base, link_addresses: Vec::new() };
    let plan = BuildPlan {
        sites: vec![site],
        prefix: 16,
        mtu: 1500,
        device_queue_packets: 16,
        settings: Vec::new(),
        quick_ack: false,
        cpu: None,
    };
    match build::build(&plan, isolation) {
        Ok(_) => Finding::new(name, true, "a site can be made this way", ""),
        Err(failure) => Finding::new(name, false, failure.to_string(), failure.fix()),
    }
}

fn restrictions() -> Finding {
    let names = [
        "user.max_user_namespaces",
        "kernel.unprivileged_userns_clone",
        "kernel.apparmor_restrict_unprivileged_userns",
    ];
    let found: Vec<_> = names.iter().filter_map(|n| sysctl(n).map(|v| format!("{n} = {v}"))).collect();
    let bad = ["user.max_user_namespaces = 0", "kernel.unprivileged_userns_clone = 0"];
    let apparmor = "kernel.apparmor_restrict_unprivileged_userns = 1";
    let ok = !found.iter().any(|f| bad.contains(&f.as_str()) || f == apparmor);
    Finding::new("user namespace limits", ok, found.join(", "), error::restriction())
}

fn congestion_controls() -> Finding {
    let available = sysctl("net.ipv4.tcp_available_congestion_control").unwrap_or_default();
    let allowed = sysctl("net.ipv4.tcp_allowed_congestion_control").unwrap_or_default();
    let ok = ["reno", "cubic", "bbr"].iter().all(|name| allowed.split_whitespace().any(|one| one == *name));
    let detail = format!("available: {available}; usable as a site's default: {allowed}");
    let fix = "for programs in sites (bbr for long or lossy links): sudo modprobe tcp_bbr && sudo sysctl -w net.ipv4.tcp_allowed_congestion_control=\"reno cubic bbr\"";
    Finding::new("congestion controls", ok, detail, fix)
}

/// Socket buffer in bytes with which a UDP program on a 1 Gbit/s link survives a pause of 30 ms.
const SOCKET_BUFFER_WANTED: u64 = 4 << 20;

fn socket_buffer(name: &'static str) -> Finding {
    let value = sysctl(name);
    let ok = value.as_ref().and_then(|v| v.parse().ok()).is_none_or(|v: u64| v >= SOCKET_BUFFER_WANTED);
    let detail = value.map_or("not readable".to_owned(), |v| format!("{v} bytes"));
    let fix = format!(
        "for fast UDP: sudo sysctl {name}={SOCKET_BUFFER_WANTED} (TCP in the sites has its own limits)"
    );
    Finding::new(name, ok, detail, &fix)
}

fn cpus() -> Finding {
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    let fix = "the emulator wants a processor to itself: expect lateness, and keep link rates low";
    Finding::new("processors", count >= 2, count.to_string(), fix)
}

/// Maximum resolution of the clock in nanoseconds: no deadline can be met more precisely.
const CLOCK_RESOLUTION_NS_MAX: u64 = 1_000;

fn clock() -> Finding {
    let resolution = sys::clock_resolution_ns();
    let ok = resolution.is_some_and(|ns| ns <= CLOCK_RESOLUTION_NS_MAX);
    let source = std::fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    let source = source.map_or_else(|_| "unknown".to_owned(), |s| s.trim().to_owned());
    let detail = resolution.map_or("unknown".to_owned(), |ns| format!("{ns} ns, source {source}"));
    Finding::new("clock resolution", ok, detail, "boot with high-resolution timers (no `highres=off`)")
}

fn open_files() -> Finding {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let soft = limits
        .lines()
        .find_map(|l| l.strip_prefix("Max open files")?.split_whitespace().next()?.parse::<u64>().ok());
    // Three descriptors per site, and further descriptors for the programs' files.
    let ok = soft.is_none_or(|n| n >= 256);
    let detail = soft.map_or("unlimited or unknown".to_owned(), |n| n.to_string());
    Finding::new("open files", ok, detail, "ulimit -n 4096")
}

/// Checks for the setting of each site's minimum retransmission timeout, which time dilation
/// stretches.
fn kernel_clocks() -> Finding {
    let rto_min = sysctl("net.ipv4.tcp_rto_min_us");
    let detail = rto_min.as_ref().map_or_else(
        || "net.ipv4.tcp_rto_min_us is not there".to_owned(),
        |us| format!("TCP's clocks stretch with time dilation; net.ipv4.tcp_rto_min_us is {us}"),
    );
    let fix = "for time dilation: a kernel of version 6.11 or later";
    Finding::new("kernel clocks", rto_min.is_some(), detail, fix)
}

/// Checks for control groups that divide hosts' processor time by the dilation. Creates a group as
/// a test, and removes it.
fn host_processors() -> Finding {
    let name = "host processors";
    let limit = CpuLimit::divided(1, 20);
    let tried = CpuHierarchy::find().and_then(|hierarchy| {
        let group = hierarchy.group(&format!("{}-{}-doctor", build::GROUP, std::process::id()));
        group.create()?;
        group.limit(Some(limit)).and(group.remove())
    });
    match tried {
        Ok(()) => Finding::new(name, true, "their time can be divided by the dilation", ""),
        Err(error) => {
            let fix =
                "for --host-cpus: run as root with a writable /sys/fs/cgroup that has the cpu controller";
            Finding::new(name, false, error.to_string(), fix)
        }
    }
}
