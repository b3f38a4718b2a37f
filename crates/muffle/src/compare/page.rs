//! The tables of a comparison as Markdown and as a page.

use super::ComparisonResult;
use super::table::{Table, Tables};
use crate::chart::escape;
use crate::report::Marking;
use crate::report::digits::{up, up_e};
use crate::report::page::document;

impl ComparisonResult {
    /// The tables as Markdown, with the best of each column in bold.
    pub fn markdown(&self) -> String {
        let Tables { introduction, means, choice, cost, single_runs } = self.tables();
        let choice = choice.map_or(String::new(), |choice| format!("\n{choice}\n"));
        format!(
            "{introduction}\n\n{}{choice}\n{cost}\n\nSingle runs:\n\n{}",
            markdown(&means),
            markdown(&single_runs)
        )
    }

    /// One self-contained HTML page: curves, tables and the joint cost.
    pub fn html(&self) -> String {
        let Tables { introduction, means, choice, cost, single_runs } = self.tables();
        let (kind, headline) = match self.joint {
            Some(joint) if self.without_guarantee().is_empty() => (
                "promise",
                format!(
                    "<p class=\"big\"><span><i>ε</i> = {}</span> <span><i>δ</i> = {}</span></p>\n\
                     <p>The joint cost of all runs.</p>\n",
                    up(joint.epsilon, 2),
                    up_e(joint.delta)
                ),
            ),
            _ => (
                "alarm",
                "<p class=\"big\">Not private</p>\n<p>Not all runs have a joint \
                    guarantee.</p>\n"
                    .into(),
            ),
        };
        let bands = match self.runs.len() > self.tables().means.rows.len() {
            true => "Means over the seeds; the bands are one standard deviation.",
            false => "One run each.",
        };
        let choice_shown = if choice.is_some() { " Only the best settings are shown." } else { "" };
        let warning = match self.marking {
            Marking::Public => String::new(),
            Marking::NonPrivate => {
                "<section class=\"warnings\">\n<h2>Warning</h2>\n<p>All figures \
                on this page are <strong class=\"badge\">NON-PRIVATE</strong>: they were computed \
                from records without protection.</p>\n</section>\n"
                    .into()
            }
        };
        let choice = choice
            .map_or(String::new(), |choice| format!("<p class=\"note\">{}</p>\n", escape(&choice)));
        let body = format!(
            "<header class=\"{kind}\">\n<p class=\"kind\">Comparison</p>\n\
             <h1>{} runs</h1>\n{headline}<p>{}</p>\n</header>\n{warning}\
             <section>\n<h2>Figures</h2>\n<p class=\"note\">{}</p>\n{}{choice}</section>\n\
             <section>\n<h2>Curves</h2>\n<figure class=\"card\">\n{}<figcaption>{bands}{choice_shown}\
             </figcaption>\n</figure>\n</section>\n\
             <section>\n<h2>Single runs</h2>\n{}</section>\n",
            self.runs.len(),
            escape(&cost),
            escape(&introduction),
            html(&means, "Figures"),
            self.chart().svg(),
            html(&single_runs, "Single runs"),
        );
        document("Comparison", "", &body)
    }
}

fn markdown(Table { header, rows }: &Table) -> String {
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let rule = format!("|{}\n", "---|".repeat(header.len()));
    let rows = rows.iter().map(|row| {
        let cell = |cell: &super::table::Cell| match cell.best {
            true => format!("**{}**", cell.text),
            false => cell.text.clone(),
        };
        line(row.iter().map(cell).collect())
    });
    line(header.clone()) + &rule + &rows.collect::<String>()
}

fn html(Table { header, rows }: &Table, name: &str) -> String {
    let head: String =
        header.iter().map(|title| format!("<th scope=\"col\">{}</th>", escape(title))).collect();
    let row = |row: &Vec<super::table::Cell>| {
        let cell = |(index, cell): (usize, &super::table::Cell)| {
            let text = escape(&cell.text);
            match (index, cell.best) {
                (0, _) => format!("<th scope=\"row\">{text}</th>"),
                (_, true) => format!("<td><strong>{text}</strong></td>"),
                (_, false) => format!("<td>{text}</td>"),
            }
        };
        format!("<tr>{}</tr>\n", row.iter().enumerate().map(cell).collect::<String>())
    };
    format!(
        "<div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-label=\"{name}\"><table>\n\
         <thead><tr>{head}</tr></thead>\n<tbody>\n{}</tbody>\n</table></div>\n",
        rows.iter().map(row).collect::<String>()
    )
}
