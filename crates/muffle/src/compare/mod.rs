//! Comparison of optimizers and settings on the same data, with several runs each.
//!
//! Every run has its own folder and its own guarantee. The joint cost of all private runs, which is
//! higher, is computed as well: it is the cost of a choice among them.

mod columns;
mod page;
mod table;
mod timing;

pub use table::{Cell, PAGE, Row, RunRow, Table, Tables};

use crate::Error;
use crate::Plan;
use crate::Statement;
use crate::config::{Auto, Config, Grid, LearningRate};
use crate::report::Marking;
use crate::run::folder::Folder;
use crate::run::history;
use crate::run::result::{Metrics, RESULT, RunResult};
use crate::run::{self, RunObserver};
use crate::verify::spent::{Spent, joint};
use accounting::Guarantee;
use data::FeatureCache;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use timing::Timings;

/// The maximum number of runs of a comparison.
const MAX_RUNS: usize = 10_000;

/// The settings of a comparison.
///
/// ```
/// use muffle::compare::Comparison;
/// use muffle::config::{Config, Grid};
///
/// let comparison = Comparison {
///     optimizers: vec!["dp-sgd".into(), "dp-adam".into()],
///     grids: vec![Grid::parse("privacy.epsilon=3,8")?],
///     seeds: vec![0, 1, 2],
///     ..Comparison::new(Config::embedded())
/// };
/// assert_eq!(comparison.plan()?.len(), 2 * 2 * 3);
/// # Ok::<(), muffle::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Comparison {
    /// The configuration of all runs.
    pub config: Config,
    /// Names of optimizers; with the suffix `+hyfree`, HyFreeDP finds the learning rate.
    pub optimizers: Vec<String>,
    /// Changes for one optimizer: its name, and `section.key=value`.
    pub changes: Vec<(String, String)>,
    /// Keys that vary: there are runs for every combination of their values.
    pub grids: Vec<Grid>,
    /// Public seeds of new parameters. The noise of each run is independent.
    pub seeds: Vec<u64>,
    /// The figure by which the best point of a grid is marked; by default the first measured.
    pub metric: Option<String>,
}

/// One run of a comparison, before it is trained.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedRun {
    /// The optimizer.
    pub optimizer: String,
    /// Keys that vary, with their values in this run.
    pub settings: Vec<(String, String)>,
    /// The seed.
    pub seed: u64,
    /// The name of its folder.
    pub name: String,
    /// Its configuration.
    pub config: Config,
}

/// One finished run of a comparison.
#[derive(Clone, Debug)]
pub struct ComparedRun {
    /// The optimizer.
    pub optimizer: String,
    /// Keys that vary, with their values in this run.
    pub settings: Vec<(String, String)>,
    /// The seed.
    pub seed: u64,
    /// The folder of the run.
    pub folder: PathBuf,
    /// ε; `None` without privacy.
    pub epsilon: Option<f64>,
    /// Figures on evaluation data.
    pub metrics: Metrics,
    /// NLL, or RMSE of a regression, on validation data against steps.
    pub curve: Vec<(f64, f64)>,
    /// Duration of the run, if it is known. **Not private.**
    pub seconds: Option<f64>,
    spent: Spent,
}

/// The result of a comparison.
#[derive(Clone, Debug)]
pub struct ComparisonResult {
    /// In the order of optimizers, then settings, then seeds.
    pub runs: Vec<ComparedRun>,
    /// The joint cost of all private runs on the same records.
    ///
    /// `None` if there is none, or they protect different units.
    pub joint: Option<Guarantee>,
    /// Whether the figures are public.
    pub marking: Marking,
    /// The figure by which the best settings of an optimizer are marked.
    pub metric: &'static str,
}

impl Comparison {
    /// A comparison of no runs yet, with this configuration.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            optimizers: Vec::new(),
            changes: Vec::new(),
            grids: Vec::new(),
            seeds: Vec::new(),
            metric: None,
        }
    }

    /// Trains all missing runs, resumes interrupted ones, and writes the tables.
    ///
    /// # Errors
    /// If a run fails, or the observer asks to stop.
    pub fn run(
        &self,
        out: &Path,
        observer: &mut dyn RunObserver,
    ) -> Result<ComparisonResult, Error> {
        let metric = self.metric.as_deref().map(columns::metric).transpose()?;
        let planned = self.plan()?;
        std::fs::create_dir_all(out).map_err(Error::io(out))?;
        refuse_other_configs(out, &planned)?;
        let mut timings = Timings::read(out)?;
        // All runs have the same images.
        let features = Arc::new(FeatureCache::new(out).map_err(Error::io(out))?);
        let mut runs = Vec::new();
        for (index, run) in planned.iter().enumerate() {
            let folder = out.join(&run.name);
            observer.message(&format!("── {} (run {} of {})", run.name, index + 1, planned.len()));
            if run::resume::is_complete(&folder) {
                // An interruption may have left private state that was being removed; opening
                // the folder removes it.
                Folder::open(&folder)?;
                observer.message("already finished");
            } else {
                let resumes = folder.join("config.toml").is_file();
                timings.measure(&run.name, resumes, || match resumes {
                    true => run::resume(&folder, observer),
                    false => run::train_cached(&run.config, &folder, &features, observer),
                })?;
            }
            runs.push(ComparedRun::read(run, &folder, timings.seconds(&run.name))?);
        }
        let private = runs.iter().filter(|run| run.is_private()).map(|run| run.spent.clone());
        let result = ComparisonResult {
            joint: joint(&private.collect::<Vec<_>>())?,
            metric: metric.unwrap_or_else(|| columns::default_metric(&runs)),
            runs,
            marking: self.config.data.publicity().into(),
        };
        result.write(out)?;
        Ok(result)
    }

    /// The runs of the comparison, in the order of optimizers, then settings, then seeds.
    ///
    /// # Errors
    /// If a setting is invalid, or two runs are the same.
    pub fn plan(&self) -> Result<Vec<PlannedRun>, Error> {
        for (key, missing) in
            [("optimizers", self.optimizers.is_empty()), ("seeds", self.seeds.is_empty())]
        {
            if missing {
                return Err(Error::config(format!("compare.{key}"), "expected at least 1, got 0"));
            }
        }
        let of_one = self.grids.iter().filter_map(|grid| grid.optimizer.as_ref());
        for name in self.changes.iter().map(|(name, _)| name).chain(of_one) {
            if !self.optimizers.contains(name) {
                let known = self.optimizers.join(", ");
                let message =
                    format!("expected one of the compared optimizers ({known}), got {name}");
                return Err(Error::config("compare", message));
            }
        }
        let (mut planned, mut names, mut configs) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
        for optimizer in &self.optimizers {
            for settings in self.points(optimizer)? {
                let config = self.config_of(optimizer, &settings)?;
                for &seed in &self.seeds {
                    let mut config = config.clone();
                    config.model.seed = seed;
                    let name = folder_name(optimizer, &settings, seed);
                    if !names.insert(name.clone()) || !configs.insert(config.print()) {
                        let message = format!("expected different runs, got {name} twice");
                        return Err(Error::config("compare", message));
                    }
                    let settings = settings.clone();
                    let optimizer = optimizer.clone();
                    planned.push(PlannedRun { optimizer, settings, seed, name, config });
                }
            }
        }
        Ok(planned)
    }

    /// All combinations of the values of the keys that vary for an optimizer.
    fn points(&self, optimizer: &str) -> Result<Vec<Vec<(String, String)>>, Error> {
        let applies = |grid: &&Grid| grid.optimizer.as_deref().is_none_or(|name| name == optimizer);
        let mut points: Vec<Vec<(String, String)>> = vec![Vec::new()];
        for grid in self.grids.iter().filter(applies) {
            let runs = (points.len() * self.seeds.len() * self.optimizers.len())
                .saturating_mul(grid.values.len());
            if runs > MAX_RUNS {
                let message = format!("expected at most {MAX_RUNS} runs, got {runs}");
                return Err(Error::config("compare.grid", message));
            }
            let extended = |point: &Vec<(String, String)>, value: &String| {
                let setting = (grid.key.clone(), value.trim_matches('"').to_string());
                point.iter().cloned().chain([setting]).collect()
            };
            points = points
                .iter()
                .flat_map(|point| grid.values.iter().map(move |value| extended(point, value)))
                .collect();
        }
        Ok(points)
    }

    /// The configuration of one optimizer with some settings.
    fn config_of(&self, name: &str, settings: &[(String, String)]) -> Result<Config, Error> {
        let (base, finds_rate) =
            name.strip_suffix("+hyfree").map_or((name, false), |base| (base, true));
        let mut config = self.config.with_optimizer(base)?;
        if finds_rate {
            config.optimizer.learning_rate = Auto::Value(LearningRate::HyFree);
        }
        let optimizer = config.optimizer.name();
        let changes = self.changes.iter().filter(|(optimizer, _)| optimizer == name);
        let points = settings.iter().map(|(key, value)| format!("{key}={value}"));
        for change in changes.map(|(_, change)| change.clone()).chain(points) {
            config = config.with(&change)?;
        }
        if config.privacy.seed.is_some() {
            return Err(Error::config(
                "privacy.seed",
                "expected none, because repeated runs need independent noise",
            ));
        }
        if config.optimizer.name() != optimizer || config.model.seed != self.config.model.seed {
            return Err(Error::config(
                "compare",
                "optimizer.name and model.seed: expected no values of their own; use optimizers \
                 and seeds",
            ));
        }
        Plan::check(&config)?;
        config.absolute()
    }
}

/// The name of the folder of a run: optimizer, settings and seed.
fn folder_name(optimizer: &str, settings: &[(String, String)], seed: u64) -> String {
    let settings = settings.iter().map(|(key, value)| format!("{key}={value}-"));
    let name = format!("{optimizer}-{}{seed}", settings.collect::<String>());
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._+=,-".contains(c);
    name.chars().map(|c| if allowed(c) { c } else { '_' }).collect()
}

/// Refuses a folder with runs of another configuration: they cannot be compared.
fn refuse_other_configs(out: &Path, planned: &[PlannedRun]) -> Result<(), Error> {
    for run in planned {
        let path = out.join(&run.name).join("config.toml");
        if path.is_file() && Config::read(&path)? != run.config {
            return Err(Error::folder(
                &path,
                "the run has another configuration; choose another folder (--out)",
            ));
        }
    }
    Ok(())
}

impl ComparedRun {
    /// Reads a finished run from its folder.
    fn read(run: &PlannedRun, folder: &Path, seconds: Option<f64>) -> Result<Self, Error> {
        let files = Folder::open_read_only(folder)?;
        let result = RunResult::read(&files)?
            .ok_or_else(|| Error::folder(folder, format!("{RESULT} is missing")))?;
        let statement = Statement::of_run(folder)?;
        Ok(Self {
            optimizer: run.optimizer.clone(),
            settings: run.settings.clone(),
            seed: run.seed,
            folder: folder.into(),
            epsilon: statement.epsilon,
            metrics: result.metrics,
            curve: history::read(&files, u64::MAX)?
                .iter()
                .filter_map(|entry| Some((entry.step as f64, entry.nll.or(entry.rmse)?)))
                .collect(),
            seconds,
            spent: Spent::of_statement(&statement),
        })
    }

    /// Whether the run has a guarantee.
    pub fn is_private(&self) -> bool {
        self.spent.promise.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn comparison(optimizers: &[&str], grids: &[&str], seeds: &[u64]) -> Comparison {
        let grid = |text: &&str| match text.split_once(':') {
            Some(_) => Grid::parse_for(text).unwrap(),
            None => Grid::parse(text).unwrap(),
        };
        Comparison {
            optimizers: optimizers.iter().map(ToString::to_string).collect(),
            grids: grids.iter().map(grid).collect(),
            seeds: seeds.to_vec(),
            ..Comparison::new(Config::embedded())
        }
    }

    fn refused(comparison: &Comparison) -> String {
        comparison.plan().unwrap_err().to_string()
    }

    #[test]
    fn a_grid_is_a_product() {
        let planned = comparison(
            &["dp-sgd", "dp-adam"],
            &[
                "privacy.epsilon=3,8",
                "dp-adam:optimizer.learning_rate=1e-3,2e-3",
                "dp-adam:optimizer.betas=[0.9, 0.999],[0.5, 0.6]",
            ],
            &[0, 7],
        )
        .plan()
        .unwrap();
        assert_eq!(planned.len(), 2 * 2 + 2 * 2 * 2 * 2);
        assert_eq!(planned[1].name, "dp-sgd-privacy.epsilon=3-7");
        let last = planned.last().unwrap();
        assert_eq!(
            last.name,
            "dp-adam-privacy.epsilon=8-optimizer.learning_rate=2e-3-optimizer.betas=_0.5,_0.6_-7"
        );
        assert_eq!(last.config.model.seed, 7);
        assert_eq!(last.config.privacy.epsilon, Auto::Value(8.0));
        let rate = LearningRate::Fixed(0.002);
        assert_eq!(last.config.optimizer.learning_rate, Auto::Value(rate));
        assert!(last.config.print().contains("0.6"), "{}", last.config.print());
    }

    #[test]
    fn comparisons_of_the_same_run_are_refused() {
        // Equal runs would count twice in the mean and in the joint cost.
        for (optimizers, grids, seeds) in [
            (&["dp-sgd", "dp-sgd"][..], &[][..], &[0][..]),
            (&["dp-sgd"], &[], &[0, 0]),
            (&["dp-sgd"], &["privacy.epsilon=3,3.0"], &[0]),
            (&["dp-adam", "dp-adam+hyfree"], &["optimizer.learning_rate=hyfree"], &[0]),
        ] {
            let refused = refused(&comparison(optimizers, grids, seeds));
            assert!(refused.contains("expected different runs"), "{refused}");
        }
    }

    #[test]
    fn invalid_comparisons_are_refused() {
        let one = |grid: &str| comparison(&["dp-sgd"], &[grid], &[0]);
        for (grid, part) in [
            ("privacy.seed=1,2", "independent noise"),
            ("model.seed=1,2", "use optimizers and seeds"),
            ("optimizer.name=dp-adam,sgd", "use optimizers and seeds"),
            ("privacy.epsilom=1,2", "did you mean \"epsilon\""),
            ("optimizer.probes=1,2", "not read by dp-sgd"),
            ("dp-adam:privacy.epsilon=1", "expected one of the compared optimizers (dp-sgd)"),
            ("evaluation.select=best-nll,last", "privacy that is not charged"),
        ] {
            let mut comparison = one(grid);
            comparison.config.data.evaluation_data = Auto::Value(crate::config::Publicity::Private);
            assert!(refused(&comparison).contains(part), "{}", refused(&comparison));
        }
        let mut other = comparison(&["dp-sgd"], &[], &[0]);
        other.changes = vec![("dp-adam".into(), "privacy.epsilon=1".into())];
        assert!(refused(&other).contains("got dp-adam"));
        assert!(refused(&comparison(&[], &[], &[0])).contains("compare.optimizers"));
        assert!(refused(&comparison(&["dp-sgd"], &[], &[])).contains("compare.seeds"));
        let values = (1..200).map(|i| i.to_string()).collect::<Vec<_>>().join(",");
        let grids = ["training.steps=", "training.lot_size="].map(|key| format!("{key}{values}"));
        let many = comparison(&["dp-sgd"], &[&grids[0], &grids[1]], &[0]);
        assert!(refused(&many).contains("at most 10000 runs, got 39601"), "{}", refused(&many));
    }
}
