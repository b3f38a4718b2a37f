//! Progress of a run on standard error: a live line on a terminal, single lines elsewhere.

use super::output::{short, up, up_e, warn};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use muffle::config::{DroppedRows, Publicity};
use muffle::run::{Progress, RunObserver, RunStart};
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Prints the progress of a run, and handles Ctrl-C.
pub(crate) struct Terminal {
    bar: ProgressBar,
    live: bool,
    stop: Arc<AtomicBool>,
    constants: Constants,
    /// Whether to print how many rows hold no record, which is not private.
    shows_left_out: bool,
}

/// Values that are the same on every line.
struct Constants {
    steps: u64,
    first: u64,
    budget: Option<f64>,
    non_private: &'static str,
    lot: f64,
    lot_tokens: Option<f64>,
    began: Instant,
}

impl Terminal {
    /// Handles Ctrl-C from now on. Of several processes, all are asked to stop if one is gone.
    pub(crate) fn new(processes: usize) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let heard = stop.clone();
        // The first asks the run to stop after its step, the second ends the process; nothing is
        // lost either way. Refused if a handler is installed already.
        let _ = ctrlc::set_handler(move || {
            if heard.swap(true, Ordering::SeqCst) {
                std::process::exit(130);
            }
            match processes {
                1 => eprintln!("\nmuffle: stopping after this step (again to stop at once)"),
                _ => eprintln!(
                    "\nmuffle: asked to stop, by a signal or because another process is gone; all \
                     charges are on the disk: resume with muffle resume"
                ),
            }
        });
        let constants = Constants {
            steps: 0,
            first: 0,
            budget: None,
            non_private: "",
            lot: 0.0,
            lot_tokens: None,
            began: Instant::now(),
        };
        Self {
            bar: ProgressBar::hidden(),
            live: std::io::stderr().is_terminal(),
            stop,
            constants,
            shows_left_out: false,
        }
    }

    /// Also prints how many rows hold no record: not private.
    pub(crate) fn showing_left_out(mut self) -> Self {
        self.shows_left_out = true;
        self
    }

    fn line(&self, text: &str) {
        if self.live { self.bar.suspend(|| eprintln!("{text}")) } else { eprintln!("{text}") }
    }
}

impl RunObserver for Terminal {
    fn message(&mut self, line: &str) {
        match line.strip_prefix("warning: ") {
            Some(warning) => self.bar.suspend(|| warn(warning)),
            None => self.line(line),
        }
    }

    fn started(&mut self, begun: &RunStart<'_>) {
        let plan = begun.plan;
        let (trained, all) = begun.parameters;
        self.line(&format!(
            "model      {}: {trained} of {all} parameters are trained",
            begun.config.model.source
        ));
        self.line(&match begun.config.data.dropped_rows {
            DroppedRows::Vacant => format!(
                "data       {} records, one for each row (their number \
                counts as public)",
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
        if self.shows_left_out {
            let left = begun.left_out;
            self.line(&format!(
                "           rows without a record: {} too long, {} empty, {} beyond a person's \
                 limit (NON-PRIVATE, shown here only)",
                left.too_long, left.empty, left.beyond
            ));
        }
        match (&plan.budget, &plan.price) {
            (Some(budget), Some(price)) => {
                self.line(&format!(
                    "privacy    ε = {} at δ = {}, {}; by {}{}",
                    up(price.epsilon, 3),
                    up_e(price.delta),
                    budget.unit,
                    price.accountant,
                    if begun.config.privacy.delta.given().is_none() {
                        "; δ is 1/(10 N), the default"
                    } else {
                        ""
                    }
                ));
                self.line(&format!(
                    "noise      σ = {}, all blocks of a lot together",
                    short(plan.sigma.gradient)
                ));
                if begun.config.privacy.seed.is_some() {
                    warn(
                        "the seed of the noise is fixed: anyone who knows it can remove the noise",
                    );
                }
            }
            _ => warn("this optimizer is not private: everything in the data may be in the model"),
        }
        self.line(&format!(
            "training   {}, {} steps, lots of {}, {} records at a time{}",
            begun.config.optimizer.name(),
            plan.steps,
            short(plan.lot_size()),
            begun.micro_batch,
            if begun.processes > 1 {
                format!(" in each of {} processes", begun.processes)
            } else {
                String::new()
            }
        ));
        if begun.step > 0 {
            self.line(&format!("           resumed after step {}", begun.step));
        }
        self.constants = Constants {
            steps: plan.steps,
            first: begun.step,
            budget: plan.budget.map(|budget| budget.epsilon.get()),
            non_private: if begun.config.data.publicity() == Publicity::Private {
                " (NON-PRIVATE)"
            } else {
                ""
            },
            lot: plan.lot_size(),
            lot_tokens: begun.lot_tokens,
            began: Instant::now(),
        };
        if self.live {
            self.bar =
                ProgressBar::with_draw_target(Some(plan.steps), ProgressDrawTarget::stderr());
            self.bar.set_position(begun.step);
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
            parts.push(format!("validation NLL {nll:.4}{}", constants.non_private));
        }
        let made = progress.step - constants.first;
        // The duration of a step depends on the records of its lot: it is shown to the holder of
        // the data and not logged.
        if made > 0 && self.live {
            let each = constants.began.elapsed().as_secs_f64() / made as f64;
            parts.push(match constants.lot_tokens {
                Some(tokens) => format!("{} tokens/s", short(tokens / each)),
                None => format!("{} examples/s", short(constants.lot / each)),
            });
            parts.push(format!(
                "{} left",
                clock(constants.steps.saturating_sub(progress.step) as f64 * each)
            ));
        }
        if self.live {
            self.bar.set_position(progress.step);
            self.bar.set_message(parts.join(" · "));
        } else if progress.fresh {
            eprintln!("{}", parts.join(" · "));
        }
        for note in &progress.notes {
            self.line(note);
        }
        if progress.step == constants.steps {
            self.bar.finish();
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
    fn time_left() {
        assert_eq!(
            (clock(0.4), clock(61.0), clock(3600.0 * 25.0 + 62.0)),
            ("0:00".into(), "1:01".into(), "25:01:02".into())
        );
    }
}
