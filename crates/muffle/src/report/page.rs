//! The report of a run as one self-contained HTML page without scripts.
//!
//! The page is rendered from typed data. Figures that no guarantee covers have a badge.

use crate::chart::{Chart, escape};
use crate::report::{Marking, Redaction};
use std::fmt::Write;

/// The content of a report.
#[derive(Debug, Clone, PartialEq)]
pub struct Page {
    /// The title, such as "dp-muon-bc on e2e_train.txt".
    pub title: String,
    /// The guarantee, or that there is none.
    pub headline: Headline,
    /// The privacy statement in plain words, by paragraphs.
    pub words: Vec<String>,
    /// What the guarantee covers.
    pub covered: Vec<String>,
    /// What it does not cover.
    pub not_covered: Vec<String>,
    /// What identifies the run.
    pub about: Section,
    /// Facts that weaken or void the guarantee.
    pub warnings: Vec<String>,
    /// Figures.
    pub figures: Vec<Figure>,
    /// Charts.
    pub charts: Vec<Panel>,
    /// Text that the model generated.
    pub samples: Vec<Sample>,
    /// Settings: noise and clip, model, data, environment.
    pub sections: Vec<Section>,
    /// The run's configuration file.
    pub configuration: String,
    /// The parts that were removed.
    pub hidden: Redaction,
}

/// The headline of the page.
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
    /// The title.
    pub title: String,
    /// Names and values.
    pub rows: Vec<(String, String)>,
}

impl Page {
    /// Renders the page as HTML. The result is deterministic.
    pub fn html(&self) -> String {
        let parts = [
            self.headline(),
            self.warnings(),
            self.words(),
            self.coverage(),
            self.about(),
            self.figures(),
            self.charts(),
            self.samples(),
            self.settings(),
            self.configuration(),
        ];
        document(&self.title, &self.hidden.tag(), &parts.concat())
    }

    fn about(&self) -> String {
        if self.about.rows.is_empty() {
            return String::new();
        }
        let note = match self.hidden.to_string() {
            parts if parts.is_empty() => String::new(),
            parts => {
                format!("<p class=\"note\">The owner has hidden parts of this page: {parts}.</p>\n")
            }
        };
        format!(
            "<section>\n<h2>{}</h2>\n{note}{}</section>\n",
            escape(&self.about.title),
            table(&self.about)
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
                "<p class=\"note\">Figures marked {} were computed from records without \
                 protection, and no guarantee covers them. Do not publish them: muffle report --redact \
                 non-private writes this page without them.</p>",
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
        section_with_heading(
            "Figures",
            self.figures.iter().map(figure).collect(),
            "dl class=\"figures\"",
            "dl",
        )
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
        section_with_heading(
            "Charts",
            self.charts.iter().map(panel).collect(),
            "div class=\"plots\"",
            "div",
        )
    }

    fn samples(&self) -> String {
        let sample = |(i, sample): (usize, &Sample)| {
            let line =
                |name: &str, text: &str| format!("<dt>{name}</dt><dd>{}</dd>\n", escape(text));
            let reference =
                sample.reference.as_deref().map_or(String::new(), |text| line("Reference", text));
            format!(
                "<article class=\"card\">\n<h3>Sample {}{}</h3>\n\
                 <dl>\n{}{}{reference}</dl>\n</article>\n",
                i + 1,
                badge(sample.marking),
                line("Prompt", &sample.prompt),
                line("Generated", &sample.text)
            )
        };
        section_with_heading(
            "Samples",
            self.samples.iter().enumerate().map(sample).collect(),
            "div class=\"samples\"",
            "div",
        )
    }

    fn settings(&self) -> String {
        let section = |section: &Section| {
            format!(
                "<section>\n<h3>{}</h3>\n{}</section>\n",
                escape(&section.title),
                table(section)
            )
        };
        section_with_heading(
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

/// A whole HTML document with the style of reports. `tags` is added to its head.
pub(crate) fn document(title: &str, tags: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src \
         'unsafe-inline'; img-src data:\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <meta name=\"referrer\" content=\"no-referrer\">\n{tags}<link rel=\"icon\" \
         href=\"data:,\">\n\
         <title>{} · Muffle</title>\n<style>{STYLE}</style>\n</head>\n\
         <body>\n<main>\n{body}</main>\n\
         <footer><p>Made by Muffle. This page loads no resources and runs no scripts.</p></footer>\n\
         </body>\n</html>\n",
        escape(title),
    )
}

/// The rows of a section as a table.
fn table(Section { title, rows }: &Section) -> String {
    let row = |(name, value): &(String, String)| {
        format!("<tr><th scope=\"row\">{}</th><td>{}</td></tr>\n", escape(name), escape(value))
    };
    format!(
        "<div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-label=\"{}\"><table>\n\
         <tbody>\n{}</tbody>\n</table></div>\n",
        escape(title),
        rows.iter().map(row).collect::<String>()
    )
}

/// A section with a heading; empty if the content is.
fn section_with_heading(title: &str, content: String, open: &str, close: &str) -> String {
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

/// The style sheet. All text has a contrast of at least 4.5:1 in the light and the dark scheme.
const STYLE: &str = include_str!("page.css");

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
            about: Section { title: "About".into(), rows: vec![] },
            hidden: Redaction::default(),
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
            about: Section { title: text(), rows: vec![(text(), text())] },
            hidden: Redaction::default(),
        }
    }

    #[test]
    fn every_text_is_shown_and_escaped() {
        let html = full(EVIL, Marking::NonPrivate).html();
        assert!(!html.contains("<script"), "{html}");
        // 20 texts; the titles of the page and of the two sections occur twice.
        assert_eq!(
            html.matches("&lt;script&gt;alert(&quot;x&quot;)&lt;/script&gt;&amp;&#39;").count(),
            23
        );
        assert_eq!(well_formed(&html), Ok(()));
        let page = Page {
            headline: Headline::NonPrivate { reason: EVIL.into() },
            ..full(EVIL, Marking::Public)
        };
        assert_eq!(page.html().matches("&lt;script&gt;").count(), 22);
        assert_eq!(well_formed(&page.html()), Ok(()));
    }

    #[test]
    fn figures_outside_the_guarantee_have_a_badge() {
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
    fn empty_parts_are_omitted() {
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
