//! The bounded queue between those who log and the thread that writes to stderr.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use tracing_subscriber::fmt::MakeWriter;

/// Lines that wait at most: a burst of a few thousand at 300 B is about a megabyte.
const LINES_MAX: usize = 4_096;
/// How long the end of the process waits for a reader of stderr that has stopped.
const DRAIN_MAX: Duration = Duration::from_secs(2);
/// The end that takes lines. Cheap to clone, never waits.
#[derive(Clone)]
pub struct Queue {
    lines: SyncSender<Vec<u8>>,
    dropped: Arc<AtomicU64>,
}

/// The thread that writes. Dropping it ends the thread once the queue is empty.
pub struct Writer {
    queue: Queue,
    ending: Arc<AtomicBool>,
    ended: Receiver<()>,
}

impl Queue {
    pub fn to_stderr() -> io::Result<(Self, Writer)> {
        Self::to(io::stderr())
    }

    fn to(out: impl Write + Send + 'static) -> io::Result<(Self, Writer)> {
        let (lines, waiting) = sync_channel(LINES_MAX);
        let (end, ended) = sync_channel(1);
        let dropped = Arc::new(AtomicU64::new(0));
        let ending = Arc::new(AtomicBool::new(false));
        let (lost, stop) = (dropped.clone(), ending.clone());
        thread::Builder::new().name("tt-log".to_owned()).spawn(move || {
            write_all(out, &waiting, &lost, &stop);
            let _ = end.send(()); // the guard may have given up waiting
        })?;
        let queue = Self { lines, dropped };
        Ok((queue.clone(), Writer { queue, ending, ended }))
    }
}

fn write_all(mut out: impl Write, waiting: &Receiver<Vec<u8>>, dropped: &AtomicU64, ending: &AtomicBool) {
    loop {
        // Acquire pairs with the guard's release: what was logged before it is in the queue and found by `try_recv`.
        let line = match ending.load(Ordering::Acquire) {
            true => waiting.try_recv().ok(),
            false => waiting.recv().ok(),
        };
        let Some(line) = line else { return };
        // A closed stderr has no reader to tell; the next line may find one again.
        let _ = out.write_all(&line);
        // Relaxed: a count, which orders nothing.
        let lost = dropped.swap(0, Ordering::Relaxed);
        if lost > 0 {
            let now = jiff::Timestamp::now();
            let note = format!(
                "{{\"time\":\"{now:.3}\",\"level\":\"WARN\",\"msg\":\"log lines dropped\",\"lines\":{lost}}}\n"
            );
            let _ = out.write_all(note.as_bytes());
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::Release);
        // Wakes a writer that waits for a line; when the queue is full it is awake already.
        let _ = self.queue.lines.try_send(Vec::new());
        let _ = self.ended.recv_timeout(DRAIN_MAX);
    }
}

/// One line on its way into the queue.
pub struct Line {
    queue: Queue,
    text: Vec<u8>,
}

impl<'a> MakeWriter<'a> for Queue {
    type Writer = Line;

    fn make_writer(&'a self) -> Line {
        Line { queue: self.clone(), text: Vec::with_capacity(256) }
    }
}

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let text = std::mem::take(&mut self.text);
        if !text.is_empty() && self.queue.lines.try_send(text).is_err() {
            self.queue.dropped.fetch_add(1, Ordering::Relaxed); // a count, which orders nothing
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Condvar, Mutex};
    use std::time::Instant;

    /// Keeps what is written, and takes nothing until it is opened.
    #[derive(Clone, Default)]
    struct Gate(Arc<Shared>);

    #[derive(Default)]
    struct Shared {
        /// Whether it is open, and what was written.
        state: Mutex<(bool, Vec<u8>)>,
        opened: Condvar,
    }

    impl Gate {
        fn open(&self) {
            self.0.state.lock().unwrap().0 = true;
            self.0.opened.notify_all();
        }

        fn text(&self) -> String {
            String::from_utf8(self.0.state.lock().unwrap().1.clone()).unwrap()
        }
    }

    impl Write for Gate {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut state = self.0.opened.wait_while(self.0.state.lock().unwrap(), |state| !state.0).unwrap();
            state.1.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn every_line_is_written_before_the_guard_is_gone() {
        let gate = Gate::default();
        gate.open();
        let (queue, writer) = Queue::to(gate.clone()).unwrap();
        for number in 0..100 {
            writeln!(queue.make_writer(), "line {number}").unwrap();
        }
        drop(writer);
        assert_eq!(gate.text().lines().count(), 100);
        assert!(gate.text().ends_with("line 99\n"));
    }

    #[test]
    fn a_reader_that_has_stopped_costs_lines_and_not_time() {
        let gate = Gate::default();
        let (queue, writer) = Queue::to(gate.clone()).unwrap();
        let begun = Instant::now();
        for _ in 0..LINES_MAX + 100 {
            queue.make_writer().write_all(b"x\n").unwrap();
        }
        assert!(begun.elapsed() < Duration::from_secs(5), "logging waited for the reader");
        gate.open();
        drop(writer);
        let text = gate.text();
        let written = text.lines().filter(|line| *line == "x").count();
        assert!((LINES_MAX..=LINES_MAX + 1).contains(&written), "{written}");
        assert!(text.contains("\"msg\":\"log lines dropped\",\"lines\":"), "{text:.200}");
    }
}
