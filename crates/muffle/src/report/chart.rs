//! Line charts, as an SVG file and as a sketch for the terminal.

use std::fmt::Write;

/// One panel: a curve of positive values over positive values on a logarithmic axis.
#[derive(Debug, Clone, PartialEq)]
pub struct Panel {
    /// What the horizontal axis shows.
    pub x_label: String,
    /// What the vertical axis shows.
    pub y_label: String,
    /// (x, y), by rising x. Points that are not finite are left out.
    pub points: Vec<(f64, f64)>,
    /// The x of the point to be marked, if any.
    pub mark: Option<f64>,
}

impl Panel {
    fn finite(&self) -> Vec<(f64, f64)> {
        self.points
            .iter()
            .copied()
            .filter(|(x, y)| *x > 0.0 && x.is_finite() && y.is_finite())
            .collect()
    }

    /// The ranges of ln x and y; y from 0, so that heights can be compared.
    fn ranges(&self) -> Option<([f64; 2], [f64; 2])> {
        let points = self.finite();
        let xs = points.iter().map(|p| p.0.ln());
        let (low, high) =
            (xs.clone().fold(f64::INFINITY, f64::min), xs.fold(f64::NEG_INFINITY, f64::max));
        let top = points.iter().map(|p| p.1).fold(0.0, f64::max);
        (points.len() > 1 && high > low && top > 0.0).then_some(([low, high], [0.0, 1.08 * top]))
    }

    /// A sketch in characters, `width` by `height` without the axes.
    pub fn sketch(&self, width: usize, height: usize) -> String {
        let Some(([x0, x1], [_, top])) = self.ranges() else {
            return format!("{}: nothing to draw\n", self.y_label);
        };
        let points = self.finite();
        let mut grid = vec![vec![' '; width]; height];
        let column = |x: f64| (((x.ln() - x0) / (x1 - x0)) * (width - 1) as f64).round() as usize;
        let row = |y: f64| height - 1 - ((y / top) * (height - 1) as f64).round() as usize;
        for pair in points.windows(2) {
            let (from, to) = (column(pair[0].0), column(pair[1].0));
            for step in 0..=to - from {
                let part = step as f64 / (to - from).max(1) as f64;
                grid[row(pair[0].1 + part * (pair[1].1 - pair[0].1))][from + step] = '·';
            }
        }
        for &(x, y) in &points {
            grid[row(y)][column(x)] = if self.mark == Some(x) { '◆' } else { '•' };
        }
        let mut text = format!("{}\n", self.y_label);
        for (i, line) in grid.iter().enumerate() {
            let label = match i {
                0 => tick(top),
                i if i == height - 1 => "0".into(),
                _ => String::new(),
            };
            let line: String = line.iter().collect();
            let _ = writeln!(text, "{label:>9} │{}", line.trim_end());
        }
        let _ = writeln!(text, "{:>9} └{}", "", "─".repeat(width));
        let (left, right) = (tick(x0.exp()), tick(x1.exp()));
        let gap = width.saturating_sub(
            left.chars().count() + right.chars().count() + self.x_label.chars().count(),
        ) / 2;
        let _ = writeln!(
            text,
            "{:>11}{left}{}{}{}{right}",
            "",
            " ".repeat(gap),
            self.x_label,
            " ".repeat(gap)
        );
        text
    }
}

/// Panels side by side in one SVG file, readable on light and dark backgrounds.
pub fn svg(title: &str, panels: &[Panel]) -> String {
    let (w, h, left, top, bottom) = (330.0, 240.0, 56.0, 50.0, 46.0);
    let width = w * panels.len().max(1) as f64 + 30.0;
    let height = h + top + bottom;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"system-ui, sans-serif\" font-size=\"12\">\n\
         <style>\n\
         .paper{{fill:#fff}} .ink{{fill:#1c1e21}} .soft{{fill:#5b616b}} .grid{{stroke:#d9dce1}} \
         .curve{{stroke:#2a6fdb;fill:none;stroke-width:2}} .dot{{fill:#2a6fdb}} \
         .mark{{fill:#d9480f}}\n\
         @media (prefers-color-scheme: dark) {{ .paper{{fill:#16181c}} .ink{{fill:#e8eaed}} .soft{{fill:#a2a8b3}} .grid{{stroke:#33373e}} .curve{{stroke:#7fb0ff}} .dot{{fill:#7fb0ff}} .mark{{fill:#ff9a5c}} }}\n\
         </style>\n\
         <rect class=\"paper\" width=\"{width}\" height=\"{height}\"/>\n\
         <text class=\"ink\" x=\"16\" y=\"26\" font-size=\"15\">{}</text>\n",
        escape(title)
    );
    for (i, panel) in panels.iter().enumerate() {
        let x_origin = i as f64 * w + left + 8.0;
        let plot = w - left - 16.0;
        let _ = writeln!(
            out,
            "<text class=\"soft\" x=\"{x_origin}\" y=\"{}\">{}</text>",
            top - 4.0,
            escape(&panel.y_label)
        );
        let Some(([x0, x1], [_, y1])) = panel.ranges() else {
            let _ = writeln!(
                out,
                "<text class=\"soft\" x=\"{x_origin}\" y=\"{}\">nothing to draw</text>",
                top + h / 2.0
            );
            continue;
        };
        let px = |x: f64| x_origin + plot * (x.ln() - x0) / (x1 - x0);
        let py = |y: f64| top + h * (1.0 - y / y1);
        for k in 0..=4 {
            let y = y1 * k as f64 / 4.0;
            let _ = writeln!(
                out,
                "<line class=\"grid\" x1=\"{x_origin}\" x2=\"{}\" y1=\"{1:.1}\" \
                 y2=\"{1:.1}\"/><text class=\"soft\" x=\"{2}\" y=\"{3:.1}\" \
                 text-anchor=\"end\">{4}</text>",
                x_origin + plot,
                py(y),
                x_origin - 6.0,
                py(y) + 4.0,
                tick(y)
            );
        }
        let points = panel.finite();
        let path: Vec<String> =
            points.iter().map(|(x, y)| format!("{:.1},{:.1}", px(*x), py(*y))).collect();
        let _ = writeln!(out, "<polyline class=\"curve\" points=\"{}\"/>", path.join(" "));
        for (k, &(x, y)) in points.iter().enumerate() {
            let class = if panel.mark == Some(x) { "mark" } else { "dot" };
            let _ = writeln!(
                out,
                "<circle class=\"{class}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"3.5\"><title>{} : \
                 {}</title></circle>",
                px(x),
                py(y),
                tick(x),
                tick(y)
            );
            if k % 2 == 0 {
                let _ = writeln!(
                    out,
                    "<text class=\"soft\" x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                    px(x),
                    top + h + 16.0,
                    tick(x)
                );
            }
        }
        let _ = writeln!(
            out,
            "<text class=\"ink\" x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            x_origin + plot / 2.0,
            top + h + 36.0,
            escape(&panel.x_label)
        );
    }
    out.push_str("</svg>\n");
    out
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// A short label for an axis.
fn tick(x: f64) -> String {
    match x {
        0.0 => "0".into(),
        x if x >= 1e6 => format!("{:.3}M", x / 1e6).replace(".000M", "M"),
        x if x >= 1000.0 || (x >= 1.0 && x.fract() == 0.0) => format!("{x:.0}"),
        x if x >= 0.01 => format!("{:.*}", (2 - x.log10().floor() as i32).clamp(0, 3) as usize, x),
        x => format!("{x:.1e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn panel() -> Panel {
        let points = vec![(10.0, 1.0), (100.0, 2.0), (1000.0, f64::INFINITY), (10_000.0, 4.0)];
        Panel { x_label: "steps <T>".into(), y_label: "σ".into(), points, mark: Some(100.0) }
    }

    #[test]
    fn sketch_rises_with_the_curve() {
        let text = panel().sketch(40, 8);
        let rows: Vec<&str> = text.lines().collect();
        let row_of = |mark: char| rows.iter().position(|row| row.contains(mark)).unwrap();
        assert!(row_of('◆') > row_of('•'), "{text}");
        assert_eq!(rows.len(), 1 + 8 + 2, "{text}");
    }

    #[test]
    fn svg_has_every_finite_point_and_escapes() {
        let text = svg("a & b", &[panel()]);
        assert_eq!(text.matches("<circle").count(), 3);
        assert!(text.contains("a &amp; b") && text.contains("steps &lt;T&gt;"));
        assert!(!text.contains("inf") && !text.contains("NaN"));
    }

    #[test]
    fn nothing_to_draw_is_said() {
        let empty = Panel { points: vec![(1.0, f64::NAN)], ..panel() };
        assert!(empty.sketch(40, 8).contains("nothing to draw"));
        assert!(svg("t", &[empty]).contains("nothing to draw"));
    }
}
