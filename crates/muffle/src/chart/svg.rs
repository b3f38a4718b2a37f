//! Charts as SVG text.
//!
//! A chart can be a file of its own or inline in a page. It has no ids, so that a page can have
//! several charts, and uses the page's variables `--series-1` to `--series-6`, `--plot-paper`,
//! `--plot-ink`, `--plot-soft` and `--plot-grid` where they are set. Curves differ by marker and by
//! colour. The colours are those of Okabe and Ito, darkened or lightened to a contrast of 3:1.

use super::{Chart, Curve, Line, six_digits};
use std::fmt::Write;

impl Chart {
    /// Renders the chart as SVG. The result is deterministic.
    pub fn svg(&self) -> String {
        self.element(&format!("<style>{}</style>\n", style_sheet()))
    }

    /// Renders the chart for a page that has the [`style_sheet`] of charts.
    pub fn svg_without_style(&self) -> String {
        self.element("")
    }

    fn element(&self, style: &str) -> String {
        let (content, height) = self.content();
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"muffle-plot\" viewBox=\"0 0 {WIDTH} \
             {height}\" role=\"img\" {FONT}>\n{style}{content}</svg>\n"
        )
    }

    /// Renders title, description and drawing. Also returns their height.
    fn content(&self) -> (String, f64) {
        let curves = self.curves();
        let title = wrap(&self.title, 44);
        let mut top = 6.0;
        let mut body = String::new();
        for line in &title {
            top += 21.0;
            let _ = writeln!(
                body,
                "<text class=\"ink\" fill=\"{INK}\" x=\"12\" y=\"{top}\" {BOLD}>{}</text>",
                escape(line)
            );
        }
        let description = if curves.is_empty() {
            let _ = writeln!(
                body,
                "<text {SOFT} x=\"{}\" y=\"{}\" {MIDDLE}>nothing to show yet</text>",
                WIDTH / 2.0,
                top + 100.0
            );
            top += 200.0;
            "Nothing to show yet.".into()
        } else {
            top = legend(&mut body, &curves, top + 12.0);
            top = self.draw(&mut body, &curves, top + 28.0);
            self.description(&curves)
        };
        let content = format!(
            "<title>{}</title>\n<desc>{}</desc>\n\
             <rect class=\"paper\" fill=\"#fff\" width=\"{WIDTH}\" height=\"{top}\"/>\n{body}",
            escape(&self.title),
            escape(&description),
        );
        (content, top)
    }

    /// Draws grid, curves and marks below `top`. Returns the lower end.
    fn draw(&self, body: &mut String, curves: &[Curve], top: f64) -> f64 {
        let (x, y) = self.rulers(curves);
        let widest = y.labels().iter().map(|label| label.chars().count()).max().unwrap_or(0);
        let (left, right) = ((18.0 + 9.0 * widest as f64).max(42.0), WIDTH - 18.0);
        let (top, bottom) = (top + 8.0, top + 238.0);
        let px = |value: f64| left + (right - left) * x.fraction(value);
        let py = |value: f64| bottom - (bottom - top) * y.fraction(value);

        let _ = writeln!(
            body,
            "<text {SOFT} x=\"12\" y=\"{}\">{}</text>",
            top - 18.0,
            label_text(&self.y.label)
        );
        for (tick, label) in y.ticks.iter().zip(y.labels()) {
            let at = py(*tick);
            let _ = writeln!(
                body,
                "<line {GRID} x1=\"{left:.1}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>"
            );
            let _ = writeln!(
                body,
                "<text {SOFT} x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
                left - 8.0,
                at + 4.5
            );
        }
        let mut free_from = f64::NEG_INFINITY;
        for (tick, label) in x.ticks.iter().zip(x.labels()) {
            let (at, half) = (px(*tick), 4.6 * label.chars().count() as f64);
            let _ = writeln!(
                body,
                "<line {GRID} x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{top}\" y2=\"{bottom}\"/>"
            );
            if at - half > free_from && at + half <= WIDTH {
                let _ = writeln!(
                    body,
                    "<text {SOFT} x=\"{at:.1}\" y=\"{}\" {MIDDLE}>{label}</text>",
                    bottom + 20.0
                );
                free_from = at + half + 6.0;
            }
        }
        let (middle, below) = ((left + right) / 2.0, bottom + 42.0);
        let _ = writeln!(
            body,
            "<text {SOFT} x=\"{middle:.1}\" y=\"{below}\" {MIDDLE}>{}</text>",
            label_text(&self.x.label)
        );

        for curve in curves {
            curve.band(body, &px, &py);
        }
        for curve in curves {
            curve.line(body, &px, &py, curves.len());
        }
        let mut mark_heights: Vec<f64> = Vec::new();
        for mark in self.visible_marks() {
            let at = py(mark.y);
            // A name that would overlap another is placed at the other end of its line; at the top
            // of the plot it is placed below the line.
            let (x, anchor) = if mark_heights.iter().any(|y| (y - at).abs() < 20.0) {
                (right - 6.0, "end")
            } else {
                (left + 6.0, "start")
            };
            mark_heights.push(at);
            let y = if at - top < 20.0 { at + 16.0 } else { at - 6.0 };
            let _ = writeln!(
                body,
                "<line class=\"mark\" stroke=\"{INK}\" stroke-width=\"1.5\" stroke-dasharray=\"1.5 \
                 3\" \
                 x1=\"{left:.1}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\n\
                 <text class=\"ink halo\" fill=\"{INK}\" x=\"{x:.1}\" y=\"{y:.1}\" \
                 text-anchor=\"{anchor}\">{}</text>",
                label_text(&mark.name)
            );
        }
        bottom + 54.0
    }
}

/// Renders several charts side by side in one SVG file, under a common title.
pub fn side_by_side(title: &str, charts: &[Chart]) -> String {
    let contents: Vec<(String, f64)> = charts.iter().map(Chart::content).collect();
    let top = 36.0;
    let width = WIDTH * contents.len().max(1) as f64;
    let height = top + contents.iter().map(|(_, height)| *height).fold(0.0, f64::max);
    let title = escape(title);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"muffle-plot\" viewBox=\"0 0 {width} \
         {height}\" role=\"img\" {FONT}>\n<style>{}</style>\n<title>{title}</title>\n\
         <rect class=\"paper\" fill=\"#fff\" width=\"{width}\" height=\"{height}\"/>\n\
         <text class=\"ink\" fill=\"{INK}\" x=\"12\" y=\"26\" {BOLD}>{title}</text>\n",
        style_sheet()
    );
    for (index, (content, height)) in contents.iter().enumerate() {
        let x = WIDTH * index as f64;
        let _ = write!(
            text,
            "<svg x=\"{x}\" y=\"{top}\" width=\"{WIDTH}\" height=\"{height}\" \
             viewBox=\"0 0 {WIDTH} {height}\">\n{content}</svg>\n"
        );
    }
    text + "</svg>\n"
}

/// Escapes text for an element or a quoted attribute, in HTML and in XML.
///
/// Characters that XML forbids become �.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '\n' | '\t' => escaped.push(c),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

const WIDTH: f64 = 480.0;
const INK: &str = "#1b1f24";
const SOFT: &str = "class=\"soft\" fill=\"#565d67\"";
const GRID: &str = "class=\"grid\" stroke=\"#e2e4e8\"";
const MIDDLE: &str = "text-anchor=\"middle\"";
const BOLD: &str = "font-size=\"1.15em\" font-weight=\"600\"";
const FONT: &str =
    "font-family=\"system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif\" font-size=\"13\"";

/// The colours of curves on light and on dark paper.
const COLOURS: [(&str, &str); 6] = [
    ("#0072b2", "#5cb3f0"),
    ("#c8500a", "#ff9a57"),
    ("#00805e", "#3fcf9f"),
    ("#a3427f", "#e79ac8"),
    ("#8a6a00", "#e6c34d"),
    ("#4a4f57", "#b9c0cb"),
];

/// The style sheet of charts: colours by class, from the page's variables or the defaults.
///
/// The colour attributes of elements are for viewers without support for variables.
pub fn style_sheet() -> String {
    let mut text = String::from(
        ".muffle-plot{--p:var(--plot-paper,#fff);--i:var(--plot-ink,#1b1f24);\
         --s:var(--plot-soft,#565d67);--g:var(--plot-grid,#e2e4e8)}",
    );
    let mut dark_style = String::from(
        ".muffle-plot{--p:var(--plot-paper,#14171b);--i:var(--plot-ink,#e7e9ec);\
         --s:var(--plot-soft,#a9b0ba);--g:var(--plot-grid,#30363e)}",
    );
    text.push_str(
        ".muffle-plot .paper{fill:var(--p)}.muffle-plot .ink{fill:var(--i)}\
         .muffle-plot .soft{fill:var(--s)}.muffle-plot .grid{stroke:var(--g)}\
         .muffle-plot .mark{stroke:var(--i)}\
         .muffle-plot .halo{paint-order:stroke;stroke:var(--p);stroke-width:4px;\
         stroke-linejoin:round}",
    );
    for (i, (light, dark)) in COLOURS.iter().enumerate() {
        let n = i + 1;
        let _ = write!(text, ".muffle-plot .c{n}{{color:var(--series-{n},{light})}}");
        let _ = write!(dark_style, ".muffle-plot .c{n}{{color:var(--series-{n},{dark})}}");
    }
    format!(
        "{text}@media screen and (prefers-color-scheme:dark){{{dark_style}}}@media \
         (max-width:480px){{.muffle-plot{{font-size:16px}}}}"
    )
}

impl Curve<'_> {
    /// The attributes of the curve's colour.
    fn colour(&self) -> String {
        let i = self.index % COLOURS.len();
        format!("class=\"c{}\" color=\"{}\"", i + 1, COLOURS[i].0)
    }

    /// Draws the band of deviations.
    fn band(&self, body: &mut String, px: &impl Fn(f64) -> f64, py: &impl Fn(f64) -> f64) {
        if self.points.iter().all(|p| p.spread == 0.0) {
            return;
        }
        let colour = self.colour();
        if let [p] = self.points.as_slice() {
            let (x, low, high) = (px(p.x), py(p.y - p.spread), py(p.y + p.spread));
            let path =
                format!("M{x:.1},{low:.1}V{high:.1}M{0:.1},{low:.1}h8M{0:.1},{high:.1}h8", x - 4.0);
            let _ = writeln!(
                body,
                "<path {colour} fill=\"none\" stroke=\"currentColor\" stroke-width=\"1.5\" \
                 d=\"{path}\"/>"
            );
            return;
        }
        let above = self.points.iter().map(|p| (p.x, p.y + p.spread));
        let below = self.points.iter().rev().map(|p| (p.x, p.y - p.spread));
        let edge: Vec<String> =
            above.chain(below).map(|(x, y)| format!("{:.1},{:.1}", px(x), py(y))).collect();
        let _ = writeln!(
            body,
            "<polygon {colour} fill=\"currentColor\" fill-opacity=\"0.18\" points=\"{}\"/>",
            edge.join(" ")
        );
    }

    /// Draws the line and its markers: at each point, or at eight of many points.
    fn line(
        &self,
        body: &mut String,
        px: &impl Fn(f64) -> f64,
        py: &impl Fn(f64) -> f64,
        curves: usize,
    ) {
        let colour = self.colour();
        let path: Vec<String> =
            self.vertices().iter().map(|(x, y)| format!("{:.1},{:.1}", px(*x), py(*y))).collect();
        let _ =
            writeln!(body, "<polyline {colour} {}points=\"{}\"/>", self.stroke(), path.join(" "));
        let stride = if self.points.len() <= 20 { 1 } else { self.points.len().div_ceil(8) };
        // Curves with equal points have their markers at different points.
        let first = stride * self.index / curves.max(self.index + 1);
        for p in self.points.iter().skip(first).step_by(stride) {
            let (x, y) = (px(p.x), py(p.y));
            let spread = if p.spread > 0.0 {
                format!(" ± {}", six_digits(p.spread))
            } else {
                String::new()
            };
            let name = format!("{}: {}{spread} at {}", self.name, six_digits(p.y), six_digits(p.x));
            let (colour, shape) = match self.highlight == Some(p.x) {
                true => (format!("class=\"ink\" color=\"{INK}\""), highlight_marker(x, y)),
                false => (colour.clone(), marker(self.index, x, y)),
            };
            let _ = writeln!(
                body,
                "<path {colour} fill=\"currentColor\" d=\"{shape}\"><title>{}</title></path>",
                escape(&name)
            );
        }
    }

    /// The corners of the line: the points, and in steps also the corners between them.
    fn vertices(&self) -> Vec<(f64, f64)> {
        let mut corners: Vec<(f64, f64)> = Vec::with_capacity(2 * self.points.len());
        for p in &self.points {
            if let (Line::Steps, Some((x, _))) = (self.line, corners.last().copied()) {
                corners.push((x, p.y));
            }
            corners.push((p.x, p.y));
        }
        corners
    }

    /// The attributes of the line.
    fn stroke(&self) -> &'static str {
        match self.line {
            Line::Solid | Line::Steps => {
                "fill=\"none\" stroke=\"currentColor\" stroke-width=\"2\" \
                 stroke-linejoin=\"round\" "
            }
            Line::Dashed => {
                "fill=\"none\" stroke=\"currentColor\" stroke-width=\"2\" \
                 stroke-linejoin=\"round\" stroke-dasharray=\"7 4\" "
            }
        }
    }
}

/// The path of a curve's marker. Five shapes and six colours distinguish thirty curves.
fn marker(index: usize, x: f64, y: f64) -> String {
    match index % 5 {
        0 => format!("M{:.1},{y:.1}a3.6,3.6 0 1 0 7.2,0a3.6,3.6 0 1 0 -7.2,0z", x - 3.6),
        1 => format!("M{:.1},{:.1}h6.6v6.6h-6.6z", x - 3.3, y - 3.3),
        2 => format!("M{x:.1},{:.1}l4.3,7.4h-8.6z", y - 4.9),
        3 => format!("M{x:.1},{:.1}l4.6,4.6l-4.6,4.6l-4.6,-4.6z", y - 4.6),
        _ => format!("M{x:.1},{:.1}l4.3,-7.4h-8.6z", y + 4.9),
    }
}

/// The path of a highlighted point's marker.
fn highlight_marker(x: f64, y: f64) -> String {
    format!("M{x:.1},{:.1}l7,7l-7,7l-7,-7z", y - 7.0)
}

/// Draws the names of the curves in rows below `top`. Returns the lower end.
fn legend(body: &mut String, curves: &[Curve], top: f64) -> f64 {
    let (mut x, mut y) = (12.0, top + 12.0);
    let mut end = top;
    for curve in curves.iter().filter(|curve| !curve.name.is_empty()) {
        let name = wrap(curve.name, 44);
        let width = 36.0 + 8.8 * first_line(&name).chars().count() as f64;
        if x > 12.0 && x + width > WIDTH - 12.0 {
            (x, y) = (12.0, y + 22.0);
        }
        let (colour, stroke, shape) =
            (curve.colour(), curve.stroke(), marker(curve.index, x + 13.0, y - 4.5));
        let _ = writeln!(
            body,
            "<g {colour}><path {stroke}d=\"M{x:.1},{0:.1}h26\"/><path fill=\"currentColor\" \
             d=\"{shape}\"/></g>\
             <text class=\"ink\" fill=\"{INK}\" x=\"{1:.1}\" y=\"{y:.1}\">{2}</text>",
            y - 4.5,
            x + 33.0,
            escape(&first_line(&name))
        );
        x += width + 14.0;
        end = y + 8.0;
    }
    end
}

/// Breaks text into lines of at most `max_length` characters, between words if possible.
fn wrap(text: &str, max_length: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        let letters: Vec<char> = word.chars().collect();
        for (i, piece) in letters.chunks(max_length).enumerate() {
            let piece: String = piece.iter().collect();
            match lines.last_mut() {
                Some(line)
                    if i == 0 && line.chars().count() + 1 + piece.chars().count() <= max_length =>
                {
                    line.push(' ');
                    line.push_str(&piece);
                }
                _ => lines.push(piece),
            }
        }
    }
    lines
}

/// Returns the first line, followed by … if there are more.
fn first_line(lines: &[String]) -> String {
    match lines {
        [] => String::new(),
        [line] => line.clone(),
        [line, ..] => format!("{line}…"),
    }
}

/// Shortens text to one line and escapes it.
fn label_text(text: &str) -> String {
    escape(&first_line(&wrap(text, 44)))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{chart, series, well_formed};
    use super::super::{Line, Mark, Scale};
    use super::*;

    fn vertices(svg: &str) -> usize {
        let line = svg
            .split("<polyline")
            .nth(1)
            .and_then(|tail| tail.split("points=\"").nth(1))
            .and_then(|tail| tail.split('"').next());
        line.map_or(0, |points| points.split(' ').count())
    }

    #[test]
    fn steps_have_the_next_value_between_two_points() {
        let rising = chart(vec![series(&[(0.0, 0.0), (1.0, 4.0), (2.0, 5.0)]).steps()]);
        assert_eq!(
            rising.curves()[0].vertices(),
            [(0.0, 0.0), (0.0, 4.0), (1.0, 4.0), (1.0, 5.0), (2.0, 5.0)]
        );
        // Markers stay at the points.
        assert_eq!(rising.svg().matches("</title></path>").count(), 3);
        assert_eq!(vertices(&rising.svg()), 5);
    }

    #[test]
    fn the_style_can_be_left_to_the_page() {
        let chart = chart(vec![series(&[(0.0, 1.0)])]);
        let bare = chart.svg_without_style();
        assert!(!bare.contains("<style") && well_formed(&bare).is_ok());
        assert_eq!(chart.svg().replace(&format!("<style>{}</style>\n", style_sheet()), ""), bare);
    }

    #[test]
    fn the_checker_finds_malformed_text() {
        for good in ["<a><b/>x &amp; y</a>", "<!doctype html><a k=\"v\">&#39;</a>"] {
            assert_eq!(well_formed(good), Ok(()));
        }
        for bad in ["<a>", "</a>", "<a><b></a></b>", "<a>x & y</a>", "<a k=\"v>x</a>", "<a <b></a>"]
        {
            assert!(well_formed(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_full_chart_is_well_formed_and_has_no_ids() {
        let mut full = chart(vec![series(&[(1.0, 4.0), (10.0, 3.0), (100.0, 2.5)]); 7]);
        full.series[1].spread = vec![0.1, 0.2, 0.1];
        full.series[2].line = Line::Dashed;
        full.x.scale = Scale::Log;
        full.marks =
            vec![Mark { name: "budget".into(), y: 3.5 }, Mark { name: "limit".into(), y: 3.51 }];
        let svg = full.svg();
        assert_eq!(well_formed(&svg), Ok(()));
        assert!(!svg.contains(" id="), "{svg}");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        assert!(svg.contains("role=\"img\"") && svg.contains("<title>Loss</title>"));
        assert_eq!(svg.matches("<polyline").count(), 7);
        assert_eq!(svg.matches("<polygon").count(), 1);
        assert_eq!(svg.matches("class=\"mark\"").count(), 2);
        // Once for the curve and once in the legend.
        assert_eq!(svg.matches("stroke-dasharray=\"7 4\"").count(), 2);
        assert_eq!(svg, full.svg());
    }

    #[test]
    fn every_text_is_escaped() {
        let evil = "<script>&\"'\u{1b}";
        let mut chart = chart(vec![series(&[(1.0, 4.0), (2.0, 3.0)])]);
        chart.title = evil.into();
        chart.x.label = evil.into();
        chart.y.label = evil.into();
        chart.series[0].name = evil.into();
        chart.marks = vec![Mark { name: evil.into(), y: 3.5 }];
        let svg = chart.svg();
        assert!(!svg.contains("<script") && !svg.contains('\u{1b}'), "{svg}");
        // The title, its visible copy, two labels, the legend, two tooltips, a mark, and four times
        // in the description.
        assert_eq!(svg.matches("&lt;script&gt;&amp;&quot;&#39;\u{fffd}").count(), 12);
        assert_eq!(well_formed(&svg), Ok(()));
    }

    #[test]
    fn points_that_cannot_be_shown_are_omitted() {
        let points = [
            (0.0, 5.0),
            (1.0, f64::NAN),
            (2.0, 4.0),
            (f64::INFINITY, 3.0),
            (4.0, f64::NEG_INFINITY),
            (5.0, -1.0),
            (6.0, f64::MAX),
        ];
        let mut chart = chart(vec![series(&points)]);
        assert_eq!(vertices(&chart.svg()), 3);
        chart.series[0].spread = vec![f64::NAN, 1.0, f64::INFINITY, 1.0, 1.0, 0.5];
        let svg = chart.svg();
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        chart.y.scale = Scale::Log;
        assert_eq!(vertices(&chart.svg()), 2);
        chart.x.scale = Scale::Log;
        assert_eq!(vertices(&chart.svg()), 1);
    }

    #[test]
    fn an_empty_chart_says_so() {
        for empty in
            [chart(vec![]), chart(vec![series(&[])]), chart(vec![series(&[(f64::NAN, 1.0)])])]
        {
            let svg = empty.svg();
            assert!(svg.contains(">nothing to show yet<"), "{svg}");
            assert_eq!(well_formed(&svg), Ok(()));
        }
        assert!(!chart(vec![series(&[(1.0, 1.0)])]).svg().contains("nothing to show"));
    }

    #[test]
    fn curves_reach_the_edges_and_stay_inside() {
        let svg = chart(vec![series(&[(0.0, 0.0), (300.0, 8.0)])]).svg();
        let points =
            svg.split(" points=\"").nth(1).and_then(|tail| tail.split('"').next()).unwrap();
        let [from, to] = points.split(' ').collect::<Vec<_>>()[..] else { panic!("{points}") };
        assert!(from.starts_with("42.0,") && to.starts_with("462.0,"), "{points}");
        let y = |point: &str| point.split(',').nth(1).unwrap().parse::<f64>().unwrap();
        assert!((y(from) - y(to) - 230.0).abs() < 0.2, "{points}");
    }

    #[test]
    fn long_curves_have_few_markers() {
        let points: Vec<(f64, f64)> =
            (0..300).map(|i| (f64::from(i), 1.0 / f64::from(i + 1))).collect();
        let svg = chart(vec![series(&points)]).svg();
        assert_eq!(svg.matches("</title></path>").count(), 8);
        assert_eq!(vertices(&svg), 300);
    }

    #[test]
    fn lines_break_between_words() {
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("εεεεε x", 3), ["εεε", "εε", "x"]);
        assert_eq!(
            label_text(&"word ".repeat(20)),
            format!("{}…", "word ".repeat(8) + "word").as_str()
        );
        assert_eq!(label_text("  "), "");
    }

    #[test]
    fn charts_are_placed_side_by_side() {
        let mut one = chart(vec![series(&[(10.0, 1.0), (100.0, f64::INFINITY), (1000.0, 4.0)])]);
        one.x.scale = Scale::Log;
        one.x.label = "steps <T>".into();
        one.series[0].highlight = Some(1000.0);
        let text = side_by_side("a & b", &[one.clone(), chart(vec![]), one]);
        assert_eq!(well_formed(&text), Ok(()));
        assert_eq!((text.matches("<svg").count(), text.matches("<polyline").count()), (4, 2));
        // Two finite points of each curve; one of them is highlighted.
        assert_eq!(text.matches("</title></path>").count(), 4);
        assert_eq!(text.matches("l7,7l-7,7l-7,-7z").count(), 2);
        assert!(text.contains("a &amp; b") && text.contains("steps &lt;T&gt;"));
        assert!(text.contains("nothing to show yet"));
        assert!(!text.contains("inf") && !text.contains("NaN"));
    }
}
