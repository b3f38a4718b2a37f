//! The state of a run, from its files and its lock.

use crate::catalog::FoundRun;
use crate::files::RunFile;
use crate::spent::SpentEpsilon;
use accounting::Composition;
use muffle::Config;
use muffle::report::{Marking, Number};
use muffle::run::folder;
use muffle::run::history::HistoryEntry;
use muffle::run::plan_file::RunPlan;
use muffle::run::result::RunResult;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::Instant;

/// Whether a run trains, has ended, or can be resumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum State {
    /// A process works on it.
    Running,
    /// No process works on it, and it is not finished.
    Interrupted,
    /// It has a result.
    Finished,
    /// A file cannot be read.
    Damaged,
}

/// What the files of a run say.
pub(crate) struct RunState {
    pub(crate) state: State,
    /// What is wrong with its files.
    pub(crate) problems: Vec<String>,
    pub(crate) config: Option<Config>,
    pub(crate) plan: Option<RunPlan>,
    pub(crate) history: Vec<HistoryEntry>,
    pub(crate) result: Option<RunResult>,
    /// The charges in the ledger.
    pub(crate) events: Composition,
}

impl RunState {
    /// Reads the files of a run.
    pub(crate) fn read(folder: &Path) -> Self {
        let mut problems = Vec::new();
        let config = match RunFile::Config.read(folder) {
            Ok(Some(text)) => Config::parse(&text)
                .map_err(|error| problems.push(RunFile::Config.problem(error)))
                .ok(),
            Ok(None) => {
                problems.push(RunFile::Config.problem("missing"));
                None
            }
            Err(problem) => {
                problems.push(problem);
                None
            }
        };
        let history = read(RunFile::History, folder, &mut problems, parse_history);
        let plan = read(RunFile::Plan, folder, &mut problems, |text| serde_json::from_str(text));
        let result =
            read(RunFile::Result, folder, &mut problems, |text| serde_json::from_str(text));
        let events = read(RunFile::Ledger, folder, &mut problems, |text| {
            serde_json::from_str(text).map(|ledger: LedgerEvents| ledger.events)
        });
        let in_use = folder::is_in_use(folder).unwrap_or_else(|error| {
            problems.push(format!(".lock: {error}"));
            false
        });
        let state = match (problems.is_empty(), in_use, &result) {
            (false, ..) => State::Damaged,
            (true, true, _) => State::Running,
            (true, false, Some(_)) => State::Finished,
            (true, false, None) => State::Interrupted,
        };
        let (history, events) = (history.unwrap_or_default(), events.unwrap_or_default());
        Self { state, problems, config, plan, history, result, events }
    }

    /// Whether the run has a guarantee: a private optimizer, and secret noise.
    ///
    /// A run whose configuration cannot be read has none.
    pub(crate) fn is_private(&self) -> bool {
        let by_config = self
            .config
            .as_ref()
            .is_some_and(|config| config.optimizer.is_private() && config.privacy.seed.is_none());
        by_config && self.result.as_ref().is_none_or(|result| result.private)
    }

    /// Whether the figures on evaluation data are public. Without a guarantee, none are.
    pub(crate) fn marking(&self) -> Marking {
        let public = |marking: Marking| marking == Marking::Public;
        match self.is_private()
            && self.history.iter().all(|entry| public(entry.figures))
            && self.result.as_ref().is_none_or(|result| public(result.figures))
        {
            true => Marking::Public,
            false => Marking::NonPrivate,
        }
    }

    /// Completed steps.
    fn step(&self) -> u64 {
        let evaluated = self.history.last().map_or(0, |entry| entry.step);
        let charged = match self.plan {
            // One charge for each step, made before it: the last one may not be completed.
            Some(plan) if plan.charges == plan.steps && self.state == State::Running => {
                self.events.len().saturating_sub(1)
            }
            _ => 0,
        };
        match &self.result {
            Some(result) => result.steps,
            None => evaluated.max(charged),
        }
    }

    /// Planned steps; `None` for a run of an earlier version that is not finished.
    fn steps(&self) -> Option<u64> {
        let given = || self.config.as_ref()?.training.steps.given().copied();
        self.plan.map(|plan| plan.steps).or_else(given).or(self.result.as_ref().map(|r| r.steps))
    }

    /// The promised ε; `None` without privacy, and if it follows from the noise of an earlier
    /// version.
    pub(crate) fn promised(&self) -> Option<f64> {
        let given = || {
            let config = self.config.as_ref().filter(|config| config.optimizer.is_private())?;
            match config.privacy.sigma.given() {
                Some(_) => None,
                None => Some(config.privacy.epsilon.or(muffle::plan::EPSILON)),
            }
        };
        self.plan.map_or_else(given, |plan| plan.promised_epsilon)
    }

    /// δ of the promise; `None` if an unfinished run of an earlier version does not state it.
    pub(crate) fn delta(&self) -> Option<f64> {
        let finished = || self.result.as_ref()?.delta;
        let given = || self.config.as_ref()?.privacy.delta.given().copied();
        self.plan.and_then(|plan| plan.delta).or_else(finished).or_else(given)
    }
}

/// Reads and parses a file; a problem is added to the list.
fn read<T>(
    file: RunFile,
    folder: &Path,
    problems: &mut Vec<String>,
    parse: impl Fn(&str) -> Result<T, serde_json::Error>,
) -> Option<T> {
    let parsed = file.read(folder).and_then(|text| {
        text.map(|text| parse(&text)).transpose().map_err(|error| file.problem(error))
    });
    parsed.unwrap_or_else(|problem| {
        problems.push(problem);
        None
    })
}

/// Parses a history. A last line without its end is being written, and is left out.
fn parse_history(text: &str) -> Result<Vec<HistoryEntry>, serde_json::Error> {
    let complete = text.rfind('\n').map_or("", |end| &text[..end]);
    muffle::run::history::parse(complete)
}

/// The charges in a ledger. The hashes are for `verify`, which takes longer.
#[derive(Deserialize)]
struct LedgerEvents {
    events: Composition,
}

/// A line of the list of runs.
#[derive(Serialize)]
pub(crate) struct Summary {
    id: String,
    name: String,
    state: State,
    problems: Vec<String>,
    optimizer: Option<String>,
    private: bool,
    step: u64,
    steps: Option<u64>,
    /// Spent ε.
    epsilon: Option<f64>,
    /// The step of the evaluation after which ε was spent, if it is not known now.
    epsilon_step: Option<u64>,
    promised: Option<f64>,
    delta: Option<f64>,
    seconds_left: Option<f64>,
    figures: Vec<Figure>,
    /// Whether the figures are public.
    marking: Marking,
    report: bool,
    /// Changes whenever the curves change.
    version: String,
}

/// A figure with its name.
#[derive(Serialize)]
pub(crate) struct Figure {
    name: &'static str,
    value: Number,
    unit: &'static str,
}

impl Summary {
    /// Summarizes a run, and observes its pace.
    pub(crate) fn new(found: &mut FoundRun) -> Self {
        let run = RunState::read(&found.path);
        let (step, steps) = (run.step(), run.steps());
        match run.state {
            State::Running => found.pace.observe(Instant::now(), step),
            _ => found.pace.reset(),
        }
        let unfinished = steps.filter(|_| run.result.is_none());
        let time_left = unfinished.and_then(|steps| found.pace.time_left(steps));
        let SpentEpsilon { epsilon, at_step } = found.spent.epsilon(&run);
        Self {
            id: found.id.clone(),
            name: found.name.clone(),
            state: run.state,
            optimizer: run.config.as_ref().map(|config| config.optimizer.name().to_string()),
            private: run.is_private(),
            step,
            steps,
            epsilon,
            epsilon_step: at_step,
            promised: run.promised(),
            delta: run.delta(),
            seconds_left: time_left.map(|left| left.as_secs_f64()),
            figures: last_figures(&run),
            marking: run.marking(),
            report: run.result.is_some() && RunFile::Report.exists(&found.path),
            version: format!("{}-{step}-{:?}", run.history.len(), run.state),
            problems: run.problems,
        }
    }
}

/// The figures of the last evaluation on validation data.
fn last_figures(run: &RunState) -> Vec<Figure> {
    let Some(last) = run.history.last() else { return Vec::new() };
    [
        ("NLL", last.nll, ""),
        ("accuracy", last.accuracy.map(|share| 100.0 * share), " %"),
        ("RMSE", last.rmse, ""),
        ("BLEU", last.bleu, ""),
    ]
    .into_iter()
    .filter_map(|(name, value, unit)| Some(Figure { name, value: value?.into(), unit }))
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "{\"step\":5,\"epsilon\":1.5,\"learning_rate\":0.1,\"figures\":\"public\",\
         \"nll\":2.0,\"accuracy\":null,\"bleu\":null}";

    #[test]
    fn an_unfinished_line_is_left_out() {
        assert_eq!(parse_history("").unwrap(), []);
        assert_eq!(parse_history(&LINE[..20]).unwrap(), []);
        assert_eq!(parse_history(&format!("{LINE}\n{}", &LINE[..20])).unwrap().len(), 1);
        assert_eq!(parse_history(&format!("{LINE}\n{LINE}\n")).unwrap().len(), 2);
        assert!(parse_history(&format!("{}\n{LINE}\n", &LINE[..20])).is_err());
        assert!(parse_history("NaN\n").is_err());
    }
}
