//! The program as it is called: how it ends, and what it leaves behind.

use std::fs;
use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

const WITHIN: Duration = Duration::from_secs(30);

/// A folder of one test, which is the program's place for temporary files, too.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("bench-cli-{name}-{}", std::process::id()));
        fs::create_dir_all(path.join("tmp")).unwrap();
        Self(path)
    }

    fn bench(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bench"));
        command.args(arguments).current_dir(&self.0).env("TMPDIR", self.tmp());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn tmp(&self) -> PathBuf {
        self.0.join("tmp")
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.0.join(name), text).unwrap();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A program that ends with its test, whatever becomes of that.
struct Ends(Child);

impl Ends {
    /// Waits until it has ended by itself.
    fn output(mut self) -> Output {
        let began = Instant::now();
        while self.0.try_wait().unwrap().is_none() {
            assert!(began.elapsed() < WITHIN, "it goes on");
            std::thread::sleep(Duration::from_millis(5));
        }
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        self.0.stdout.take().unwrap().read_to_end(&mut stdout).unwrap();
        self.0.stderr.take().unwrap().read_to_end(&mut stderr).unwrap();
        Output { status: self.0.wait().unwrap(), stdout, stderr }
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill(); // it may have ended
        let _ = self.0.wait();
    }
}

fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).unwrap().next().is_none()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_stopped_run_shows_what_it_measured_and_leaves_nothing_behind() {
    let place = Place::new("stop");
    place.write("one.yaml", "{ about: one, rounds: 1, warmup_ms: 0, window_ms: 100, cells: [{ target: direct }] }");
    place.write("long.yaml", "{ about: long, rounds: 1, window_ms: 600000, cells: [{ target: direct }] }");
    let running = Ends(place.bench(&["run", "one.yaml", "long.yaml", "--json", "x.json"]).spawn().unwrap());
    let began = Instant::now();
    // The file is there when the first scenario is over, the folder when the second one runs.
    while !place.0.join("x.json").exists() || is_empty(&place.tmp()) {
        assert!(began.elapsed() < WITHIN, "the second scenario did not begin");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(Command::new("kill").args(["-TERM", &running.0.id().to_string()]).status().unwrap().success());
    let output = running.output();
    assert_eq!(output.status.code(), Some(143), "{}", said(&output));
    assert!(String::from_utf8_lossy(&output.stdout).contains("one: "), "{output:?}");
    assert!(said(&output).contains("bench: interrupted; what was measured stands above"), "{}", said(&output));
    assert!(is_empty(&place.tmp()));
}

#[test]
fn a_run_whose_target_is_not_there_ends_with_an_error() {
    let place = Place::new("nobody");
    // Held by a socket that does not listen, so that nobody else's server gets it.
    let held = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    held.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let nobody = held.local_addr().unwrap().as_socket().unwrap();
    let cells = format!("[{{ target: \"http://{nobody}\" }}]");
    place.write("nobody.yaml", &format!("{{ about: x, rounds: 1, warmup_ms: 0, window_ms: 50, cells: {cells} }}"));
    let output = place.bench(&["run", "nobody.yaml"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("bench: nothing was measured: no cell has a valid window (connection refused)"));
}

#[test]
fn a_reader_that_has_gone_ends_it_without_a_word() {
    let place = Place::new("reader");
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = place.bench(&["scenarios"]).stdout(writer).output().unwrap();
    assert_eq!((output.status.code(), said(&output).as_str()), (Some(141), ""));
}
