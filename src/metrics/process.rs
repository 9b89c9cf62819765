//! The process as the kernel sees it, under the names that all clients of Prometheus use.

use std::fs;

use rustix::process::{Resource, getrlimit};

use super::Scrape;

/// Adds the numbers of this process, as far as the system has them.
pub fn collect(scrape: &mut Scrape) {
    if let Some(stat) = fs::read_to_string("/proc/self/stat").ok().as_deref().and_then(fields) {
        scrape.number("process_cpu_seconds_total", &[], stat.cpu_s);
        scrape.count("process_threads", &[], stat.threads);
        if let Some(booted_s) = booted_s() {
            scrape.number("process_start_time_seconds", &[], booted_s + stat.started_s);
        }
    }
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    for (name, key) in
        [("process_virtual_memory_bytes", "VmSize:"), ("process_resident_memory_bytes", "VmRSS:")]
    {
        if let Some(bytes) = bytes_of(&status, key) {
            scrape.count(name, &[], bytes);
        }
    }
    if let Ok(open) = fs::read_dir("/proc/self/fd") {
        // The listing itself has one open.
        scrape.count("process_open_fds", &[], (open.count() as u64).saturating_sub(1));
    }
    if let Some(most) = getrlimit(Resource::Nofile).current {
        scrape.count("process_max_fds", &[], most);
    }
}

/// The kernel's ticks a second in files below `/proc`: a constant of its interface.
const TICKS: f64 = 100.0;

struct Stat {
    cpu_s: f64,
    threads: u64,
    started_s: f64,
}

/// Reads a line of `/proc/PID/stat`; the name of the program, in parentheses, may contain anything.
#[expect(clippy::cast_precision_loss, reason = "ticks of a process are few")]
fn fields(stat: &str) -> Option<Stat> {
    let rest = stat.rsplit_once(')')?.1;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    Some(Stat {
        cpu_s: (field(14)? + field(15)?) as f64 / TICKS,
        threads: field(20)?,
        started_s: field(22)? as f64 / TICKS,
    })
}

/// Returns the value of a line `key   123 kB`, in bytes.
fn bytes_of(status: &str, key: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(key))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1_024)
}

fn booted_s() -> Option<f64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_the_program_may_contain_anything() {
        let line = "7 (a b) c) S 1 2 3 4 5 6 7 8 9 10 150 50 13 14 15 16 4 0 100 4096 3 18";
        let stat = fields(line).unwrap();
        assert_eq!((stat.threads, stat.cpu_s, stat.started_s), (4, 2.0, 1.0));
        assert!(fields("7 (x) S 1").is_none());
        assert_eq!(bytes_of("VmPeak:\t 9 kB\nVmRSS:\t   12 kB\n", "VmRSS:"), Some(12_288));
    }
}
