//! Charts as text for a terminal.

use super::{Chart, Curve, Line};
use std::fmt::Write;

/// Markers of the curves, in order.
const MARKERS: [char; 5] = ['•', '▪', '▴', '◦', '▫'];

/// The marker of a highlighted point.
const HIGHLIGHT: char = '◆';

/// The width of the labels of the vertical axis.
const LABEL_WIDTH: usize = 9;

impl Chart {
    /// Renders the chart in characters, `width` by `height` without axes and labels.
    pub fn terminal(&self, width: usize, height: usize) -> String {
        let (width, height) = (width.max(2), height.max(2));
        let curves = self.curves();
        if curves.is_empty() {
            return format!("{}: nothing to show yet\n", self.y.label);
        }
        let (x, y) = self.rulers(&curves);
        let column = |value: f64| (x.fraction(value) * (width - 1) as f64).round() as usize;
        let row = |fraction: f64| height - 1 - (fraction * (height - 1) as f64).round() as usize;
        let mut grid = vec![vec![' '; width]; height];
        for mark in self.visible_marks() {
            grid[row(y.fraction(mark.y))].fill('╌');
        }
        for curve in &curves {
            for pair in curve.points.windows(2) {
                let (from, to) = (column(pair[0].x), column(pair[1].x));
                let (mut low, high) = (y.fraction(pair[0].y), y.fraction(pair[1].y));
                if curve.line == Line::Steps {
                    low = high;
                }
                for step in 0..=to.saturating_sub(from) {
                    let fraction = step as f64 / to.saturating_sub(from).max(1) as f64;
                    grid[row(low + fraction * (high - low))][from + step] = '·';
                }
            }
        }
        for curve in &curves {
            for point in &curve.points {
                let marker = match curve.highlight == Some(point.x) {
                    true => HIGHLIGHT,
                    false => marker(curve),
                };
                grid[row(y.fraction(point.y))][column(point.x)] = marker;
            }
        }
        let mut text = self.heading(&curves);
        let labels: Vec<(usize, String)> =
            y.ticks.iter().map(|tick| row(y.fraction(*tick))).zip(y.labels()).collect();
        for (index, line) in grid.iter().enumerate() {
            let label = labels.iter().find(|(row, _)| *row == index);
            let label = label.map_or("", |(_, label)| label.as_str());
            let line: String = line.iter().collect();
            let _ = writeln!(text, "{label:>LABEL_WIDTH$} │{}", line.trim_end());
        }
        let _ = writeln!(text, "{:>LABEL_WIDTH$} └{}", "", "─".repeat(width));
        let ticks = x.ticks.iter().map(|tick| column(*tick)).zip(x.labels());
        let _ = writeln!(text, "{:>LABEL_WIDTH$}  {}", "", label_line(ticks, width));
        text
    }

    /// The line above the chart: axes, and names if there are several curves.
    fn heading(&self, curves: &[Curve<'_>]) -> String {
        let mut text = format!("{} over {}", self.y.label, self.x.label);
        if curves.len() > 1 {
            curves.iter().for_each(|curve| {
                let _ = write!(text, "  {} {}", marker(curve), curve.name);
            });
        }
        for mark in self.visible_marks() {
            let _ = write!(text, "  ╌ {}", mark.name);
        }
        text + "\n"
    }
}

fn marker(curve: &Curve<'_>) -> char {
    MARKERS[curve.index % MARKERS.len()]
}

/// A line of labels, centred on their columns; labels that would overlap are omitted.
fn label_line(labels: impl Iterator<Item = (usize, String)>, width: usize) -> String {
    let mut line = String::new();
    let mut free_from = 0;
    for (column, label) in labels {
        let length = label.chars().count();
        let start = column.saturating_sub(length / 2).min(width.saturating_sub(length));
        if start >= free_from {
            line.push_str(&" ".repeat(start - line.chars().count()));
            line.push_str(&label);
            free_from = start + length + 1;
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::super::tests::{chart, series};
    use super::super::{Mark, Scale};
    use super::*;

    fn curve() -> Chart {
        let points = [(10.0, 1.0), (100.0, 2.0), (1000.0, f64::INFINITY), (10_000.0, 4.0)];
        let mut chart = chart(vec![series(&points)]);
        chart.x.scale = Scale::Log;
        chart.y.from_zero = true;
        chart.series[0].highlight = Some(100.0);
        chart
    }

    #[test]
    fn points_are_drawn_at_their_values() {
        let text = curve().terminal(40, 8);
        let rows: Vec<&str> = text.lines().collect();
        let row_of = |mark: char| rows.iter().position(|row| row.contains(mark)).unwrap();
        assert!(row_of('◆') > row_of('•'), "{text}");
        assert_eq!(rows.len(), 1 + 8 + 2, "{text}");
        assert!(rows[8].starts_with("        0 │") && rows[1].starts_with("        4 │"), "{text}");
        assert!(rows[10].contains("10") && rows[10].ends_with("10k"), "{text}");
    }

    #[test]
    fn several_curves_and_marks_are_named() {
        let mut chart = curve();
        chart.series.push(series(&[(10.0, 3.0), (10_000.0, 3.0)]));
        chart.marks = vec![Mark { name: "budget".into(), y: 3.5 }];
        let text = chart.terminal(40, 8);
        assert!(text.contains("▪ train") && text.contains("╌ budget"), "{text}");
        assert!(text.contains("╌╌╌"), "{text}");
    }

    #[test]
    fn an_empty_chart_says_so() {
        assert!(chart(vec![]).terminal(40, 8).contains("nothing to show yet"));
        // A single point and unordered points are drawn.
        for points in [&[(1.0, 1.0)][..], &[(2.0, 1.0), (1.0, 3.0)]] {
            assert!(chart(vec![series(points)]).terminal(40, 8).contains('•'));
        }
    }
}
