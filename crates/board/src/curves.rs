//! Curves of one or several runs, as charts of the module that also draws reports.

use crate::state::RunState;
use muffle::chart::{Axis, Chart, Mark, Series};
use muffle::report::Marking;
use muffle::run::history::{BestFigures, HistoryEntry};
use serde::Serialize;

/// The largest number of runs that are shown together.
pub(crate) const MAX_CURVES: usize = 12;

/// The largest number of points of a curve; of longer histories, some entries are left out.
const MAX_POINTS: usize = 500;

/// A chart with its caption.
#[derive(Serialize)]
pub(crate) struct Panel {
    title: &'static str,
    svg: String,
    caption: String,
    /// Whether the guarantee covers it.
    marking: Marking,
}

/// A figure of a history entry.
type FigureOf = fn(&HistoryEntry) -> Option<f64>;

/// Draws the curves of runs with their names. Charts without a point are left out.
pub(crate) fn panels(runs: &[(String, RunState)]) -> Vec<Panel> {
    let quality: [(&str, &str, &str, FigureOf); 4] = [
        ("NLL", "NLL, nats per target", "Lower is better.", |entry| entry.nll),
        ("Accuracy", "accuracy, %", "Higher is better.", |entry| {
            entry.accuracy.map(|share| 100.0 * share)
        }),
        ("RMSE", "RMSE, units of the label", "Lower is better.", |entry| entry.rmse),
        ("BLEU", "BLEU", "Higher is better.", |entry| entry.bleu),
    ];
    let mut panels: Vec<Panel> = Vec::new();
    for (title, label, better, figure) in quality {
        let mut series = series(runs, figure);
        if title == "NLL" {
            for (series, (_, run)) in series.iter_mut().zip(runs) {
                let best = BestFigures::of(&run.history).nll;
                series.highlight = best.map(|(step, _)| step as f64);
            }
        }
        let uncovered: Vec<&str> = runs
            .iter()
            .zip(&series)
            .filter(|((_, run), series)| {
                !series.points.is_empty() && run.marking() == Marking::NonPrivate
            })
            .map(|((name, _), _)| name.as_str())
            .collect();
        let (marking, not_covered) = match uncovered.as_slice() {
            [] => (Marking::Public, String::new()),
            names => {
                (Marking::NonPrivate, format!(" Outside the guarantee: {}.", names.join(", ")))
            }
        };
        panels.extend(panel(Drawn {
            title,
            label,
            series,
            marks: Vec::new(),
            caption: format!("On validation data. {better}{not_covered}"),
            marking,
        }));
    }
    panels.extend(panel(epsilon(runs)));
    panels.extend(panel(Drawn {
        title: "Learning rate",
        label: "learning rate",
        series: series(runs, |entry| (entry.step > 0).then_some(entry.learning_rate)),
        marks: Vec::new(),
        caption: "The learning rate of the last step before each evaluation.".into(),
        marking: Marking::Public,
    }));
    panels
}

/// The spent ε at each evaluation, by the accountant of the run.
fn epsilon(runs: &[(String, RunState)]) -> Drawn {
    let series: Vec<Series> =
        series(runs, |entry| entry.epsilon).into_iter().map(Series::steps).collect();
    let mut promised: Vec<f64> =
        runs.iter().filter_map(|(_, run)| run.plan?.promised_epsilon).collect();
    promised.sort_by(f64::total_cmp);
    promised.dedup();
    let name = |y: f64| format!("promised, {}", muffle::report::digits::short(y));
    Drawn {
        title: "Privacy cost",
        label: "ε spent",
        series,
        marks: promised.into_iter().map(|y| Mark { name: name(y), y }).collect(),
        caption: "ε at the δ of each run: the accountant's value at each evaluation, and between \
            two evaluations the later, higher one."
            .into(),
        marking: Marking::Public,
    }
}

/// A chart that is not rendered yet.
struct Drawn {
    title: &'static str,
    label: &'static str,
    series: Vec<Series>,
    marks: Vec<Mark>,
    caption: String,
    marking: Marking,
}

/// Renders a chart; `None` if it has no points.
fn panel(drawn: Drawn) -> Option<Panel> {
    let Drawn { title, label, series, marks, caption, marking } = drawn;
    if series.iter().all(|series| series.points.is_empty()) {
        return None;
    }
    let chart = Chart {
        title: title.into(),
        x: Axis::linear("step"),
        y: Axis::linear(label),
        series,
        marks,
    };
    Some(Panel { title, svg: chart.svg_without_style(), caption, marking })
}

fn series(runs: &[(String, RunState)], figure: FigureOf) -> Vec<Series> {
    let points = |run: &RunState| {
        let all = run.history.iter().filter_map(|entry| Some((entry.step as f64, figure(entry)?)));
        thinned(all.collect())
    };
    runs.iter().map(|(name, run)| Series::new(name.as_str(), points(run))).collect()
}

/// Leaves out points evenly, and keeps the first and the last.
fn thinned(points: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    let stride = points.len().div_ceil(MAX_POINTS).max(1);
    let last = points.len().saturating_sub(1);
    let kept = points.into_iter().enumerate().filter(|(i, _)| i % stride == 0 || *i == last);
    kept.map(|(_, point)| point).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_curves_keep_their_ends() {
        let line = |count: usize| (0..count).map(|i| (i as f64, 0.0)).collect::<Vec<_>>();
        for count in [0, 1, 2, MAX_POINTS, MAX_POINTS + 1, 100_000] {
            let kept = thinned(line(count));
            assert!(kept.len() <= MAX_POINTS + 1, "{count}: {}", kept.len());
            assert_eq!(kept.first(), line(count).first());
            assert_eq!(kept.last(), line(count).last());
        }
        assert_eq!(thinned(line(MAX_POINTS)).len(), MAX_POINTS);
    }
}
