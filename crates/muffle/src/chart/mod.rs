//! Charts of axes and series, rendered as SVG or as text for a terminal.

mod ruler;
mod svg;
mod terminal;

pub(crate) use svg::escape;
pub use svg::{side_by_side, style_sheet};

use ruler::Ruler;
use std::fmt::Write;

/// A chart of curves with bands, and of horizontal marks such as a budget.
///
/// ```
/// use muffle::chart::{Axis, Chart, Series};
///
/// let chart = Chart {
///     title: "loss".into(),
///     x: Axis::linear("step"),
///     y: Axis::from_zero("loss"),
///     series: vec![Series::new("run", vec![(0.0, 2.0), (10.0, 1.0)])],
///     marks: Vec::new(),
/// };
/// assert!(!chart.terminal(40, 8).is_empty());
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Chart {
    /// The title.
    pub title: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// The curves.
    pub series: Vec<Series>,
    /// Horizontal lines.
    pub marks: Vec<Mark>,
}

/// One axis of a chart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Axis {
    /// The quantity, with its unit.
    pub label: String,
    /// The scale.
    pub scale: Scale,
    /// Whether a linear axis starts at zero, so that heights can be compared.
    pub from_zero: bool,
}

/// The scale of an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scale {
    /// Linear.
    #[default]
    Linear,
    /// Logarithmic; only positive values are shown.
    Log,
}

/// One curve.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// The name in the legend.
    pub name: String,
    /// (x, y), by increasing x. Points that are not finite, beyond 10¹⁰⁰, or not positive on a
    /// logarithmic axis are not shown.
    pub points: Vec<(f64, f64)>,
    /// The deviation at each point, drawn as a band; empty for no band.
    pub spread: Vec<f64>,
    /// The line style.
    pub line: Line,
    /// The x of a point that is highlighted.
    pub highlight: Option<f64>,
}

/// The line style of a curve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Line {
    /// Solid.
    #[default]
    Solid,
    /// Dashed.
    Dashed,
    /// Steps: between two points, the value of the next one. Of an increasing upper bound, this is
    /// an upper bound everywhere.
    Steps,
}

/// A horizontal line across the chart, such as a budget.
#[derive(Debug, Clone, PartialEq)]
pub struct Mark {
    /// The name, written at the line.
    pub name: String,
    /// The position on the vertical axis.
    pub y: f64,
}

impl Axis {
    /// A linear axis.
    pub fn linear(label: impl Into<String>) -> Self {
        Self { label: label.into(), scale: Scale::Linear, from_zero: false }
    }

    /// A logarithmic axis.
    pub fn log(label: impl Into<String>) -> Self {
        Self { label: label.into(), scale: Scale::Log, from_zero: false }
    }

    /// A linear axis that starts at zero.
    pub fn from_zero(label: impl Into<String>) -> Self {
        Self { label: label.into(), scale: Scale::Linear, from_zero: true }
    }
}

impl Series {
    /// A solid curve without a band.
    pub fn new(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        let (name, spread) = (name.into(), Vec::new());
        Self { name, points, spread, line: Line::Solid, highlight: None }
    }

    /// Makes the curve dashed.
    #[must_use]
    pub fn dashed(self) -> Self {
        Self { line: Line::Dashed, ..self }
    }

    /// Draws the value of the next point between two points.
    #[must_use]
    pub fn steps(self) -> Self {
        Self { line: Line::Steps, ..self }
    }
}

/// A point that can be shown.
struct Point {
    x: f64,
    y: f64,
    spread: f64,
}

/// A series without the points that cannot be shown.
struct Curve<'a> {
    index: usize,
    name: &'a str,
    line: Line,
    highlight: Option<f64>,
    points: Vec<Point>,
}

impl Chart {
    /// The curves that can be shown.
    fn curves(&self) -> Vec<Curve<'_>> {
        let all = self.series.iter().enumerate();
        all.filter_map(|(index, series)| self.curve(index, series)).collect()
    }

    /// The points of a series that can be shown; `None` if there are none.
    fn curve<'a>(&self, index: usize, series: &'a Series) -> Option<Curve<'a>> {
        let spread = |i: usize| {
            series.spread.get(i).map(|s| s.abs()).filter(|s| Scale::Linear.shows(*s)).unwrap_or(0.0)
        };
        let all = series
            .points
            .iter()
            .enumerate()
            .filter(|(_, (x, y))| self.x.scale.shows(*x) && self.y.scale.shows(*y));
        let points: Vec<Point> =
            all.map(|(i, &(x, y))| Point { x, y, spread: spread(i) }).collect();
        (!points.is_empty()).then_some(Curve {
            index,
            name: &series.name,
            line: series.line,
            highlight: series.highlight,
            points,
        })
    }

    /// The marks that can be shown.
    fn visible_marks(&self) -> Vec<&Mark> {
        self.marks.iter().filter(|mark| self.y.scale.shows(mark.y)).collect()
    }

    /// Computes ranges and ticks of the two axes.
    fn rulers(&self, curves: &[Curve<'_>]) -> (Ruler, Ruler) {
        let points = || curves.iter().flat_map(|curve| &curve.points);
        let zero = (self.y.from_zero && self.y.scale == Scale::Linear).then_some(0.0);
        let ends = points()
            .flat_map(|p| [p.y - p.spread, p.y, p.y + p.spread])
            .chain(self.visible_marks().into_iter().map(|mark| mark.y))
            .chain(zero);
        let y = Ruler::rounded(self.y.scale, ends.filter(|end| self.y.scale.shows(*end)));
        (Ruler::tight(self.x.scale, points().map(|p| p.x)), y)
    }

    /// A description of the chart in words, for readers who cannot see it.
    fn description(&self, curves: &[Curve]) -> String {
        let mut text = format!("{} over {}.", self.y.label, self.x.label);
        for Curve { name, points, .. } in curves {
            if let (Some(first), Some(last)) = (points.first(), points.last()) {
                let [x0, y0, x1, y1] = [first.x, first.y, last.x, last.y].map(six_digits);
                let _ = write!(
                    text,
                    " {name}: {} points, from {y0} at {x0} to {y1} at {x1}.",
                    points.len()
                );
            }
        }
        for mark in self.visible_marks() {
            let _ = write!(text, " {} at {}.", mark.name, six_digits(mark.y));
        }
        text
    }
}

impl Scale {
    /// Whether a value can be shown on the axis.
    fn shows(self, value: f64) -> bool {
        value.abs() <= 1e100 && (self == Self::Linear || value >= 1e-100)
    }
}

/// Formats a value with six significant digits.
fn six_digits(x: f64) -> String {
    let rounded = format!("{x:.5e}").parse().unwrap_or(x);
    if x == 0.0 || (1e-4..1e9).contains(&x.abs()) {
        format!("{rounded}")
    } else {
        format!("{rounded:e}")
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Whether the tags balance, the attributes are quoted, and every `&` starts an entity.
    pub(crate) fn well_formed(text: &str) -> Result<(), String> {
        let mut open: Vec<&str> = Vec::new();
        let mut rest = text;
        while let Some(at) = rest.find('<') {
            let entities = |text: &str| {
                text.split('&')
                    .skip(1)
                    .all(|tail| tail.find(';').is_some_and(|end| (2..=5).contains(&end)))
            };
            if !entities(&rest[..at]) {
                return Err(format!("a bare & in {:?}", &rest[..at]));
            }
            let end = rest[at..].find('>').ok_or("a tag without end")? + at;
            let tag = &rest[at + 1..end];
            rest = &rest[end + 1..];
            if tag == "!doctype html" {
                continue;
            }
            if tag.contains('<') || tag.matches('"').count() != 2 * tag.matches("=\"").count() {
                return Err(format!("a broken tag <{tag}>"));
            }
            let name = tag.trim_start_matches('/').split([' ', '/', '\n']).next().unwrap_or("");
            if tag.starts_with('/') {
                if open.pop() != Some(name) {
                    return Err(format!("</{name}> closes nothing"));
                }
            } else if !tag.ends_with('/') && !["meta", "link"].contains(&name) {
                open.push(name);
            }
        }
        if open.is_empty() { Ok(()) } else { Err(format!("left open: {open:?}")) }
    }

    pub(crate) fn chart(series: Vec<Series>) -> Chart {
        Chart {
            title: "Loss".into(),
            x: Axis::linear("step"),
            y: Axis::linear("NLL"),
            series,
            marks: vec![],
        }
    }

    pub(crate) fn series(points: &[(f64, f64)]) -> Series {
        Series::new("train", points.to_vec())
    }

    #[test]
    fn an_axis_starts_at_zero_on_request() {
        let mut chart = chart(vec![series(&[(1.0, 90.0), (2.0, 100.0)])]);
        let lowest = |chart: &Chart| chart.rulers(&chart.curves()).1.ticks[0];
        assert_eq!(lowest(&chart), 90.0);
        chart.y.from_zero = true;
        assert_eq!(lowest(&chart), 0.0);
    }
}
