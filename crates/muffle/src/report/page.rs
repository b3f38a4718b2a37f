//! The report of a run as one self-contained HTML page without scripts.
//!
//! The page is rendered from data. Figures that no guarantee covers carry a badge wherever they
//! stand.

use crate::chart::{Chart, escape};
use crate::report::Marking;
use std::fmt::Write;

/// A report.
#[derive(Debug, Clone, PartialEq)]
pub struct Page {
    /// The title, such as "dp-muon-bc on e2e_train.txt".
    pub title: String,
    /// The promise, or that there is none.
    pub headline: Headline,
    /// The privacy statement in plain words, by paragraphs.
    pub words: Vec<String>,
    /// What the guarantee covers.
    pub covered: Vec<String>,
    /// What it does not cover.
    pub not_covered: Vec<String>,
    /// What weakens or voids the guarantee.
    pub warnings: Vec<String>,
    /// Single numbers.
    pub figures: Vec<Figure>,
    /// Charts.
    pub charts: Vec<Panel>,
    /// Text that the model generated.
    pub samples: Vec<Sample>,
    /// Settings: noise and clip, model, data, environment.
    pub sections: Vec<Section>,
    /// The run's configuration file.
    pub configuration: String,
}

/// The promise on top of the page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Headline {
    /// The run is (ε, δ)-differentially private.
    Private {
        /// ε, rounded up.
        epsilon: String,
        /// δ.
        delta: String,
    },
    /// The run has no guarantee.
    NonPrivate {
        /// The reason.
        reason: String,
    },
}

/// A number with its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Figure {
    /// The quantity.
    pub name: String,
    /// The number, with its unit.
    pub value: String,
    /// Whether the guarantee covers it.
    pub marking: Marking,
}

/// A chart with its caption.
#[derive(Debug, Clone, PartialEq)]
pub struct Panel {
    /// The chart.
    pub chart: Chart,
    /// The caption.
    pub caption: String,
    /// Whether the guarantee covers it.
    pub marking: Marking,
}

/// Text that the model generated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    /// The prompt.
    pub prompt: String,
    /// The generated text.
    pub text: String,
    /// The reference text, if there is one.
    pub reference: Option<String>,
    /// Whether the guarantee covers it.
    pub marking: Marking,
}

/// A table of names and values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    /// What the values have in common.
    pub title: String,
    /// Names and values.
    pub rows: Vec<(String, String)>,
}

impl Page {
    /// The page as HTML text. The same page gives the same text.
    pub fn html(&self) -> String {
        let parts = [
            self.headline(),
            self.warnings(),
            self.words(),
            self.coverage(),
            self.figures(),
            self.charts(),
            self.samples(),
            self.settings(),
            self.configuration(),
        ];
        format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src \
             'unsafe-inline'; img-src data:\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n\
             <meta name=\"referrer\" content=\"no-referrer\">\n<link rel=\"icon\" \
             href=\"data:,\">\n\
             <title>{} · Muffle</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n{}</main>\n\
             <footer><p>Made by Muffle. This page loads no resources and \
             runs no scripts.</p></footer>\n</body>\n</html>\n",
            escape(&self.title),
            parts.concat()
        )
    }

    fn headline(&self) -> String {
        let title = escape(&self.title);
        match &self.headline {
            Headline::Private { epsilon, delta } => format!(
                "<header class=\"promise\">\n<p class=\"kind\">Privacy \
                 report</p>\n<h1>{title}</h1>\n\
                 <p class=\"big\"><span><i>ε</i> = {}</span> <span><i>δ</i> = {}</span></p>\n\
                 <p>This run is (<i>ε</i>, <i>δ</i>)-differentially private.</p>\n</header>\n",
                escape(epsilon),
                escape(delta)
            ),
            Headline::NonPrivate { reason } => format!(
                "<header class=\"alarm\">\n<p class=\"kind\">No privacy</p>\n<h1>{title}</h1>\n\
                 <p class=\"big\">Not private</p>\n<p>{}</p>\n\
                 <p><strong>The records of the training data are not protected. Do not publish the \
                 model or this page.</strong></p>\n</header>\n",
                escape(reason)
            ),
        }
    }

    fn warnings(&self) -> String {
        if self.warnings.is_empty() {
            return String::new();
        }
        let heading = if self.warnings.len() == 1 { "Warning" } else { "Warnings" };
        format!(
            "<section class=\"warnings\">\n<h2>{heading}</h2>\n{}</section>\n",
            list(&self.warnings)
        )
    }

    fn words(&self) -> String {
        let mut text: String =
            self.words.iter().map(|words| format!("<p>{}</p>\n", escape(words))).collect();
        let marked = self.figures.iter().map(|figure| figure.marking);
        let marked = marked
            .chain(self.charts.iter().map(|panel| panel.marking))
            .chain(self.samples.iter().map(|sample| sample.marking));
        if marked.into_iter().any(|marking| marking == Marking::NonPrivate) {
            let _ = writeln!(
                text,
                "<p class=\"note\">Figures marked {} were computed from records without protection, \
                 and no guarantee covers them. Remove them before you publish this page.</p>",
                badge(Marking::NonPrivate)
            );
        }
        if text.is_empty() {
            text
        } else {
            format!("<section class=\"words\">\n<h2>In plain words</h2>\n{text}</section>\n")
        }
    }

    fn coverage(&self) -> String {
        let column = |class: &str, title: &str, items: &[String]| match items {
            [] => String::new(),
            items => format!(
                "<section class=\"{class}\">\n<h2>{title}</h2>\n{}</section>\n",
                list(items)
            ),
        };
        let columns = column("covered", "Covered", &self.covered)
            + &column("uncovered", "Not covered", &self.not_covered);
        if columns.is_empty() {
            columns
        } else {
            format!("<div class=\"pair\">\n{columns}</div>\n")
        }
    }

    fn figures(&self) -> String {
        let figure = |Figure { name, value, marking }: &Figure| {
            format!(
                "<div class=\"card\"><dt>{}{}</dt><dd>{}</dd></div>\n",
                escape(name),
                badge(*marking),
                escape(value)
            )
        };
        titled("Figures", self.figures.iter().map(figure).collect(), "dl class=\"figures\"", "dl")
    }

    fn charts(&self) -> String {
        let panel = |Panel { chart, caption, marking }: &Panel| {
            let caption = match (caption.as_str(), marking) {
                ("", Marking::Public) => String::new(),
                (caption, marking) => {
                    format!("<figcaption>{}{}</figcaption>\n", badge(*marking), escape(caption))
                }
            };
            format!("<figure class=\"card\">\n{}{caption}</figure>\n", chart.svg())
        };
        titled("Charts", self.charts.iter().map(panel).collect(), "div class=\"plots\"", "div")
    }

    fn samples(&self) -> String {
        let sample = |(i, sample): (usize, &Sample)| {
            let line =
                |name: &str, text: &str| format!("<dt>{name}</dt><dd>{}</dd>\n", escape(text));
            let reference =
                sample.reference.as_deref().map_or(String::new(), |text| line("Reference", text));
            format!(
                "<article class=\"card\">\n<h3>Sample {}{}</h3>\n<dl>\n{}{}{reference}</dl>\n</article>\n",
                i + 1,
                badge(sample.marking),
                line("Prompt", &sample.prompt),
                line("Generated", &sample.text)
            )
        };
        titled(
            "Samples",
            self.samples.iter().enumerate().map(sample).collect(),
            "div class=\"samples\"",
            "div",
        )
    }

    fn settings(&self) -> String {
        let row = |(name, value): &(String, String)| {
            format!("<tr><th scope=\"row\">{}</th><td>{}</td></tr>\n", escape(name), escape(value))
        };
        let section = |Section { title, rows }: &Section| {
            let (title, rows) = (escape(title), rows.iter().map(row).collect::<String>());
            format!(
                "<section>\n<h3>{title}</h3>\n<div class=\"scroll\" role=\"region\" tabindex=\"0\" \
                 aria-label=\"{title}\">\
                 <table>\n<tbody>\n{rows}</tbody>\n</table></div>\n</section>\n"
            )
        };
        titled(
            "Settings",
            self.sections.iter().map(section).collect(),
            "div class=\"settings\"",
            "div",
        )
    }

    fn configuration(&self) -> String {
        if self.configuration.trim().is_empty() {
            return String::new();
        }
        format!(
            "<section>\n<h2>Configuration</h2>\n<details>\n<summary>RUN.toml</summary>\n\
             <pre tabindex=\"0\"><code>{}</code></pre>\n</details>\n</section>\n",
            escape(&self.configuration)
        )
    }
}

/// A section with a heading around `content`; nothing without content.
fn titled(title: &str, content: String, open: &str, close: &str) -> String {
    if content.is_empty() {
        content
    } else {
        format!("<section>\n<h2>{title}</h2>\n<{open}>\n{content}</{close}>\n</section>\n")
    }
}

fn list(items: &[String]) -> String {
    let items: String = items.iter().map(|item| format!("<li>{}</li>\n", escape(item))).collect();
    format!("<ul>\n{items}</ul>\n")
}

/// The badge of figures that no guarantee covers.
fn badge(marking: Marking) -> &'static str {
    match marking {
        Marking::Public => "",
        Marking::NonPrivate => " <strong class=\"badge\">NON-PRIVATE</strong> ",
    }
}

/// All text has a contrast of at least 4.5:1 with what it stands on, in both schemes.
const STYLE: &str = r#"
:root {
  color-scheme: light dark;
  --paper: #faf9f6; --card: #fff; --ink: #1b1f24; --soft: #565d67; --rule: #dfe1e5;
  --accent: #0b5d57; --good: #17663a; --bad: #9b1420; --badge: #fdeaea;
  --warn: #fff3d9; --warn-ink: #643f00; --warn-rule: #c98a12; --alarm: #a3121f;
  --plot-paper: var(--card); --plot-ink: var(--ink); --plot-soft: var(--soft); --plot-grid: var(--rule);
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --paper: #14171b; --card: #1b1f25; --ink: #e7e9ec; --soft: #a9b0ba; --rule: #343a43;
    --accent: #6fd3c4; --good: #7ad69b; --bad: #ffadad; --badge: #431a1d;
    --warn: #32260e; --warn-ink: #ffd591; --warn-rule: #b57f1c; --alarm: #a8202c;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body {
  margin: 0; background: var(--paper); color: var(--ink); overflow-wrap: anywhere;
  font: 1.0625rem/1.6 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
}
main, footer { max-width: 66rem; margin: 0 auto; padding: 0 1.5rem; }
main > * { margin: 0 0 3.5rem; }
h1, h2, h3, p, ul, dl, dd, figure, pre { margin: 0; }
h1 { font-size: 1.25rem; font-weight: 600; line-height: 1.35; }
h2 { font-size: 1.375rem; font-weight: 650; line-height: 1.3; letter-spacing: -.01em; margin-bottom: 1rem; text-wrap: balance; }
h3 { font-size: 1rem; font-weight: 650; line-height: 1.4; margin-bottom: .5rem; }
i { font-family: Georgia, "Times New Roman", serif; }
ul { padding-left: 1.5rem; }
li + li { margin-top: .5rem; }
.kind { font-size: .8125rem; font-weight: 650; letter-spacing: .09em; text-transform: uppercase; margin-bottom: .25rem; }
.big { font-size: clamp(2.5rem, 9vw, 4.5rem); font-weight: 650; line-height: 1.1; letter-spacing: -.025em; margin: 1.5rem 0 .75rem; }
.big span { display: inline-block; margin-right: .6em; font-variant-numeric: tabular-nums; }
.promise { padding: 3.5rem 0 2.5rem; border-bottom: 1px solid var(--rule); margin-bottom: 2.5rem; }
.promise .kind, .promise .big { color: var(--accent); }
.alarm {
  background: var(--alarm); color: #fff; padding: 2.5rem; border-radius: 0 0 .75rem .75rem; margin-bottom: 2.5rem;
  print-color-adjust: exact; -webkit-print-color-adjust: exact;
}
.alarm .big { text-transform: uppercase; letter-spacing: -.01em; }
.alarm .big::before { content: "⚠\FE0E\00A0" / ""; }
.alarm p + p { margin-top: .75rem; }
.warnings {
  background: var(--warn); color: var(--warn-ink); border-left: .375rem solid var(--warn-rule); border-radius: .375rem;
  padding: 1.25rem 1.5rem; margin-bottom: 2.5rem; print-color-adjust: exact; -webkit-print-color-adjust: exact;
}
.warnings h2 { font-size: 1.0625rem; margin-bottom: .375rem; }
.warnings ul { max-width: 68ch; padding-left: 1.25rem; }
.words p { max-width: 68ch; }
.words p + p { margin-top: 1rem; }
.note { color: var(--soft); }
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: 2rem 3rem; }
.pair > section { border-top: .1875rem solid; padding-top: 1rem; min-width: 0; }
.pair h2, .pair li { color: var(--ink); }
.covered, .covered li::marker { border-color: var(--good); color: var(--good); }
.uncovered, .uncovered li::marker { border-color: var(--bad); color: var(--bad); }
.covered ul { list-style-type: "✓\00A0\00A0"; }
.uncovered ul { list-style-type: "✗\00A0\00A0"; }
.card { background: var(--card); border: 1px solid var(--rule); border-radius: .625rem; min-width: 0; }
.badge {
  display: inline-block; font-size: .6875rem; font-weight: 700; line-height: 1.2; letter-spacing: .06em; white-space: nowrap;
  color: var(--bad); background: var(--badge); border: 1px solid; border-radius: .25rem; padding: .125rem .375rem;
  vertical-align: .1em; print-color-adjust: exact; -webkit-print-color-adjust: exact;
}
.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 14.5rem), 1fr)); gap: 1rem; }
.figures > div { display: flex; flex-direction: column; justify-content: space-between; padding: 1rem 1.25rem; }
.figures dt { color: var(--soft); font-size: .9375rem; line-height: 1.4; }
.figures dd {
  font-size: 1.625rem; font-weight: 600; line-height: 1.25; letter-spacing: -.015em;
  font-variant-numeric: tabular-nums; margin-top: .375rem;
}
.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 26rem), 1fr)); gap: 1.5rem; }
.plots > figure { padding: .5rem .75rem 1rem; }
.plots svg { display: block; width: 100%; height: auto; }
figcaption { color: var(--soft); font-size: .9375rem; line-height: 1.5; padding: .5rem .75rem 0; }
.samples { display: grid; gap: 1rem; }
.samples > article { padding: 1.25rem 1.5rem; }
.samples dt { color: var(--soft); font-size: .875rem; margin-top: .75rem; }
.samples dd { white-space: pre-wrap; max-width: 80ch; }
.settings { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 26rem), 1fr)); gap: 2rem 3rem; }
.settings > section { min-width: 0; }
.scroll { overflow-x: auto; }
table { width: 100%; border-collapse: collapse; font-size: .9375rem; line-height: 1.45; }
th, td { text-align: left; vertical-align: top; padding: .5rem 0; border-top: 1px solid var(--rule); }
th { font-weight: 400; color: var(--soft); padding-right: 1.25rem; width: 40%; min-width: 7rem; overflow-wrap: break-word; }
td { font-variant-numeric: tabular-nums; min-width: 7rem; }
summary { cursor: pointer; font-weight: 600; padding: .75rem 0; }
pre {
  background: var(--card); border: 1px solid var(--rule); border-radius: .625rem; padding: 1rem 1.25rem;
  overflow-x: auto; overflow-wrap: normal;
  font: .875rem/1.55 ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; tab-size: 4;
}
code { font: inherit; }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
footer { color: var(--soft); font-size: .875rem; padding-top: 1.25rem; padding-bottom: 2.5rem; }
@media (max-width: 40rem) {
  body { font-size: 1rem; }
  main, footer { padding-left: 1rem; padding-right: 1rem; }
  main > * { margin-bottom: 2.5rem; }
  .promise { padding: 2rem 0 1.75rem; }
  .alarm { margin-left: -1rem; margin-right: -1rem; padding: 2rem 1rem; border-radius: 0; }
  .warnings { padding: 1rem; }
  .pair { grid-template-columns: 1fr; }
  .figures { grid-template-columns: 1fr 1fr; gap: .75rem; }
  .figures > div { padding: .75rem .875rem; }
  .figures dd { font-size: 1.25rem; }
  .plots > figure { padding: .25rem .25rem .875rem; }
  figcaption { padding-left: .5rem; padding-right: .5rem; }
  .samples > article { padding: 1rem; }
}
@media print {
  body { font-size: 10.5pt; background: none; }
  main, footer { max-width: none; padding: 0; }
  main > * { margin-bottom: 1.75rem; }
  .promise { padding-top: 0; }
  .figures { grid-template-columns: repeat(3, 1fr); }
  .plots, .settings { grid-template-columns: 1fr 1fr; }
  .plots svg { font-size: 16px; }
  .card, tr, li { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
  pre { white-space: pre-wrap; overflow-wrap: anywhere; }
  details::details-content { content-visibility: visible; display: block; block-size: auto; }
}
"#;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chart::tests::{chart, well_formed};

    const EVIL: &str = "<script>alert(\"x\")</script>&'";

    fn empty() -> Page {
        Page {
            title: "run".into(),
            headline: Headline::Private { epsilon: "8".into(), delta: "2e-6".into() },
            words: vec![],
            covered: vec![],
            not_covered: vec![],
            warnings: vec![],
            figures: vec![],
            charts: vec![],
            samples: vec![],
            sections: vec![],
            configuration: String::new(),
        }
    }

    fn full(text: &str, marking: Marking) -> Page {
        let text = || text.to_owned();
        Page {
            title: text(),
            headline: Headline::Private { epsilon: text(), delta: text() },
            words: vec![text()],
            covered: vec![text()],
            not_covered: vec![text()],
            warnings: vec![text()],
            figures: vec![Figure { name: text(), value: text(), marking }],
            charts: vec![Panel { chart: chart(vec![]), caption: text(), marking }],
            samples: vec![Sample {
                prompt: text(),
                text: text(),
                reference: Some(text()),
                marking,
            }],
            sections: vec![Section { title: text(), rows: vec![(text(), text())] }],
            configuration: text(),
        }
    }

    #[test]
    fn every_text_is_shown_and_escaped() {
        let html = full(EVIL, Marking::NonPrivate).html();
        assert!(!html.contains("<script"), "{html}");
        // 17 texts; the run's title stands also in the window, a section's also as its label.
        assert_eq!(
            html.matches("&lt;script&gt;alert(&quot;x&quot;)&lt;/script&gt;&amp;&#39;").count(),
            19
        );
        assert_eq!(well_formed(&html), Ok(()));
        let page = Page {
            headline: Headline::NonPrivate { reason: EVIL.into() },
            ..full(EVIL, Marking::Public)
        };
        assert_eq!(page.html().matches("&lt;script&gt;").count(), 18);
        assert_eq!(well_formed(&page.html()), Ok(()));
    }

    #[test]
    fn what_no_guarantee_covers_carries_a_badge() {
        assert_eq!(full("x", Marking::Public).html().matches("NON-PRIVATE").count(), 0);
        // A figure, a chart, a sample, and the note that explains the badge.
        assert_eq!(full("x", Marking::NonPrivate).html().matches(">NON-PRIVATE<").count(), 4);
        let mut page = full("x", Marking::Public);
        page.charts[0] = Panel {
            caption: String::new(),
            marking: Marking::NonPrivate,
            ..page.charts[0].clone()
        };
        let html = page.html();
        assert_eq!(html.matches(">NON-PRIVATE<").count(), 2);
        assert!(html.contains("<figcaption> <strong class=\"badge\">NON-PRIVATE"), "{html}");
    }

    #[test]
    fn the_headline_promises_or_warns() {
        let html = empty().html();
        assert!(
            html.contains("<i>ε</i> = 8<")
                && html.contains("<i>δ</i> = 2e-6<")
                && !html.contains("Not private"),
            "{html}"
        );
        let html =
            Page { headline: Headline::NonPrivate { reason: "no noise".into() }, ..empty() }.html();
        assert!(
            html.contains("class=\"alarm\"")
                && html.contains(">Not private<")
                && html.contains(">no noise<"),
            "{html}"
        );
        assert!(
            !html.contains("differentially private") && !html.contains("class=\"promise\""),
            "{html}"
        );
    }

    #[test]
    fn what_is_empty_is_left_out() {
        let html = empty().html();
        assert_eq!(well_formed(&html), Ok(()));
        for gone in ["<h2>", "<section", "<ul>", "<dl", "<figure", "<table", "<details"] {
            assert!(!html.contains(gone), "{gone}");
            assert!(full("x", Marking::Public).html().contains(gone), "{gone}");
        }
        let half = Page { not_covered: vec!["x".into()], ..empty() }.html();
        assert!(half.contains(">Not covered<") && !half.contains(">Covered<"), "{half}");
    }

    #[test]
    fn the_page_loads_and_runs_nothing() {
        let html = full("x", Marking::NonPrivate).html();
        assert!(
            html.contains(
                "content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\""
            )
        );
        // The namespace of SVG is a name, not an address.
        let html = html.replace("xmlns=\"http://www.w3.org/2000/svg\"", "");
        for reach in ["http:", "https:", "//", "@import", "url(", "src=", "<script", " onload"] {
            assert!(!html.contains(reach), "{reach}");
        }
    }
}
