//! Progress of a run on standard error: a live line on a terminal, single lines elsewhere.

use super::dry::warn_if_hopeless;
use super::output::{note, short, unit_words, up, up_e, warn};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use muffle::config::{DroppedRows, Publicity};
use muffle::run::{Progress, RunObserver, RunStart};
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The time between two lines about the evaluation at the end, where lines are not updated.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// Prints the progress of a run, and handles Ctrl-C.
pub(crate) struct Terminal {
    bar: ProgressBar,
    /// Whether standard error is a terminal, so that one line is updated in place.
    live: bool,
    /// Set by the signal handler.
    stop: Arc<AtomicBool>,
    constants: Constants,
    /// When a line about the evaluation at the end was last printed.
    reported: Instant,
    /// Whether to print the numbers of rows without a record, which are not private.
    shows_dropped: bool,
}

/// Values that are the same on every line.
struct Constants {
    steps: u64,
    /// The step that the run started or resumed at.
    first_step: u64,
    /// The promised ε.
    budget: Option<f64>,
    /// Marks figures on private validation data.
    marking: &'static str,
    lot_size: f64,
    lot_tokens: Option<f64>,
    start: Instant,
}

impl Terminal {
    /// Creates the observer and handles Ctrl-C from now on.
    ///
    /// A launcher of several processes signals all of them to stop if one is lost.
    pub(crate) fn new(processes: usize) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let signalled = stop.clone();
        // The first signal stops the run after its step or in its last evaluation, the second ends
        // the process; the run can be resumed in both cases. Installing it fails only if there is a
        // handler already.
        let _ = ctrlc::set_handler(move || {
            if signalled.swap(true, Ordering::SeqCst) {
                std::process::exit(130);
            }
            match processes {
                1 => note!("\nmuffle: stopping after this step or row (again to stop at once)"),
                _ => note!(
                    "\nmuffle: stopping, by a signal or because another process was lost; all \
                     charges are on disk: resume with muffle resume"
                ),
            }
        });
        let constants = Constants {
            steps: 0,
            first_step: 0,
            budget: None,
            marking: "",
            lot_size: 0.0,
            lot_tokens: None,
            start: Instant::now(),
        };
        Self {
            bar: ProgressBar::hidden(),
            live: std::io::stderr().is_terminal(),
            stop,
            constants,
            reported: Instant::now(),
            shows_dropped: false,
        }
    }

    /// Also prints the numbers of rows without a record. Not private.
    pub(crate) fn showing_dropped(mut self) -> Self {
        self.shows_dropped = true;
        self
    }

    /// Prints a line above the progress bar.
    fn line(&self, text: &str) {
        if self.live { self.bar.suspend(|| note!("{text}")) } else { note!("{text}") }
    }
}

impl RunObserver for Terminal {
    fn message(&mut self, line: &str) {
        match line.strip_prefix("warning: ") {
            Some(warning) => self.bar.suspend(|| warn(warning)),
            None => self.line(line),
        }
    }

    fn started(&mut self, start: &RunStart<'_>) {
        let plan = start.plan;
        let (trained, all) = start.parameters;
        self.line(&format!(
            "model      {}: {trained} of {all} parameters are trained",
            start.config.model.source
        ));
        let data = &start.config.data;
        let owner = if data.combines_rows() { "person" } else { "row" };
        self.line(&match data.dropped_rows {
            DroppedRows::Vacant => format!(
                "data       {} records, one for each {owner} (their number is public)",
                plan.records
            ),
            DroppedRows::Public => {
                format!(
                    "data       {} records; rows that are too long or empty were removed (declared \
                     public: data.dropped_rows)",
                    plan.records
                )
            }
        });
        if self.shows_dropped {
            let dropped = start.dropped;
            self.line(&format!(
                "           rows without a record: {} too long, {} empty or without a value, {} over \
                 the limit of their person; {} rows used in part (NON-PRIVATE, shown here only)",
                dropped.too_long,
                dropped.empty + dropped.missing,
                dropped.over_limit, dropped.shortened
            ));
        }
        match (&plan.budget, &plan.price) {
            (Some(budget), Some(price)) => {
                self.line(&format!(
                    "privacy    ε = {} at δ = {}, {}; by {}{}",
                    up(price.epsilon, 3),
                    up_e(price.delta),
                    unit_words(budget.unit, data.combines_rows()),
                    price.accountant,
                    if start.config.privacy.delta.given().is_none() {
                        "; δ is 1/(10 N), the default"
                    } else {
                        ""
                    }
                ));
                self.line(&format!(
                    "noise      σ = {}, all blocks of a lot together; noise in mean ÷ clip bound: \
                     {}",
                    short(plan.sigma.gradient),
                    short(plan.noise_in_mean())
                ));
                warn_if_hopeless(plan.noise_to_signal(trained));
                if start.config.privacy.seed.is_some() {
                    warn(
                        "the seed of the noise is fixed: anyone who knows it can remove the noise",
                    );
                }
            }
            _ => warn("this optimizer is not private: the model may reveal any record"),
        }
        self.line(&format!(
            "training   {}, {} steps, lots of {}, micro-batches of {}{}",
            start.config.optimizer.name(),
            plan.steps,
            short(plan.lot_size()),
            start.micro_batch,
            if start.processes > 1 {
                format!(" in each of {} processes", start.processes)
            } else {
                String::new()
            }
        ));
        if start.step > 0 {
            self.line(&format!("           resumed after step {}", start.step));
        }
        self.constants = Constants {
            steps: plan.steps,
            first_step: start.step,
            budget: plan.budget.map(|budget| budget.epsilon.get()),
            marking: if start.config.data.publicity() == Publicity::Private {
                " (NON-PRIVATE)"
            } else {
                ""
            },
            lot_size: plan.lot_size(),
            lot_tokens: start.lot_tokens,
            start: Instant::now(),
        };
        if self.live {
            self.bar =
                ProgressBar::with_draw_target(Some(plan.steps), ProgressDrawTarget::stderr());
            self.bar.set_position(start.step);
            if let Ok(style) = ProgressStyle::with_template("{bar:20} {msg}") {
                self.bar.set_style(style);
            }
        }
    }

    fn stepped(&mut self, progress: &Progress) {
        let constants = &self.constants;
        let mut parts = vec![format!("step {}/{}", progress.step, constants.steps)];
        if let (Some(epsilon), Some(budget)) = (progress.latest.epsilon, constants.budget) {
            parts.push(format!("ε {} of {}", up(epsilon, 2), up(budget, 2)));
        }
        if let Some(nll) = progress.latest.nll {
            parts.push(format!("validation NLL {nll:.4}{}", constants.marking));
        }
        if let Some(rmse) = progress.latest.rmse {
            parts.push(format!("validation RMSE {rmse:.4}{}", constants.marking));
        }
        let done = progress.step - constants.first_step;
        // The duration of a step depends on the records of its lot: it is shown to the holder of
        // the data and not logged.
        if done > 0 && self.live {
            let step_seconds = constants.start.elapsed().as_secs_f64() / done as f64;
            parts.push(match constants.lot_tokens {
                Some(tokens) => format!("{} tokens/s", short(tokens / step_seconds)),
                None => format!("{} examples/s", short(constants.lot_size / step_seconds)),
            });
            let remaining = constants.steps.saturating_sub(progress.step) as f64;
            parts.push(format!("{} left", clock(remaining * step_seconds)));
        }
        if self.live {
            self.bar.set_position(progress.step);
            self.bar.set_message(parts.join(" · "));
        } else if progress.fresh {
            note!("{}", parts.join(" · "));
        }
        for note in &progress.notes {
            self.line(note);
        }
        if progress.step == constants.steps {
            self.bar.finish();
        }
    }

    fn evaluating(&mut self, what: &str, count: u64) {
        if self.live {
            self.bar.reset();
            self.bar.set_message(format!("{what} {count}"));
            self.bar.tick();
        } else if self.reported.elapsed() >= REPORT_INTERVAL {
            self.reported = Instant::now();
            note!("{what} {count}");
        }
    }

    fn should_stop(&mut self) -> bool {
        let stop = self.stop.load(Ordering::SeqCst);
        if stop {
            self.bar.abandon();
        }
        stop
    }
}

/// A duration as minutes and seconds, or hours, minutes and seconds.
fn clock(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    if whole < 3600 {
        format!("{}:{:02}", whole / 60, whole % 60)
    } else {
        format!("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60)
    }
}

#[cfg(test)]
mod tests {
    use super::clock;

    #[test]
    fn durations_are_printed_as_a_clock() {
        assert_eq!(
            (clock(0.4), clock(61.0), clock(3600.0 * 25.0 + 62.0)),
            ("0:00".into(), "1:01".into(), "25:01:02".into())
        );
    }
}
