//! System calls per request, counted from outside: perf's tracepoint where it is allowed, else strace, else a word why
//! not. Taken apart from the timed windows, because being watched costs.

use std::process::{Command, Stdio};
use std::time::Duration;

use crate::measure::{self, Prepared};
use crate::targets::Target;

/// Gives the number and the tool it came from.
pub fn per_request(prepared: &Prepared, target: &Target, length: Duration) -> Result<(f64, &'static str), String> {
    let process = target.process.as_ref().ok_or("no process of ours")?;
    let pids = process.pids();
    let list = pids.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    match counted_by_perf(&list, prepared, target, length) {
        Ok(count) => Ok((count, "perf")),
        Err(no_perf) if crate::stop::is_asked() => Err(no_perf),
        Err(no_perf) => counted_by_strace(&pids, prepared, target, length)
            .map(|count| (count, "strace"))
            .map_err(|no_strace| format!("perf: {no_perf}; strace: {no_strace}")),
    }
}

/// Requests answered while a tracer watches for about `length`.
fn load(prepared: &Prepared, target: &Target, length: Duration) -> Result<f64, String> {
    let window = measure::window(prepared, target, Duration::from_millis(200), length, 0, &mut || {});
    let window = window.map_err(|error| error.to_string())?;
    if !window.is_valid {
        return Err("requests failed under the tracer".into());
    }
    // The tracer counts from the warm-up on, so all requests divide.
    window.measures.get("requests_ever").copied().filter(|count| *count > 0.0).ok_or_else(|| "no request".into())
}

fn counted_by_perf(pids: &str, prepared: &Prepared, target: &Target, length: Duration) -> Result<f64, String> {
    let arguments = ["stat", "-x", ",", "-e", "raw_syscalls:sys_enter", "-p", pids];
    let child = Command::new("perf").args(arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let child = child.map_err(|_| "not installed")?;
    std::thread::sleep(Duration::from_millis(300)); // it attaches before the load begins; an idle gateway calls nothing
    let requests = load(prepared, target, length);
    crate::sys::signal(child.id(), libc::SIGINT);
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stderr);
    let line = text.lines().find(|line| line.contains("raw_syscalls:sys_enter")).ok_or("it may not trace here")?;
    let count: f64 = line.split(',').next().and_then(|count| count.parse().ok()).ok_or("it may not trace here")?;
    Ok(count / requests?)
}

fn counted_by_strace(pids: &[u32], prepared: &Prepared, target: &Target, length: Duration) -> Result<f64, String> {
    let mut command = Command::new("strace");
    command.args(["-c", "-f", "-q"]);
    for pid in pids {
        command.args(["-p", &pid.to_string()]);
    }
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().map_err(|_| "not installed")?;
    std::thread::sleep(Duration::from_millis(500)); // as above
    let requests = load(prepared, target, length);
    crate::sys::signal(child.id(), libc::SIGINT);
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stderr);
    // The last line of the table: "100.00    0.123456           1     12345       123 total".
    let total = text.lines().find(|line| line.trim_end().ends_with("total")).ok_or("it may not trace here")?;
    let count: f64 = total.split_whitespace().nth(3).and_then(|count| count.parse().ok()).ok_or("an unknown table")?;
    Ok(count / requests?)
}
