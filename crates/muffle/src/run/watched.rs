//! Evaluation at the end of a run: it reports its progress and can be stopped between rows.

use crate::Error;
use crate::load::data::Rows;
use crate::run::RunObserver;
use data::Record;
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// The time between two looks at the observer.
const INTERVAL: Duration = Duration::from_millis(100);

/// Rows that are counted, and that end with an error as soon as a stop is requested.
struct CountedRows {
    rows: Rows,
    count: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
}

impl Iterator for CountedRows {
    type Item = data::Result<Record>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.stop.load(Ordering::SeqCst) {
            let (path, source) = ("evaluation".into(), ErrorKind::Interrupted.into());
            return Some(Err(data::Error::Io { path, source }));
        }
        let row = self.rows.next()?;
        self.count.fetch_add(1, Ordering::SeqCst);
        Some(row)
    }
}

/// Runs `work` on rows in a thread, while the observer gets the progress and may stop it.
///
/// # Errors
/// [`Error::Stopped`] if the observer asked to stop before `work` was done; otherwise as `work`.
pub(super) fn watched<T: Send>(
    what: &str,
    rows: Rows,
    observer: &mut dyn RunObserver,
    work: impl FnOnce(Rows) -> Result<T, Error> + Send,
) -> Result<T, Error> {
    let (count, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let counted = CountedRows { rows, count: count.clone(), stop: stop.clone() };
    let (done, waiting) = channel();
    std::thread::scope(|scope| {
        let worker = scope.spawn(move || {
            let result = work(Box::new(counted));
            // The receiver waits until it is told, or until this thread ends.
            let _ = done.send(());
            result
        });
        while waiting.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
            observer.evaluating(what, count.load(Ordering::SeqCst));
            if observer.should_stop() {
                stop.store(true, Ordering::SeqCst);
            }
        }
        let result =
            worker.join().map_err(|_| Error::Internal("the evaluation ended unexpectedly"))?;
        match result {
            Err(_) if stop.load(Ordering::SeqCst) => Err(Error::Stopped),
            result => result,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::{Progress, RunStart};
    use data::Content;

    /// Asks to stop after the first report of progress.
    #[derive(Default)]
    struct Stopping {
        reports: u64,
    }

    impl RunObserver for Stopping {
        fn message(&mut self, _: &str) {}
        fn started(&mut self, _: &RunStart<'_>) {}
        fn stepped(&mut self, _: &Progress) {}
        fn evaluating(&mut self, _: &str, _: u64) {
            self.reports += 1;
        }
        fn should_stop(&mut self) -> bool {
            self.reports > 0
        }
    }

    fn endless() -> Rows {
        let record = |line: u64| {
            std::thread::sleep(Duration::from_millis(1));
            let content =
                Content::Text { source: None, target: "x".into(), references: Vec::new() };
            Ok(Record { content, group: None, line })
        };
        Box::new((1..).map(record))
    }

    #[test]
    fn a_stop_ends_the_evaluation() {
        let mut observer = Stopping::default();
        let ended = watched("test", endless(), &mut observer, |rows| {
            rows.map(|row| Ok(row?.line)).sum::<Result<u64, Error>>()
        });
        assert!(matches!(ended, Err(Error::Stopped)), "{ended:?}");
        assert!(observer.reports > 0);
    }

    #[test]
    fn results_and_errors_pass_through() {
        let mut observer = crate::run::Silent;
        let taken = watched("test", endless(), &mut observer, |rows| Ok(rows.take(5).count()));
        assert_eq!(taken.unwrap(), 5);
        let failed: Result<(), Error> =
            watched("test", endless(), &mut observer, |_| Err(Error::Internal("planted")));
        assert!(failed.unwrap_err().to_string().contains("planted"));
    }
}
